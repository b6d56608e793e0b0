"""A replay's figures at one moment, from its board and its rings, for ``echo-shm top`` and ``echo-shm replay``."""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from echo_shm.cli import console, top
from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.replay.listing import ReplayListing
from echo_shm.ring.batch_names import BatchRing, batch_ring
from echo_shm.ring.lockfile import INBOX
from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.segment import Segment
from echo_shm.weights.segment import segment_name

#: Who waits for the replay to take a step, in a board's words.
WRITERS = "writers"

#: A wait that is shorter is not told of in the log (seconds).
_SHORT = 1.0


class Ring(NamedTuple):
    """One ring of a replay.

    Attributes:
        occupancy, capacity: How many slots are in use, and how many there are.
        owners: Who is attached, each with its state; see :func:`echo_shm.cli.top.states`.
        batches_taken: How many batches learners have taken.
        remotes, refused: How many clients on other hosts are connected, and how often one was refused.
        age: Of a ring of batches: how many items were inserted after one that it was given, on average when it was
            drawn; not a number if it was given none.
        versions: The ages of the inbox's steps, in versions of the weights: see :meth:`RingView.ages`.

    """

    occupancy: int
    capacity: int
    owners: list[tuple[Owner, str]]
    batches_taken: int
    remotes: int
    refused: int
    age: float
    versions: tuple[float, int]

    def alive(self, role: str) -> int:
        """How many owners of that role live.

        ``"learner"``: a bridge counts as one, whatever learners on other hosts it serves. ``"producer"``: without
        bridges.
        """
        of_role = [owner for owner, state in self.owners if owner.role == role and state != "dead"]
        return sum(role == "learner" or not owner.is_bridge for owner in of_role)


class Reading(NamedTuple):
    """What a replay's board and rings said.

    Attributes:
        time: When, on the clock of ``time.monotonic()``.
        seen: What the board said.
        rings: By their names' endings.
        batches: Those of ``rings`` that take batches to learners.
        version: The latest version of the replay's weights; 0 without.

    """

    time: float
    seen: ReplayListing
    rings: dict[str, Ring]
    batches: dict[str, BatchRing]
    version: int


def read(name: str) -> Reading:
    """Takes a reading.

    Raises:
        SegmentError: There is no such replay, or it is another user's.

    """
    now = Reading(time.monotonic(), listing.look(name), {}, {}, _version(name))
    for ring in now.seen.rings:
        if ring.segment is not None:
            ending, one = ring.name[len(name) :], batch_ring(name, ring.name)
            now.rings[ending] = _ring(ring.segment, one, now.version)
            if one is not None:
                now.batches[ending] = one
    return now


def _version(name: str) -> int:
    try:
        return RingView(Segment.attach(segment_name(name), read_only=True)).weights()[0]
    except SegmentError:  # there are none
        return 0


def _ring(segment: Segment, one: BatchRing | None, version: int) -> Ring:
    view = RingView(segment)
    snap = view.snapshot()
    snap.latest_version = version
    return Ring(
        occupancy=snap.occupancy,
        capacity=segment.geometry.capacity,
        owners=top.states(view),
        batches_taken=snap.batches_taken,
        remotes=snap.active_remotes,
        refused=snap.refused_remotes,
        age=math.nan if one is None else _mean_age(view, snap.samples_inserted),
        versions=view.ages(snap),
    )


def _mean_age(view: RingView, inserted: int) -> float:
    """Of the items in a ring of batches. The replay may write to some meanwhile: then their ages are the next ones."""
    ages = view.column(-2)[:inserted]  # the last leaf but one, see echo_shm.replay.batch.COLUMNS
    return float(np.mean(ages)) if len(ages) else math.nan


def rates(earlier: Reading, latest: Reading, table: str) -> tuple[float, float]:
    """Items inserted into a table and sampled from it per second, between what the board said at the two readings."""
    before, now = earlier.seen.tables.get(table), latest.seen.tables.get(table)
    span = (latest.seen.heard or 0.0) - (earlier.seen.heard or 0.0)
    if before is None or now is None or span <= 0 or earlier.seen.heard is None or before.inserted > now.inserted:
        return 0.0, 0.0  # it was reset, or nothing is known
    return (now.inserted - before.inserted) / span, max(0, now.sampled - before.sampled) / span


def waits(reading: Reading, least: float = 0.0) -> Iterator[str]:
    """Who waits for what, and for how long, in words. Shorter waits than ``least`` seconds are left out."""
    for wait in reading.seen.waiting:
        lasted = max(0.0, (reading.seen.heard or 0.0) - wait.since)
        if lasted >= least:
            yield f"{wait.who} wait{'s' * wait.who.startswith('the ')} for {console.duration(lasted)}: {wait.what}"


def line(earlier: Reading, latest: Reading) -> str:
    """A replay in one line: how full it is, what goes in and out of each table, who is there, and who waits."""
    seen = latest.seen
    parts = [f"{seen.steps or 0:,} of {seen.capacity or 0:,} steps"]
    for name, info in seen.tables.items():
        inserted, sampled = rates(earlier, latest, name)
        parts.append(
            f"table {name!r}: {info.size:,} items, {console.amount(inserted)}/s in, {console.amount(sampled)}/s out"
        )
    inbox = latest.rings.get(INBOX)
    if inbox is not None:
        writers = console.plural(inbox.alive("producer"), "writer")
        parts.append(writers + (f" and {inbox.remotes:,} remote" if inbox.remotes else ""))
    parts.append(console.plural(sum(latest.rings[ring].alive("learner") for ring in latest.batches), "learner"))
    return "; ".join([*parts, *waits(latest, _SHORT)])
