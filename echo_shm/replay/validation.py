"""Validation of what describes a table. An error says what was got and what to use."""

import math
import numbers


def integer(label: str, value: object, least: int) -> int:
    """An integer, at least ``least``, that fits in 63 bits.

    Raises:
        ValueError: ``value`` is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value):
        raise ValueError(f"{label}={value!r}: use an integer, {least} or more")
    if int(value) >= 2**63:
        raise ValueError(f"{label}={value!r}: use an integer below 2**63")
    return int(value)


def number(label: str, value: object) -> float:
    """A number; may be infinite.

    Raises:
        ValueError: ``value`` is anything else.

    """
    try:
        checked = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except OverflowError:
        raise ValueError(f"{label} does not fit into a float64: use a smaller number") from None
    if math.isnan(checked):
        raise ValueError(f"{label}={value!r}: use a number")
    return checked


def at_least_zero(label: str, value: object) -> float:
    """A finite number, 0 or more.

    Raises:
        ValueError: ``value`` is anything else.

    """
    checked = number(label, value)
    if not 0 <= checked < math.inf:
        raise ValueError(f"{label}={value!r}: use a finite number, 0 or more")
    return checked


def above_zero(label: str, value: object) -> float:
    """A finite number above 0.

    Raises:
        ValueError: ``value`` is anything else.

    """
    checked = number(label, value)
    if not 0 < checked < math.inf:
        raise ValueError(f"{label}={value!r}: use a finite number above 0")
    return checked


def flag(label: str, value: object) -> bool:
    """True or False.

    Raises:
        ValueError: ``value`` is anything else.

    """
    if not isinstance(value, bool):
        raise ValueError(f"{label}={value!r}: use True or False")
    return value
