"""The reaper: finds dead owners of a ring, re-opens their slots, gives their batches back, and counts the stalled."""

import contextlib
import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil

from echo_shm._core import ffi, lib
from echo_shm.errors import error_from
from echo_shm.ring.processes import contradicts_death, find_process, has_memory, pid_namespace
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from echo_shm._core import OwnerInfo, Ring

_log = logging.getLogger("echo_shm")

#: A producer is stalled when one of its claims is this old (seconds).
_STALLED_AFTER = 1.0

#: How many producers one sweep asks for their process state. The next sweeps ask the others.
_STATES_PER_SWEEP = 8


class Reaper:
    """Sweeps one ring for one attachment. Threads may share it, and so may a signal handler.

    Args:
        ring: The attachment's ``es_ring``.
        segment: The ring's segment, mapped with its lock file.
        what: The ring's name in messages.

    Attributes:
        own_index: The attachment's owner index, once it has one.

    """

    def __init__(self, ring: "Ring", segment: Segment, what: str) -> None:
        assert segment.lockfile is not None
        self.own_index: int = lib.ES_NOBODY
        self._ring = ring
        self._locks = segment.lockfile.locks
        self._what = what
        self._sweep_running = False
        self._lock = threading.RLock()  # a signal handler may enter again
        self._in_hand = ffi.new("es_identity *", {"index": lib.ES_NOBODY})  # whose lock byte this sweep has seized
        self._spared: Counter[tuple[int, int]] = Counter()  # how often by (index, PID)
        self._claims: dict[int, tuple[int, float]] = {}  # each slot's claim word, and since when
        self._next_state = 0
        self._last_stopped: set[int] = set()

    def sweep(self) -> int:
        """Reaps dead owners and counts stalled producers; returns how many owners were reaped.

        It is cheap enough to run once a reap interval. It does nothing while another thread runs it.
        """
        # Only a hint. With acquire(blocking=False), a Ctrl-C before the "try" would leave the lock held forever.
        if self._sweep_running:
            return 0
        with self._lock:
            self._sweep_running = True
            try:
                reaped, _ = self.reap_all()
                lib.es_sweep_set_stalled(self._ring, len(self._overdue() | self._stopped()))
                return reaped
            finally:
                self._sweep_running = False

    def reap(self) -> int:
        """Reaps dead owners; returns how many."""
        with self._lock:
            return self.reap_all()[0]

    def reap_and_check(self) -> tuple[int, bool]:
        """Reaps dead owners; returns how many, and whether every other learner is certainly alive.

        A learner may be neither while another process reaps it, or while it exits.
        """
        with self._lock:
            reaped, code = self.reap_all()
        if code not in (lib.ES_EMPTY, lib.ES_UNSURE) and code < 0:
            raise error_from(code, self._what)
        return reaped, code == lib.ES_EMPTY and not self._is_a_learner_exiting()

    def reap_all(self) -> tuple[int, int]:
        """Reaps every owner whose lock is free; returns how many, and the result that ended the sweep."""
        dead, reaped = self._in_hand, 0
        # If this is a signal handler: the owner that the interrupted sweep seized.
        lib.es_sweep_settle(self._ring, dead, 0)
        try:
            index = lib.es_sweep_next_dead(self._ring, 0, dead)
            while index >= 0:
                same_namespace = dead.pid_namespace == pid_namespace() and dead.pid_namespace != 0
                if same_namespace and contradicts_death(dead.pid, dead.start_time):
                    lib.es_sweep_settle(self._ring, dead, 0)
                    self._warn_of_lost_lock(index, dead.pid)
                else:
                    reopened = lib.es_sweep_settle(self._ring, dead, 1)
                    reaped += 1
                    if reopened < 0:  # a signal handler has reaped it meanwhile
                        reopened = 0
                    role = "learner" if dead.role == lib.ES_ROLE_LEARNER else "producer"
                    _log.info(
                        "%s: %s %d (pid %d) died; %d slots re-opened", self._what, role, index, dead.pid, reopened
                    )
                index = lib.es_sweep_next_dead(self._ring, index + 1, dead)
        except BaseException:  # for example Ctrl-C: a lock that this process kept would make the dead owner look alive
            lib.es_sweep_settle(self._ring, dead, 0)
            raise
        return reaped, index

    def _is_a_learner_exiting(self) -> bool:
        """Whether a learner has lost its memory, or is gone, and this sweep still found its lock held."""
        info = ffi.new("es_owner_info *")
        index = lib.es_monitor_next_owner(self._ring, 0, info)
        while index >= 0 and info.id.role == lib.ES_ROLE_LEARNER:
            # Nothing can be known of other namespaces. The PID comes from the segment, which may contain anything.
            # A process that is gone holds no lock, so if this lock is held, the PID was another process's.
            if index != self.own_index and info.id.pid_namespace == pid_namespace() != 0 != info.id.start_time:
                if find_process(info.id.pid, info.id.start_time) is None:
                    exiting = lib.es_segment_locks_held(self._locks, index) == 0
                else:
                    exiting = not has_memory(info.id.pid)
                if exiting:
                    return True
            index = lib.es_monitor_next_owner(self._ring, index + 1, info)
        return False

    def _warn_of_lost_lock(self, index: int, pid: int) -> None:
        """Logs that an owner is alive and holds no lock. Not the first time: then it may just be exiting."""
        self._spared[index, pid] += 1
        if self._spared[index, pid] == 2:
            _log.warning(
                "%s: owner %d (pid %d) runs but holds no lock: other code in it has closed the segment's lock file. "
                "It is not reaped",
                self._what,
                index,
                pid,
            )

    def _overdue(self) -> set[int]:
        """The owners of claims that have not changed for ``_STALLED_AFTER``."""
        now, word, claims = time.monotonic(), ffi.new("uint64_t *"), {}
        slot = lib.es_monitor_next_claim(self._ring, 0, word)
        while slot >= 0:
            known = self._claims.get(slot)
            claims[slot] = known if known is not None and known[0] == word[0] else (word[0], now)
            slot = lib.es_monitor_next_claim(self._ring, slot + 1, word)
        self._claims = claims
        return {lib.es_monitor_claim_owner(w) for w, since in claims.values() if now - since >= _STALLED_AFTER}

    def _stopped(self) -> set[int]:
        """The producers of this PID namespace that are stopped, as far as known.

        Each call asks those that were stopped for their state, and the next few of the others.
        """
        info, stopped = ffi.new("es_owner_info *"), set()
        asked = {index: self._producer_at(index, info) for index in self._last_stopped}
        start, wrapped = self._next_state, False
        for _ in range(_STATES_PER_SWEEP):
            index = lib.es_monitor_next_owner(self._ring, start, info)
            if index < 0 and wrapped:
                break
            if index < 0:
                start, wrapped = 0, True
                continue
            asked[index] = self._pid(info)
            start = index + 1
        self._next_state = start
        for index, pid in asked.items():
            with contextlib.suppress(psutil.Error, ValueError, OverflowError):
                if pid is not None and psutil.Process(pid).status() in (
                    psutil.STATUS_STOPPED,
                    psutil.STATUS_TRACING_STOP,
                ):
                    stopped.add(index)
        self._last_stopped = stopped
        return stopped

    def _producer_at(self, index: int, info: "OwnerInfo") -> int | None:
        """The PID of the producer with this index, as far as it is there and its PID means something here."""
        return self._pid(info) if lib.es_monitor_next_owner(self._ring, index, info) == index else None

    def _pid(self, info: "OwnerInfo") -> int | None:
        same = info.id.role == lib.ES_ROLE_PRODUCER and info.id.pid_namespace == pid_namespace()
        return info.id.pid if same else None
