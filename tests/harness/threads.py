"""Threads of a test."""

import threading
from collections.abc import Callable
from typing import Any

from harness.waiting import LONG


class Background:
    """A function in a thread; ``result()`` waits for it and returns its value or raises its exception."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._error: BaseException | None = None
        self._value: Any = None

        def run() -> None:
            try:
                self._value = function(*args)
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def runs(self) -> bool:
        """Whether the function has not ended yet."""
        return self.thread.is_alive()

    def result(self, seconds: float = LONG) -> Any:
        """The function's value, or its exception."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the thread still runs"
        if self._error is not None:
            raise self._error
        return self._value
