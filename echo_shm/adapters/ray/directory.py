"""Who is who: an actor that knows where the shards of a replay are, and what they last said of themselves.

The keeper writes down where shards are, and shards report. Learners and workers ask here, and never each other. If the
actor is killed, Ray starts it again with nothing, and the keeper and the shards fill it within a second. Nobody needs
it to go on with what it knows.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from echo_shm.adapters.ray import nodes
from echo_shm.adapters.ray.weights import Offer, Offers
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import TableInfo

#: The directories' namespace of Ray's, where each has its replay's name.
NAMESPACE = "echo_shm"

#: A shard that has not reported for so long is absent (seconds). A link that is cut, and a node that is gone, cannot be
#: told from it; one that is only slow reports.
ABSENT = 3.0


class Place(NamedTuple):
    """Where a shard is.

    Attributes:
        number: Among all shards that there ever were.
        incarnation: How often it was made: it may be restored, or move, to another node.
        node: The id of its node.
        host, port: Where its bridge listens.

    """

    number: int
    incarnation: int
    node: str
    host: str
    port: int


@dataclass(frozen=True)
class Report:
    """What a shard says of itself.

    Attributes:
        number, incarnation: As of its place.
        num_steps: Steps in it.
        capacity: Most steps.
        tables: Of each table, by its name.
        pid: Of its process.
        settling: Whether it is about to be handed over, and draws nothing any more of tables whose draws are counted.

    """

    number: int
    incarnation: int
    num_steps: int
    capacity: int
    tables: dict[str, TableInfo]
    pid: int
    settling: bool = False


@dataclass(frozen=True)
class Loss:
    """A shard that went with its node.

    Attributes:
        number: The shard's.
        node: The id of its node.
        host: The node's address.
        num_steps: How many steps it had when it last reported; -1: it never did.
        tables: How many items each of its tables had then.
        restored: Whether a store or a checkpoint brought it back on another node.

    """

    number: int
    node: str
    host: str
    num_steps: int
    tables: dict[str, int]
    restored: bool


@dataclass(frozen=True)
class Roster:
    """What the keeper writes down.

    Attributes:
        epoch: Counts changes.
        places: Of all shards.
        losses: Of all so far.
        leaving: The numbers of those that are handed over now: they take nothing, and nothing is drawn of them.
        settled: The ids of nodes that have a shard, or get none.

    """

    epoch: int = 0
    places: tuple[Place, ...] = ()
    losses: tuple[Loss, ...] = ()
    leaving: frozenset[int] = frozenset()
    settled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Look:
    """What the directory said at one time.

    Attributes:
        roster: The keeper's.
        reports: The last one of each shard, by its number, and how old it was then, in seconds.
        at: When it came here, by ``time.monotonic()``.

    """

    roster: Roster
    reports: dict[int, tuple[Report, float]]
    at: float = field(default_factory=time.monotonic)

    @property
    def present(self) -> tuple[Place, ...]:
        """Where shards are that can be used: none is absent, or handed over now."""
        leaving = self.roster.leaving
        return tuple(one for one in self.roster.places if one.number not in leaving and not self.is_absent(one.number))

    def is_absent(self, number: int) -> bool:
        """Whether a shard has reported once, and then no more."""
        found = self.reports.get(number)
        return found is not None and found[1] > ABSENT

    def age(self, number: int) -> float:
        """How old a shard's report is now, in seconds; 0 if there is none."""
        found = self.reports.get(number)
        return 0.0 if found is None else found[1] + time.monotonic() - self.at


def pause_of(mass_age: float) -> float:
    """Seconds between two reports of a shard, and between two looks: a shard that lives is never absent."""
    return min(mass_age / 2, ABSENT / 3)


class Directory:
    """The actor."""

    def __init__(self) -> None:
        self._roster = Roster()
        self._reports: dict[int, tuple[Report, float]] = {}
        self._offers = Offers()

    def publish(self, roster: Roster) -> None:
        """The keeper's word. An older one that comes late is ignored."""
        if roster.epoch >= self._roster.epoch:
            self._roster = roster
            there = {one.number: one.incarnation for one in roster.places}
            self._reports = {
                number: found for number, found in self._reports.items() if there.get(number) == found[0].incarnation
            }

    def announce(self, offer: Offer) -> tuple[int, int, bool]:
        """A publisher's word: see :meth:`Offers.announce`."""
        number, version, is_followed = self._offers.announce(offer, [one.number for one in Look(*self.look()).present])
        return number, version, is_followed and self._roster.epoch > 0  # otherwise it was just started again

    def report(self, report: Report, offer: Offer | None, version: int) -> Offer | None:
        """A shard's word, and that of its relay: see :meth:`Offers.report`."""
        found = self._reports.get(report.number)
        if found is None or found[0].incarnation <= report.incarnation:
            self._reports[report.number] = report, time.monotonic()
        return self._offers.report(report.number, offer, version)

    def look(self) -> tuple[Roster, dict[int, tuple[Report, float]]]:
        """All of it: see :class:`Look`."""
        now = time.monotonic()
        return self._roster, {number: (report, now - at) for number, (report, at) in self._reports.items()}


class Watch:
    """The directory as one process sees it: a thread asks it now and then.

    Args:
        directory: The actor.
        mass_age: Of the replay.
        places: Where shards were when this process was told of the replay.

    """

    def __init__(self, directory: Any, mass_age: float, places: Sequence[Place]) -> None:
        self._directory, self._every, self._node = directory, pause_of(mass_age), nodes.here()
        self._look = Look(Roster(0, tuple(places)), {})
        self._is_closed = False
        self._changed = threading.Condition()
        self._ended = False
        nodes.thread(self._run, "watch").start()

    def _run(self) -> None:
        while not self._ended:
            began = time.monotonic()
            if not nodes.is_connected(self._node):
                self._close()
                return
            try:
                roster, reports = ray.get(self._directory.look.remote(), timeout=ABSENT)
                self._take(Look(roster, reports))
            except (ray.exceptions.ActorDiedError, ConnectionClosedError):  # its owner has closed it; or Ray has ended
                self._close()
                return
            except (ray.exceptions.RayError, ValueError):  # it is killed, or this node is cut off: asked again
                pass
            with self._changed:
                self._changed.wait_for(lambda: self._ended, max(0.0, began + self._every - time.monotonic()))

    def _take(self, look: Look) -> None:
        """A directory that was just started again knows less than this process: what it lacks stays, and ages."""
        before = self._look
        if look.roster.epoch < before.roster.epoch:
            return
        there = {one.number: one.incarnation for one in look.roster.places}
        kept = {
            number: (report, before.age(number))
            for number, (report, _) in before.reports.items()
            if number not in look.reports and there.get(number) == report.incarnation
        }
        with self._changed:
            self._look = Look(look.roster, {**kept, **look.reports}, look.at)
            self._changed.notify_all()

    @property
    def look(self) -> Look:
        """What it said last."""
        return self._look

    def wait(self, after: Look, timeout: float) -> Look:
        """The first look after that one; or that one again if none came for so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._look is not after or self._ended, timeout)
            return self._look

    @property
    def closed(self) -> bool:
        """Whether the replay is closed, its owner has ended, or this process has left Ray."""
        return self._is_closed

    def _close(self) -> None:
        with self._changed:
            self._ended = self._is_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, for who needs to know no more."""
        self._close()
