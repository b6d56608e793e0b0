"""``echo-shm record``: a trace of who claims, commits, takes and waits, for Perfetto, by looking again and again."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from echo_shm.cli import console, replay_figures, top
from echo_shm.cli.recorder import RingRecorder
from echo_shm.cli.trace_events import Trace
from echo_shm.errors import SegmentError
from echo_shm.replay import listing
from echo_shm.ring import lockfile, rollouts, segment
from echo_shm.ring.batch_names import batch_ring
from echo_shm.ring.lockfile import INBOX, UPDATES
from echo_shm.ring.metrics import Owner

#: The most events of a trace. A recording ends when it has as many.
_MOST_EVENTS = 1_000_000

#: How often it looks whether the ring was closed (seconds).
_INTERVAL = 0.5

#: A time without a look that is longer than so many periods, and than so many seconds, is shown as a gap.
_GAP_PERIODS, _GAP = 20, 0.005

HELP = """\
It maps the rings read-only and looks at their words every 0.1 ms, or as often
as it can. That costs the ring's processes nothing; this one uses a good part
of a processor. It misses what begins and ends between two looks: most claims
of small samples, and most waits that are short. Of a batch that a learner had
only briefly it knows when it was taken. The trace's metadata say how often it
looked, the longest gap, and how many batches were taken that it has not seen.
Gaps are slices of the recorder's own line.

in https://ui.perfetto.dev (open the file; it stays on your machine):
  batches    a learner has a batch, from when it took it until it was released
  taken and released    a batch that was taken then, and released before the
             next look; of the ring's line if there are several learners
  claims     a producer has slots that it has not committed
  waits      a producer waits for space, or a learner for a batch
  committed  how many samples a producer has committed (a counter)
  slots in use, samples/s    of the ring (counters)
Of a replay, all its rings are recorded.
"""


class Pace(NamedTuple):
    """How often a recording looked, and what it did not see."""

    looks: int
    seconds: float
    intervals_ns: list[int]

    def metadata(self, period: float) -> dict[str, Any]:
        """In figures, as the trace has them."""
        spans = np.array(self.intervals_ns or [0])
        return {
            "looks": self.looks,
            "seconds": round(self.seconds, 6),
            "looks_per_second": round(self.looks / self.seconds) if self.seconds > 0 else 0,
            "period_wanted_us": period * 1e6,
            "interval_us": {
                "median": float(np.median(spans)) / 1000,
                "p99": float(np.percentile(spans, 99)) / 1000,
                "longest": float(spans.max()) / 1000,
            },
            "note": "It looks again and again, and misses what begins and ends between two looks.",
        }


def _rings(name: str) -> list[tuple[str, segment.Segment]]:
    """The rings to record, each with what it is called."""
    if name in lockfile.names() or name not in listing.names():
        if name in rollouts.names() and name not in lockfile.names():
            raise SegmentError(f"rollouts {name!r} have no ring to record: `echo-shm top`, dash and metrics show them")
        mapped = segment.Segment.attach(name, read_only=True)
        if mapped.geometry.weights:
            raise SegmentError(f"segment {name!r} holds weights: recordings are of rings and replays")
        return [(name, mapped)]
    found = replay_figures.read(name).seen.rings
    return [(ring.name, ring.segment) for ring in found if ring.segment is not None]


def _kind_in(name: str, label: str) -> Any:
    """What an owner of a ring is: as ``top`` says, or by what the ring of a replay is for."""
    if name == label:
        kinds = top.Kinds()
        creator = segment.Segment.attach(name, read_only=True).creator_pid
        return lambda owner, owners: kinds.of(owner, owners, creator)
    producer, learner = {INBOX: ("writer", "replay"), UPDATES: ("client", "replay")}.get(
        label[len(name) :], ("replay", "learner")
    )

    def kind(owner: Owner, owners: list[Owner]) -> str:
        return "bridge" if owner.is_bridge else producer if owner.role == "producer" else learner

    assert label.endswith((INBOX, UPDATES)) or batch_ring(name, label) is not None
    return kind


class Recording:
    """Records the rings of one name.

    Raises:
        SegmentError: There is no ring and no replay of that name.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        rings = _rings(name)
        self._uuids = {label: ring.uuid for label, ring in rings}
        self.trace = Trace(time.monotonic_ns())
        names: dict[tuple[int, float], set[str]] = {}
        self._recorders = [RingRecorder(ring, self.trace, label, _kind_in(name, label), names) for label, ring in rings]
        self._mine = self.trace.process("recorder", "recorder")
        self._intervals: list[int] = []
        self._looks, self._last = 0, self.trace.start_ns
        self.ended = "the time was over"

    def look(self, period: float = 0.0) -> None:
        """One look at all rings."""
        now = time.monotonic_ns()
        if self._looks:
            self._intervals.append(now - self._last)
            if now - self._last > max(_GAP, _GAP_PERIODS * period) * 1e9:
                self.trace.slice(self._mine, "gaps", "nothing was seen", self._last, now)
        self._looks, self._last = self._looks + 1, now
        for recorder in self._recorders:
            recorder.look(now)

    def record(self, seconds: float, period: float) -> None:
        """Looks again and again, until the time is over or a ring was closed. Ctrl-C is passed on."""
        self.ended = "it was interrupted"
        end, due, check = time.monotonic() + seconds, time.monotonic(), time.monotonic() + _INTERVAL
        while (now := time.monotonic()) < end:
            self.look(period)
            if len(self.trace.events) >= _MOST_EVENTS:
                self.ended = f"it has {_MOST_EVENTS:,} events"
                return
            if now >= check:
                check = now + _INTERVAL
                if not self._is_there():
                    self.ended = "it was closed"
                    return
            due = max(due + period, now)
            time.sleep(max(0.0, due - time.monotonic()))
        self.ended = "the time was over"

    def _is_there(self) -> bool:
        for label, uuid in self._uuids.items():
            try:
                seen = segment.listing(label).segment
            except SegmentError:
                return False
            if seen is None or seen.uuid != uuid:
                return False
        return True

    def finish(self, period: float) -> dict[str, Any]:
        """Ends all slices, and returns the metadata."""
        now = time.monotonic_ns()
        rings = [recorder.finish(now) for recorder in self._recorders]
        pace = Pace(self._looks, (now - self.trace.start_ns) / 1e9, self._intervals)
        return {"name": self.name, **pace.metadata(period), "ended": self.ended, "rings": rings}


def run(name: str, path: str, seconds: float, period: float) -> int:
    """Records, and writes the trace, after a Ctrl-C, too. Returns the exit status.

    Raises:
        UsageError: The file cannot be written, or nothing can have that name.
        SegmentError: There is no ring and no replay of that name.

    """
    try:
        recording = Recording(lockfile.check_name(name))
    except ValueError as error:
        raise console.UsageError(str(error)) from None
    try:
        Path(path).write_text("", encoding="utf-8")
    except OSError as error:
        raise console.UsageError(f"--trace {path}: {error.strerror}") from None
    try:
        recording.record(seconds, period)
    finally:
        said = recording.finish(period)
        with Path(path).open("w", encoding="utf-8") as file:
            recording.trace.write(file, said)
    missed, taken = (sum(ring[f"batches_{what}"] for ring in said["rings"]) for what in ("missed", "taken"))
    longest = said["interval_us"]["longest"] / 1000
    print(
        f"{path}: {len(recording.trace.events):,} events of {said['seconds']:.1f} s, "
        f"{said['looks_per_second']:,} looks/s, at most {longest:.1f} ms apart; "
        f"{missed:,} of {taken:,} batches not seen; {said['ended']}"
    )
    return 0
