"""What happens in one ring, found by looking again and again. Nothing here writes to the ring.

Who claims, commits, takes, releases and waits says so in words that others need anyway. So a recording costs the ring's
processes nothing. It misses what begins and ends between two looks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from echo_shm.cli.trace_events import Trace
from echo_shm.cli.words import NOBODY, Words
from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.segment import Segment

#: Counters have at most one value in so many nanoseconds; rates are means over the second span.
_COUNTER_NS, _RATE_NS = 1_000_000, 10_000_000


class _Lease(NamedTuple):
    """A batch that a learner has."""

    owner: int
    line: int
    begin_ns: int
    number: int


class RingRecorder:
    """Looks at one ring, and adds what it sees to a trace.

    Args:
        segment: It holds samples, and is mapped read-only.
        trace: What gets the events.
        label: What the ring is called.
        kind: What an owner is, in one word; given all owners.
        names: What each process is, by its PID and its start: for all recorders of the trace.

    """

    def __init__(
        self,
        segment: Segment,
        trace: Trace,
        label: str,
        kind: Callable[[Owner, list[Owner]], str],
        names: dict[tuple[int, float], set[str]],
    ) -> None:
        self._trace, self._label, self._kind = trace, label, kind
        self._geometry = segment.geometry
        self._words, self._view = Words(segment), RingView(segment)
        self._ring = trace.process(("ring", label), f"ring {label}")
        self._names = names
        self._pids: dict[int, int] = {}  # of owners, in the trace
        self._learner: int | None = None  # the only one, in the trace
        self._known: npt.NDArray[Any] = self._words.owners()[:0]
        self._rounds, self._holders, _ = self._words.batches()
        self._leases: dict[int, _Lease] = {}
        self._waits: dict[int, int] = {}
        self._claims: dict[int, tuple[int, int]] = {}  # since when, and the most slots
        self._sleeping: tuple[int, int] | None = None  # since when, and whose line
        self._committed: dict[int, int] = {}
        self._last, self._counted_ns = trace.start_ns, 0
        self._rate: tuple[int, int] | None = None
        self._first = self._view.snapshot()
        self.seen_batches = self.short_batches = 0
        self._look_at_owners(self._words.owners())
        self._begin_leases({int(index): trace.start_ns for index in np.flatnonzero(self._holders != NOBODY)})

    def look(self, now: int) -> None:
        """One look. ``now`` is on the clock of ``time.monotonic_ns()``."""
        rounds, holders, leased = self._words.batches()
        entries = self._words.owners()
        if not _same_owners(entries, self._known):
            self._look_at_owners(entries)
        changed = np.flatnonzero((holders != self._holders) | (rounds != self._rounds)).tolist()
        begins = {index: self._began(int(leased[index]), now) for index in changed if holders[index] != NOBODY}
        # A learner that took its next batch between the two looks has released the last one by then, as a rule.
        next_taken = {
            int(holders[index]): begins[index] for index in sorted(begins, key=begins.__getitem__, reverse=True)
        }
        for index in changed:
            if holders[index] == self._holders[index] == NOBODY:
                self._short_lease(index, int(rounds[index]) - 1, int(leased[index]), now)
            self._end_lease(index, next_taken.get(int(self._holders[index]), now))
        self._rounds, self._holders = rounds, holders
        self._begin_leases(begins)
        self.seen_batches += len(begins)
        self._last = now
        self._look_at_waits(entries, now)
        self._look_at_claims(rounds, now)
        self._count(entries, now)

    def finish(self, now: int) -> dict[str, Any]:
        """Ends all slices, and says what the recording missed of this ring."""
        for index in list(self._leases):
            self._end_lease(index, now)
        for owner, since in self._waits.items():
            self._trace.slice(self._pids[owner], self._line("waits"), "waits for space", since, now)
        for owner, (since, most) in self._claims.items():
            self._trace.slice(self._pids[owner], self._line("claims"), "claims", since, now, slots=most)
        self._end_sleep(now)
        last = self._view.snapshot()
        taken = int(last.batches_taken) - int(self._first.batches_taken)
        found: dict[str, Any] = {
            "ring": self._label,
            "samples": int(last.samples_inserted) - int(self._first.samples_inserted),
            "batches_taken": taken,
            "batches_seen": self.seen_batches,
            "batches_seen_after": self.short_batches,
            "batches_missed": max(0, taken - self.seen_batches - self.short_batches),
        }
        if self._geometry.detailed_metrics:
            for name, hist in (("look", last.look), ("copy", last.copy), ("dwell", last.dwell)):
                found[f"{name}_ns"] = {"p50": hist.p50_ns, "p90": hist.p90_ns, "p99": hist.p99_ns, "count": hist.count}
        return found

    # -- who

    def _look_at_owners(self, entries: npt.NDArray[Any]) -> None:
        """Asks the process table what each owner is. It takes some milliseconds, whenever somebody comes."""
        self._known = entries
        owners = self._view.owners()
        learners = [owner.index for owner in owners if owner.role == "learner"]
        for owner in owners:
            key = owner.pid, owner.start_time
            kinds = self._names.setdefault(key, set())
            kinds.add(self._kind(owner, owners))
            name = f"{', '.join(sorted(kinds))} {owner.pid}"
            self._pids[owner.index] = self._trace.process(key, name, owner.pid)
        self._learner = self._pids[learners[0]] if len(learners) == 1 else None

    def _pid(self, owner: int) -> int:
        """The process of an owner; the ring's own line if it is gone already."""
        return self._pids.get(owner, self._ring)

    def _line(self, what: str) -> str:
        return f"{what} ({self._label})"

    # -- leases

    def _began(self, leased: int, now: int) -> int:
        """When a lease began that the last look did not see: the learner wrote it, unless that cannot be."""
        return min(max(leased, self._last), now) if leased >= self._trace.start_ns else now

    def _begin_leases(self, begins: dict[int, int]) -> None:
        """Begins the leases of these batches, at these times. Each of a learner's has a line of its own."""
        for index, begin in sorted(begins.items(), key=lambda one: one[1]):
            owner = int(self._holders[index])
            lines = {lease.line for lease in self._leases.values() if lease.owner == owner}
            line = next(i for i in range(len(lines) + 1) if i not in lines)
            number = int(self._rounds[index]) * self._geometry.num_buffers + index
            self._leases[index] = _Lease(owner, line, begin, number)

    def _end_lease(self, index: int, now: int) -> None:
        lease = self._leases.pop(index, None)
        if lease is not None:
            line = self._line(f"batches {lease.line + 1}")
            self._trace.slice(self._pid(lease.owner), line, f"batch {lease.number}", lease.begin_ns, now)

    def _short_lease(self, index: int, round_number: int, leased: int, now: int) -> None:
        """A batch was taken and released between two looks. Its word tells when, and not by whom."""
        if self._last < leased <= now:
            self.short_batches += 1
            number = round_number * self._geometry.num_buffers + index
            pid = self._learner if self._learner is not None else self._ring
            self._trace.instant(pid, self._line("taken and released"), f"batch {number}", leased)

    # -- waits and claims

    def _look_at_waits(self, entries: npt.NDArray[Any], now: int) -> None:
        waiting = set(np.flatnonzero((entries["state"] == 1) & (entries["waiting"] != 0)).tolist()) & set(self._pids)
        for owner in self._waits.keys() - waiting:
            self._trace.slice(self._pids[owner], self._line("waits"), "waits for space", self._waits.pop(owner), now)
        for owner in waiting - self._waits.keys():
            self._waits[owner] = now
        if not self._words.sleeps():
            self._end_sleep(now)
        elif self._sleeping is None:
            self._sleeping = now, self._learner if self._learner is not None else self._ring

    def _end_sleep(self, now: int) -> None:
        if self._sleeping is not None:
            since, pid = self._sleeping
            who = "waits for a batch" if pid != self._ring else "a learner waits for a batch"
            self._trace.slice(pid, self._line("waits"), who, since, now)
            self._sleeping = None

    def _look_at_claims(self, rounds: npt.NDArray[Any], now: int) -> None:
        claims = self._words.claims(rounds)
        for owner in self._claims.keys() - claims.keys():
            since, most = self._claims.pop(owner)
            self._trace.slice(self._pid(owner), self._line("claims"), "claims", since, now, slots=most)
        for owner, count in claims.items():
            since, most = self._claims.get(owner, (now, 0))
            if owner in self._pids:
                self._claims[owner] = since, max(most, count)

    # -- counters

    def _count(self, entries: npt.NDArray[Any], now: int) -> None:
        if now - self._counted_ns < _COUNTER_NS:
            return
        self._counted_ns = now
        snap, trace = self._view.snapshot(), self._trace
        trace.counter(self._ring, "slots in use", now, int(snap.occupancy))
        since, samples = self._rate or (now, int(snap.samples_inserted))
        if self._rate is None or now - since >= _RATE_NS:
            if now > since:
                rate = (int(snap.samples_inserted) - samples) * 1e9 / (now - since)
                trace.counter(self._ring, "samples/s", now, round(rate))
            self._rate = now, int(snap.samples_inserted)
        for index in np.flatnonzero((entries["state"] == 1) & (entries["role"] == 2)).tolist():
            count = int(entries["samples"][index])
            if self._committed.get(index) != count and index in self._pids:
                self._committed[index] = count
                trace.counter(self._pids[index], self._line("committed"), now, count)


def _same_owners(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return len(one) == len(other) and all(
        (one[field] == other[field]).all() for field in ("state", "pid", "start_time")
    )
