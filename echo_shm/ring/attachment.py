"""One process's place in a ring: registering as an owner, leaving, and sweeping up after the dead."""

import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections import Counter
from typing import Any

import psutil

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.ring.segment import Segment

_log = logging.getLogger("echo_shm")

#: A claim that is this old (seconds) makes its producer stalled.
_STALLED_AFTER = 1.0

#: Producers asked for their process state in one sweep; the others' turn comes in the next ones.
_STATES_PER_SWEEP = 8

#: Python looks for signals at least this often while it waits (seconds).
_LONGEST_SLICE = 0.1

#: How long a newcomer to a full table looks for a place that somebody is leaving (seconds).
_PLACE_WAIT = 0.5


@functools.cache
def pid_namespace() -> int:
    """The inode of this process's PID namespace; 0 where there is none, or where /proc shows another one's."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return 0
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


#: A forked child may be in another namespace, or have another /proc.
os.register_at_fork(after_in_child=pid_namespace.cache_clear)


def _start_time(pid: int) -> float:
    """When a process started, in seconds since the system did; 0.0 when there is none.

    Whoever asks gets the same number, whatever becomes of the clock. Two processes that had the same
    PID one after the other agree in it only if they started within one tick (0.01 s).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # a process's name, in brackets, may hold anything
            return int(stat.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass
    with contextlib.suppress(psutil.Error):  # systems without /proc
        return psutil.Process(pid).create_time()
    return 0.0


def find_process(pid: int, start_time: float) -> psutil.Process | None:
    """The process of that PID in this namespace, if it is the one that started then."""
    # The PID comes from the segment, where anything may have been written.
    with contextlib.suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(pid)
        if _start_time(pid) == start_time != 0.0:
            return process
    return None


def _contradicts_death(pid: int, start_time: float) -> bool:
    """Whether an owner whose lock is free still runs, as far as its PID tells.

    The kernel drops the lock in the middle of a process's exit, after its
    memory is gone: no memory means that it cannot write any more.
    """
    process = find_process(pid, start_time)
    with contextlib.suppress(psutil.Error):
        return process is not None and process.status() != psutil.STATUS_ZOMBIE and process.memory_info().vms > 0
    return False


def _has_memory(pid: int) -> bool:
    """Whether any thread of a process has; where nothing can tell, yes. The kernel drops the locks after the memory."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return not os.path.isdir("/proc/self/task")
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/statm", "rb") as sizes:
            if not sizes.read().startswith(b"0 "):
                return True
    return False


class Attachment:
    """A registered owner of a ring.

    Attributes:
        ring: The ``es_ring``; usable (every call then says that it is detached) even after :meth:`detach`.
        index: Our owner index.

    """

    def __init__(self, segment: Segment, role: int) -> None:
        assert segment.sidecar is not None
        self.segment = segment
        self.what = f"ring {segment.name!r}"
        error = ffi.new("int *")
        poison = os.environ.get("ECHO_SHM_POISON", "") not in ("", "0")
        ring = lib.es_open(segment.base, segment.size, segment.sidecar.locks, poison, error)
        if ring == ffi.NULL:
            raise error_from(error[0], f"segment {segment.name!r}")
        self.ring = ffi.gc(ring, lib.es_free)
        self._check_shape()
        self._slice = min(segment.geometry.reap_interval, _LONGEST_SLICE)
        self._at_it = False
        self._spared: Counter[tuple[int, int]] = Counter()
        self._in_hand = ffi.new("es_identity *", {"index": lib.ES_NOBODY})
        self.index = self._register(role)
        # At interpreter exit, too, while the segment is still mapped.
        self._leave = weakref.finalize(self, _leave, self.ring, segment)
        self._claims: dict[int, tuple[int, float]] = {}
        self._next_state = 0
        self._last_stopped: set[int] = set()
        self._sweeping = threading.RLock()  # a signal's handler may come back in here
        if not segment.is_linked():
            self.detach()
            raise SegmentError(f"segment {segment.name!r} was closed just now")

    def _check_shape(self) -> None:
        """Raises SegmentError unless the ring is what Python was told of it: the core copies by its own map."""
        batch_size, num_batches = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        num_leaves = ffi.new("uint32_t *")
        lib.es_shape(self.ring, batch_size, num_batches, num_leaves)
        name, geometry = self.segment.name, self.segment.geometry
        if (batch_size[0], num_batches[0]) != (geometry.batch_size, geometry.num_batches):
            raise SegmentError(f"segment {name!r} cannot be used: its header was changed just now")
        sizes = [lib.es_leaf_size(self.ring, i) for i in range(num_leaves[0])]
        if sizes != [leaf.nbytes for leaf in self.segment.spec.leaves]:
            raise SegmentError(f"segment {name!r} cannot be used: its schema does not fit its layout")

    def _register(self, role: int) -> int:
        identity = ffi.new(
            "es_identity *",
            {
                "role": role,
                "pid": os.getpid(),
                "pid_namespace": pid_namespace(),
                "start_time": _start_time(os.getpid()),
            },
        )
        index = lib.es_attach(self.ring, identity)
        # The dead leave places: by our sweep, by somebody else's a moment ago, or by one that is under way.
        deadline = time.monotonic() + _PLACE_WAIT
        while index == lib.ES_ENOOWNER and time.monotonic() < deadline:
            if self._reap_the_dead()[0] == 0:
                time.sleep(0.001)
            index = lib.es_attach(self.ring, identity)
        if index == lib.ES_ENOOWNER:
            limit, name = self.segment.geometry.max_producers, self.segment.name
            raise SegmentError(
                f"segment {name!r} has no place left for a "
                + (f"producer: max_producers={limit} are attached; create it with a larger max_producers"
                   if role == lib.ES_ROLE_PRODUCER else "learner: 64 are attached")
            )  # fmt: skip
        if index < 0:
            raise error_from(index, self.what)
        return int(index)

    @property
    def attached(self) -> bool:
        """Whether :meth:`detach` was not called yet."""
        return self._leave.alive

    def detach(self) -> None:
        """Leaves the ring: what is claimed is offered again, what is leased is released. Idempotent."""
        self._leave()

    def slice_ns_within(self, left: float | None) -> int:
        """Nanoseconds that one C call may sleep, with ``left`` seconds (None: any number) to wait in all."""
        return max(1, int((self._slice if left is None else min(self._slice, left)) * 1e9))

    def ring_closed(self) -> bool:
        """Whether the ring was closed to producers."""
        snap = ffi.new("es_snapshot *")
        lib.es_observe(self.ring, snap)
        return bool(snap.closed)

    def check(self, code: int) -> None:
        """Raises the exception for a negative result."""
        if code < 0:
            raise error_from(code, self.what)

    def sweep(self) -> int:
        """Reaps dead owners and counts stalled producers; returns how many were reaped.

        Cheap enough for every reap interval. Does nothing while another thread is at it.
        """
        if self._at_it:  # a hint; between acquire(blocking=False) and "try" Ctrl-C would leave it locked for ever
            return 0
        with self._sweeping:
            self._at_it = True
            try:
                reaped, _ = self._reap_the_dead()
                lib.es_set_stalled(self.ring, len(self._overdue() | self._stopped()))
                return reaped
            finally:
                self._at_it = False

    def look_for_the_dead(self) -> tuple[int, bool]:
        """Reaps the dead: how many, and whether every other learner is alive for certain.

        It may not be while somebody else reaps it, or while it dies.
        """
        with self._sweeping:
            reaped, code = self._reap_the_dead()
        if code not in (lib.ES_EMPTY, lib.ES_UNSURE):
            self.check(code)
        return reaped, code == lib.ES_EMPTY and not self._somebody_is_dying()

    def _somebody_is_dying(self) -> bool:
        """Whether a learner has no memory any more, or is gone, and its lock was still held in our sweep."""
        info = ffi.new("es_owner_info *")
        index = lib.es_next_owner(self.ring, 0, info)
        while index >= 0 and info.id.role == lib.ES_ROLE_LEARNER:
            # Of other namespaces nothing can be known. The PID comes from the segment, where anything may have been
            # written: a process that is gone leaves no lock, so one that is held says that it was another's.
            if index != self.index and info.id.pid_namespace == pid_namespace() != 0 != info.id.start_time:
                if find_process(info.id.pid, info.id.start_time) is None:
                    dying = lib.es_locks_held(self.segment.sidecar.locks, index) == 0  # type: ignore[union-attr]
                else:
                    dying = not _has_memory(info.id.pid)
                if dying:
                    return True
            index = lib.es_next_owner(self.ring, index + 1, info)
        return False

    def _reap_the_dead(self) -> tuple[int, int]:
        """Reaps every owner whose lock is free: how many, and the result that ended the sweep."""
        dead, reaped = self._in_hand, 0
        lib.es_settle(self.ring, dead, 0)  # what a sweep had in hand that we, a signal's handler, have interrupted
        try:
            index = lib.es_next_dead(self.ring, 0, dead)
            while index >= 0:
                ours = dead.pid_namespace == pid_namespace() and dead.pid_namespace != 0
                if ours and _contradicts_death(dead.pid, dead.start_time):
                    lib.es_settle(self.ring, dead, 0)
                    self._warn_of(index, dead.pid)
                else:
                    reopened = lib.es_settle(self.ring, dead, 1)
                    reaped += 1
                    if reopened < 0:  # a signal's handler has done it
                        reopened = 0
                    role = "learner" if dead.role == lib.ES_ROLE_LEARNER else "producer"
                    _log.info("%s: %s %d (pid %d) died; %d slots re-opened", self.what, role, index, dead.pid, reopened)
                index = lib.es_next_dead(self.ring, index + 1, dead)
        except BaseException:  # Ctrl-C, say: a lock that we kept would make the dead live
            lib.es_settle(self.ring, dead, 0)
            raise
        return reaped, index

    def _warn_of(self, index: int, pid: int) -> None:
        """Says, the second time (the first it may just be exiting), that an owner lives and holds no lock."""
        self._spared[index, pid] += 1
        if self._spared[index, pid] == 2:
            _log.warning(
                "%s: owner %d (pid %d) runs but holds no lock: other code in it has closed the segment's lock file. "
                "It is not reaped",
                self.what,
                index,
                pid,
            )

    def _overdue(self) -> set[int]:
        """Owners of claims that have not changed for a while."""
        now, word, claims = time.monotonic(), ffi.new("uint64_t *"), {}
        slot = lib.es_next_claim(self.ring, 0, word)
        while slot >= 0:
            known = self._claims.get(slot)
            claims[slot] = known if known is not None and known[0] == word[0] else (word[0], now)
            slot = lib.es_next_claim(self.ring, slot + 1, word)
        self._claims = claims
        return {lib.es_claim_owner(w) for w, since in claims.values() if now - since >= _STALLED_AFTER}

    def _stopped(self) -> set[int]:
        """Producers of this PID namespace that were seen stopped: a few asked anew each time, the others remembered."""
        info = ffi.new("es_owner_info *")
        producers = {}
        index = lib.es_next_owner(self.ring, 0, info)
        while index >= 0:
            if info.id.role == lib.ES_ROLE_PRODUCER and info.id.pid_namespace == pid_namespace():
                producers[index] = info.id.pid
            index = lib.es_next_owner(self.ring, index + 1, info)
        turn = sorted(producers, key=lambda i: (i < self._next_state, i))[:_STATES_PER_SWEEP]
        self._next_state = turn[-1] + 1 if turn else 0
        stopped = {i for i in self._last_stopped if i in producers and i not in turn}
        for index in turn:
            with contextlib.suppress(psutil.Error, ValueError, OverflowError):
                if psutil.Process(producers[index]).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                    stopped.add(index)
        self._last_stopped = stopped
        return stopped


def _leave(ring: Any, segment: Segment) -> None:
    """Detaches; ``segment`` is here to keep the mapping until then."""
    lib.es_detach(ring)
