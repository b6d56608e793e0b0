"""When a table may be sampled, and when it may be inserted into.

A rate limiter is four numbers. With ``I``, ``S`` and ``D`` items inserted, sampled and deleted so far:

- one item may be sampled if ``I - D >= min_size`` and ``I * ratio - S - 1 >= min_diff``;
- one item may be inserted if ``I + 1 - D <= min_size`` or ``(I + 1) * ratio - S <= max_diff``.

The formulas and the names of the limiters are Reverb's (Cassirer et al., "Reverb: A Framework for Experience Replay",
2021).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from echo_shm.replay.validation import above_zero, integer, number


@dataclass(frozen=True)
class RateLimiter:
    """A rate limiter by its four numbers. ``MinSize`` and ``SampleToInsertRatio`` say the common ones in a better way.

    Args:
        min_size: How many items the table must hold to be sampled: 1 or more.
        ratio: How many samples belong to an inserted item: above 0.
        min_diff: The least that ``I * ratio - S`` may become by sampling; may be ``-inf``.
        max_diff: The most that ``I * ratio - S`` may become by inserting; may be ``inf``.

    Raises:
        ValueError: A number is out of range, ``ratio * min_size`` is not between ``min_diff`` and ``max_diff``, or
            the two are so close that the table would come to allow neither an insertion nor a sample.

    """

    min_size: int
    ratio: float
    min_diff: float
    max_diff: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))
        object.__setattr__(self, "ratio", above_zero("ratio", self.ratio))
        object.__setattr__(self, "min_diff", number("min_diff", self.min_diff))
        object.__setattr__(self, "max_diff", number("max_diff", self.max_diff))
        middle = self.ratio * self.min_size
        if not math.isfinite(middle):
            raise ValueError(f"ratio={self.ratio!r}, min_size={self.min_size!r}: their product overflows")
        if not self.min_diff <= middle <= self.max_diff:
            raise ValueError(
                f"min_diff={self.min_diff!r}, max_diff={self.max_diff!r}: use a range that contains "
                f"ratio * min_size = {middle!r}; otherwise the table blocks as soon as it holds min_size items"
            )
        _check_width(self.ratio, self.min_diff, self.max_diff)


def new_limits(ratio: float, min_diff: object, max_diff: object) -> tuple[float, float]:
    """The limits that a limiter of that ratio gets while its table is used.

    Raises:
        ValueError: One is no number, or forbids sampling or inserting for ever, or they are too close to each other.

    """
    low, high = number("min_diff", min_diff), number("max_diff", max_diff)
    if low == math.inf or high == -math.inf:
        raise ValueError(
            f"min_diff={low!r}, max_diff={high!r}: use a min_diff below inf and a max_diff above -inf; otherwise "
            "nobody can ever sample, or nobody can ever insert"
        )
    _check_width(ratio, low, high)
    return low, high


def _check_width(ratio: float, min_diff: float, max_diff: float) -> None:
    """Raises ValueError if neither is allowed at some ``I * ratio - S``."""
    low, high = max_diff - ratio, min_diff + 1  # what is above low forbids insertions, what is below high samples
    # With a whole ratio only whole numbers come, perhaps none between the two. Queue(1) is such a limiter.
    if low < high and (not ratio.is_integer() or math.floor(low) + 1 < high):
        raise ValueError(
            f"min_diff={min_diff!r}, max_diff={max_diff!r}: use a range of {1 + ratio!r} or more (1 + ratio); "
            "otherwise the table comes to allow neither an insertion nor a sample"
        )


class MinSize(RateLimiter):
    """The table may be sampled as long as it holds ``min_size`` items, and always inserted into.

    Args:
        min_size: 1 or more.

    Raises:
        ValueError: It is not.

    """

    def __init__(self, min_size: int) -> None:
        super().__init__(min_size, 1.0, -math.inf, math.inf)

    def __repr__(self) -> str:
        return f"MinSize({self.min_size})"


class SampleToInsertRatio(RateLimiter):
    """Samples and insertions keep a ratio, once the table holds ``min_size`` items.

    Before that the table may be inserted into and not sampled. After it whoever is too far ahead waits: samplers while
    ``I * ratio - S`` would fall below the error buffer, and writers while it would rise above it.

    Args:
        ratio: How many samples belong to an inserted item: above 0.
        min_size: How many items the table must hold to be sampled: 1 or more.
        error_buffer: A number: how far ``I * ratio - S`` may be from ``ratio * min_size``; at least
            ``max(1, ratio)``. Or a pair: the least and the most that it may be, ``ratio * min_size`` between them,
            and at least ``2 * max(1, ratio)`` apart. The larger it is, the more rarely anybody waits.

    Raises:
        ValueError: A number is out of range. With such an error buffer the table could block for ever.

    """

    def __init__(self, ratio: float, min_size: int, error_buffer: float | Sequence[float]) -> None:
        ratio, min_size = above_zero("ratio", ratio), integer("min_size", min_size, 1)
        middle, least = ratio * min_size, max(1.0, ratio)
        if isinstance(error_buffer, Sequence) and not isinstance(error_buffer, str | bytes):
            if len(error_buffer) != 2:
                raise ValueError(f"error_buffer={error_buffer!r}: use a number, or a pair of them")
            low, high = (number("error_buffer", bound) for bound in error_buffer)
            if high - low < 2 * least:
                raise ValueError(
                    f"error_buffer={error_buffer!r}: use a pair at least {2 * least!r} apart (2 * max(1, ratio)); "
                    "otherwise the table can block for ever"
                )
            if not low <= middle <= high:
                raise ValueError(
                    f"error_buffer={error_buffer!r}: use a pair around ratio * min_size = {middle!r}; otherwise the "
                    "table blocks as soon as it holds min_size items"
                )
        else:
            width = number("error_buffer", error_buffer)
            if width < least:
                raise ValueError(
                    f"error_buffer={error_buffer!r}: use {least!r} or more (max(1, ratio)); otherwise the table can "
                    "block for ever"
                )
            low, high = middle - width, middle + width
        super().__init__(min_size, ratio, low, high)

    def __repr__(self) -> str:
        return f"SampleToInsertRatio({self.ratio!r}, {self.min_size}, ({self.min_diff!r}, {self.max_diff!r}))"


class _Once(RateLimiter):
    """At most ``size`` items wait to be sampled."""

    def __init__(self, size: int) -> None:
        super().__init__(1, 1.0, 0.0, float(integer("size", size, 1)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self.max_diff)})"


class Queue(_Once):
    """At most ``size`` items wait to be sampled. Its table samples each once, and samples and removes by ``Fifo``.

    Args:
        size: 1 or more.

    Raises:
        ValueError: It is not.

    """


class Stack(_Once):
    """At most ``size`` items wait to be sampled. Its table samples each once, and samples and removes by ``Lifo``.

    Args:
        size: 1 or more.

    Raises:
        ValueError: It is not.

    """
