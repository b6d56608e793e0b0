"""What a replay's server has said of the samples that it took out of its ring: they are stored."""

import threading
import time
from collections.abc import Callable

from echo_shm.errors import ConnectionClosedError, WireError


class Taken:
    """All samples below a number are stored.

    Args:
        peer: The server's address, for messages.
        changed: Held by all who call :meth:`note` and :meth:`leave_ring`, and notified after that.

    """

    def __init__(self, peer: str, changed: threading.Condition) -> None:
        self._peer = peer
        self._changed = changed
        self._number = 0
        self._left_behind = 0  # samples that were in the ring of an earlier replay, and perhaps never stored

    def note(self, number: int, acknowledged: int) -> None:
        """Notes what the server has said.

        Raises:
            WireError: It says more than it has acknowledged.

        """
        if number > acknowledged:
            raise WireError(f"said that {number} were taken, and acknowledged {acknowledged}")
        self._number = max(self._number, number)

    def leave_ring(self, acknowledged: int) -> None:
        """From now on another replay's ring is served, which knows nothing of what the one before it had."""
        self._left_behind += acknowledged - self._number
        self._number = acknowledged

    def wait(self, target: int, timeout: float | None, ended: Callable[[], bool]) -> bool:
        """Waits until all samples below the target are stored. Returns False if all has ended.

        Raises:
            TimeoutError: They were not, in time (seconds); None: no limit.
            ConnectionClosedError: Another replay is there, and the one before it may not have stored them. This is said
                once.

        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._number < target and not self._left_behind and not ended():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    missing = target - self._number
                    raise TimeoutError(
                        f"{self._peer} has {missing} steps in its inbox, and has not stored them in time"
                    )
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            missing, self._left_behind = self._left_behind, 0
            if missing:
                raise ConnectionClosedError(
                    f"{self._peer} has another replay now: the one before it may not have stored the last {missing} "
                    "steps that were in its inbox"
                )
            return self._number >= target
