"""Timeouts that callers give."""

import math
import numbers

#: The types of most timeouts. Calls that take a hundred nanoseconds look at the type, and call for the others only.
PLAIN = frozenset({float, int})


def check_timeout(timeout: object, otherwise: str = "None for no limit", *, label: str = "timeout") -> float | None:
    """A timeout in seconds, 0 or more; None stays None. Infinity is possible.

    Args:
        timeout: What the caller gave.
        otherwise: What else the caller may give, for the message.
        label: The argument's name.

    Raises:
        ValueError: It is anything else.

    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or math.isnan(timeout) or timeout < 0:
        raise ValueError(f"{label}={timeout!r}: use seconds, 0 or more, or {otherwise}")
    return float(timeout)
