"""``echo-shm top``: a live view of a ring and all processes attached to it, through a read-only mapping."""

import contextlib
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import psutil

from echo_shm._core import lib
from echo_shm.cli import console, sparklines
from echo_shm.cli.ring_waits import RingWait, RingWaits
from echo_shm.errors import SegmentError
from echo_shm.ring import segment
from echo_shm.ring.lockfile import open_lockfile
from echo_shm.ring.metrics import Owner, Remote, RingView
from echo_shm.ring.processes import find_process, pid_namespace

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from echo_shm._core import Snapshot

#: Lines of a table besides its entries.
_TABLE_LINES = 3

#: Waits that are shorter are not told of (seconds).
SHORT = 1.0

#: Lines that a wait takes on a narrow terminal.
_WAIT_LINES = 2

_STYLES = {"running": "green", "waiting": "yellow", "stopped": "yellow", "dead": "red"}


# --- owners' states ----------------------------------------------------------


def states(view: RingView) -> list[tuple[Owner, str]]:
    """All registered owners of a ring, each with its state.

    ``waiting``: a producer sleeps because the ring is full. ``stopped``: the process is stopped, by SIGSTOP or a
    debugger. ``dead``: the process has died and is not reaped yet. ``running``: everything else.
    """
    try:
        # Through this process's registry: opening and closing the lock file a second time would drop its locks.
        locks = open_lockfile(view.segment.name, create=False).locks
    except FileNotFoundError:
        return [(owner, _state(owner, locked=True)) for owner in view.owners()]
    return [
        (owner, _state(owner, locked=lib.es_segment_locks_held(locks, owner.index) != 0)) for owner in view.owners()
    ]


def _state(owner: Owner, *, locked: bool) -> str:
    """An owner is dead if its lock is free and, in the same PID namespace, the process table does not contradict it."""
    status = _process_status(owner)
    if status in ("", psutil.STATUS_ZOMBIE) and not locked:
        return "dead"
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return "stopped"
    return "waiting" if owner.waiting else "running"


def _process_status(owner: Owner) -> str:
    """psutil's word for the state of the owner's process; ``""`` if the process cannot be seen."""
    process = _process(owner)
    with contextlib.suppress(psutil.Error):
        return str(process.status()) if process is not None else ""
    return ""


def _process(owner: Owner) -> psutil.Process | None:
    """The owner's process; None if it cannot be seen."""
    return find_process(owner.pid, owner.start_time) if owner.pid_namespace == pid_namespace() else None


class Kinds:
    """What owners are. It is asked of the process table once for each owner."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, float], str] = {}

    def of(self, owner: Owner, owners: Iterable[Owner], creator_pid: int) -> str:
        """What an owner is, in one word.

        ``bridge``: one on behalf of clients or learners on other hosts. ``worker``: a producer whose process a
        learner's process has started. ``producer``: any other. ``creator``: the learner that has made the segment.
        ``learner``: a further one.
        """
        if owner.is_bridge:
            return "bridge"
        if owner.role == "learner":
            return "creator" if owner.index == 0 and owner.pid == creator_pid else "learner"  # it was the first
        key = owner.index, owner.pid, owner.start_time
        if key not in self._known:
            self._known[key] = "worker" if self._is_started_by_learner(owner, owners) else "producer"
        return self._known[key]

    @staticmethod
    def _is_started_by_learner(owner: Owner, owners: Iterable[Owner]) -> bool:
        process = _process(owner)
        with contextlib.suppress(psutil.Error):
            above = {parent.pid for parent in process.parents()} if process is not None else set()
            return any(one.role == "learner" and one.pid in above for one in owners)
        return False


# --- readings -----------------------------------------------------------------


class _Reading(NamedTuple):
    """The state of a ring at one moment."""

    time: float
    snap: "Snapshot"
    owners: list[tuple[Owner, str]]
    remotes: list[Remote]
    creator_alive: bool
    locked: bool
    ages: tuple[float, int]
    waits: list[RingWait]


class Rates(NamedTuple):
    """The activity of one producer between two readings: samples per second, and the share of time it was blocked."""

    samples: float
    blocked: float


def since(before: Owner | None, now: Owner, span: float) -> Rates:
    """The activity of a producer in ``span`` seconds; none if the entry belonged to another process before."""
    if before is None or span <= 0 or (before.pid, before.start_time) != (now.pid, now.start_time):
        return Rates(0.0, 0.0)
    blocked = (now.blocked_time - before.blocked_time) / span
    return Rates((now.samples - before.samples) / span, min(1.0, max(0.0, blocked)))


class Watch:
    """Reads one segment again and again, and shows the last two readings.

    Args:
        name: The segment's name.

    Raises:
        SegmentError: There is no such segment, or it cannot be read.

    """

    def __init__(self, name: str) -> None:
        self.what = f"segment {name!r}"
        self.segment = segment.Segment.attach(name, read_only=True)
        if self.segment.geometry.weights:
            raise SegmentError(f"segment {name!r} holds weights: `echo-shm ls` shows them; top watches rings, replays")
        self._view = RingView(self.segment)
        self._kinds = Kinds()
        self._owners: list[tuple[Owner, str]] = []
        self._waits = RingWaits(self.segment, self._kind)
        self._lines = sparklines.Lines()
        self._earlier = self._read(segment.listing(name))
        self._latest = self._earlier

    @property
    def other_lines(self) -> int:
        """Lines of the screen besides those of producers and remote clients."""
        return 15 + 3 + (self._latest.snap.latest_version > 0) + _WAIT_LINES * len(self._latest.waits)

    def look(self) -> bool:
        """Takes another reading. Returns False if the segment was closed, even if another one has its name now."""
        try:
            seen = segment.listing(self.segment.name)
        except SegmentError:
            return False
        if seen.segment is None or seen.segment.uuid != self.segment.uuid:
            return False
        self._earlier, self._latest = self._latest, self._read(seen)
        self._remember()
        return True

    def _read(self, seen: segment.Listing) -> _Reading:
        snap = self._view.snapshot()
        self._owners = states(self._view)
        return _Reading(
            time.monotonic(),
            snap,
            self._owners,
            self._view.remotes(),
            seen.creator_alive,
            seen.locked,
            self._view.ages(snap),
            self._waits.look(self._owners, snap.batches_taken, closed=bool(snap.closed), least=SHORT),
        )

    def _remember(self) -> None:
        """Adds what the last two readings say to the figures of the last minutes."""
        now, snap = self._latest.time, self._latest.snap
        self._lines.add("samples/s", now, self._rate("samples_inserted"))
        self._lines.add("occupancy", now, snap.occupancy, self.segment.geometry.capacity)
        if snap.latest_version:
            self._lines.add("mean age", now, self._latest.ages[0])

    # -- rendering

    def render(self, most: int) -> "RenderableType":
        """Shows the last two readings.

        Args:
            most: Most lines for producers and remote clients together.

        """
        group: type[Group] = console.need("rich.console", "cli").Group
        remotes = len(self._latest.remotes)
        of_remotes = min(remotes + _TABLE_LINES, most // 2) if remotes else 0
        parts: list[RenderableType] = [self._head(), "", self._figures(), ""]
        parts += [self._lines.table(), ""] if self._lines else []
        parts.append(self._producers(max(1, most - of_remotes)))
        others = self._learners(), self._remotes(max(1, of_remotes - _TABLE_LINES))
        further = [table for table in others if table.row_count]
        parts += [part for table in further for part in ("", table)]
        parts += [f"[yellow]{console.literal(str(wait))}[/]" for wait in self._latest.waits]
        framed: RenderableType = group(*parts)
        return framed

    def _rate(self, counter: str) -> float:
        span = self._latest.time - self._earlier.time
        before, after = (int(getattr(r.snap, counter)) for r in (self._earlier, self._latest))
        return (after - before) / span if span > 0 else 0.0

    def _head(self) -> str:
        mapped, now = self.segment, self._latest
        creator = f"creator {mapped.creator_pid}" + ("" if now.creator_alive else " [red]dead[/]")
        if not now.locked:
            creator += ", [red]nobody is attached: `echo-shm gc` removes it[/]"
        geometry = mapped.geometry
        return (
            f"[bold]{mapped.name}[/]  batches of {geometry.batch_size:,} x {geometry.num_buffers:,}, "
            f"{console.size(mapped.size)}, {console.duration(time.time() - mapped.created)} old\n"
            f"[dim]{creator}[/]"
        )

    def _figures(self) -> "Group":
        snap, geometry = self._latest.snap, self.segment.geometry
        capacity = geometry.capacity
        leaf_bytes = self.segment.spec.sample_bytes
        samples = self._rate("samples_inserted")
        dead = sum(state == "dead" for _, state in self._latest.owners)
        ring = console.grid(2)
        ring.add_row("ring", console.bar(snap.occupancy, capacity), f"{snap.occupancy:,} of {capacity:,} slots")
        figures = console.grid(4)
        figures.add_row(
            "samples/s", f"{samples:,.0f}", "blocked", f"{snap.producers_waiting}",
            "reaped", f"{snap.dead_producers}", "store", f"{snap.store_size:,}",
        )  # fmt: skip
        figures.add_row(
            "batches/s", f"{self._rate('batches_taken'):,.1f}", "stalled", f"{snap.stalled_producers}",
            "dead", f"[red]{dead}[/]" if dead else "0", "re-opened", f"{snap.reopened_slots}",
        )  # fmt: skip
        figures.add_row(
            "MB/s", f"{samples * leaf_bytes / 1e6:,.1f}", "remote", f"{snap.active_remotes}",
            "refused", f"{snap.refused_remotes}",
        )  # fmt: skip
        if snap.latest_version:
            cells = age_cells(snap.latest_version, self._latest.ages)
            figures.add_row(*cells, "too old", f"{snap.too_old:,}")
        group: type[Group] = console.need("rich.console", "cli").Group
        return group(ring, "", figures)

    def _producers(self, most: int) -> "Table":
        table = _table("producer", "pid", "samples/s", "samples", "blocked", "slots held")
        earlier = {owner.index: owner for owner, _ in self._earlier.owners}
        found = [(owner, state) for owner, state in self._latest.owners if owner.role == "producer"]
        for owner, state in found[:most]:
            rates = since(earlier.get(owner.index), owner, self._latest.time - self._earlier.time)
            table.add_row(
                self._kind(owner), f"{owner.pid}", f"{rates.samples:,.0f}", f"{owner.samples:,}",
                console.share(rates.blocked, 1), f"{owner.held}", styled(state),
            )  # fmt: skip
        if len(found) > most:
            table.add_row("", f"and {len(found) - most} more")
        if not found:
            table.add_row("none")
        return table

    def _learners(self) -> "Table":
        """The learners, how many batches each holds, and since when it has the oldest of them."""
        table = _table("learner", "pid", "batches held", "held for")
        for owner, state in self._latest.owners:
            if owner.role == "learner":
                held_for = console.duration(owner.held_time) if owner.held else "-"
                table.add_row(self._kind(owner), f"{owner.pid}", f"{owner.held}", held_for, styled(state))
        return table

    def _kind(self, owner: Owner) -> str:
        return self._kinds.of(owner, (one for one, _ in self._owners), self.segment.creator_pid)

    def _remotes(self, most: int) -> "Table":
        """The clients of bridges. Connected ones come first."""
        table = _table("remote", "from", "samples/s", "samples", "bytes", "frames")
        span = self._latest.time - self._earlier.time
        before = {(remote.index, remote.peer): remote for remote in self._earlier.remotes}
        found = sorted(self._latest.remotes, key=lambda remote: not remote.connected)
        for now in found[:most]:
            then = before.get((now.index, now.peer), now)
            per_second = 1 / span if span > 0 else 0.0
            table.add_row(
                f"{now.index}", now.peer.replace("[", r"\["),
                f"{(now.committed - then.committed) * per_second:,.0f}", f"{now.committed:,}",
                console.size(now.bytes), f"{now.frames:,}", "[green]here[/]" if now.connected else "[dim]gone[/]",
            )  # fmt: skip
        if len(found) > most:
            table.add_row("", f"and {len(found) - most} more")
        return table


def age_cells(version: int, ages: tuple[float, int]) -> tuple[str, ...]:
    """The latest version of the weights, and :meth:`RingView.ages`, for a grid of figures."""
    mean, oldest = ages
    return "version", f"{version:,}", "age", "-" if math.isnan(mean) else f"{mean:,.1f}", "oldest", f"{oldest:,}"


def styled(state: str) -> str:
    """A state in rich's markup."""
    return f"[{_STYLES[state]}]{state}[/]"


def _table(*columns: str) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for label in columns:
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    return table
