"""``echo-shm top --ray``: all shards of a replay on a Ray cluster, from what they report to its directory."""

import math
import time
from typing import TYPE_CHECKING

from echo_shm.cli import console, limiters, ray_figures, sparklines
from echo_shm.cli.ray_figures import RayFigures

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from echo_shm.adapters.ray.directory import Place
    from echo_shm.replay import TableInfo

#: Losses that are shown, the last ones.
_MOST_LOSSES = 3

#: A directory that was silent for longer is said to be (seconds).
_SILENT = 2.0

_STYLES = {"here": "green", "new": "yellow", "absent": "red"}

#: What ``top`` prints with ``--ray``, for its ``--help``.
HELP = """\
figures of a replay on Ray:
  share      of the draws: with which probability one is of this shard
  said       how old the shard's last report is
  here       it reports; new: it has not yet; absent: no more, and it is left out
  all        sums; a limiter allows what it allows in one shard at least
"""


class RayWatch:
    """Looks at one replay again and again, and shows the last reading.

    Args:
        name: The replay's; None: the only one of the cluster.
        address: The cluster's, as for ``ray.init()``.

    Raises:
        UsageError, EchoShmError: As for :class:`RayFigures`.

    """

    def __init__(self, name: str | None, address: str) -> None:
        self._figures = RayFigures(name, address)
        self.what = f"replay {self._figures.name!r}"
        self._lines = sparklines.Lines()

    @property
    def other_lines(self) -> int:
        """Lines of the screen besides those of shards."""
        tables, losses = len(self._figures.tables), len(self._figures.look.roster.losses)
        lines = len(self._lines) + bool(self._lines)
        lost = min(losses, _MOST_LOSSES) + (losses > _MOST_LOSSES) + bool(losses)
        return 6 + lines + 3 + 4 * tables + 2 * lost

    def look(self) -> bool:
        """Takes another reading. Returns False if the replay was closed."""
        if not self._figures.read():
            return False
        rates = [rate for table in self._figures.tables for rate in self._figures.rates(table).values()]
        now, (steps, capacity) = time.monotonic(), self._figures.steps
        self._lines.add("inserted/s", now, sum(one.inserted for one in rates))
        self._lines.add("sampled/s", now, sum(one.sampled for one in rates))
        self._lines.add("steps", now, steps, capacity)
        return True

    # -- rendering

    def render(self, most: int) -> "RenderableType":
        """Shows the last reading.

        Args:
            most: Most lines for shards: those of the shards themselves, and those of each table.

        """
        group: type[Group] = console.need("rich.console", "cli").Group
        names = self._figures.tables
        each = max(1, most // (len(names) + 1))
        places = self._figures.look.roster.places
        shown = sorted(places, key=lambda one: (self._figures.state(one.number) != "absent", one.number))[:each]
        parts: list[RenderableType] = [self._head(), "", self._sums(), ""]
        parts += [self._lines.table(), ""] if self._lines else []
        parts.append(self._shards(shown))
        more = len(places) - len(shown)
        parts += [f"and {more} more"] if more else []
        for name in names:
            parts += ["", self._table(name, shown)]
        parts += self._losses()
        framed: RenderableType = group(*parts)
        return framed

    def _head(self) -> str:
        places = self._figures.look.roster.places
        absent = sum(self._figures.state(one.number) == "absent" for one in places)
        words = console.plural(len(places), "shard") + " on Ray"
        words += f", [red]{absent} absent[/]" if absent else ""
        silent = self._figures.silence
        words += f", [red]its directory has said nothing for {console.duration(silent)}[/]" if silent > _SILENT else ""
        return f"[bold]{console.literal(self._figures.name)}[/]  replay over {words}"

    def _sums(self) -> "Table":
        steps, capacity = self._figures.steps
        figures = console.grid(2)
        figures.add_row("steps", console.bar(steps, capacity), f"{steps:,} of {capacity:,} steps")
        return figures

    def _shards(self, shown: "list[Place]") -> "Table":
        """Where each shard is, and how it is."""
        table = _columns("shard", "node", "host", "process", "steps", "of", "said", "state")
        for place in shown:
            state = self._figures.state(place.number)
            found = self._figures.look.reports.get(place.number)
            said = ["-"] * 4
            if found is not None:
                report = found[0]
                age = self._figures.look.age(place.number)
                said = [f"{report.pid}", console.amount(report.num_steps), console.amount(report.capacity), _ago(age)]
            styled = f"[{_STYLES[state]}]{state}[/]"
            table.add_row(f"{place.number}", place.node[: ray_figures.ID], console.literal(place.host), *said, styled)
        if not shown:
            table.add_row("none")
        return table

    def _table(self, name: str, shown: "list[Place]") -> "Table":
        """A table of all shards together, and of each."""
        table = _columns(
            console.literal(name), "items", "inserted/s", "sampled/s", "share", "parked", "between", "allows"
        )
        infos, rates, shares = self._figures.of_table(name), self._figures.rates(name), self._figures.shares(name)
        both = [sum(one.inserted for one in rates.values()), sum(one.sampled for one in rates.values())]
        table.add_row(
            "all", console.amount(sum(one.size for one in infos.values())), *map(console.amount, both),
            console.share(sum(shares.values()), 1.0) if shares else "-",
            console.amount(sum(one.parked for one in infos.values())), *_sum_of_limiters(list(infos.values())),
        )  # fmt: skip
        for place in shown:
            info = infos.get(place.number)
            if info is None:
                table.add_row(f"{place.number}", *["-"] * 7)
                continue
            rate = rates[place.number]
            table.add_row(
                f"{place.number}", console.amount(info.size), console.amount(rate.inserted),
                console.amount(rate.sampled), _percent(shares.get(place.number)), console.amount(info.parked),
                limiters.band(info.limiter.min_diff, info.limiter.max_diff), console.allowed(info.limiter),
            )  # fmt: skip
        return table

    def _losses(self) -> list[str]:
        """What went with nodes that died: the last of it."""
        losses = self._figures.look.roster.losses
        lines = [f"[red]{console.literal(ray_figures.words_of(one))}[/]" for one in losses[-_MOST_LOSSES:]]
        earlier = losses[:-_MOST_LOSSES]
        lines += [f"and {len(earlier)} more before"] if earlier else []
        return ["", *lines] if lines else []


def _sum_of_limiters(infos: "list[TableInfo]") -> tuple[str, str]:
    """Between which bounds all shards are together, and what one of them allows."""
    found = [info.limiter for info in infos]
    if not found:
        return "-", "-"
    bounds = sum(one.min_diff for one in found), sum(one.max_diff for one in found)
    words = ("insert", any(one.can_insert for one in found)), ("sample", any(one.can_sample for one in found))
    between = "-" if any(map(math.isnan, bounds)) else limiters.band(*bounds)  # a shard that is new may nothing yet
    return between, " and ".join(word for word, may in words if may) or "nothing"


def _percent(share: float | None) -> str:
    """A share in percent. One that is small is not said to be 0."""
    if share is None:
        return "-"
    return "< 1 %" if 0 < share < 0.005 else console.share(share, 1.0)


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else console.duration(seconds)


def _columns(name: str, *others: str) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=16)
    for label in others:
        table.add_column(label, justify="right", no_wrap=True)
    return table
