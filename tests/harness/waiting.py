"""Waiting for conditions. Nothing in the tests waits without a deadline."""

import time
from collections.abc import Callable
from typing import Any

#: Far more than anything here takes (seconds). A wait that gets there has failed.
LONG = 30.0


def poll(condition: Callable[[], Any], seconds: float, pause: float = 0.001) -> Any:
    """Calls the condition until its value is true or the time is over; returns the last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return value


def until(condition: Callable[[], Any], what: str = "the condition holds", seconds: float = LONG) -> Any:
    """Calls the condition until its value is true, and returns the value; fails when the time is over."""
    value = poll(condition, seconds)
    assert value, f"not within {seconds} s: {what}"
    return value


class Until:
    """What ``dataset_iter(until=...)`` takes: it is finished when the condition holds.

    Args:
        condition: Called whenever the iterator looks.
        check: Raises if something has failed.

    """

    def __init__(self, condition: Callable[[], Any], check: Callable[[], Any] = lambda: None) -> None:
        self.condition, self.check = condition, check

    @property
    def finished(self) -> bool:
        """Whether the condition holds."""
        return bool(self.condition())
