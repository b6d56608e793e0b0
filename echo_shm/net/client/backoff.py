"""How often, and for how long, a client tries to connect to its server again."""

import time

#: The delay between two tries (seconds).
_FIRST_DELAY, _LONGEST_DELAY = 0.02, 1.0


class Backoff:
    """Allows tries for ``grace`` seconds after the loss of a useful connection, with growing delays between them.

    A connection is useful if something was delivered over it. A connection that was made and lost again is not.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._end: float | None = None
        self._delay = 0.0

    def restart(self, *, useful: bool) -> None:
        """Notes the loss of a connection. If it was useful, the time starts again, and the next try has no delay."""
        if useful or self._end is None:
            self._end, self._delay = time.monotonic() + self.grace, 0.0

    def time_left(self) -> float:
        """Seconds that are left for tries; 0 or less: none."""
        return 0.0 if self._end is None else self._end - time.monotonic()

    def next_delay(self) -> float:
        """Seconds to wait before the next try."""
        delay, self._delay = self._delay, min(max(2 * self._delay, _FIRST_DELAY), _LONGEST_DELAY)
        return delay
