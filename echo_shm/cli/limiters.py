"""The rate limiters of a replay's tables, as ``ls`` and ``top`` show them."""

import math

from echo_shm.cli import console
from echo_shm.replay import LimiterInfo

#: The columns of :func:`cells`.
COLUMNS = ("min_size", "ratio", "diff", "between", "allows")

#: What the columns mean, for ``--help``.
HELP = """\
  diff       inserted * ratio - sampled
  between    what the limiter keeps diff within
  allows     what the limiter allows now
"""


def cells(limiter: LimiterInfo) -> list[str]:
    """Where a limiter stands between its bounds, and what it allows."""
    return [
        console.amount(limiter.min_size),
        f"{limiter.ratio:g}",
        console.amount(limiter.diff),
        band(limiter.min_diff, limiter.max_diff),
        console.allowed(limiter),
    ]


def band(low: float, high: float) -> str:
    """What a limiter keeps ``inserted * ratio - sampled`` between: ``"70 k..90 k"``."""
    if math.isinf(low) and math.isinf(high):
        return "any"
    return f"{console.amount(low)}..{console.amount(high)}"
