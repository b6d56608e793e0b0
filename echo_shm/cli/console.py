"""What the commands share: the console, short formats for numbers, bars, and imports of optional packages."""

import importlib
import math
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from echo_shm.replay import LimiterInfo

_SIZES = ("B", "KB", "MB", "GB", "TB")
_THOUSANDS = ("", "k", "M", "G", "T")
_DURATIONS = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (float("inf"), 86400, "d"))

#: The width of the output on a terminal, if it is wide enough (columns).
WIDTH = 80


class UsageError(Exception):
    """A command was used wrongly. The text is one line and says what to do."""


def need(module: str, extra: str) -> ModuleType:
    """Imports an optional package.

    Raises:
        UsageError: It is not installed. The message names the extra of echo-shm that contains it.

    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name not in (module, package):
            raise
        raise UsageError(f"this needs the package {package}: pip install 'echo-shm[{extra}]'") from None


def finite(value: float) -> float | None:
    """For JSON, which has no infinity, and nothing for what is not a number."""
    return value if math.isfinite(value) else None


def open_console() -> "Console":
    """Standard output. It is at most 80 columns wide on a terminal, and wide enough for every line elsewhere."""
    rich_console = need("rich.console", "cli").Console
    found: Console = rich_console(highlight=False)
    if found.is_terminal:
        found.width = min(found.width, WIDTH) - 2  # so that the ^C that a terminal prints does not wrap the line
    else:
        found.width = 160
    return found


def grid(pairs: int) -> "Table":
    """A table of labels and numbers, side by side."""
    made: Table = need("rich.table", "cli").Table.grid(padding=(0, 2, 0, 0))
    for _ in range(pairs):
        made.add_column(style="bold")
        made.add_column(justify="right")
    return made


def bar(part: float, whole: float, width: int = 34) -> str:
    """A bar that shows the share of ``part`` in ``whole``, in rich's markup. It is readable without colours."""
    filled = round(width * min(1.0, max(0.0, part / whole))) if whole > 0 else 0
    return f"[cyan]{'█' * filled}[/][dim]{'░' * (width - filled)}[/]"


def literal(text: str) -> str:
    """A text of the user as rich's markup: without markup and control characters of its own."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("[", r"\[")


def amount(number: float) -> str:
    """A number in at most six characters or so: ``"12,345"``, ``"1.2 M"``."""
    if abs(number) < 99_999.5 or not math.isfinite(number):
        return f"{number:,.0f}"
    unit = 0
    while abs(number) >= 999.5 and unit < len(_THOUSANDS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:,.0f} {_THOUSANDS[unit]}" if abs(number) >= 99.5 else f"{number:.1f} {_THOUSANDS[unit]}"


def plural(count: int, noun: str) -> str:
    """A number of things: ``"2 workers"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def allowed(limiter: "LimiterInfo") -> str:
    """What a table's limiter allows, in words."""
    words = ("insert", limiter.can_insert), ("sample", limiter.can_sample)
    return " and ".join(word for word, may in words if may) or "nothing"


def share(part: float, whole: float) -> str:
    """The share of ``part`` in ``whole``, in percent."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"


def size(octets: float) -> str:
    """A number of bytes, in powers of a thousand: ``"1.2 MB"``."""
    unit = 0
    while octets >= 999.5 and unit < len(_SIZES) - 1:
        octets, unit = octets / 1000, unit + 1
    return f"{octets:.0f} {_SIZES[unit]}" if unit == 0 or octets >= 99.5 else f"{octets:.1f} {_SIZES[unit]}"


def duration(seconds: float) -> str:
    """A time span in its largest unit: ``"12 s"``, ``"3 min"``."""
    for below, unit, name in _DURATIONS:
        if seconds < below:
            return f"{max(0, int(seconds / unit))} {name}"
    raise AssertionError(seconds)
