"""How often, and for how long, a client tries to reach its server again."""

import time

#: Between two tries (seconds).
_FIRST_DELAY, _LONGEST_DELAY = 0.02, 1.0


class Backoff:
    """Goes on for ``grace`` seconds after something last went well.

    A connection that is made and lost again, with nothing delivered in between, has not gone well.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._end: float | None = None
        self._delay = 0.0

    def restart(self, *, useful: bool) -> None:
        """A connection was lost; ``well`` if it was of use. Then the next try is at once, and the time starts anew."""
        if useful or self._end is None:
            self._end, self._delay = time.monotonic() + self.grace, 0.0

    def time_left(self) -> float:
        """Seconds, or not more than none: it is over."""
        return 0.0 if self._end is None else self._end - time.monotonic()

    def next_delay(self) -> float:
        """Seconds before the next try."""
        delay, self._delay = self._delay, min(max(2 * self._delay, _FIRST_DELAY), _LONGEST_DELAY)
        return delay
