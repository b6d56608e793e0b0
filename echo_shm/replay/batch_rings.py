"""The rings that take batches to learners in other processes, as the replay's own process sees them."""

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.batch import COLUMNS, Batch
from echo_shm.replay.item import Item, item_from
from echo_shm.replay.layout import data_structure
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_names import BatchRing, batch_ring
from echo_shm.ring.creation import create_segment
from echo_shm.ring.lockfile import CREATOR_BYTE, collect, names
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Array, Spec

if TYPE_CHECKING:
    from echo_shm._core import Ring

#: Where a ring's schema has what an item is.
_ITEM = "item"

#: Producers that a ring of batches has room for: the replay, and a dead one that was not reaped yet.
_PRODUCERS = 2

_REAP_INTERVAL = 0.1

#: How long a replay that attaches waits for others to reap the dead one (seconds).
_REAPING = 5.0


def batch_spec(data: Spec, item: Item) -> Spec:
    """What one item of a batch looks like, as the ring's sample: a :class:`Batch` without the leading n.

    Its schema says what an item is, for :func:`spec_of_batches`.
    """
    tree = data.structure.unflatten([_empty(leaf.dtype, leaf.shape) for leaf in data.leaves])
    return Spec.from_example(Batch(tree, *(_empty(dtype, ()) for dtype in COLUMNS)), {_ITEM: item.describe()})


def _empty(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array of that shape, without memory for it."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def spec_of_batches(found: Spec, treespec: optree.PyTreeSpec, what: str) -> Spec:
    """The spec of a ring's batches, with their tree.

    Args:
        found: The ring's own spec, which knows leaves and what an item is. It is not trusted.
        treespec: The structure of a step.
        what: The ring, for messages.

    Raises:
        SegmentError: They are not of such steps, or the spec does not say what an item is.
        SpecMismatchError: An array is missing, or is another one.

    """
    item, leaves = _item_of(found, what), found.leaves[: -len(COLUMNS)]
    try:
        structure = data_structure(item, treespec)
        data = structure.unflatten([_empty(leaf.dtype, leaf.shape) for leaf in leaves])
        spec = batch_spec(Spec.from_example(data), item)
    except (ValueError, TypeError):
        raise SegmentError(f"{what} has batches of another replay: it was made anew just now; try again") from None
    spec.check_same(found, what)
    return spec


def _item_of(spec: Spec, what: str) -> Item:
    """What an item is, of a ring with such samples."""
    try:
        return item_from(spec.about[_ITEM])
    except (TypeError, KeyError, ValueError) as error:
        raise SegmentError(f"{what} cannot be used: its schema does not say what an item is ({error})") from None


class BatchRings:
    """All rings that take batches out of a replay. The replay is their only producer, and the C core fills them.

    Args:
        core: The replay's calls.
        name: The replay's name.
        specs: What an item of each table's batches looks like: :func:`batch_spec`.

    Attributes:
        refused: Why a ring that was asked for was not made, by its name.

    Those that a killed replay has left are joined: their learners have waited. Rings of another replay of that name,
    of which the store does not know, are ended.
    """

    def __init__(self, core: Core, name: str, specs: Sequence[Spec]) -> None:
        self._core = core
        self._name = name
        self._specs = specs
        # In the order of the C core's codes: the attachments, and what they are.
        self._attachments: list[Attachment] = []
        self._connected: list[BatchRing] = []
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
        left: dict[BatchRing, Attachment] = {}
        with contextlib.ExitStack() as undo:
            for ring in names():
                one = batch_ring(self._name, ring)
                attachment = None if one is None else self._attach_left(ring)
                if one is not None and attachment is not None:
                    left[one] = attachment
                    undo.callback(_leave, attachment)
            # First those that were used: the store forgets a ring only for one that it has not seen.
            for one, attachment in sorted(left.items(), key=lambda pair: lib.es_api_claimed(pair[1].ring) == 0):
                # The replay was killed while it made a group, of which no learner knows; or just before it removed a
                # ring that it had ended, which gives nothing more.
                is_whole, is_over = all(other in left for other in one.group()), attachment.ring_closed()
                if one.table >= len(self._specs) or not is_whole or is_over or not self._connect(one, attachment):
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
            lib.es_segment_locks_drop(segment.lockfile.locks, CREATOR_BYTE)
            raise

    def make(self, table: int, n: int, num_batches: int, world_size: int) -> None:
        """Makes the ring that a learner asks for, unless it is there. What is wrong with it is noted in ``refused``.

        Args:
            table: The table's number.
            n: Items in a batch.
            num_batches: Batches in the ring.
            world_size: How many such rings get batches in turns: all of them are made. 0: one of its own.

        """
        if world_size > lib.ES_MAX_OUTBOXES:
            return  # learners check it before they ask
        with self._lock:
            connected = set(self._connected)
            missing = [one for one in BatchRing(table, n, 0, world_size).group() if one not in connected]
            if not self._ended and missing:
                self._make(missing, num_batches)

    def put(self, table: int, num_batches: int, leaves: Sequence[Array]) -> None:
        """Puts items into the ring of single items of a table, which is made if it is not there. They come first.

        It comes before the first turn. A process that was killed while it did this has left a part of them there: the
        others follow.

        Args:
            table: The table's number.
            num_batches: How many the ring is to hold.
            leaves: For each leaf of the ring the bytes of the items, of shape ``(items, bytes of one)``.

        Raises:
            SegmentError: They are other items, or the ring cannot be made, or is too small.

        """
        one = BatchRing(table, 1)
        name = one.name(self._name)
        sizes = [leaf.nbytes for leaf in self._specs[table].leaves] if table < len(self._specs) else []
        if not sizes or [leaf.shape for leaf in leaves] != [(len(leaves[0]), size) for size in sizes]:
            raise SegmentError(f"ring {name!r}: what was drawn is of another replay")
        self.make(table, 1, num_batches, 0)
        with self._lock:
            if one not in self._connected:
                raise SegmentError(f"ring {name!r} cannot be made: {self.refused.get(name, 'the replay is closed')}")
            pointers = ffi.new("void *[]", [ffi.from_buffer(leaf) for leaf in leaves])
            address = int(ffi.cast("uintptr_t", pointers))
            code = self._core.put(self._connected.index(one), len(leaves[0]), address)
        if code != lib.ES_OK:
            raise error_from(code, f"ring {name!r}")

    def _make(self, missing: Sequence[BatchRing], num_batches: int) -> None:
        names = [one.name(self._name) for one in missing]
        try:
            there = len(self._attachments)
            if there + len(missing) > lib.ES_MAX_OUTBOXES:
                raise SegmentError(
                    f"replay {self._name!r} can have {lib.ES_MAX_OUTBOXES} rings of batches, one for each table, batch "
                    f"size and rank that was iterated over: it has {there}, and {len(missing)} more are asked for. "
                    "Use fewer different batch sizes, or a smaller world_size"
                )
            with contextlib.ExitStack() as undo:
                # First all that may fail for want of memory: what is connected stays.
                made = [self._create(name, one, num_batches, undo) for name, one in zip(names, missing, strict=True)]
                for one, attachment in zip(missing, made, strict=True):
                    if not self._connect(one, attachment):
                        name = one.name(self._name)
                        raise SegmentError(f"another process has written into the new ring {name!r}: ask again")
                undo.pop_all()
            for name in names:
                self.refused.pop(name, None)
        except (SegmentError, ValueError, MemoryError, OverflowError) as error:
            self.refused.update(dict.fromkeys(names, str(error)))

    def _create(self, name: str, one: BatchRing, num_batches: int, undo: contextlib.ExitStack) -> Attachment:
        """A new ring. ``undo`` ends it, unless it is connected by then."""
        geometry = Geometry(one.n, num_batches, _PRODUCERS, "fifo", False, _REAP_INTERVAL)
        segment = create_segment(name, self._specs[one.table], geometry)
        try:
            attachment = self._attach(segment)
        except BaseException:
            segment.unlink()
            raise
        undo.callback(lambda: None if attachment in self._attachments else _close(attachment))
        return attachment

    def _attach(self, segment: Segment) -> Attachment:
        return Attachment(segment, lib.ES_ROLE_PRODUCER, f"ring {segment.name!r}", prefault=True)

    def _connect(self, one: BatchRing, attachment: Attachment) -> bool:
        """Connects a ring. False: it is another replay's."""
        ring, base = (int(ffi.cast("uintptr_t", one)) for one in (attachment.ring, attachment.segment.base))
        deadline = time.monotonic() + _REAPING
        while True:
            attachment.reaper.sweep()
            code = self._core.connect_batches(one.table, ring, base, attachment.segment.uuid, one.rank, one.world_size)
            # Another process is reaping the dead replay, and has not finished.
            if code != lib.ES_UNSURE or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        if code in (-errno.ESTALE, lib.ES_EGEOMETRY):
            return False
        if code < 0:
            raise error_from(code, f"ring {attachment.segment.name!r}")
        self._attachments.append(attachment)
        self._connected.append(one)
        return True

    @property
    def connected(self) -> list[BatchRing]:
        """What they are, in the order of the C core's codes."""
        return list(self._connected)

    @property
    def rings(self) -> "list[Ring]":
        """Their ``es_ring``, in the order of the C core's codes."""
        return [one.ring for one in self._attachments]

    @property
    def names(self) -> list[str]:
        """The names of those that learners may attach to: all, but for those of a group that has some of its rings."""
        connected = set(self._connected)
        return [one.name(self._name) for one in self._connected if connected.issuperset(one.group())]

    def untaken(self, tables: Collection[int]) -> int:
        """How many items of those tables are in rings that a learner is attached to, and not released."""
        full, count = ffi.new("uint64_t *"), 0
        with self._lock:
            for one, attachment in zip(self._connected, self._attachments, strict=True):
                if one.table in tables and lib.es_api_learner_alive(attachment.ring):
                    count += lib.es_monitor_count_committed(attachment.ring, full)
        return count

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
            self._connected.clear()
            while self._attachments:
                end(self._attachments.pop())


def _close(attachment: Attachment) -> None:
    if lib.es_api_close(attachment.ring) != lib.ES_EFORK:
        attachment.segment.unlink()
    attachment.detach()


def _leave(attachment: Attachment) -> None:
    assert attachment.segment.lockfile is not None
    lib.es_segment_locks_drop(attachment.segment.lockfile.locks, CREATOR_BYTE)
    attachment.detach()
