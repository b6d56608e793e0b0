"""What ``echo-shm demo`` shows: a live display on a terminal, one line a second elsewhere, and a summary."""

import time
from typing import TYPE_CHECKING

from echo_shm.cli import console
from echo_shm.cli.demo.check import SequenceCheck
from echo_shm.cli.demo.display import Display, alert
from echo_shm.cli.demo.policy import Learning
from echo_shm.ring.metrics import RingView, SampleInfo
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from rich.console import RenderableType


class Tally:
    """What the learner has received. The learner writes it, and the display's thread reads it.

    Args:
        sample_bytes: Bytes of one sample.
        learning: What the learner learns; None: nothing.

    Attributes:
        info: Of the last batch.

    """

    def __init__(self, sample_bytes: int, learning: Learning | None) -> None:
        self.sample_bytes = sample_bytes
        self.learning = learning
        self.info: SampleInfo | None = None
        self.samples = 0
        self.batches = 0
        self.waited = 0.0
        self._first = self._last = 0.0
        self._before = 0

    def add(self, samples: int, info: SampleInfo) -> None:
        """Counts a batch of so many samples."""
        self.info = info
        self._last = time.monotonic()
        if self.batches == 0:
            self._first, self._before = self._last, samples  # so that the workers' start does not count
        else:
            self.waited += info.learner_wait
        self.samples += samples
        self.batches += 1

    @property
    def span(self) -> float:
        """Seconds from the first batch to the last."""
        return self._last - self._first

    @property
    def rate(self) -> float:
        """Samples a second between those two; 0 if there were fewer than two batches."""
        return (self.samples - self._before) / self.span if self.span > 0 else 0.0


class DemoView(Display):
    """The demo's display: a context manager, inside which a thread keeps the display up to date.

    Args:
        name: The segment's name.
        what: What is played, in a few words.
        seconds: How long the workers play.
        tally: What the learner has received.

    Attributes:
        ring: A read-only view of the ring.

    """

    def __init__(self, name: str, what: str, seconds: float, tally: Tally) -> None:
        segment = Segment.attach(name, read_only=True)
        self.ring = RingView(segment)
        geometry = segment.geometry
        footer = f"batches of {geometry.batch_size:,} x {geometry.num_buffers}, {console.size(segment.size)}"
        super().__init__("echo-shm demo", what, footer, name)
        self._seconds, self._tally = seconds, tally
        self._capacity, self._size = geometry.capacity, segment.size

    # -- during the run

    def _first_line(self) -> str:
        return f"{self._what}; ring {self._name}, {console.size(self._size)}"

    def _speeds(self) -> tuple[float, ...]:
        return self._rates(self._tally.samples, self._tally.batches)

    def _line(self) -> str:
        snap, (samples, batches) = self.ring.snapshot(), self._speeds()
        full = console.share(snap.occupancy, self._capacity)
        trouble = [("stalled", snap.stalled_producers), ("dead", snap.dead_producers)]
        return (
            f"{time.monotonic() - self._started:6.1f} s  {samples:,.0f} samples/s  {batches:,.1f} batches/s  "
            f"{samples * self._tally.sample_bytes / 1e6:.1f} MB/s  ring {full}  "
            f"blocked {snap.producers_waiting}" + "".join(f"  {name} {count}" for name, count in trouble if count)
        ) + "".join(f"  {label} {figure}" for label, figure in self._learned())

    def _learned(self) -> list[tuple[str, str]]:
        """What the policy gets, which version of it this is, and how old the samples of the last batch were."""
        learning, info = self._tally.learning, self._tally.info
        if learning is None or info is None:
            return []
        mean, age = learning.mean_return, f"{info.age_mean:.1f}" if info.latest_version else "-"
        return [("return", f"{mean:.1f}"), ("version", f"{info.latest_version:,}"), ("age", age)]

    def _screen(self) -> "RenderableType":
        table = console.need("rich.table", "demo").Table
        snap, (samples, batches) = self.ring.snapshot(), self._speeds()
        elapsed = time.monotonic() - self._started
        bars = table.grid(padding=(0, 2))
        bars.add_column(style="bold", width=9)
        bars.add_row("time", console.bar(elapsed, self._seconds), f"{elapsed:.1f} of {self._seconds:g} s")
        bars.add_row(
            "ring", console.bar(snap.occupancy, self._capacity), f"{snap.occupancy:,} of {self._capacity:,} slots"
        )
        learning = self._tally.learning
        if learning is not None:
            mean, most = learning.mean_return, max(learning.best, learning.mean_return)
            bars.add_row("return", console.bar(mean, most or 1.0), f"{mean:.1f}; {most:.1f} at best")
        figures = table.grid(padding=(0, 2))
        for _ in range(3):
            figures.add_column(style="bold", width=9)
            figures.add_column(justify="right", width=10)
        figures.add_row(
            "samples/s", f"{samples:,.0f}",
            "batches/s", f"{batches:,.1f}",
            "MB/s", f"{samples * self._tally.sample_bytes / 1e6:,.1f}",
        )  # fmt: skip
        figures.add_row(
            "blocked", alert(snap.producers_waiting, "yellow"),
            "stalled", alert(snap.stalled_producers, "yellow"),
            "dead", alert(snap.dead_producers, "red"),
        )  # fmt: skip
        learned = [word for pair in self._learned()[1:] for word in pair]
        if learned:
            figures.add_row(*learned)
        return self._panel(bars, "", figures)

    # -- at the end

    def summarise(self, check: SequenceCheck, restarts: int) -> None:
        """Prints the results."""
        tally, snap = self._tally, self.ring.snapshot()
        counts = ((snap.reopened_slots, "slot"), (snap.dead_producers, "dead producer"), (restarts, "restart"))
        self._rows(
            ("played", f"{self._what}, {console.plural(check.episodes, 'episode')}"),
            ("received", f"{tally.samples:,} samples in {tally.batches:,} batches, {self._average()}"),
            ("learner", f"waited {console.share(tally.waited, tally.span)} of the time"),
            ("learned", self._result()),
            ("sequences", self._verdict(check)),
            ("re-opened", ", ".join(console.plural(count, noun) for count, noun in counts)),
        )
        for text in check.faults:
            self._rows(("", text))

    def _result(self) -> str:
        learning, info = self._tally.learning, self._tally.info
        if learning is None:
            return "nothing: the actions were random"
        if learning.first is None or info is None:
            return "nothing yet: too few episodes have ended"
        returns = f"a return of {learning.mean_return:.1f}, and {learning.first:.1f} at first"
        return f"{returns}; {console.plural(info.latest_version, 'version')} of the policy"

    def _average(self) -> str:
        tally = self._tally
        return f"{tally.rate:,.0f} samples/s, {tally.rate * tally.sample_bytes / 1e6:.1f} MB/s"

    def _verdict(self, check: SequenceCheck) -> str:
        processes = f"{check.workers} worker process" + ("" if check.workers == 1 else "es")
        if check.fault_count:
            return f"BROKEN: {console.plural(check.fault_count, 'fault')} in the steps of {processes}"
        if check.workers == 0:
            return "none: no sample came"
        early = f"; {check.early} came early, in re-opened slots" if check.early else ""
        return f"unbroken, from {processes}{early}"
