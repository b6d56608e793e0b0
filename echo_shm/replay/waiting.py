"""How one thread of a process waits until another one changes a replay."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from echo_shm._replay import Core
from echo_shm.ring.stuck import only_thread

_T = TypeVar("_T")

#: Time between two looks whether another thread still runs (seconds).
_SLICE = 0.1


class Changes:
    """Tells threads that wait when something has changed that they may wait for.

    A call that changes the replay looks at ``core.waiting`` afterwards. A thread that waits counts itself there
    before its last look. So one of the two sees the other, and no wake-up is lost.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changed = threading.Condition()

    def tell(self) -> None:
        """Wakes the threads that wait, so that they look again."""
        with self._changed:
            self._changed.notify_all()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """The calling thread waits for changes by other means than :meth:`wait`."""
        with self._changed:
            self._core.waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._core.waiting -= 1

    def wait(self, attempt: Callable[[], _T | None], timeout: float | None, why: Callable[[], str]) -> _T:
        """Repeats ``attempt`` after each change, until it returns something.

        Args:
            attempt: Returns None if it must wait.
            timeout: Seconds; None: no limit.
            why: Says what it waits for.

        Raises:
            TimeoutError: The time is over, or no other thread runs.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._core.waiting += 1
            try:
                while (got := attempt()) is None:
                    left = _SLICE if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{why()}. It stayed so for {timeout} s")
                    if only_thread():
                        raise TimeoutError(f"{why()}. No other thread runs that could change it")
                    self._changed.wait(min(left, _SLICE))
            finally:
                self._core.waiting -= 1
            if self._core.waiting:
                self._changed.notify_all()
            return got
