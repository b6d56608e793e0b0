"""What ``echo-shm demo`` shows: a live display on a terminal, one line a second elsewhere, and a summary."""

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from echo_shm.cli import console
from echo_shm.cli.demo.check import SequenceCheck
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: The time between two readings of the ring (seconds).
_LIVE_INTERVAL = 0.25
_LINE_INTERVAL = 1.0

#: The time over which a rate on the live display is measured (seconds).
_RATE_WINDOW = 1.5


class Tally:
    """What the learner has received. The learner writes it, and the display's thread reads it.

    Args:
        sample_bytes: Bytes of one sample.

    """

    def __init__(self, sample_bytes: int) -> None:
        self.sample_bytes = sample_bytes
        self.samples = 0
        self.batches = 0
        self.waited = 0.0
        self._first = self._last = 0.0
        self._before = 0

    def add(self, samples: int, waited: float) -> None:
        """Counts a batch. ``waited``: how many seconds the learner slept for it."""
        self._last = time.monotonic()
        if self.batches == 0:
            self._first, self._before = self._last, samples  # so that the workers' start does not count
        else:
            self.waited += waited
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


class Reading(NamedTuple):
    """Counters at one moment of ``time.monotonic()``."""

    time: float
    counts: tuple[float, ...]


class Rates:
    """How fast counters grow, per second, measured over the last second or two."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def __call__(self, *counts: float) -> tuple[float, ...]:
        """Takes the counters' current values and returns their rates; 0 until there are two readings."""
        now = Reading(time.monotonic(), counts)
        self._readings.append(now)
        while len(self._readings) > 2 and now.time - self._readings[1].time >= _RATE_WINDOW:
            del self._readings[0]
        first = self._readings[0]
        span = now.time - first.time
        return tuple((b - a) / span if span > 0 else 0.0 for a, b in zip(first.counts, counts, strict=True))


class DemoView:
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
        self._name, self._what, self._seconds, self._tally = name, what, seconds, tally
        self._geometry = segment.geometry
        self._capacity = segment.geometry.capacity
        self._size = segment.size
        self._console = console.open_console()
        self._started = time.monotonic()
        self._rates = Rates()
        self._live: Live | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="echo_shm-demo-view", daemon=True)

    def __enter__(self) -> "DemoView":
        try:
            self._start()
        except BaseException:  # after a Ctrl-C while it starts, the terminal would have no cursor
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        if self._console.is_terminal:
            live: type[Live] = console.need("rich.live", "demo").Live
            self._live = live(self._screen(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._print(f"{self._what}; ring {self._name}, {console.size(self._size)}")
        self._thread.start()

    def _stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live is not None:
            self._live.update(self._screen())
            self._live.stop()

    def _keep_up(self) -> None:
        while not self._ending.wait(_LIVE_INTERVAL if self._live is not None else _LINE_INTERVAL):
            if self._live is not None:
                self._live.update(self._screen(), refresh=True)
            else:
                self._print(self._line())

    def _print(self, text: str) -> None:
        # Not through rich, which would wrap and colour a line for a file or a pipe.
        print(text, flush=True)

    # -- during the run

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
        )

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
            "blocked", _alert(snap.producers_waiting, "yellow"),
            "stalled", _alert(snap.stalled_producers, "yellow"),
            "dead", _alert(snap.dead_producers, "red"),
        )  # fmt: skip
        return self._panel(bars, "", figures)

    def _panel(self, *parts: "RenderableType") -> "RenderableType":
        group = console.need("rich.console", "demo").Group
        panel = console.need("rich.panel", "demo").Panel
        geometry = self._geometry
        footer = f"[dim]batches of {geometry.batch_size:,} x {geometry.num_buffers}, {console.size(self._size)}[/]"
        framed: RenderableType = panel(
            group(*parts, "", f"[dim]in another terminal:[/] echo-shm top {self._name}"),
            title=f"[bold]echo-shm demo[/]  {self._what}",
            title_align="left",
            subtitle=footer,
            subtitle_align="right",
            padding=(1, 2),
        )
        return framed

    # -- at the end

    def summarise(self, check: SequenceCheck, restarts: int) -> None:
        """Prints the results."""
        tally, snap = self._tally, self.ring.snapshot()
        counts = ((snap.reopened_slots, "slot"), (snap.dead_producers, "dead producer"), (restarts, "restart"))
        self._rows(
            ("played", f"{self._what}, {console.plural(check.episodes, 'episode')}"),
            ("received", f"{tally.samples:,} samples in {tally.batches:,} batches, {self._average()}"),
            ("learner", f"waited {console.share(tally.waited, tally.span)} of the time"),
            ("sequences", self._verdict(check)),
            ("re-opened", ", ".join(console.plural(count, noun) for count, noun in counts)),
        )
        for text in check.faults:
            self._rows(("", text))

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

    def say_what_is_left(self, left: list[str]) -> None:
        """Prints what is left in shared memory."""
        self._rows(("left over", ", ".join(left) or "nothing in shared memory"))

    def _rows(self, *rows: tuple[str, str]) -> None:
        for label, text in rows:
            if self._console.is_terminal:
                self._console.print(f"[bold]{label:<10}[/] ", end="", soft_wrap=True)
                self._console.print(text, markup=False, soft_wrap=True)
            else:
                self._print(f"{label:<10} {text}")


def _alert(count: int, style: str) -> str:
    return f"[{style}]{count}[/]" if count else "0"
