"""One process's place in a ring: it registers as an owner, and it leaves."""

import os
import time
import weakref
from typing import TYPE_CHECKING

from echo_shm._core import ffi, lib
from echo_shm.errors import ConnectionClosedError, SegmentError, error_from
from echo_shm.ring.pages import Prefault
from echo_shm.ring.processes import pid_namespace, start_time
from echo_shm.ring.reaper import Reaper
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from echo_shm._core import Ring

#: A process that waits looks at least this often whether it still makes sense (seconds). Python handles most signals
#: at once, because they end the sleep, and one that comes just before the sleep then.
_LONGEST_SLICE = 0.1
#: The same where many wait and share the work. A sleep that ends loses its place in the queue.
_LONGEST_SHARED_SLICE = 1.0

#: How long a process that finds every owner entry in use waits for one to become free (seconds).
_ENTRY_WAIT = 0.5


class Attachment:
    """A registered owner of a ring.

    Args:
        segment: A segment that is mapped with its lock file.
        role: ``ES_ROLE_PRODUCER`` or ``ES_ROLE_LEARNER``.
        what: The ring's name in messages; None: by its segment.
        prefault: Map all pages of the segment now, as :class:`Prefault` does.

    Attributes:
        ring: The ``es_ring``. It stays usable after :meth:`detach`: every call then returns ES_EDETACHED.
        index: The owner index of this attachment.
        reaper: Reaps dead owners of the ring.
        segment: The ring's segment.
        slice: Seconds between two looks at the ring of a process that waits alone.
        what: The ring's name in messages.

    """

    def __init__(self, segment: Segment, role: int, what: str | None = None, *, prefault: bool = False) -> None:
        assert segment.lockfile is not None
        self.segment = segment
        self.what = what or f"ring {segment.name!r}"
        error = ffi.new("int *")
        poison = os.environ.get("ECHO_SHM_POISON", "") not in ("", "0")
        ring = lib.es_api_open(segment.base, segment.size, segment.lockfile.locks, poison, error)
        if ring == ffi.NULL:
            raise error_from(error[0], f"segment {segment.name!r}")
        self.ring = ffi.gc(ring, lib.es_api_free)
        self._check_layout()
        self._fork_generation = lib.es_api_fork_generation()
        self.slice = min(segment.geometry.reap_interval, _LONGEST_SLICE)
        self.reaper = Reaper(self.ring, segment, self.what)
        self.index = self.reaper.own_index = self._register(role)
        self._retired = self._stopped = False
        self._prefault: Prefault | None = None
        # The finalizer also runs at interpreter exit, while the segment is still mapped.
        self._detach = weakref.finalize(self, _detach, self.ring, segment)
        if not segment.is_linked():
            self.detach()
            raise SegmentError(f"segment {segment.name!r} was closed just now")
        if prefault:
            self._prefault = Prefault(segment.mapping)

    def _check_layout(self) -> None:
        """Raises SegmentError unless the C core and Python have read the same layout. The core copies by its own."""
        batch_size, num_batches = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        num_leaves = ffi.new("uint32_t *")
        lib.es_api_shape(self.ring, batch_size, num_batches, num_leaves)
        name, geometry = self.segment.name, self.segment.geometry
        if (batch_size[0], num_batches[0]) != (geometry.batch_size, geometry.num_buffers):
            raise SegmentError(f"segment {name!r} cannot be used: its header was changed just now")
        sizes = [lib.es_api_leaf_size(self.ring, i) for i in range(num_leaves[0])]
        if sizes != [leaf.nbytes for leaf in self.segment.spec.leaves]:
            raise SegmentError(f"segment {name!r} cannot be used: its schema does not fit its layout")

    def _register(self, role: int) -> int:
        identity = ffi.new(
            "es_identity *",
            {
                "role": role,
                "pid": os.getpid(),
                "pid_namespace": pid_namespace(),
                "start_time": start_time(os.getpid()),
            },
        )
        index = lib.es_api_attach(self.ring, identity)
        # Reaping frees entries: by this process, or by another one that reaped just now or is doing so.
        deadline = time.monotonic() + _ENTRY_WAIT
        while index == lib.ES_ENOOWNER and time.monotonic() < deadline:
            if self.reaper.reap_all()[0] == 0:
                time.sleep(0.001)  # it wakes nobody when it has done so
            index = lib.es_api_attach(self.ring, identity)
        if index == lib.ES_ENOOWNER:
            limit, name = self.segment.geometry.max_producers, self.segment.name
            raise SegmentError(
                f"segment {name!r} has no place left for a "
                + (f"producer: max_producers={limit} are attached; create it with a larger max_producers"
                   if role == lib.ES_ROLE_PRODUCER else "learner: 64 are attached")
            )  # fmt: skip
        if index < 0:
            raise error_from(index, self.what)
        return index

    @property
    def attached(self) -> bool:
        """Whether neither :meth:`retire` nor :meth:`detach` was called yet."""
        return self._detach.alive and not self._retired

    def stop(self) -> None:
        """Claims nothing more: a send raises ConnectionClosedError, and so does one that waits. Idempotent.

        What is claimed can still be committed or aborted. Any thread may call it.
        """
        self._stopped = self.attached  # before the call: a thread that it wakes may look at once
        lib.es_api_stop(self.ring)

    def retire(self) -> None:
        """Leaves the ring but for its leases, which can still be ended: :meth:`detach` does the rest. Idempotent."""
        self._retired = True
        lib.es_api_retire(self.ring)

    def detach(self) -> None:
        """Leaves the ring: its claims are aborted, its leases are released. Idempotent."""
        if self._prefault is not None:
            self._prefault.stop()
        self._detach()

    def slice_of(self, waiting: int) -> float:
        """Seconds that each of so many processes may sleep, so that together they look once a slice."""
        return min(self.slice * waiting, max(self.slice, _LONGEST_SHARED_SLICE))

    def slice_ns_within(self, left: float | None, waiting: int = 1) -> int:
        """Nanoseconds that one C call may sleep.

        Args:
            left: Seconds to wait in all; None: no limit.
            waiting: How many processes wait like this one.

        """
        longest = self.slice_of(waiting)
        return max(1, int((longest if left is None else min(longest, left)) * 1e9))

    def other_learners(self) -> bool:
        """Whether another learner is registered."""
        info = ffi.new("es_owner_info *")
        index = lib.es_monitor_next_owner(self.ring, 0, info)
        while index >= 0 and info.id.role == lib.ES_ROLE_LEARNER:
            if index != self.index:
                return True
            index = lib.es_monitor_next_owner(self.ring, index + 1, info)
        return False

    def ring_closed(self) -> bool:
        """Whether the ring is closed to producers."""
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(self.ring, snap)
        return bool(snap.closed)

    def refuse_in_child(self) -> None:
        """Raises ForkedError in a child of the process that attached."""
        if lib.es_api_fork_generation() != self._fork_generation:
            raise error_from(lib.ES_EFORK, self.what)

    def check(self, code: int) -> None:
        """Raises the exception for a negative result."""
        if code == lib.ES_EDETACHED and self._stopped:
            raise ConnectionClosedError(f"this worker was stopped: its group wants no more samples for {self.what}")
        if code < 0:
            raise error_from(code, self.what)


def _detach(ring: "Ring", segment: Segment) -> None:
    """Detaches. ``segment`` is an argument so that the mapping lives until then."""
    lib.es_api_detach(ring)
