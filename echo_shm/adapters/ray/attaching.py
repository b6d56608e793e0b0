"""Which shard a process writes into, and the way there."""

import random
import time
from collections.abc import Sequence

import ray

from echo_shm.adapters.ray.directory import ABSENT, Look, Place, Roster
from echo_shm.adapters.ray.shards import Setup
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import ReplayClient

#: How long the shard of a node that has just joined is waited for (seconds), and between two looks for it.
_JOINING, _NAP = 10.0, 0.2

#: How long a killed shard may take to be there again: as long as writers that are attached wait (seconds).
_GRACE = 30.0

#: How long a writer tries to reach a shard of another node again, before it goes on with another shard (seconds).
_RECONNECT = 10.0


def attach(setup: Setup, node: str, places: Sequence[Place]) -> tuple[Place, ReplayClient]:
    """The shard of :func:`where`, and a way into it. If its process is dead, this waits until Ray has started it again.

    Raises:
        SpecMismatchError: The example differs.
        ConnectionClosedError, OSError: The replay is closed; or there was no such shard for half a minute.

    """
    started = time.monotonic()
    while True:
        place = where(setup, node, places)
        failure: Exception = ConnectionClosedError(f"{setup.name} has no shard that could be written into")
        try:
            if place is not None:
                return place, setup.client(place, node, reconnect=_RECONNECT)
        except (ConnectionClosedError, OSError) as error:
            failure = error
        if time.monotonic() - started > _GRACE:
            raise failure
        time.sleep(_NAP)


def where(setup: Setup, node: str, places: Sequence[Place]) -> Place | None:
    """The shard that a process of that node writes into: its own node's, or else the one with most room.

    Where each node gets a shard, a node that has just joined has its own soon.

    Args:
        setup: Of the replay.
        node: The id of the node.
        places: Where shards were when this process was told of the replay.

    Returns:
        Where it is; None: there is none now.

    Raises:
        ConnectionClosedError: The replay is closed.

    """
    look, started = Look(Roster(0, tuple(places)), {}), time.monotonic()
    while True:
        try:
            roster, reports = ray.get(setup.directory.look.remote(), timeout=ABSENT)
            if roster.epoch:
                look = Look(roster, reports)
        except (ray.exceptions.ActorDiedError, ValueError):  # for good
            raise ConnectionClosedError(f"{setup.name} is closed") from None
        except ray.exceptions.RayError:
            pass  # it is being started again: what is known will do
        near = [one for one in look.present if one.node == node]
        if near:
            return near[0]
        is_coming = setup.per_node and node not in look.roster.settled and not look.roster.leaving
        if not is_coming or time.monotonic() - started > _JOINING:
            break
        time.sleep(_NAP)
    return max(look.present, key=lambda one: _room(look, one), default=None)


def _room(look: Look, place: Place) -> tuple[float, float]:
    """How much room a shard has; among those alike, any."""
    found = look.reports.get(place.number)
    room = 1.0 if found is None else 1 - found[0].num_steps / found[0].capacity
    return room, random.random()
