"""How a client connects to its server again: it tries until it succeeds, its time is over, or it is to end."""

import threading
from collections.abc import Callable
from typing import TypeVar

from echo_shm.errors import ConnectionClosedError, EchoShmError, SpecMismatchError, WireError
from echo_shm.net.client.backoff import Backoff
from echo_shm.net.client.connection import Connection, RefusedError

#: The longest that one try to connect may take (seconds). Finding the host's address may take longer.
_LONGEST_TRY = 5.0

_Made = TypeVar("_Made", bound=Connection)


class Reconnector:
    """Tries to connect again.

    Args:
        grace: As for :class:`Backoff`.
        changed: It is notified after ``stopped`` has become true.
        stopped: Whether no further try is to begin.

    Attributes:
        backoff: How often it tries, and for how long.
        trying: Whether it is in a try, which cannot be interrupted. It is not set any more after that notice.

    """

    def __init__(self, grace: float, changed: threading.Condition, stopped: Callable[[], bool]) -> None:
        self.backoff = Backoff(grace)
        self.trying = False
        self._changed = changed
        self._stopped = stopped

    def connect(self, make: Callable[[float], _Made], why: BaseException | None) -> _Made:
        """A new connection.

        Args:
            make: Tries to make it, within so many seconds.
            why: What ended the last one.

        Raises:
            ConnectionClosedError: Its time is over, or it was stopped.
            SpecMismatchError, WireError, RefusedError: Further tries are of no use.

        """
        while True:
            with self._changed:
                self._changed.wait_for(self._stopped, self.backoff.next_delay())
                left, stopped = self.backoff.time_left(), self._stopped()
                self.trying = left > 0 and not stopped
            if not self.trying:
                ending = "closed meanwhile" if stopped else f"not made again within {self.backoff.grace} s"
                raise ConnectionClosedError(f"connection lost, and {ending}: {why}") from why
            try:
                return make(min(max(left, 0.1), _LONGEST_TRY))
            except (SpecMismatchError, WireError, RefusedError):
                raise
            except (OSError, EchoShmError) as error:
                why = error
            finally:
                self.trying = False
