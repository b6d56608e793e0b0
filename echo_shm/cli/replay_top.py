"""``echo-shm top`` of a replay: its tables and their limiters, and who waits for what, from its board and its rings."""

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from echo_shm.cli import console, limiters, replay_figures, sparklines, top
from echo_shm.cli.replay_waits import ReplayWaits
from echo_shm.errors import SegmentError
from echo_shm.replay import TableInfo
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.lockfile import INBOX, UPDATES
from echo_shm.ring.metrics import Owner

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

#: A board that is older than this is said to be old: its replay does nothing (seconds).
_OLD = 2.0

#: Rings of batches that are shown: those of a group of eight.
_MOST_BATCHES = 8

#: Lines that a wait takes on a narrow terminal.
_WAIT_LINES = 4

#: Writers that are shown.
_MOST_WRITERS = 4

#: The longest name of a table that is shown whole.
_NAME_WIDTH = 16


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
        self._lines = sparklines.Lines()
        self._waits = ReplayWaits(top.SHORT)
        self._earlier = self._latest = replay_figures.read(name)
        self._waits.look(self._latest)

    @property
    def other_lines(self) -> int:
        """Lines of the screen besides those of tables."""
        shown = (len(self._latest.batches), _MOST_BATCHES), (len(self._writers()), _MOST_WRITERS)
        parts = sum(2 + min(count, most) + (count > most) for count, most in shown if count)
        waits = len(self._latest.seen.waiting) + (self._waits.writers is not None)
        lines = len(self._lines) + bool(self._lines)
        hot_cold = sum(info.hot_cold is not None for info in self._latest.seen.tables.values())
        return 14 + lines + (self._latest.version > 0) + parts + _WAIT_LINES * waits + hot_cold + (hot_cold > 0)

    def look(self) -> bool:
        """Takes another reading. Returns False if the replay was closed."""
        try:
            self._earlier, self._latest = self._latest, replay_figures.read(self._name)
        except SegmentError:
            return False
        self._waits.look(self._latest)
        self._remember()
        return True

    def _remember(self) -> None:
        """Adds what the last two readings say to the figures of the last minutes."""
        now = self._latest
        rates = [replay_figures.rates(self._earlier, now, table) for table in now.seen.tables]
        self._lines.add("inserted/s", now.time, sum(inserted for inserted, _ in rates))
        self._lines.add("sampled/s", now.time, sum(sampled for _, sampled in rates))
        if now.seen.steps is not None:
            self._lines.add("steps", now.time, now.seen.steps, now.seen.capacity)
        if now.version and INBOX in now.rings:
            self._lines.add("mean age", now.time, now.rings[INBOX].versions[0])

    def _writers(self) -> list[tuple[Owner, str]]:
        """The writers, each with its state. Bridges are none."""
        inbox = self._latest.rings.get(INBOX)
        found = inbox.owners if inbox is not None else []
        return [(owner, state) for owner, state in found if owner.role == "producer" and not owner.is_bridge]

    # -- rendering

    def render(self, most: int) -> "RenderableType":
        """Shows the last two readings.

        Args:
            most: Most lines for tables. Each has three: one of its own, one for its limiter, and one for its use.

        """
        group: type[Group] = console.need("rich.console", "cli").Group
        shown = list(self._latest.seen.tables.items())[: max(1, most // 3)]
        more = len(self._latest.seen.tables) - len(shown)
        parts: list[RenderableType] = [self._head(), "", self._figures(), ""]
        parts += [self._lines.table(), ""] if self._lines else []
        parts.append(self._tables(shown))
        parts += [f"and {more} more"] if more else []
        parts += [self._limiters(shown), self._uses(shown), *self._hot_and_cold(shown)]
        if self._latest.batches:
            parts += ["", self._rings_of_batches()]
        if self._writers():
            parts += ["", self._each_writer()]
        parts += [f"[yellow]{console.literal(wait)}[/]" for wait in self._waits.lines(self._latest)]
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
        return f"[bold]{self._name}[/]  replay in {kind}, {console.size(seen.bytes)} in all\n[dim]{process}[/]{fault}"

    def _figures(self) -> "Group":
        now, seen = self._latest, self._latest.seen
        bars = console.grid(2)
        bars.add_row("steps", *_bar(seen.steps, seen.capacity, "steps"))
        for label, ring in (("inbox", INBOX), ("updates", UPDATES)):
            if ring in now.rings:
                bars.add_row(label, *_bar(now.rings[ring].occupancy, now.rings[ring].capacity, "slots"))
        writers = Counter(state for _, state in self._writers())
        figures = console.grid(5)
        figures.add_row(
            "writers", f"{writers.total() - writers['dead']}", *_count(writers, "waiting", "yellow"),
            *_count(writers, "stopped", "yellow"), *_count(writers, "dead", "red"),
            "clients", f"{now.rings[UPDATES].alive('producer') if UPDATES in now.rings else 0}",
        )  # fmt: skip
        inbox = now.rings.get(INBOX)
        bridges = 0 if inbox is None else sum(owner.is_bridge and state != "dead" for owner, state in inbox.owners)
        if inbox is not None and (bridges or inbox.remotes):
            figures.add_row("bridges", f"{bridges}", "remote", f"{inbox.remotes}", "refused", f"{inbox.refused}")
        if now.version:
            figures.add_row(*top.age_cells(now.version, (math.nan, 0) if inbox is None else inbox.versions))
        group: type[Group] = console.need("rich.console", "cli").Group
        return group(bars, "", figures)

    def _rings_of_batches(self) -> "Table":
        """What is drawn ahead for learners, what they take, and how old it is."""
        table = _table("batches", "drawn ahead", "batches/s", "age", "learners", "held", "held for")
        span = self._latest.time - self._earlier.time
        found = list(self._latest.batches.items())
        for ending, one in found[:_MOST_BATCHES]:
            ring, before = self._latest.rings[ending], self._earlier.rings.get(ending)
            taken = 0.0 if before is None or span <= 0 else max(0, ring.batches_taken - before.batches_taken) / span
            held = [owner for owner, state in ring.owners if owner.role == "learner" and state != "dead" and owner.held]
            table.add_row(
                self._label(one), f"{ring.occupancy:,} of {ring.capacity:,}", f"{taken:,.1f}", self._age(one, ring.age),
                f"{ring.alive('learner')}", f"{sum(owner.held for owner in held)}",
                console.duration(max(owner.held_time for owner in held)) if held else "-",
            )  # fmt: skip
        if len(found) > _MOST_BATCHES:
            table.add_row("", f"and {len(found) - _MOST_BATCHES} more")
        return table

    def _label(self, one: BatchRing) -> str:
        """What a ring of batches holds: the table, the size of the batches, and for which rank."""
        names = list(self._latest.seen.tables)
        name = names[one.table] if one.table < len(names) else f"{one.table}"
        rank = f" {one.rank}/{one.world_size}" if one.world_size else ""
        return f"{console.literal(name[:_NAME_WIDTH])} \N{MULTIPLICATION SIGN} {one.n}{rank}"

    def _age(self, one: BatchRing, items: float) -> str:
        """How old the items were when they were drawn: in items that came after them, and in time as they come now."""
        if math.isnan(items):
            return "-"
        names = list(self._latest.seen.tables)
        rate = replay_figures.rates(self._earlier, self._latest, names[one.table])[0] if one.table < len(names) else 0.0
        return console.amount(items) + (f" ({console.duration(items / rate)})" if rate else "")

    def _each_writer(self) -> "Table":
        table = _table("writer", "steps/s", "steps", "blocked", "state")
        inbox, span = self._earlier.rings.get(INBOX), self._latest.time - self._earlier.time
        earlier = {owner.index: owner for owner, _ in inbox.owners} if inbox is not None else {}
        found = self._writers()
        for owner, state in found[:_MOST_WRITERS]:
            rates = top.since(earlier.get(owner.index), owner, span)
            table.add_row(
                f"process {owner.pid}", f"{rates.samples:,.0f}", f"{owner.samples:,}", console.share(rates.blocked, 1),
                top.styled(state),
            )  # fmt: skip
        if len(found) > _MOST_WRITERS:
            table.add_row(f"and {len(found) - _MOST_WRITERS} more")
        return table

    def _tables(self, shown: list[tuple[str, TableInfo]]) -> "Table":
        table = _table("table", "items", "max", "inserted/s", "sampled/s", "evicted", "parked", "episodes", "effective")
        for name, info in shown:
            inserted, sampled = replay_figures.rates(self._earlier, self._latest, name)
            table.add_row(
                console.literal(name), console.amount(info.size), console.amount(info.max_size),
                console.amount(inserted), console.amount(sampled), console.amount(info.evicted),
                console.amount(info.parked), console.amount(info.episodes), console.amount(info.effective_sample_size),
            )  # fmt: skip
        if not shown:
            table.add_row("none")
        return table

    @staticmethod
    def _limiters(shown: list[tuple[str, TableInfo]]) -> "Table":
        table = _table("limiter of", *limiters.COLUMNS)
        for name, info in shown:
            table.add_row(console.literal(name), *limiters.cells(info.limiter))
        return table

    def _uses(self, shown: list[tuple[str, TableInfo]]) -> "Table":
        """When something last came into a table, and was last drawn, as far as it changed while the replay looked."""
        table = _table("use of", "memory", "last in", "last out", "deleted", "sampled/inserted")
        for name, info in shown:
            used, heard = self._latest.seen.activity[name], self._latest.seen.heard or 0.0
            ratio = f"{info.sampled / info.inserted:.2f}" if info.inserted else "-"
            ago = (
                "-" if one is None else f"{console.duration(max(0.0, heard - one))} ago"
                for one in (used.inserted, used.sampled)
            )
            table.add_row(console.literal(name), console.size(info.bytes), *ago, console.amount(info.deleted), ratio)
        return table

    @staticmethod
    def _hot_and_cold(shown: list[tuple[str, TableInfo]]) -> "list[Table]":
        """The parts of tables that have two: how many items each has, and how its softmax draws them."""
        columns = "temperature", "effective"
        table = _table("parts of", "hot", *columns, "cold", *columns, "moved", "aged")
        for name, info in shown:
            if (found := info.hot_cold) is not None:
                both = (
                    (console.amount(one.size), f"{one.temperature:.3g}", console.amount(one.effective_sample_size))
                    for one in (found.hot, found.cold)
                )
                table.add_row(
                    console.literal(name), *next(both), *next(both), console.amount(found.moved),
                    console.amount(found.aged),
                )  # fmt: skip
        return [table] if table.row_count else []


def _bar(part: int | None, whole: int | None, noun: str) -> tuple[str, str]:
    """A bar, and what it shows in words."""
    if part is None or whole is None:
        return console.bar(0, 1), f"- of {'-' if whole is None else f'{whole:,}'} {noun}"
    return console.bar(part, whole), f"{part:,} of {whole:,} {noun}"


def _count(states: "Counter[str]", state: str, style: str) -> tuple[str, str]:
    """A state, and how many are in it."""
    return state, f"[{style}]{states[state]}[/]" if states[state] else "0"


def _table(name: str, *columns: str) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=_NAME_WIDTH)
    for label in columns:
        table.add_column(label, justify="right", no_wrap=True)
    return table
