"""How ``echo-shm top`` shows something again and again: on a terminal, or line by line elsewhere."""

import time
from typing import TYPE_CHECKING, Protocol

from echo_shm.cli import console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Watched(Protocol):
    """What can be watched.

    Attributes:
        what: What it is called in messages.

    """

    what: str

    @property
    def other_lines(self) -> int:
        """Lines of the screen that it needs whatever it shows."""

    def look(self) -> bool:
        """Takes another reading. Returns False if it is closed."""

    def render(self, most: int) -> "RenderableType":
        """Shows the last two readings. ``most``: how many lines there are for what can be any number."""


def run(watch: Watched, interval: float, *, once: bool) -> int:
    """Watches something until it is closed, or until Ctrl-C. Returns the exit status.

    Args:
        watch: It has a first reading.
        interval: Seconds between two readings.
        once: Print one reading, with the rates of one interval, and return.

    Raises:
        UsageError: rich is not installed.

    """
    terminal = console.open_console()
    try:
        going = _once(watch, terminal, interval) if once else _live(watch, terminal, interval)
    except KeyboardInterrupt:
        return 0
    if not going:
        terminal.print(f"{watch.what} was closed", markup=False, soft_wrap=True)
    return 0


def _once(watch: Watched, terminal: "Console", interval: float) -> bool:
    time.sleep(interval)
    going = watch.look()
    if going:
        terminal.print(watch.render(most=10**6))
    return going


def _live(watch: Watched, terminal: "Console", interval: float) -> bool:
    if not terminal.is_terminal:
        while _once(watch, terminal, interval):
            print(flush=True)
        return False
    live = console.need("rich.live", "cli").Live(console=terminal, auto_refresh=False)
    try:  # not `with live`: after a Ctrl-C while it starts, the terminal would have no cursor
        live.start()
        while True:
            most = max(3, terminal.height - watch.other_lines)
            live.update(watch.render(most), refresh=True)
            time.sleep(interval)
            if not watch.look():
                return False
    finally:
        live.stop()
