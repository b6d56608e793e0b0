"""What ``echo-shm dash`` shows of a ring, a replay or rollouts: JSON, read through read-only mappings."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from echo_shm.cli import console, replay_figures, replay_waits, top
from echo_shm.cli.priorities import Priorities
from echo_shm.cli.ring_waits import RingWaits
from echo_shm.cli.words import SLOT_STATES
from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.replay.listing import ReplayListing
from echo_shm.ring import lockfile, rollouts, segment
from echo_shm.ring.lockfile import INBOX
from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.segment import Segment

#: About the most cells of a picture. Of a larger ring, each stands for several slots, and shows the first of them.
MOST_CELLS = 4096

#: Most processes, remote clients and tables that are told of.
_MOST = 256


class State(Protocol):
    """What a page shows.

    Attributes:
        what: What it is called in messages.

    """

    what: str

    def read(self) -> dict[str, Any] | None:
        """Its figures now, as what JSON can hold; None once it was closed."""


def find(name: str) -> State:
    """A ring, a replay or an engine of rollouts.

    Raises:
        SegmentError: There is none of that name.

    """
    if name not in lockfile.names():
        if name in listing.names():
            return ReplayState(name)
        if name in rollouts.names():
            return RolloutsState(name)
    return RingState(name)


# --- rings --------------------------------------------------------------------


class RingPicture:
    """The slots of one ring, who is attached, and who waits for whom.

    Args:
        mapped: The ring.
        kind: What an owner is, in one word; None: as ``top`` says.

    """

    def __init__(self, mapped: Segment, kind: Callable[[Owner], str] | None = None) -> None:
        self.segment = mapped
        self.view = RingView(mapped)
        self._kinds, self._given = top.Kinds(), kind
        self._owners: list[tuple[Owner, str]] = []
        self._waits = RingWaits(mapped, self._kind)

    def _kind(self, owner: Owner) -> str:
        if self._given is not None:
            return self._given(owner)
        return self._kinds.of(owner, (one for one, _ in self._owners), self.segment.creator_pid)

    def read(self) -> dict[str, Any]:
        """What JSON can hold. Times are in seconds; rates are for the reader to compute from counters and ``time``."""
        snap, geometry = self.view.snapshot(), self.segment.geometry
        self._owners = top.states(self.view)
        waits = self._waits.look(self._owners, snap.batches_taken, closed=bool(snap.closed))
        mean, oldest = self.view.ages(snap) if snap.latest_version else (math.nan, 0)
        return {
            "time": time.monotonic(),
            "batch_size": geometry.batch_size,
            "num_buffers": geometry.num_buffers,
            "bytes": self.segment.size,
            "sample_bytes": self.segment.spec.sample_bytes,
            "samples": snap.samples_inserted,
            "batches": snap.batches_taken,
            "occupancy": snap.occupancy,
            "version": snap.latest_version,
            "age_mean": console.finite(mean),
            "age_max": oldest,
            "reaped": snap.dead_producers,
            "reopened": snap.reopened_slots,
            "refused": snap.refused_remotes,
            "owners": [self._owner(owner, state) for owner, state in self._owners[:_MOST]],
            "more_owners": max(0, len(self._owners) - _MOST),
            "remotes": [
                {"peer": one.peer, "connected": one.connected, "samples": one.committed, "bytes": one.bytes}
                for one in self.view.remotes()[:_MOST]
            ],
            "waits": [
                {"text": str(wait), "seconds": wait.seconds, "waiting": wait.waiting, "on": wait.on} for wait in waits
            ],
            **self._cells(),
        }

    def _owner(self, owner: Owner, state: str) -> dict[str, Any]:
        return {
            "index": owner.index, "kind": self._kind(owner), "pid": owner.pid, "state": state,
            "role": owner.role, "samples": owner.samples, "blocked_time": owner.blocked_time,
            "held": owner.held, "held_time": owner.held_time,
        }  # fmt: skip

    def _cells(self) -> dict[str, Any]:
        """The slots in their order, as rows of a state, an owner, and how many cells in a row are like that.

        A cell stands for a slot. Of a large ring it stands for some slots of a batch, or for some batches.
        """
        picture = self._waits.words.picture()
        size = picture.slots.shape[1]
        step, batches = -(-picture.slots.size // MOST_CELLS), 1
        if step > size:  # a cell stands for some batches
            batches = -(-step // size)
            step = batches * size
        states, owners = (
            one[::batches, ::step].ravel().astype(np.int64) for one in (picture.slots, picture.slot_owners)
        )
        starts = np.flatnonzero(np.diff(states, prepend=-1) | np.diff(owners, prepend=-2))
        lengths = np.diff(starts, append=len(states))
        counts = np.bincount(picture.slots.ravel(), minlength=len(SLOT_STATES))
        return {
            "slots": picture.slots.size,
            "step": step,
            "batch_cells": -(-size // step),
            "tail": picture.tail,
            "cells": np.stack([states[starts], owners[starts], lengths], axis=1).tolist(),
            "states": dict(zip(SLOT_STATES, counts.tolist(), strict=True)),
        }


class RingState:
    """A ring.

    Raises:
        SegmentError: There is none of that name, or it holds weights.

    """

    def __init__(self, name: str) -> None:
        self.what = f"segment {name!r}"
        self._name = name
        mapped = Segment.attach(name, read_only=True)
        if mapped.geometry.weights:
            raise SegmentError(f"segment {name!r} holds weights: dash shows rings, replays and rollouts")
        self._picture = RingPicture(mapped)

    def read(self) -> dict[str, Any] | None:
        """See :meth:`State.read`."""
        try:
            seen = segment.listing(self._name)
        except SegmentError:
            return None
        mapped = self._picture.segment
        if seen.segment is None or seen.segment.uuid != mapped.uuid:
            return None
        return {
            "kind": "ring",
            "name": self._name,
            "creator": mapped.creator_pid,
            "creator_alive": seen.creator_alive,
            "old": time.time() - mapped.created,
            "ring": self._picture.read(),
        }


# --- replays ------------------------------------------------------------------


class ReplayState:
    """A replay.

    Raises:
        SegmentError: There is none of that name.

    """

    def __init__(self, name: str) -> None:
        self.what = f"replay {name!r}"
        self._name = name
        self._pictures: dict[bytes, RingPicture] = {}
        self._priorities, self._waits = Priorities(), replay_waits.ReplayWaits(top.SHORT)
        replay_figures.read(name)

    def read(self) -> dict[str, Any] | None:
        """See :meth:`State.read`."""
        try:
            reading = replay_figures.read(self._name)
        except SegmentError:
            return None
        self._waits.look(reading)
        seen = reading.seen
        inbox = next((ring.segment for ring in seen.rings if ring.name == self._name + INBOX), None)
        return {
            "kind": "replay",
            "name": self._name,
            "pid": seen.pid,
            "alive": seen.alive,
            "bytes": seen.bytes,
            "directory": seen.directory,
            "time": seen.heard,
            "heard": None if seen.heard is None else max(0.0, time.time() - seen.heard),
            "steps": seen.steps,
            "capacity": seen.capacity,
            "version": reading.version,
            "tables": [_table(seen, table) for table in list(seen.tables)[:_MOST]],
            "batches": self._batches(reading),
            "waits": list(self._waits.lines(reading)),
            "priorities": self._priorities.look(reading),
            "ring": None if inbox is None else self._ring(inbox),
        }

    def _ring(self, mapped: Segment) -> dict[str, Any]:
        if mapped.uuid not in self._pictures:
            self._pictures = {mapped.uuid: RingPicture(mapped, replay_waits.kind)}
        return self._pictures[mapped.uuid].read()

    @staticmethod
    def _batches(reading: replay_figures.Reading) -> list[dict[str, Any]]:
        names = list(reading.seen.tables)
        found = []
        for ending, one in list(reading.batches.items())[:_MOST]:
            ring = reading.rings[ending]
            found.append({
                "table": names[one.table] if one.table < len(names) else str(one.table),
                "n": one.n, "rank": one.rank, "world_size": one.world_size, "taken": ring.batches_taken,
                "ahead": ring.occupancy, "capacity": ring.capacity, "age": console.finite(ring.age),
                "learners": ring.alive("learner"),
            })  # fmt: skip
        return found


def _table(seen: ReplayListing, name: str) -> dict[str, Any]:
    info, used = seen.tables[name], seen.activity[name]
    limiter = info.limiter
    return {
        "name": name, "size": info.size, "max_size": info.max_size, "inserted": info.inserted,
        "sampled": info.sampled, "evicted": info.evicted, "parked": info.parked, "episodes": info.episodes,
        "effective": console.finite(info.effective_sample_size), "bytes": info.bytes,
        "ratio": limiter.ratio, "min_size": limiter.min_size, "diff": console.finite(limiter.diff),
        "min_diff": console.finite(limiter.min_diff), "max_diff": console.finite(limiter.max_diff),
        "can_insert": limiter.can_insert, "can_sample": limiter.can_sample,
        "last_in": used.inserted, "last_out": used.sampled,
    }  # fmt: skip


# --- rollouts -----------------------------------------------------------------


class RolloutsState:
    """An engine of rollouts.

    Raises:
        SegmentError: There is none of that name.

    """

    def __init__(self, name: str) -> None:
        self.what = f"rollouts {name!r}"
        self._name = name
        rollouts.look(name)

    def read(self) -> dict[str, Any] | None:
        """See :meth:`State.read`. Without figures, ``fault`` says why there are none."""
        try:
            seen = rollouts.look(self._name)
        except SegmentError:
            return None
        said = seen.figures
        return {
            "kind": "rollouts",
            "name": self._name,
            "alive": seen.alive,
            "fault": seen.fault,
            "heard": None if said is None else max(0.0, time.time() - said.time),
            "figures": None
            if said is None
            else {field: None if value is None else console.finite(value) for field, value in vars(said).items()},
            "waits": [],
        }
