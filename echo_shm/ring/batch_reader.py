"""How a learner takes batches: it waits in slices, reaps the dead, and drains the ring at the end of a stream."""

import contextlib
import errno
import threading
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np

from echo_shm._batch import Reader, over
from echo_shm._core import ffi, lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.fast_path import compile_tree, describe_rows
from echo_shm.ring.metrics import SampleInfo
from echo_shm.ring.protocols import Finishing
from echo_shm.ring.sample import Remainder, Sample, frozen
from echo_shm.ring.stuck import HeldWatch
from echo_shm.spec import Array

if TYPE_CHECKING:
    from echo_shm._batch import Lease as BatchLease
    from echo_shm._batch import Taken

_NOTHING_YET = (lib.ES_EMPTY, lib.ES_TIMEOUT, -errno.EINTR)

#: Time between two looks while another process may be reaping a learner (seconds).
_POLL_INTERVAL = 0.001


class _Copied:
    """What the arrays of a copied batch refer to."""

    __slots__ = ("__weakref__", "lease")

    def __init__(self, lease: "BatchLease") -> None:
        self.lease = lease


class _Keep:
    """Lives as long as the reader and its leases. When it dies, the attachment leaves the ring."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment  # also after exit's finalizers: arrays may die later


class BatchReader:
    """Takes batches through a learner's attachment. Threads may share it.

    Attributes:
        writable: Whether the batches' arrays can be written to.

    """

    def __init__(self, attachment: Attachment, writable: bool) -> None:
        self._attachment = attachment
        self._ring = attachment.ring
        segment, geometry = attachment.segment, attachment.segment.geometry
        spec, self._batch_size, self._num_buffers = segment.spec, geometry.batch_size, geometry.num_buffers
        # One array for each leaf, of shape (num_buffers, batch_size, *leaf.shape).
        batches = [
            segment.array(
                lib.es_api_leaf_offset(self._ring, i),
                (geometry.num_buffers, geometry.batch_size, *leaf.shape),
                leaf.dtype,
                writable=writable,
            )
            for i, leaf in enumerate(spec.leaves)
        ]
        # Of shape (num_buffers, batch_size).
        versions = segment.array(
            lib.es_age_offset(self._ring),
            (geometry.num_buffers, geometry.batch_size),
            np.dtype(np.int64),
            writable=False,
        )
        keep = _Keep(attachment)
        self._left = weakref.finalize(keep, attachment.detach)
        self._reader: Reader | None = _reader(attachment, batches, versions, keep)
        self._held = HeldWatch(attachment)
        self._build = compile_tree(spec)
        self.writable = writable
        # What next() has copied: weak references, so that a copy that dies releases its batch at once.
        self._copied: list[weakref.ref[_Copied]] = []
        # Whether batches may come in another order than that of their numbers, and the largest number that came.
        self._any_order = geometry.order == "ready"
        self._latest = -1
        # The first thread that called next(), and whether others have, too. _older: what it referred to before.
        self._first_thread: int | None = None
        self._several_threads = False
        self._older: dict[int, int] = {}
        self._flatten = spec.structure.flatten_up_to
        self._remainder = Remainder(self._ring, batches, versions, self._batch_size, spec.structure.unflatten)

    def close(self) -> None:
        """Leaves the ring, once nothing refers to a batch any more. Until then the learner keeps these batches."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._attachment.retire()
        if reader.held == 0:
            self._left()

    def next(self, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """As :meth:`take`. But where a batch must not stay leased during the next call, it returns a copy.

        That is so in a ring of one batch, beside other learners (see csrc/ring/es_lease.h), and for the same reason
        among threads, and for a batch that comes after a later one: producers need its space first. The batch of a
        copy stays leased until the next call, so that it is delivered again if this process is killed.
        """
        if self._copied:
            self._release_copied()
        if threading.get_ident() != self._first_thread and not self._several_threads:
            self._meet_thread()
        sample = self.take(timeout, until, drop_last)
        if sample is None or len(sample._leases) != 1:
            return sample
        (lease,) = sample._leases
        late = self._any_order and self._comes_late(lease)
        if not (late or lease.shared or self._several_threads or self._num_buffers == 1) or lease.ended:
            return sample
        lease.delivered = False  # until the copy is made, as in _full()
        owner = _Copied(lease)
        self._copied.append(weakref.ref(owner))
        arrays: list[Array] = []
        for view in self._flatten(sample.batch):
            array: Array = np.array(view)
            arrays.append(over(array, (array, owner), self.writable))
        copied = Sample(self._build(*arrays), sample.info)
        copied._leases, copied._versions = sample._leases, frozen(np.array(lease.versions))
        lease.delivered = True
        return copied

    def _comes_late(self, lease: "BatchLease") -> bool:
        number = lease.round * self._num_buffers + lease.batch
        late, self._latest = number < self._latest, max(number, self._latest)
        return late

    def _meet_thread(self) -> None:
        if self._first_thread is None:
            self._first_thread = threading.get_ident()
            return
        reader = self._reader
        if reader is not None:
            self._older = {batch: lap for batch in range(self._num_buffers) if (lap := reader.leased(batch))}
        self._several_threads = True

    def _try(self, reader: Reader, flags: int, nanoseconds: int) -> "Taken":
        """One take. The last batch before one that the first thread still refers to is left to that thread."""
        taken = reader.take(flags, nanoseconds)
        _, lease, _, sweep_due, snap = taken
        if lease is None or not self._older or threading.get_ident() == self._first_thread:
            return taken
        next_batch = (lease.batch + 1) % self._num_buffers
        lap = self._older.get(next_batch)
        if lap is None:
            return taken
        if reader.leased(next_batch) != lap or self._attachment.ring_closed():
            self._older.pop(next_batch, None)
            return taken
        lease.give_back()
        time.sleep(_POLL_INTERVAL)  # it is ready still: a wait would end at once, before the first thread takes it
        return None, None, lib.ES_EMPTY, sweep_due, snap

    def _release_copied(self) -> None:
        for reference in list(self._copied):
            copied = reference()
            if copied is not None:
                copied.lease.release()
            with contextlib.suppress(ValueError):  # another thread was faster
                self._copied.remove(reference)

    def take(self, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """Takes a batch. Returns None at the end of the stream."""
        reader = self._reader
        if reader is None:
            return None
        taken = reader.take(0, 0) if not self._older else self._try(reader, 0, 0)
        arrays, lease, code, sweep_due, snap = taken
        if sweep_due:
            self._attachment.reaper.sweep()
        if arrays is not None and lease is not None:
            return self._full(arrays, lease, snap)
        return self._take_slowly(reader, lease, code, timeout, until, drop_last)

    def _full(self, arrays: "tuple[Array, ...]", lease: "BatchLease", snap: bytes) -> Sample:
        # The same as Sample(...), without the call of the named tuple's own __new__.
        sample = tuple.__new__(Sample, (self._build(*arrays), SampleInfo(snap)))
        sample._leases = (lease,)
        # Until here, an exception (for example Ctrl-C) gives the batch back: the lease dies undelivered.
        lease.delivered = True
        return sample

    def _take_slowly(
        self,
        reader: Reader,
        lease: "BatchLease | None",
        code: int,
        timeout: float | None,
        until: Finishing | None,
        drop_last: bool,
    ) -> Sample | None:
        """Waits in slices. In between, Python handles signals, dead owners are reaped, and ``until`` is checked."""
        started = time.monotonic()
        settled = False  # the last take returned ES_ENDED, and after it no learner was dead
        while True:
            nanoseconds, was_settled, settled = 0, settled, False
            if self._reader is None:
                return None
            if lease is not None:
                self._remainder.add(lease)
            elif code == lib.ES_ENDED and was_settled:
                return self._remainder.next(drop_last)
            elif code == lib.ES_ENDED:
                # What dead learners had leased is delivered again, once this process or another has reaped them.
                reaped, sure = self._attachment.reaper.reap_and_check()
                settled = sure and reaped == 0
                if not sure and reaped == 0:  # another process reaps one, or one exits: nothing tells when
                    time.sleep(min(_POLL_INTERVAL, self._next_slice(reader, started, timeout) / 1e9))
            elif code == lib.ES_EDETACHED:
                return None
            elif code not in _NOTHING_YET:
                self._attachment.check(code)
            elif until is not None and until.finished:
                until.check()
                return self._drain(reader, until, drop_last)
            else:
                nanoseconds = self._next_slice(reader, started, timeout)
            if until is not None:
                until.check()
            arrays, lease, code, sweep_due, snap = self._try(reader, 0, nanoseconds)
            # This comes first, because a batch is ready. A sweep that is due is still due at the next take.
            if arrays is not None and lease is not None:
                return self._full(arrays, lease, snap)
            if sweep_due and self._attachment.reaper.sweep() > 0:
                settled = False

    def _next_slice(self, reader: Reader, started: float, timeout: float | None) -> int:
        """Nanoseconds that the next take may sleep. Raises TimeoutError if no time is left."""
        left = None if timeout is None else timeout - (time.monotonic() - started)
        if left is not None and left <= 0:
            snap = ffi.new("es_snapshot *")
            lib.es_monitor_observe(self._ring, snap)
            raise TimeoutError(
                f"no batch of {self._batch_size} samples was complete in {self._attachment.what} within {timeout} s: "
                + (
                    self._held.text(stuck)
                    if (stuck := self._held.stuck_for_good(reader))
                    else f"sent or being written: {snap.store_size}, producers attached: {snap.active_producers}, "
                    f"remote clients: {snap.active_remotes}"
                )
            )
        self._held.check(reader, started)
        return self._attachment.slice_ns_within(left)

    def _drain(self, reader: Reader, until: Finishing, drop_last: bool) -> Sample | None:
        """Takes what is left after ``until`` has finished, on a ring that stays open."""
        settled, self._any_order = False, True
        flags = lib.ES_TAKE_ANY_ORDER | (0 if drop_last else lib.ES_TAKE_SHORT)
        while True:
            arrays, lease, code, _, snap = self._try(reader, flags, 0)
            if arrays is not None and lease is not None:
                return self._full(arrays, lease, snap)
            if lease is not None:
                settled = False
                self._remainder.add(lease)
                continue
            if code == lib.ES_TIMEOUT:  # other processes kept changing the ring
                until.check()
                continue
            if settled:
                return self._remainder.next(drop_last)
            # Producers that were killed have left slots open, too.
            settled = self._attachment.reaper.reap_and_check() == (0, True)
            if not settled:
                until.check()
                time.sleep(_POLL_INTERVAL)  # another process reaps one, or one exits: nothing tells when


def _reader(attachment: Attachment, batches: "list[Array]", versions: Array, keep: _Keep) -> Reader:
    geometry = attachment.segment.geometry
    take, release, give_back, ring = (
        int(ffi.cast("uintptr_t", pointer))
        for pointer in (
            ffi.addressof(lib, "es_api_take"),
            ffi.addressof(lib, "es_api_release"),
            ffi.addressof(lib, "es_api_give_back"),
            attachment.ring,
        )
    )
    leaves = tuple(map(describe_rows, batches))
    sizes = geometry.batch_size, geometry.num_buffers
    return Reader(take, release, give_back, ring, *sizes, leaves, (describe_rows(versions),), keep)
