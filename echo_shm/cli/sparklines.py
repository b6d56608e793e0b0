"""Figures of the last minutes as a line of bars: ``▁▂▃▅▇``."""

import math
from collections import deque
from typing import TYPE_CHECKING

from echo_shm.cli import console

if TYPE_CHECKING:
    from rich.table import Table

#: How far back a line goes (seconds).
SPAN = 300.0

#: The most bars of a line on the screen.
WIDTH = 34

_BARS = "▁▂▃▄▅▆▇█"


class History:
    """One figure over time.

    Args:
        top: What a full bar stands for; None: the greatest value that is shown.

    """

    def __init__(self, top: float | None = None) -> None:
        self._top = top
        self._values: deque[tuple[float, float]] = deque()

    def add(self, time: float, value: float) -> None:
        """Adds a value, on the clock of ``time.monotonic()``. What is too old is left out."""
        self._values.append((time, value))
        while self._values[0][0] < time - SPAN:
            self._values.popleft()

    @property
    def span(self) -> float:
        """Seconds from the first value that is shown to the last."""
        return self._values[-1][0] - self._values[0][0] if self._values else 0.0

    @property
    def highest(self) -> float:
        """The greatest value that is kept; 0.0 without any."""
        return max((value for _, value in self._values if math.isfinite(value)), default=0.0)

    def line(self, width: int) -> str:
        """At most ``width`` bars, the latest one last. A bar is the mean of its values; a space: there is none.

        Each reading has a bar of its own as long as there is room.
        """
        count = len(self._values)
        cells: list[list[float]] = [[] for _ in range(min(width, count))]
        for i, (_, value) in enumerate(self._values):
            cells[i * len(cells) // count].append(value)
        means = [_mean(cell) for cell in cells]
        top = self._top if self._top is not None else max((mean for mean in means if mean is not None), default=0.0)
        return "".join(" " if mean is None else _bar(mean, top) for mean in means)


class Lines:
    """The histories of several figures, by their labels, and how a screen shows them."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}

    def add(self, label: str, time: float, value: float, top: float | None = None) -> None:
        """Adds a value to a figure's history."""
        self._histories.setdefault(label, History(top)).add(time, value)

    def __len__(self) -> int:
        return len(self._histories)

    def table(self) -> "Table":
        """A line for each figure: its label, its bars, and the greatest value."""
        table: Table = console.need("rich.table", "cli").Table.grid(padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        for label, history in self._histories.items():
            most = f"{history.highest:,.1f}" if history.highest < 10 else console.amount(history.highest)
            words = f"[dim]at most {most} in {console.duration(history.span)}[/]"
            table.add_row(f"[bold]{label}[/]", f"[cyan]{history.line(WIDTH)}[/]", words)
        return table


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _bar(value: float, top: float) -> str:
    share = min(1.0, max(0.0, value / top)) if top > 0 else 0.0
    return _BARS[min(len(_BARS) - 1, math.ceil(share * (len(_BARS) - 1)))]
