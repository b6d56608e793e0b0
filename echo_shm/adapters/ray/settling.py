"""Shards that are to be handed over, and wait until learners have what they have drawn.

What a learner has not taken in time goes along: see :meth:`Shard.leave`. The wait keeps that little.
"""

import contextlib
import dataclasses
import time
from typing import Any

import ray

from echo_shm.adapters.ray.directory import Place

#: How long learners have, at most, to take what a shard has drawn (seconds).
_TAKING = 60.0

#: How long one look at that takes, at most (seconds).
_GLANCE = 0.1


@dataclasses.dataclass
class _Wait:
    """One shard's: its answer, which may be on its way, and when it has waited long enough (:func:`time.time`)."""

    answer: Any
    end: float


class Settling:
    """Which shards wait. The keeper's thread alone calls this, in each of its looks: nobody waits for a learner."""

    def __init__(self) -> None:
        self._waits: dict[Place, _Wait] = {}

    @property
    def places(self) -> list[Place]:
        """Those that wait."""
        return list(self._waits)

    def has_settled(self, place: Place, actor: Any, deadline: float) -> bool:
        """Whether learners have what a shard has drawn, or have had their time. It is asked to settle, if it was not.

        Args:
            place: The shard.
            actor: Its actor. If that is killed, the one that goes on is asked again.
            deadline: When its node ends (:func:`time.time`). Half of what is left is for the move itself.

        """
        now = time.time()
        wait = self._waits.get(place)
        if wait is None:
            wait = self._waits[place] = _Wait(actor.settle.remote(), now + min(_TAKING, (deadline - now) / 2))
        attended = None
        is_answered = bool(ray.wait([wait.answer], timeout=_GLANCE)[0])
        if is_answered:
            with contextlib.suppress(ray.exceptions.RayError):  # it is being started again
                attended = ray.get(wait.answer)
        if attended == 0 or now >= wait.end:
            return True
        if is_answered:
            wait.answer = actor.settle.remote()
        return False

    def stay(self, place: Place, actor: Any | None) -> None:
        """A shard is not handed over: it goes on where it is, if it had settled.

        Args:
            place: The shard.
            actor: Its actor; None: it has none any more.

        """
        if self._waits.pop(place, None) is not None and actor is not None:
            with contextlib.suppress(ray.exceptions.RayError):  # its node is dead: the keeper's next look says so
                ray.get(actor.stay.remote())

    def leave(self, place: Place) -> None:
        """A shard was handed over, with what it had drawn and no learner had taken."""
        self._waits.pop(place)
