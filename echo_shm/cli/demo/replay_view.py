"""What ``echo-shm demo --replay`` shows: a table filling, its limiter, its priorities, and the age of what is drawn."""

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from echo_shm.cli import console
from echo_shm.cli.demo.display import Display
from echo_shm.replay import Batch, LimiterInfo, Replay, TableInfo
from echo_shm.spec import Array

if TYPE_CHECKING:
    from rich.console import RenderableType

#: How many batches the figures are of, and how far apart they are at least (seconds).
_BATCHES, _APART = 64, 0.02

#: The histogram on a terminal: columns, and lines.
_COLUMNS, _LINES = 60, 4

#: The histogram in a line.
_SHORT = 16

_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Draws:
    """What the learner has drawn. The learner writes it, and the display's thread reads it."""

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self._began = self._ended = 0.0
        self._before = 0
        self._recent: deque[tuple[Array, Array, Array]] = deque(maxlen=_BATCHES)
        self._lock = threading.Lock()
        self._last = 0.0

    def add(self, batch: Batch) -> None:
        """Counts a batch, and keeps some of its figures."""
        now = self._ended = time.monotonic()
        if self.batches == 0:
            self._began, self._before = now, len(batch.key)  # so that the workers' start does not count
        self.samples += len(batch.key)
        self.batches += 1
        if now - self._last >= _APART:
            self._last = now
            with self._lock:  # copies: an array would keep the whole batch's memory
                self._recent.append((batch.priority.copy(), 1 / batch.probability, batch.age.copy()))

    @property
    def rate(self) -> float:
        """Items a second from the first batch to the last; 0 if there were fewer than two."""
        span = self._ended - self._began
        return (self.samples - self._before) / span if span > 0 else 0.0

    def recent(self) -> tuple[Array, Array, Array]:
        """Of the items drawn of late: their priorities, how many items of the table each stands for, and their ages.

        An item was drawn with its probability. So each stands for ``1 / probability`` items, and the histogram is that
        of the table, and not that of the draws. All arrays have shape ``(n,)``.
        """
        with self._lock:
            kept = list(self._recent) or [(np.zeros(0), np.zeros(0), np.zeros(0))]
        priorities, weights, ages = (np.concatenate(column) for column in zip(*kept, strict=True))
        return priorities, weights, ages


def histogram(values: Array, weights: Array, columns: int, lines: int) -> tuple[list[str], float]:
    """A histogram drawn with characters, from 0 to the largest value. Returns its lines from the top, and that value.

    Args:
        values: Numbers of at least 0, of shape ``(n,)``.
        weights: How much each counts, of shape ``(n,)``.
        columns, lines: How wide and how high it is.

    A column that anything falls into has at least the lowest mark.
    """
    largest = float(values.max()) if len(values) else 0.0
    counts, _ = np.histogram(values, columns, (0.0, largest or 1.0), weights=weights)
    marks = np.ceil(counts * (8 * lines / counts.max())).astype(int) if counts.any() else np.zeros(columns, int)
    drawn = ["".join(_EIGHTHS[min(8, max(0, mark - 8 * below))] for mark in marks) for below in range(lines)]
    return drawn[::-1], largest


class ReplayView(Display):
    """The display: a context manager, inside which a thread keeps the display up to date.

    Args:
        replay: The replay.
        table: The table that is shown.
        what: What is played, in a few words.
        seconds: How long the workers play.
        draws: What the learner has drawn.
        step_bytes: Bytes of one step.

    """

    def __init__(self, replay: Replay, table: str, what: str, seconds: float, draws: Draws, step_bytes: int) -> None:
        self._size = replay.capacity * step_bytes
        footer = f"{replay.capacity:,} steps, {console.size(self._size)}"
        super().__init__("echo-shm demo --replay", what, footer, replay.handle.name)
        self._replay, self._table, self._seconds, self._draws = replay, table, seconds, draws
        self._step_bytes = step_bytes

    # -- during the run

    def _info(self) -> TableInfo:
        info = self._replay.info(self._table)
        assert isinstance(info, TableInfo)
        return info

    def _first_line(self) -> str:
        return f"{self._what}; replay {self._name}, {console.size(self._size)}"

    def _line(self) -> str:
        info, (priorities, weights, ages) = self._info(), self._draws.recent()
        inserted, sampled = self._rates(info.inserted, info.sampled)
        (drawn,), largest = histogram(priorities, weights, _SHORT, 1)
        return (
            f"{time.monotonic() - self._started:6.1f} s  {info.size:,} items  {inserted:,.0f} inserted/s  "
            f"{sampled:,.0f} sampled/s  {_position(info.limiter)}: {console.allowed(info.limiter)}  "
            f"age {_median(ages)}  priorities 0 {drawn} {largest:.1f}"
        )

    def _screen(self) -> "RenderableType":
        table = console.need("rich.table", "demo").Table
        info, (priorities, weights, ages) = self._info(), self._draws.recent()
        inserted, sampled = self._rates(info.inserted, info.sampled)
        elapsed = time.monotonic() - self._started
        limiter = info.limiter
        bars = table.grid(padding=(0, 2))
        bars.add_column(style="bold", width=9)
        bars.add_row("time", console.bar(elapsed, self._seconds), f"{elapsed:.1f} of {self._seconds:g} s")
        bars.add_row("table", console.bar(info.size, info.max_size), f"{info.size:,} of {info.max_size:,}")
        bars.add_row(
            "limiter",
            console.bar(limiter.diff - limiter.min_diff, limiter.max_diff - limiter.min_diff),
            _position(limiter),
        )
        figures = table.grid(padding=(0, 2))
        for _ in range(3):
            figures.add_column(style="bold", width=10)
            figures.add_column(justify="right", width=9)
        ratio = info.sampled / info.inserted if info.inserted else 0.0
        figures.add_row(
            "inserted/s", f"{inserted:,.0f}", "sampled/s", f"{sampled:,.0f}",
            "MB/s", f"{sampled * self._step_bytes / 1e6:,.1f}",
        )  # fmt: skip
        figures.add_row(
            "ratio", f"{ratio:.2f} of {limiter.ratio:g}",
            "parked", console.amount(info.parked), "evicted", console.amount(info.evicted),
        )  # fmt: skip
        figures.add_row(
            "episodes", f"{info.episodes:,}", "age", _median(ages), "effective",
            console.amount(info.effective_sample_size),
        )  # fmt: skip
        drawn, largest = histogram(priorities, weights, _COLUMNS, _LINES)
        axis = f"0{'priorities of its items':^{_COLUMNS - 4}}{largest:>3.1f}"
        return self._panel(
            bars, f"[bold]{'allows':<11}[/]{console.allowed(limiter)}", "", figures, "",
            *(f"[cyan]{line}[/]" for line in drawn), f"[dim]{axis}[/]",
        )  # fmt: skip

    # -- at the end

    def summarise(self, restarts: int) -> None:
        """Prints the results. The replay must be open."""
        info, draws = self._info(), self._draws
        ratio = info.sampled / info.inserted if info.inserted else 0.0
        self._rows(
            ("played", f"{self._what}, {console.plural(restarts, 'restart')}"),
            ("inserted", f"{info.inserted:,} items, {info.evicted:,} of them evicted"),
            ("sampled", f"{draws.samples:,} items in {draws.batches:,} batches, {draws.rate:,.0f} items/s"),
            ("limiter", f"{ratio:.2f} samples an item of {info.limiter.ratio:g}; {_position(info.limiter)}"),
        )


def _position(limiter: LimiterInfo) -> str:
    """Where ``inserted * ratio - sampled`` is, and where the limiter keeps it."""
    return f"diff {limiter.diff:,.0f} in {limiter.min_diff:,.0f}..{limiter.max_diff:,.0f}"


def _median(ages: Array) -> str:
    return f"{np.median(ages):,.0f}" if len(ages) else "-"
