"""``echo-shm ls``: the segments, the replays and the rollouts of this machine, read-only and without locks."""

import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from echo_shm.cli import console, limiters, top
from echo_shm.errors import SegmentError
from echo_shm.replay import HotColdInfo, LimiterInfo, PartInfo, TableInfo, listing
from echo_shm.ring import lockfile, pages, rollouts, segment
from echo_shm.ring.metrics import RingView
from echo_shm.ring.rollouts import RolloutFigures
from echo_shm.weights.segment import SPARE_SLOTS

if TYPE_CHECKING:
    from rich.table import Table

#: A JSON object.
Description: TypeAlias = dict[str, Any]

#: What ``ls`` prints, for its ``--help``.
HELP = f"""\
states:
  in use      the process that created the segment is alive; a process has the
              replay; the engine of the rollouts lives
  orphaned    that process is dead. Others are attached to the segment, and more
              can join: Server.attach(NAME). A replay's store stays, and the next
              process goes on with it: Replay.attach(NAME)
  garbage     nobody is attached: `echo-shm gc` removes it
  unreadable  it cannot be read; the line below the table says why
figures:
  huge        how much of the segment is in huge pages
  ring        samples in a batch x batches
  version     of weights: the latest one; 0 before the first
  read        processes that read the weights
  full        slots that are in use
  holds       of a replay: how much of how much, as it has written down last
figures of a table's limiter, as the replay has written them down last:
  parked     items that wait until the limiter lets them in
{limiters.HELP}\
Rates need two looks: `echo-shm top` shows them.
"""

#: The colour of each state; see :func:`describe` and :func:`describe_replay`.
STYLES = {"in use": "green", "orphaned": "yellow", "garbage": "red", "unreadable": "red"}


def run(*, as_json: bool) -> int:
    """Lists the segments, the replays and the rollouts. Returns the exit status.

    Raises:
        UsageError: rich is not installed.

    """
    parts = listing.parts()
    replays = [describe_replay(name) for name in listing.names()]
    found = [describe(name) | {"replay": parts.get(name)} for name in lockfile.names()]
    gone = {one["name"] for one in found if one["fault"]}.difference(lockfile.names())
    found = [one for one in found if one["name"] not in gone]
    gone = {one["name"] for one in replays if one["fault"]}.difference(listing.names())
    replays = [one for one in replays if one["name"] not in gone]
    engines = [describe_rollouts(name) for name in rollouts.names()]
    gone = {one["name"] for one in engines if one["fault"]}.difference(rollouts.names())
    engines = [one for one in engines if one["name"] not in gone]
    if as_json:
        print(json.dumps(_plain(found + replays + engines), indent=2))
    elif not found and not replays and not engines:
        print("no segments")
    else:
        weights = [one for one in found if one["kind"] == "weights"]
        rings = [one for one in found if one["kind"] == "segment"]
        alone = [one for one in rings if one["replay"] is None]
        _print(alone, replays, weights, {one["name"]: one for one in rings}, engines)
    return 0


def in_use() -> tuple[list[str], list[str], list[str]]:
    """The names of the rings in use that belong to no replay, of the replays in use, and of the rollouts in use."""
    parts = listing.parts()
    rings = [describe(name) for name in lockfile.names() if name not in parts and not name.endswith(lockfile.WEIGHTS)]
    replays = [describe_replay(name) for name in listing.names()]
    unused = "garbage", "unreadable"
    return (
        [one["name"] for one in rings if one["state"] not in unused],
        [one["name"] for one in replays if one["state"] == "in use"],
        [name for name in rollouts.names() if describe_rollouts(name)["state"] == "in use"],
    )


# --- describing ---------------------------------------------------------------


def describe(name: str) -> Description:
    """What ``echo-shm ls --json`` says of a segment. Unknown values are None.

    Its ``state`` is one of

    - ``in use``: the creator is alive;
    - ``orphaned``: the creator is dead, but other processes are attached;
    - ``garbage``: no process is attached;
    - ``unreadable``: a process is or may be attached; ``fault`` says why the segment cannot be read.

    Of weights it also says the latest version, and how many leases are in use and how many there may be.
    """
    found: Description = dict.fromkeys(
        ("name", "state", "creator_pid", "creator_alive", "bytes", "huge_bytes", "batch_size", "num_buffers",
         "producers", "learners", "occupancy", "capacity", "age_seconds", "fault")
    )  # fmt: skip
    found |= {"kind": "weights" if name.endswith(lockfile.WEIGHTS) else "segment", "name": name}
    try:
        seen = segment.listing(name)
    except SegmentError as error:
        return found | {"state": "unreadable", "fault": str(error)}
    found["creator_alive"] = seen.creator_alive
    if seen.segment is None:
        return found | {"state": "unreadable" if seen.locked else "garbage", "fault": seen.fault}
    view = RingView(seen.segment)
    owners = [owner for owner, state in top.states(view) if state != "dead"]
    geometry = seen.segment.geometry
    if geometry.weights:
        version, leases = view.weights()
        found |= {"version": version, "leases": leases, "max_leases": geometry.num_buffers - SPARE_SLOTS}
    # A publisher goes on in the segment of a dead one.
    writers = [owner.pid for owner in owners if owner.role == "learner"] if geometry.weights else []
    return found | {
        "kind": "weights" if geometry.weights else "segment",
        "state": "garbage" if not seen.locked else "in use" if seen.creator_alive else "orphaned",
        "creator_pid": writers[0] if writers else seen.segment.creator_pid,
        "bytes": seen.segment.size,
        "huge_bytes": pages.huge_bytes(seen.segment.mapping),
        "batch_size": geometry.batch_size,
        "num_buffers": geometry.num_buffers,
        "producers": sum(owner.role == "producer" for owner in owners),
        "learners": sum(owner.role == "learner" for owner in owners),
        "occupancy": int(view.snapshot().occupancy),
        "capacity": geometry.capacity,
        "age_seconds": max(0.0, time.time() - seen.segment.created),
    }


def describe_replay(name: str) -> Description:
    """What ``echo-shm ls --json`` says of a replay. Unknown values are None. Its ``tables`` are a dict of TableInfo.

    Its ``state`` is one of

    - ``in use``: a process has it;
    - ``orphaned``: that process is dead, but the store is there, or others are attached to the rings;
    - ``garbage``: that process is dead, and there is no store;
    - ``unreadable``: ``fault`` says why it cannot be read.
    """
    found: Description = dict.fromkeys(
        ("name", "state", "store", "pid", "alive", "bytes", "steps", "capacity", "tables", "waits", "heard_seconds",
         "fault")
    )  # fmt: skip
    found |= {"kind": "replay", "name": name}
    try:
        seen = listing.look(name)
    except SegmentError as error:
        return found | {"state": "unreadable", "fault": str(error)}
    state = "in use" if seen.alive else "orphaned" if seen.goes_on or seen.attached else "garbage"
    return found | {
        "state": "unreadable" if seen.fault else state,
        "store": "shm" if seen.has_store else seen.directory or "memory",
        "pid": seen.pid,
        "alive": seen.alive,
        "bytes": seen.bytes,
        "steps": seen.steps,
        "capacity": seen.capacity,
        "tables": seen.tables,
        "waits": seen.waits,
        "heard_seconds": None if seen.heard is None else max(0.0, time.time() - seen.heard),
        "fault": seen.fault or None,
    }


def describe_rollouts(name: str) -> Description:
    """What ``echo-shm ls --json`` says of an engine of rollouts. Its ``figures`` are None if they cannot be read.

    Its ``state`` is one of

    - ``in use``: the engine's process lives;
    - ``garbage``: it is dead;
    - ``unreadable``: ``fault`` says why its figures cannot be read.
    """
    found: Description = {"kind": "rollouts", "name": name, "pid": None, "alive": None, "figures": None}
    try:
        seen = rollouts.look(name)
    except SegmentError as error:
        return found | {"state": "unreadable", "fault": str(error)}
    state = "garbage" if not seen.alive else "unreadable" if seen.fault else "in use"
    found |= {"state": state, "alive": seen.alive, "fault": seen.fault if state == "unreadable" else None}
    if seen.figures is not None:
        found |= {"pid": seen.figures.pid, "figures": vars(seen.figures)}
    return found


def _plain(value: Any) -> Any:
    """A value for JSON, which has no infinity: None stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, TableInfo | LimiterInfo | HotColdInfo | PartInfo):
        value = vars(value)
    if isinstance(value, dict):
        return {field: _plain(one) for field, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def what_to_do(name: str, directory: str | None = None) -> str:
    """With which call somebody goes on with a store that outlived its process, and which command removes it."""
    if directory is not None:
        return f"Replay.attach({directory!r}) goes on with it; `echo-shm gc {name}` removes its rings, not its files"
    return f"Replay.attach({name!r}) goes on with it; `echo-shm gc {name}` removes it"


# --- printing -----------------------------------------------------------------


def _print(
    segments: list[Description],
    replays: list[Description],
    weights: list[Description],
    rings: dict[str, Description],
    engines: Sequence[Description] = (),
) -> None:
    tables = [_table_of_segments(segments)] if segments else []
    tables += [_table_of_replays(replays, rings)] if replays else []
    tables += [_table_of_limiters(replays)] if any(one["tables"] for one in replays) else []
    tables += [_table_of_weights(weights)] if weights else []
    tables += [_table_of_rollouts(engines)] if engines else []
    terminal = console.open_console()
    for number, table in enumerate(tables):
        if number:
            terminal.print()
        terminal.print(table)
    notes = [(one["name"], one["fault"]) for one in [*segments, *replays, *weights, *engines] if one["fault"]]
    for one in replays:
        if one["alive"] and one["waits"]:
            notes.append((one["name"], f"it takes no steps: {one['waits']}"))
        if one["state"] == "orphaned" and one["store"] != "memory":
            heard = "" if one["heard_seconds"] is None else f", last heard of {_ago(one)}"
            directory = None if one["store"] == "shm" else one["store"]
            notes.append((one["name"], f"its process is dead{heard}. {what_to_do(one['name'], directory)}"))
    for name, note in notes:
        terminal.print(f"{name}: {note}", markup=False, soft_wrap=not terminal.is_terminal, style="dim")


def _ago(one: Description) -> str:
    return f"{console.duration(one['heard_seconds'])} ago"


def _table_of_segments(found: list[Description]) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("name", overflow="fold")
    for label in ("creator", "size", "huge", "ring", "prod", "learn", "full", "age"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in found:
        table.add_row(one["name"], *_cells(one), _styled(one["state"]))
    return table


def _styled(state: str) -> str:
    return f"[{STYLES[state]}]{state}[/]"


def _cells(one: Description) -> list[str]:
    if one["bytes"] is None:
        return ["-" if one["creator_alive"] is not False else "dead"] + ["-"] * 7
    return [
        f"{one['creator_pid']}" if one["creator_alive"] else f"{one['creator_pid']} dead",
        console.size(one["bytes"]),
        "-" if one["huge_bytes"] is None else console.share(one["huge_bytes"], one["bytes"]),
        f"{one['batch_size']:,}x{one['num_buffers']:,}",
        f"{one['producers']}",
        f"{one['learners']}",
        console.share(one["occupancy"], one["capacity"]),
        console.duration(one["age_seconds"]),
    ]


def _table_of_replays(replays: list[Description], rings: dict[str, Description]) -> "Table":
    """A line for each replay; below it one for each of its tables and rings."""
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("replay", overflow="fold")
    for label in ("process", "size", "holds"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in replays:
        pid = "-" if one["pid"] is None else f"{one['pid']}" if one["alive"] else f"{one['pid']} dead"
        octets = "-" if one["bytes"] is None else console.size(one["bytes"])
        table.add_row(one["name"], pid, octets, _of(one["steps"], one["capacity"]), "steps", _styled(one["state"]))
        for name, info in (one["tables"] or {}).items():
            table.add_row(f"  table {console.literal(name)}", "", "", _of(info.size, info.max_size), "items", "")
        for ring in rings.values():
            if ring["replay"] == one["name"]:
                octets = "-" if ring["bytes"] is None else console.size(ring["bytes"])
                holds = _of(ring["occupancy"], ring["capacity"])
                table.add_row(f"  ring {ring['name'][len(one['name']) :]}", "", octets, holds, "slots", "")
    return table


def _table_of_weights(found: list[Description]) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("weights", overflow="fold")
    for label in ("publisher", "size", "version", "read", "leases", "age"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in found:
        cells = ["-"] * 6
        if one["bytes"] is not None:
            cells = [
                f"{one['creator_pid']}" if one["creator_alive"] else "dead",
                console.size(one["bytes"]),
                f"{one['version']:,}",
                f"{one['producers']}",
                f"{one['leases']} of {one['max_leases']}",
                console.duration(one["age_seconds"]),
            ]
        table.add_row(one["name"], *cells, _styled(one["state"]))
    return table


def _table_of_rollouts(found: Sequence[Description]) -> "Table":
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("rollouts", overflow="fold")
    for label in ("process", "running", "waiting", "finished", "workers"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in found:
        cells = ["-"] * 5
        if one["figures"] is not None:
            said = RolloutFigures(**one["figures"])
            cells = [f"{said.pid}" if one["alive"] else f"{said.pid} dead"]
            cells += [f"{count:,}" for count in (said.running, said.waiting, said.finished, said.workers)]
        table.add_row(one["name"], *cells, _styled(one["state"]))
    return table


def _table_of_limiters(replays: list[Description]) -> "Table":
    """Below each replay a line for each of its tables."""
    table: Table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("limiter of", overflow="fold")
    for label in ("parked", *limiters.COLUMNS):
        table.add_column(label, justify="right", no_wrap=True)
    for one in replays:
        if one["tables"]:
            table.add_row(one["name"])
            for name, info in one["tables"].items():
                cells = limiters.cells(info.limiter)
                table.add_row(f"  {console.literal(name)}", console.amount(info.parked), *cells)
    return table


def _of(part: int | None, whole: int | None) -> str:
    return f"{'-' if part is None else f'{part:,}'} of {'-' if whole is None else f'{whole:,}'}"
