"""The rings that take batches to learners in other processes, as the replay's own process sees them."""

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import optree

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, SpecMismatchError, error_from
from echo_shm.replay.batch import COLUMNS, Batch
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.lockfile import BATCHES, CREATOR_BYTE, names
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Leaf, Spec

if TYPE_CHECKING:
    from echo_shm._core import Ring

#: Producers that a ring of batches has room for: the replay, and a dead one that was not reaped yet.
_PRODUCERS = 2

_REAP_INTERVAL = 0.1

#: How long a replay that attaches waits for others to reap the dead one (seconds).
_REAPING = 5.0


def ring_name(replay: str, table: int, n: int) -> str:
    """The name of the ring with batches of n items of a table."""
    return f"{replay}.{table}x{n}{BATCHES}"


def batch_spec(structure: optree.PyTreeSpec, leaves: Sequence[Leaf]) -> Spec:
    """What one item of a batch looks like, as the ring's sample: a :class:`Batch` without the leading n."""
    data = structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in leaves])
    return Spec.from_example(Batch(data, *(np.zeros((), dtype) for dtype in COLUMNS)))


class BatchRings:
    """All rings that take batches out of a replay. The replay is their only producer, and the C core fills them.

    Args:
        core: The replay's calls.
        name: The replay's name.
        spec: What a step looks like.
        tables: How many tables there are.

    Attributes:
        refused: Why a ring that was asked for was not made, by its name.

    Those that a killed replay has left are joined: their learners have waited. Rings of another replay of that name,
    of which the store does not know, are removed.
    """

    def __init__(self, core: Core, name: str, spec: Spec, tables: int) -> None:
        self._core = core
        self._name = name
        self._spec = batch_spec(spec.structure, spec.leaves)
        self._tables = tables
        self._attachments: list[Attachment] = []
        self._lock = threading.RLock()  # a signal handler may enter again
        self._ended = False
        self.refused: dict[str, str] = {}
        try:
            for there in names():
                number = table_of(name, there)
                if number is not None:
                    self._join_left(there, number)
        except BaseException:
            self.leave()
            raise

    def _join_left(self, ring: str, table: int) -> None:
        """Joins a ring that a killed replay has left, or removes it."""
        try:
            segment = Segment.attach(ring)
        except SegmentError:
            return  # it was removed just now, or cannot be used by anybody
        assert segment.lockfile is not None
        if not segment.lockfile.try_lock(CREATOR_BYTE):
            raise SegmentError(f"ring {ring!r} belongs to a process that is alive: choose another name for the replay")
        try:
            self._spec.check_same(segment.spec, f"ring {ring!r}")
            if table >= self._tables or not self._connect(segment, table):
                raise SpecMismatchError(f"ring {ring!r} belongs to another replay")
        except SpecMismatchError:
            segment.unlink()
        except BaseException:
            lib.es_api_locks_drop(segment.lockfile.locks, CREATOR_BYTE)
            raise

    def make(self, table: int, n: int, num_batches: int) -> None:
        """Makes the ring that a learner asks for, unless it is there. What is wrong with it is noted in ``refused``."""
        ring = ring_name(self._name, table, n)
        with self._lock:
            if not self._ended and ring not in self.names:
                self._make(ring, table, n, num_batches)

    def _make(self, ring: str, table: int, n: int, num_batches: int) -> None:
        try:
            if len(self._attachments) == lib.ES_MAX_OUTBOXES:
                raise SegmentError(
                    f"replay {self._name!r} has {lib.ES_MAX_OUTBOXES} rings of batches, one for each table and batch "
                    "size that was iterated over, and cannot have more: use fewer different batch sizes"
                )
            geometry = Geometry(n, num_batches, _PRODUCERS, "fifo", False, _REAP_INTERVAL)
            segment = create_segment(ring, self._spec, geometry)
            try:
                self._connect(segment, table)
            except BaseException:
                segment.unlink()
                raise
            self.refused.pop(ring, None)
        except (SegmentError, ValueError, MemoryError, OverflowError) as error:
            self.refused[ring] = str(error)

    def _connect(self, segment: Segment, table: int) -> bool:
        """Attaches to a ring as its producer. False: the store does not know it, but somebody has filled it."""
        segment.spec = self._spec
        attachment = Attachment(segment, lib.ES_ROLE_PRODUCER, f"ring {segment.name!r}", prefault=True)
        try:
            ring, base = (int(ffi.cast("uintptr_t", pointer)) for pointer in (attachment.ring, segment.base))
            deadline = time.monotonic() + _REAPING
            while True:
                attachment.reaper.sweep()
                code = self._core.connect_batches(table, ring, base, segment.uuid)
                # Another process is reaping the dead replay, and has not finished.
                if code != lib.ES_UNSURE or time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            if code < 0 and code != -errno.ESTALE:
                raise error_from(code, f"ring {segment.name!r}")
        except BaseException:
            attachment.detach()
            raise
        if code < 0:
            attachment.detach()
            return False
        self._attachments.append(attachment)
        return True

    @property
    def rings(self) -> "list[Ring]":
        """Their ``es_ring``, in the order of the C core's codes."""
        return [one.ring for one in self._attachments]

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [one.segment.name for one in self._attachments]

    def sweep(self) -> None:
        """Reaps dead learners, so that another one gets their batches."""
        for attachment in self._attachments:
            attachment.reaper.sweep()

    def close(self) -> None:
        """Ends the rings: learners take what is left, and then their iteration ends."""
        self._end(lambda one: one.segment.unlink() if lib.es_api_close(one.ring) != lib.ES_EFORK else None)

    def leave(self) -> None:
        """Lets go of the rings. They stay, for the next replay."""

        def leave(one: Attachment) -> None:
            assert one.segment.lockfile is not None
            lib.es_api_locks_drop(one.segment.lockfile.locks, CREATOR_BYTE)

        self._end(leave)

    def _end(self, end: Callable[[Attachment], None]) -> None:
        with self._lock:
            self._ended = True
            while self._attachments:
                attachment = self._attachments.pop()
                end(attachment)
                attachment.detach()


def is_batch_ring(replay: str, ring: str) -> bool:
    """Whether a ring of that name takes batches out of that replay."""
    return table_of(replay, ring) is not None


def table_of(replay: str, ring: str) -> int | None:
    """The number of the table whose batches that ring takes; None if it is no such ring of that replay."""
    if not (ring.startswith(replay + ".") and ring.endswith(BATCHES)):
        return None
    table, x, n = ring[len(replay) + 1 : -len(BATCHES)].partition("x")
    return int(table) if x and table.isdecimal() and n.isdecimal() else None
