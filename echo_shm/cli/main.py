"""``echo-shm``: the demo, and tools for the segments of this machine.

``ls`` and ``top`` map segments read-only and take no locks, so they change nothing for attached processes or ``gc``.
"""

import argparse
import contextlib
import io
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from echo_shm._core import ffi, lib
from echo_shm.cli import console, top
from echo_shm.cli.demo import demo
from echo_shm.errors import EchoShmError, SegmentError
from echo_shm.net.transport import TcpTransport
from echo_shm.ring import lockfile, pages, segment
from echo_shm.ring.handle import Handle
from echo_shm.ring.metrics import RingView

#: A JSON object.
Description: TypeAlias = dict[str, Any]

_ALLOW = "--allow-unauthenticated"

#: What the commands print, in their ``--help``.
_LS_HELP = """\
states:
  in use      the process that created the segment is alive
  orphaned    that process is dead, but others are attached; more can join:
              Server.attach(NAME)
  garbage     nobody is attached: `echo-shm gc` removes it
  unreadable  it cannot be read; the line below the table says why
figures:
  huge        how much of the segment is in huge pages
  ring        samples in a batch x batches
  full        slots that are in use
"""
_TOP_HELP = """\
what a process is:
  creator    the learner that created the segment
  learner    a further one, from Server.attach(NAME)
  worker     a producer whose process a learner has started
  bridge     a producer for clients on other hosts
  producer   any other producer
states:
  running    none of the following
  waiting    a producer waits, because the ring is full
  stopped    the process is stopped (SIGSTOP, a debugger)
  dead       it has died, and what it held is not given back yet
  here       a remote client is connected
  gone       it was connected, and can come back
figures:
  blocked    producers that wait now; in a producer's line: the share of time
             that it waited
  stalled    living producers that are stopped, or have held a slot for a second
  dead       processes that have died, and are not reaped yet
  reaped     dead producers whose slots were given back
  re-opened  slots that were given back by dead producers and by aborts
  store      samples that no learner has taken
  held       slots that a producer writes to; batches that a learner refers to
  held for   how long a learner has had the oldest of them
"""
_GC_HELP = """\
what it prints:
  removed    nobody was attached; both files of it are gone from /dev/shm
  garbage    nobody is attached; without --dry-run it would be removed
  in use     a process is attached, even if the creator is dead
  kept       nothing tells whether a process is attached; the line says why
"""

#: The colour of each state of a segment; see :func:`describe`.
_STYLES = {"in use": "green", "orphaned": "yellow", "garbage": "red", "unreadable": "red"}


def main(argv: list[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: The words of the command, without the program's name; None: the process's own.

    Returns:
        The exit status: 0; 1 if it failed; 2 if it was used wrongly or a package is missing; 130 after Ctrl-C.

    """
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that lack a character
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except console.UsageError as error:
        return _fail(2, error)
    except EchoShmError as error:
        return _fail(1, error)
    except KeyboardInterrupt:
        print("echo-shm: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Nobody reads the output any more. Python must not flush into the pipe when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(status: int, error: Exception) -> int:
    # str() of an OSError starts with its number.
    print(f"echo-shm: {(isinstance(error, OSError) and error.strerror) or error}", file=sys.stderr)
    return status


# --- command line -------------------------------------------------------------


def _version() -> str:
    """The package's version, and how this build waits: by futexes, or by polling."""
    return f"echo-shm {version('echo-shm')} ({ffi.string(lib.es_api_wait_kind()).decode()})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="echo-shm", description="A shared-memory experience ring: demo and tools.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    sub = commands.add_parser("demo", help="environments in worker processes feed a learner")
    sub.add_argument("--env", default="CartPole-v1", help="a Gymnasium environment (default: %(default)s)")
    sub.add_argument("--workers", type=_count, default=2, metavar="N", help="worker processes (default: %(default)s)")
    sub.add_argument(
        "--batch-size", type=_count, default=256, metavar="N", help="samples in a batch (default: %(default)s)"
    )
    sub.add_argument("--seconds", type=_seconds, default=10.0, help="how long to play (default: %(default)g)")
    sub.set_defaults(command=lambda o: demo.run(o.env, o.workers, o.batch_size, o.seconds))

    def with_states(name: str, summary: str, states: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=summary, epilog=states, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    sub = with_states("ls", "list this machine's segments", _LS_HELP)
    sub.add_argument("--json", action="store_true", help="for scripts: a list of objects")
    sub.set_defaults(command=_ls)

    sub = with_states("top", "watch a ring: rates, occupancy, and each process", _TOP_HELP)
    sub.add_argument(
        "name", metavar="NAME", nargs="?", help="a segment that `echo-shm ls` lists (default: the only one)"
    )
    sub.add_argument("--interval", type=_seconds, default=1.0, help="seconds between readings (default: %(default)g)")
    sub.add_argument("--once", action="store_true", help="print one reading and exit")
    sub.set_defaults(command=lambda o: top.run(o.name or _only_ring(), o.interval, once=o.once))

    sub = commands.add_parser("bridge", help="let clients on other hosts send to a running ring")
    sub.add_argument("name", metavar="NAME", help="a segment that `echo-shm ls` lists")
    sub.add_argument("--port", type=int, default=0, help="port to listen on (default: any free port)")
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    sub.add_argument("--authkey-file", metavar="FILE", help="a file with the key that clients must know")
    sub.add_argument(_ALLOW, action="store_true", help="listen beyond this machine without a key")
    sub.add_argument("--wire-version", type=int, choices=(1, 2), default=2, help="1 for clients of id-echo")
    sub.add_argument("--max-connections", type=_count, default=1024, metavar="N", help="default: %(default)s")
    sub.add_argument("--processes", type=_count, default=1, metavar="N", help="bridge processes (default: %(default)s)")
    sub.set_defaults(command=_bridge)

    sub = with_states("gc", "remove segments that nobody uses any more", _GC_HELP)
    sub.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    sub.set_defaults(command=_gc)
    return parser


def _count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


# --- ls -----------------------------------------------------------------------


def _only_ring() -> str:
    """The segment that is in use, if there is one and no other."""
    used = [one["name"] for one in map(describe, lockfile.names()) if one["state"] not in ("garbage", "unreadable")]
    if len(used) == 1:
        return str(used[0])
    raise SegmentError(
        f"{len(used)} rings are in use: name one of {', '.join(sorted(used))}" if used else "no ring is in use"
    )


def describe(name: str) -> Description:
    """What ``echo-shm ls --json`` says of a segment. Unknown values are None.

    Its ``state`` is one of

    - ``in use``: the creator is alive;
    - ``orphaned``: the creator is dead, but other processes are attached;
    - ``garbage``: no process is attached;
    - ``unreadable``: a process is or may be attached; ``fault`` says why the segment cannot be read.
    """
    found: Description = dict.fromkeys(
        ("name", "state", "creator_pid", "creator_alive", "bytes", "huge_bytes", "batch_size", "num_buffers",
         "producers", "learners", "occupancy", "capacity", "age_seconds", "fault")
    )  # fmt: skip
    found["name"] = name
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
    return found | {
        "state": "garbage" if not seen.locked else "in use" if seen.creator_alive else "orphaned",
        "creator_pid": seen.segment.creator_pid,
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


def _ls(options: argparse.Namespace) -> int:
    found = [describe(name) for name in lockfile.names()]
    gone = {one["name"] for one in found if one["fault"]}.difference(lockfile.names())
    found = [one for one in found if one["name"] not in gone]
    if options.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("no segments")
    else:
        _print_table(found)
    return 0


def _print_table(found: list[Description]) -> None:
    table = console.need("rich.table", "cli").Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("name", overflow="fold")
    for label in ("creator", "size", "huge", "ring", "prod", "learn", "full", "age"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in found:
        style = _STYLES[one["state"]]
        table.add_row(one["name"], *_cells(one), f"[{style}]{one['state']}[/]")
    terminal = console.open_console()
    terminal.print(table)
    for one in found:
        if one["fault"]:
            terminal.print(
                f"{one['name']}: {one['fault']}", markup=False, soft_wrap=not terminal.is_terminal, style="dim"
            )


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


# --- bridge -------------------------------------------------------------------


def _bridge(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    key = None
    if options.authkey_file is not None:
        try:
            key = Path(options.authkey_file).read_bytes()
        except OSError as error:
            return _fail(2, ValueError(f"--authkey-file {options.authkey_file}: {error.strerror}"))
    try:
        transport = TcpTransport(
            options.port,
            host=options.host,
            authkey=key,
            wire_version=options.wire_version,
            max_connections=options.max_connections,
            processes=options.processes,
            allow_unauthenticated=options.allow_unauthenticated,
        )
    except ValueError as error:
        words = str(error).replace("authkey=", "--authkey-file").replace("allow_unauthenticated=True", _ALLOW)
        return _fail(2, ValueError(words))
    try:
        found = segment.Segment.attach(options.name, read_only=True)
    except ValueError as error:  # a segment cannot have that name
        return _fail(2, error)
    try:
        transport.start(Handle(found.name, found.uuid, found.spec.treespec))
    except (OSError, ValueError) as error:
        return _fail(1, error)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as after Ctrl-C, clients are told
    try:
        print(f"{found.name}: listening on {options.host} port {transport.port}", flush=True)
        while not transport.wait(1.0):
            pass
    except EchoShmError as error:
        return _fail(1, error)
    finally:
        transport.shutdown()
    print(f"{found.name}: closed")
    return 0


# --- gc -----------------------------------------------------------------------


def _gc(options: argparse.Namespace) -> int:
    names = lockfile.names()
    for name in names:
        try:
            seen = segment.listing(name)
        except SegmentError as error:
            if name in lockfile.names():  # otherwise it was closed just now
                print(f"kept     {name}: {error}")
            continue
        size = f" ({console.size(seen.segment.size)})" if seen.segment is not None else ""
        if not seen.locked and options.dry_run:
            print(f"garbage  {name}{size}: would be removed")
        elif not seen.locked and lockfile.collect(name):
            print(f"removed  {name}{size}")
        else:
            print(f"in use   {name}{size}")
    if not names:
        print("no segments")
    return 0
