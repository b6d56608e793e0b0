"""Who the learners of a stream are: an actor that knows where their rings are, and which worker sends to which.

Learners say that they are there, now and then; workers ask for one. If the actor is killed, Ray starts it again with
nothing, and learners fill it within a second. Those who send and learn go on meanwhile.
"""

import time
from typing import NamedTuple

#: A learner that has not been heard of for so long is asked for only where there is no other one (seconds).
ABSENT = 3.0


class Learner(NamedTuple):
    """Where a learner is.

    Attributes:
        ring: Its ring's name. A learner that goes on with a dead one's ring has the same.
        node: The id of its node.
        host, port: Where its bridge listens.

    """

    ring: str
    node: str
    host: str
    port: int


class Learners:
    """The actor."""

    def __init__(self) -> None:
        self._learners: dict[str, Learner] = {}
        self._heard: dict[str, float] = {}
        self._sends_to: dict[str, str] = {}
        self._closed = False

    def announce(self, learner: Learner) -> bool:
        """A learner is there. Returns whether the stream is closed."""
        self._learners[learner.ring] = learner
        self._heard[learner.ring] = time.monotonic()
        return self._closed

    def leave(self, ring: str) -> None:
        """A learner has ended."""
        self._learners.pop(ring, None)

    def place(self, worker: str, node: str, failed: str | None = None) -> tuple[Learner | None, bool]:
        """The learner that a worker is to send to: one of its own node, or else the one with the fewest workers.

        Args:
            worker: Its name. A worker that was started again has the same.
            node: The id of its node.
            failed: The ring that it could not go on with. It is chosen again only if there is no other one.

        Returns:
            The learner, or None: there is none; and whether the stream is closed.

        """
        self._sends_to.pop(worker, None)
        if self._closed or not self._learners:
            return None, self._closed
        now, loads = time.monotonic(), list(self._sends_to.values())
        chosen = min(
            self._learners.values(),
            key=lambda one: (
                one.ring == failed,
                now - self._heard[one.ring] > ABSENT,
                one.node != node,
                loads.count(one.ring),
            ),
        )
        self._sends_to[worker] = chosen.ring
        return chosen, False

    def better(self, worker: str, node: str, ring: str) -> Learner | None:
        """A learner that a worker should rather send to than to that one; None: it is as it should be.

        Learners that join get workers so. An actor that was started again learns who sends to whom.
        """
        self._sends_to[worker] = ring
        mine, now, loads = self._learners.get(ring), time.monotonic(), list(self._sends_to.values())
        there = [one for one in self._learners.values() if now - self._heard[one.ring] <= ABSENT]
        there = [one for one in there if one.node == node] or there
        if mine is None or self._closed or not there:
            return None
        chosen = min(there, key=lambda one: loads.count(one.ring))
        # One worker more is no reason: it would be one too many there.
        if mine in there and loads.count(ring) - loads.count(chosen.ring) < 2:
            return None
        self._sends_to[worker] = chosen.ring
        return chosen

    def end(self, worker: str) -> None:
        """A worker has ended."""
        self._sends_to.pop(worker, None)

    def look(self) -> list[Learner]:
        """All learners."""
        return list(self._learners.values())

    def close(self) -> None:
        """The stream ends: learners hear of it when they next say that they are there."""
        self._closed = True
