"""What both demos show with: a live display on a terminal, one line a second elsewhere, and a summary."""

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from echo_shm.cli import console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_Self = TypeVar("_Self", bound="Display")

#: The time between two readings (seconds).
_LIVE_INTERVAL = 0.25
_LINE_INTERVAL = 1.0

#: The time over which a rate on the live display is measured (seconds).
_RATE_WINDOW = 1.5


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


class Display:
    """A demo's display: a context manager, inside which a thread keeps the display up to date.

    Args:
        title: The command.
        what: What is played, in a few words.
        footer: How large it is, in a few words.
        name: What ``echo-shm top`` shows beside it.

    """

    def __init__(self, title: str, what: str, footer: str, name: str) -> None:
        self._title, self._what, self._footer, self._name = title, what, footer, name
        self._console = console.open_console()
        self._started = time.monotonic()
        self._rates = Rates()
        self._live: Live | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="echo_shm-demo-view", daemon=True)

    # -- what a demo shows

    def _first_line(self) -> str:
        """What is printed first without a terminal."""
        raise NotImplementedError

    def _line(self) -> str:
        """What is printed each second without a terminal."""
        raise NotImplementedError

    def _screen(self) -> "RenderableType":
        """What is drawn on a terminal."""
        raise NotImplementedError

    # -- during the run

    def __enter__(self: _Self) -> _Self:
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
            self._print(self._first_line())
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

    def _panel(self, *parts: "RenderableType") -> "RenderableType":
        group = console.need("rich.console", "demo").Group
        panel = console.need("rich.panel", "demo").Panel
        framed: RenderableType = panel(
            group(*parts, "", f"[dim]in another terminal:[/] echo-shm top {self._name}"),
            title=f"[bold]{self._title}[/]  {self._what}",
            title_align="left",
            subtitle=f"[dim]{self._footer}[/]",
            subtitle_align="right",
            padding=(1, 2),
        )
        return framed

    # -- at the end

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


def alert(count: int, style: str) -> str:
    """A number that is coloured unless it is 0."""
    return f"[{style}]{count}[/]" if count else "0"
