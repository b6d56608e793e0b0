"""How a learner waits for a batch: in slices, sweeping up after the dead, to the end of a stream."""

import errno
import time
from typing import Any

from echo_shm._core import ffi, lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.fast_path import compile_tree
from echo_shm.ring.metrics import SampleInfo
from echo_shm.ring.protocols import Finishing
from echo_shm.ring.sample import Remainder, Sample

# Names of this module, since attributes of lib and parsed types cost time on every batch.
_SNAPSHOT = ffi.typeof("es_snapshot *")
_es_take = lib.es_take
_new = ffi.new

_NOTHING_YET = (lib.ES_EMPTY, lib.ES_TIMEOUT, -errno.EINTR)

#: Between looks while somebody else may be reaping a learner (seconds).
_NAP = 0.001


class BatchReader:
    """Takes batches through a learner's attachment. Threads may share it."""

    def __init__(self, attachment: Attachment, writable: bool) -> None:
        self._attachment = attachment
        self._ring = attachment.ring
        segment, geometry = attachment.segment, attachment.segment.geometry
        spec, self._batch_size = segment.spec, geometry.batch_size
        # One array a leaf, (num_buffers, batch_size, *leaf.shape): a batch is an index away.
        batches = [
            segment.array(
                lib.es_leaf_offset(self._ring, i),
                (geometry.num_buffers, geometry.batch_size, *leaf.shape),
                leaf.dtype,
                writable=writable,
            )
            for i, leaf in enumerate(spec.leaves)
        ]
        self._tree = compile_tree(spec, batches)
        self._remainder = Remainder(self._ring, batches, self._batch_size, spec.treespec.unflatten)
        # One, or as many as threads called at the same time. Each step on a dict is atomic.
        self._current: dict[int, Sample] = {}

    def release_current(self) -> None:
        """Releases what :meth:`next_current` handed out last, by whichever thread."""
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
        except BaseException:  # Ctrl-C, say, between the lease and the line that would have kept it
            self.give_back(snap)
            raise

    def give_back(self, snap: Any) -> None:
        """Undoes the take that ``snap`` tells of, if it tells of one that nobody has made his own."""
        if snap.length and not self._remainder.holds(snap.batch, snap.round):
            lib.es_return_batch(self._ring, snap.batch, snap.round)

    def take(self, snap: Any, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """Takes a batch: a Sample, or None at the end.

        ``snap`` is a fresh ``es_snapshot``. When an exception comes, :meth:`give_back` finds in it what was leased.
        """
        index = _es_take(self._ring, 0, 0, snap)
        if snap.sweep_due:
            self._attachment.reaper.sweep()
        if index >= 0 and snap.length == self._batch_size:
            return self._full(index, snap)
        return self._take_slowly(index, snap, timeout, until, drop_last)

    def _full(self, index: int, snap: Any) -> Sample:
        # What a named tuple's own __new__ does, without the call.
        sample = tuple.__new__(Sample, (self._tree(index), SampleInfo(snap)))
        sample._lease = (self._ring, index, snap.round)
        return sample

    def _take_slowly(
        self, index: int, snap: Any, timeout: float | None, until: Finishing | None, drop_last: bool
    ) -> Sample | None:
        """Waits in slices, so that signals get through, the dead are looked for and ``until`` is asked."""
        started = time.monotonic()
        settled = False  # just now ES_ENDED was said, and then nobody was dead
        while True:
            nanoseconds, was_settled, settled = 0, settled, False
            if index >= 0:
                self._remainder.add(index, snap)
            elif index == lib.ES_ENDED and was_settled:
                return self._remainder.next(snap, drop_last)
            elif index == lib.ES_ENDED:
                # What the dead had leased comes back, perhaps by another process's hand, and perhaps just now.
                reaped, sure = self._attachment.reaper.reap_and_check()
                settled = sure and reaped == 0
                if not sure and reaped == 0:
                    time.sleep(min(_NAP, self._next_slice(started, timeout) / 1e9))
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
            index = _es_take(self._ring, 0, nanoseconds, snap)
            # First of all, for a batch waits here. A sweep that is due stays due at the next take.
            if index >= 0 and snap.length == self._batch_size:
                return self._full(index, snap)
            if snap.sweep_due and self._attachment.reaper.sweep() > 0:
                settled = False

    def _next_slice(self, started: float, timeout: float | None) -> int:
        """Nanoseconds to sleep before looking up; raises TimeoutError when the time is over."""
        left = None if timeout is None else timeout - (time.monotonic() - started)
        if left is not None and left <= 0:
            snap = _new(_SNAPSHOT)
            lib.es_observe(self._ring, snap)
            raise TimeoutError(
                f"no batch of {self._batch_size} samples was complete in {self._attachment.what} within {timeout} s; "
                f"samples in it: {snap.store_size}, producers attached: {snap.active_producers}, "
                f"remote clients: {snap.active_remotes}"
            )
        return self._attachment.slice_ns_within(left)

    def _drain(self, snap: Any, until: Finishing, drop_last: bool) -> Sample | None:
        """What is left after ``until`` finished, on a ring that stays open."""
        settled = False
        flags = lib.ES_TAKE_ANY_ORDER | (0 if drop_last else lib.ES_TAKE_SHORT)
        while True:
            index = _es_take(self._ring, flags, 0, snap)
            if index == lib.ES_TIMEOUT:  # the words did not stand still: others are at them
                until.check()
                continue
            if index < 0 and settled:
                return self._remainder.next(snap, drop_last)
            if index < 0:  # those that were killed, too, have left their slots
                settled = self._attachment.reaper.reap_and_check() == (0, True)
                if not settled:
                    until.check()
                    time.sleep(_NAP)
                continue
            settled = False
            if snap.length == self._batch_size:
                return self._full(index, snap)
            self._remainder.add(index, snap)
