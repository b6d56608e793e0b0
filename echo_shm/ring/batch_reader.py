"""How a learner takes batches: it waits in slices, reaps the dead, and drains the ring at the end of a stream."""

import errno
import time
from typing import TYPE_CHECKING

from echo_shm._core import ffi, lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.fast_path import compile_tree
from echo_shm.ring.metrics import SampleInfo
from echo_shm.ring.protocols import Finishing
from echo_shm.ring.sample import Remainder, Sample

if TYPE_CHECKING:
    from echo_shm._core import Snapshot

# Looking these up in lib, and parsing the type, would take time on every batch.
_SNAPSHOT = ffi.typeof("es_snapshot *")
_es_api_take = lib.es_api_take
_new = ffi.new

_NOTHING_YET = (lib.ES_EMPTY, lib.ES_TIMEOUT, -errno.EINTR)

#: Time between two looks while another process may be reaping a learner (seconds).
_POLL_INTERVAL = 0.001


class BatchReader:
    """Takes batches through a learner's attachment. Threads may share it."""

    def __init__(self, attachment: Attachment, writable: bool) -> None:
        self._attachment = attachment
        self._ring = attachment.ring
        segment, geometry = attachment.segment, attachment.segment.geometry
        spec, self._batch_size = segment.spec, geometry.batch_size
        # One array for each leaf, of shape (num_buffers, batch_size, *leaf.shape). The batch's index selects its view.
        batches = [
            segment.array(
                lib.es_api_leaf_offset(self._ring, i),
                (geometry.num_buffers, geometry.batch_size, *leaf.shape),
                leaf.dtype,
                writable=writable,
            )
            for i, leaf in enumerate(spec.leaves)
        ]
        self._tree = compile_tree(spec, batches)
        self._remainder = Remainder(self._ring, batches, self._batch_size, spec.structure.unflatten)
        # One sample, or several if threads call at the same time. Each operation on a dict is atomic.
        self._current: dict[int, Sample] = {}

    def release_current(self) -> None:
        """Releases what the last :meth:`next_current` returned, in whichever thread."""
        for key, sample in list(self._current.items()):
            sample.release()
            self._current.pop(key, None)

    def next_current(self, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """Releases the current batch and takes another in its place."""
        if self._current:
            self.release_current()
        snap = _new(_SNAPSHOT)
        try:
            sample = self.take(snap, timeout, until, drop_last)
            if sample is not None:
                self._current[id(sample)] = sample
            return sample
        except BaseException:  # for example Ctrl-C, after the batch was leased and before it was stored
            self.give_back(snap)
            raise

    def give_back(self, snap: "Snapshot") -> None:
        """Undoes the take that ``snap`` describes, if there is one and its samples were not copied."""
        if snap.length and not self._remainder.holds(snap.batch, snap.round):
            lib.es_api_give_back(self._ring, snap.batch, snap.round)

    def take(self, snap: "Snapshot", timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """Takes a batch. Returns None at the end of the stream.

        ``snap`` is a new ``es_snapshot``. After an exception, :meth:`give_back` finds there what was leased.
        """
        index = _es_api_take(self._ring, 0, 0, snap)
        if snap.sweep_due:
            self._attachment.reaper.sweep()
        if index >= 0 and snap.length == self._batch_size:
            return self._full(index, snap)
        return self._take_slowly(index, snap, timeout, until, drop_last)

    def _full(self, index: int, snap: "Snapshot") -> Sample:
        # The same as Sample(...), without the call of the named tuple's own __new__.
        sample = tuple.__new__(Sample, (self._tree(index), SampleInfo(snap)))
        sample._lease = (self._ring, index, snap.round)
        return sample

    def _take_slowly(
        self, index: int, snap: "Snapshot", timeout: float | None, until: Finishing | None, drop_last: bool
    ) -> Sample | None:
        """Waits in slices. In between, Python handles signals, dead owners are reaped, and ``until`` is checked."""
        started = time.monotonic()
        settled = False  # the last take returned ES_ENDED, and after it no learner was dead
        while True:
            nanoseconds, was_settled, settled = 0, settled, False
            if index >= 0:
                self._remainder.add(index, snap)
            elif index == lib.ES_ENDED and was_settled:
                return self._remainder.next(snap, drop_last)
            elif index == lib.ES_ENDED:
                # What dead learners had leased is delivered again, once this process or another has reaped them.
                reaped, sure = self._attachment.reaper.reap_and_check()
                settled = sure and reaped == 0
                if not sure and reaped == 0:
                    time.sleep(min(_POLL_INTERVAL, self._next_slice(started, timeout) / 1e9))
            elif index == lib.ES_EDETACHED:
                return None
            elif index not in _NOTHING_YET:
                self._attachment.check(index)
            elif until is not None and until.finished:
                until.check()
                return self._drain(snap, until, drop_last)
            else:
                nanoseconds = self._next_slice(started, timeout)
            if until is not None:
                until.check()
            index = _es_api_take(self._ring, 0, nanoseconds, snap)
            # This comes first, because a batch is ready. A sweep that is due is still due at the next take.
            if index >= 0 and snap.length == self._batch_size:
                return self._full(index, snap)
            if snap.sweep_due and self._attachment.reaper.sweep() > 0:
                settled = False

    def _next_slice(self, started: float, timeout: float | None) -> int:
        """Nanoseconds that the next take may sleep. Raises TimeoutError if no time is left."""
        left = None if timeout is None else timeout - (time.monotonic() - started)
        if left is not None and left <= 0:
            snap = _new(_SNAPSHOT)
            lib.es_monitor_observe(self._ring, snap)
            raise TimeoutError(
                f"no batch of {self._batch_size} samples was complete in {self._attachment.what} within {timeout} s; "
                f"samples in it: {snap.store_size}, producers attached: {snap.active_producers}, "
                f"remote clients: {snap.active_remotes}"
            )
        return self._attachment.slice_ns_within(left)

    def _drain(self, snap: "Snapshot", until: Finishing, drop_last: bool) -> Sample | None:
        """Takes what is left after ``until`` has finished, on a ring that stays open."""
        settled = False
        flags = lib.ES_TAKE_ANY_ORDER | (0 if drop_last else lib.ES_TAKE_SHORT)
        while True:
            index = _es_api_take(self._ring, flags, 0, snap)
            if index == lib.ES_TIMEOUT:  # other processes kept changing the ring
                until.check()
                continue
            if index < 0 and settled:
                return self._remainder.next(snap, drop_last)
            if index < 0:  # producers that were killed have left slots open, too
                settled = self._attachment.reaper.reap_and_check() == (0, True)
                if not settled:
                    until.check()
                    time.sleep(_POLL_INTERVAL)
                continue
            settled = False
            if snap.length == self._batch_size:
                return self._full(index, snap)
            self._remainder.add(index, snap)
