"""``echo-shm top`` of a replay: its tables and their limiters, and who waits for what, from its board and its rings."""

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from echo_shm.cli import console, top
from echo_shm.errors import SegmentError
from echo_shm.replay import LimiterInfo, TableInfo, listing
from echo_shm.replay.listing import ReplayListing
from echo_shm.ring.lockfile import BATCHES, INBOX, UPDATES
from echo_shm.ring.metrics import RingView

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

#: A board that is older than this is said to be old: its replay does nothing (seconds).
_OLD = 2.0

#: Rings of batches that are shown.
_MOST_BATCHES = 4

#: The longest name of a table that is shown whole.
_NAME_WIDTH = 16


class _Reading(NamedTuple):
    """What a replay's board and rings said at one moment.

    Attributes:
        seen: All but what follows.
        occupancy: For each ring's ending how many slots are in use, and how many there are.
        states: For each ring's ending the states of its producers; see :func:`echo_shm.cli.top.states`.
        learners: For each ending of a ring of batches how many learners take from it.
        bridges: How many processes feed the inbox for clients on other hosts.
        remotes: How many such clients are connected.
        refused: How many of their connections were refused.

    """

    seen: ReplayListing
    occupancy: dict[str, tuple[int, int]]
    states: dict[str, list[str]]
    learners: dict[str, int]
    bridges: int
    remotes: int
    refused: int


class ReplayWatch:
    """Looks at one replay again and again, and shows the last two readings.

    Args:
        name: The replay's name.

    Raises:
        SegmentError: There is no such replay, or it is another user's.

    """

    def __init__(self, name: str) -> None:
        self.what = f"replay {name!r}"
        self._name = name
        self._earlier = self._latest = self._read()

    @property
    def other_lines(self) -> int:
        """Lines of the screen besides those of tables."""
        batches = len(self._latest.learners)
        return 13 + min(batches, _MOST_BATCHES) + (batches > _MOST_BATCHES)

    def look(self) -> bool:
        """Takes another reading. Returns False if the replay was closed."""
        try:
            self._earlier, self._latest = self._latest, self._read()
        except SegmentError:
            return False
        return True

    def _read(self) -> _Reading:
        now = _Reading(listing.look(self._name), {}, {}, {}, 0, 0, 0)
        for ring in now.seen.rings:
            if ring.segment is not None:
                ending, view = ring.name[len(self._name) :], RingView(ring.segment)
                snap = view.snapshot()
                now.occupancy[ending] = snap.occupancy, ring.segment.geometry.capacity
                owners = list(top.states(view))
                producers = [(owner, state) for owner, state in owners if owner.role == "producer"]
                if ending.endswith(BATCHES):
                    now.learners[ending] = sum(owner.role == "learner" and state != "dead" for owner, state in owners)
                now.states[ending] = [state for owner, state in producers if not owner.is_bridge]
                if ending == INBOX:
                    bridges = sum(owner.is_bridge and state != "dead" for owner, state in producers)
                    now = now._replace(bridges=bridges, remotes=snap.active_remotes, refused=snap.refused_remotes)
        return now

    # -- rendering

    def render(self, most: int) -> "RenderableType":
        """Shows the last two readings.

        Args:
            most: Most lines for tables. Each has one of its own, and one for its limiter.

        """
        group: type[Group] = console.need("rich.console", "cli").Group
        shown = list(self._latest.seen.tables.items())[: max(1, most // 2)]
        more = len(self._latest.seen.tables) - len(shown)
        parts: list[RenderableType] = [self._head(), "", self._figures(), "", self._tables(shown)]
        parts += [f"and {more} more"] if more else []
        parts += ["", self._limiters(shown)]
        framed: RenderableType = group(*parts)
        return framed

    def _head(self) -> str:
        seen = self._latest.seen
        process = "process -" if seen.pid is None else f"process {seen.pid}"
        if not seen.alive:
            process += " [red]dead[/]"
            if seen.directory is not None:
                process += f", [yellow]its files stay: Replay.attach({console.literal(repr(seen.directory))})[/]"
            elif seen.has_store:
                process += f", [yellow]its store stays: Replay.attach({self._name!r})[/]"
            elif not seen.attached:
                process += ", [red]nobody is attached: `echo-shm gc` removes it[/]"
        age = None if seen.heard is None else time.time() - seen.heard
        if age is None:
            process += ", it has said nothing yet"
        elif age > _OLD:
            process += f", figures of {console.duration(age)} ago"
        kind = "its own memory" if not seen.has_store else f"a store of {console.size(seen.store_bytes or 0)}"
        kind = kind if seen.directory is None else f"files in {console.literal(seen.directory)}"
        fault = f"\n[red]{console.literal(seen.fault)}[/]" if seen.fault else ""
        return f"[bold]{self._name}[/]  replay in {kind}\n[dim]{process}[/]{fault}"

    def _figures(self) -> "Group":
        now, seen = self._latest, self._latest.seen
        bars = _grid(2)
        bars.add_row("steps", *_bar(seen.steps, seen.capacity, "steps"))
        for label, ring in (("inbox", INBOX), ("updates", UPDATES)):
            if ring in now.occupancy:
                bars.add_row(label, *_bar(*now.occupancy[ring], "slots"))
        for ring, learners in list(now.learners.items())[:_MOST_BATCHES]:
            bars.add_row(
                self._batches(ring), *_bar(*now.occupancy[ring], f"items for {learners} learner{'s' * (learners != 1)}")
            )
        if len(now.learners) > _MOST_BATCHES:
            bars.add_row("", f"and {len(now.learners) - _MOST_BATCHES} more rings of batches", "")
        writers, clients = (Counter(now.states.get(ring)) for ring in (INBOX, UPDATES))
        figures = _grid(5)
        figures.add_row(
            "writers", f"{writers.total() - writers['dead']}", *_count(writers, "waiting", "yellow"),
            *_count(writers, "stopped", "yellow"), *_count(writers, "dead", "red"),
            "clients", f"{clients.total() - clients['dead']}",
        )  # fmt: skip
        if now.bridges or now.remotes:
            figures.add_row(
                "bridges", f"{now.bridges}", "remote", f"{now.remotes}", "refused", f"{now.refused}"
            )  # fmt: skip
        group: type[Group] = console.need("rich.console", "cli").Group
        waits = [f"[yellow]it takes no steps: {console.literal(seen.waits)}[/]"] if seen.alive and seen.waits else []
        return group(bars, "", figures, *waits)

    def _batches(self, ring: str) -> str:
        """What a ring of batches holds: the table, and the size of the batches."""
        number, _, n = ring.removeprefix(".").removesuffix(BATCHES).partition("x")
        names = list(self._latest.seen.tables)
        name = names[int(number)] if int(number) < len(names) else number
        return f"{console.literal(name[:_NAME_WIDTH])} \N{MULTIPLICATION SIGN} {n}"

    def _tables(self, shown: list[tuple[str, TableInfo]]) -> "Table":
        table = _table("table", "items", "max", "inserted/s", "sampled/s", "evicted", "parked", "episodes", "effective")
        for name, info in shown:
            inserted, sampled = self._rates(name, info)
            table.add_row(
                console.literal(name), console.amount(info.size), console.amount(info.max_size),
                console.amount(inserted), console.amount(sampled), console.amount(info.evicted),
                console.amount(info.parked), console.amount(info.episodes), console.amount(info.effective_sample_size),
            )  # fmt: skip
        if not shown:
            table.add_row("none")
        return table

    def _rates(self, name: str, now: TableInfo) -> tuple[float, float]:
        """Items inserted and sampled per second, between the moments at which the two boards were written."""
        before, (earlier, latest) = self._earlier.seen.tables.get(name), (self._earlier.seen, self._latest.seen)
        span = (latest.heard or 0.0) - (earlier.heard or 0.0)
        if before is None or span <= 0 or earlier.heard is None or before.inserted > now.inserted:  # it was reset
            return 0.0, 0.0
        return (now.inserted - before.inserted) / span, max(0, now.sampled - before.sampled) / span

    @staticmethod
    def _limiters(shown: list[tuple[str, TableInfo]]) -> "Table":
        table = _table("limiter of", "min_size", "ratio", "inserted*ratio-sampled", "between", "allows")
        for name, info in shown:
            limiter = info.limiter
            table.add_row(
                console.literal(name), console.amount(limiter.min_size), f"{limiter.ratio:g}",
                console.amount(limiter.diff), _band(limiter), console.allowed(limiter),
            )  # fmt: skip
        return table


def _band(limiter: LimiterInfo) -> str:
    """What a limiter keeps ``inserted * ratio - sampled`` between: ``"70 k..90 k"``."""
    if math.isinf(limiter.min_diff) and math.isinf(limiter.max_diff):
        return "any"
    return f"{console.amount(limiter.min_diff)}..{console.amount(limiter.max_diff)}"


def _bar(part: int | None, whole: int | None, noun: str) -> tuple[str, str]:
    """A bar, and what it shows in words."""
    if part is None or whole is None:
        return console.bar(0, 1), f"- of {'-' if whole is None else f'{whole:,}'} {noun}"
    return console.bar(part, whole), f"{part:,} of {whole:,} {noun}"


def _count(states: "Counter[str]", state: str, style: str) -> tuple[str, str]:
    """A state, and how many are in it."""
    return state, f"[{style}]{states[state]}[/]" if states[state] else "0"


def _grid(pairs: int) -> "Table":
    """A table of labels and numbers, side by side."""
    grid: Table = console.need("rich.table", "cli").Table.grid(padding=(0, 2, 0, 0))
    for _ in range(pairs):
        grid.add_column(style="bold")
        grid.add_column(justify="right")
    return grid


def _table(name: str, *columns: str) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=_NAME_WIDTH)
    for label in columns:
        table.add_column(label, justify="right", no_wrap=True)
    return table
