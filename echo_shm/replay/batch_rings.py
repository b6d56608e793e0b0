"""The rings that take batches to learners in other processes, as the replay's own process sees them."""

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import optree

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.batch import COLUMNS, Batch
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batches import ring_name, table_of
from echo_shm.ring.creation import create_segment
from echo_shm.ring.lockfile import CREATOR_BYTE, collect, names
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Leaf, Spec

if TYPE_CHECKING:
    from echo_shm._core import Ring

#: Producers that a ring of batches has room for: the replay, and a dead one that was not reaped yet.
_PRODUCERS = 2

_REAP_INTERVAL = 0.1

#: How long a replay that attaches waits for others to reap the dead one (seconds).
_REAPING = 5.0


def batch_spec(structure: optree.PyTreeSpec, leaves: Sequence[Leaf]) -> Spec:
    """What one item of a batch looks like, as the ring's sample: a :class:`Batch` without the leading n."""
    data = structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in leaves])
    return Spec.from_example(Batch(data, *(np.zeros((), dtype) for dtype in COLUMNS)))


def spec_of_batches(found: Spec, structure: optree.PyTreeSpec, what: str) -> Spec:
    """The spec of a ring's batches, with their tree. ``found`` is the ring's own, which knows leaves only.

    Raises:
        SegmentError: They are not of steps with that structure.
        SpecMismatchError: A column is missing, or is another one.

    """
    leaves = found.leaves[: -len(COLUMNS)]
    if len(leaves) != structure.num_leaves:
        raise SegmentError(f"{what} has batches of another replay: it was made anew just now; try again")
    spec = batch_spec(structure, leaves)
    spec.check_same(found, what)
    return spec


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
    of which the store does not know, are ended.
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
            self._join_left()
        except BaseException:
            self.leave()
            raise

    def _join_left(self) -> None:
        """Joins the rings that a killed replay has left. Those of another replay are ended."""
        left: list[tuple[int, Attachment]] = []
        with contextlib.ExitStack() as undo:
            for ring in names():
                table = table_of(self._name, ring)
                attachment = None if table is None else self._attach_left(ring)
                if table is not None and attachment is not None:
                    left.append((table, attachment))
                    undo.callback(_leave, attachment)
            # First those that were used: the store forgets a ring only for one that it has not seen.
            for table, attachment in sorted(left, key=lambda one: lib.es_api_claimed(one[1].ring) == 0):
                if table >= self._tables or not self._connect(table, attachment):
                    _close(attachment)
            undo.pop_all()

    def _attach_left(self, ring: str) -> Attachment | None:
        try:
            segment = Segment.attach(ring)
        except SegmentError:
            # It was removed just now; or its replay was killed before it was ready, and its name is free once it is
            # collected.
            with contextlib.suppress(SegmentError, OSError):
                collect(ring)
            return None
        assert segment.lockfile is not None
        if not segment.lockfile.try_lock(CREATOR_BYTE):
            raise SegmentError(f"ring {ring!r} belongs to a process that is alive: choose another name for the replay")
        try:
            return self._attach(segment)
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
                attachment = self._attach(segment)
            except BaseException:
                segment.unlink()
                raise
            try:
                if not self._connect(table, attachment):
                    raise SegmentError(f"another process has written into the new ring {ring!r}: ask again")
            except BaseException:
                _close(attachment)
                raise
            self.refused.pop(ring, None)
        except (SegmentError, ValueError, MemoryError, OverflowError) as error:
            self.refused[ring] = str(error)

    def _attach(self, segment: Segment) -> Attachment:
        return Attachment(segment, lib.ES_ROLE_PRODUCER, f"ring {segment.name!r}", prefault=True)

    def _connect(self, table: int, attachment: Attachment) -> bool:
        """Connects a ring. False: it is another replay's."""
        ring, base = (int(ffi.cast("uintptr_t", one)) for one in (attachment.ring, attachment.segment.base))
        deadline = time.monotonic() + _REAPING
        while True:
            attachment.reaper.sweep()
            code = self._core.connect_batches(table, ring, base, attachment.segment.uuid)
            # Another process is reaping the dead replay, and has not finished.
            if code != lib.ES_UNSURE or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        if code in (-errno.ESTALE, lib.ES_EGEOMETRY):
            return False
        if code < 0:
            raise error_from(code, f"ring {attachment.segment.name!r}")
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
        self._end(_close)

    def leave(self) -> None:
        """Lets go of the rings. They stay, for the next replay."""
        self._end(_leave)

    def _end(self, end: Callable[[Attachment], None]) -> None:
        with self._lock:
            self._ended = True
            while self._attachments:
                end(self._attachments.pop())


def _close(attachment: Attachment) -> None:
    if lib.es_api_close(attachment.ring) != lib.ES_EFORK:
        attachment.segment.unlink()
    attachment.detach()


def _leave(attachment: Attachment) -> None:
    assert attachment.segment.lockfile is not None
    lib.es_api_locks_drop(attachment.segment.lockfile.locks, CREATOR_BYTE)
    attachment.detach()
