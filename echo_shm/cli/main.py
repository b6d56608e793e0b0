"""``echo-shm``: the demo, and tools for the segments and replays of this machine.

``ls`` and ``top`` map segments read-only and take no locks, so they change nothing for attached processes or ``gc``.
"""

import argparse
import contextlib
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from echo_shm._core import ffi, lib
from echo_shm.cli import (
    console,
    dash,
    gc,
    limiters,
    ls,
    metrics,
    ray_figures,
    ray_state,
    ray_top,
    record,
    replay_serve,
    replay_top,
    ring_waits,
    rollouts_top,
    top,
    watching,
)
from echo_shm.cli.demo import demo, replay_demo
from echo_shm.errors import EchoShmError, SegmentError
from echo_shm.net.transport import TcpTransport
from echo_shm.replay import listing
from echo_shm.ring import lockfile, rollouts, segment
from echo_shm.ring.handle import Handle
from echo_shm.ring.lockfile import INBOX

_ALLOW = "--allow-unauthenticated"

#: What ``top`` prints, for its ``--help``.
_TOP_HELP = f"""\
what a process is:
  creator    the learner that created the segment
  learner    a further one, from Server.attach(NAME)
  worker     a producer whose process a learner has started
  bridge     a producer, or a learner, for clients on other hosts
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
  lines      the last five minutes; each bar is a mean, the latest one is last
{ring_waits.HELP}\
figures of a replay:
  effective  how many equally likely items would vary a draw as much
{limiters.HELP}\
  batches    of a table, by size; 1/4: those of rank 1 in a group of 4
  drawn ahead  items in batches that no learner has released
  age        how many items came after those of the batches before they were
             drawn, and how long that takes as fast as they come now
  writers    of steps; waiting: those for which the inbox is full
  clients    of ReplayClient, for priorities and deletions
{rollouts_top.HELP}\
{ray_top.HELP}\
{ray_figures.HELP}"""


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


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="echo-shm", description="A shared-memory experience ring and replay: demo and tools."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_looks(commands)
    _add_services(commands)
    sub = _explained(commands, "gc", "remove segments that nobody uses any more", gc.HELP)
    sub.add_argument("name", metavar="NAME", nargs="?", help="remove only this one, also if it is a replay's store")
    sub.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    sub.set_defaults(command=lambda o: gc.run(o.name, dry_run=o.dry_run))
    return parser


def _explained(commands: _Commands, name: str, summary: str, words: str) -> argparse.ArgumentParser:
    """A command whose help ends with these words."""
    return commands.add_parser(name, help=summary, epilog=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def _add_demo(commands: _Commands) -> None:
    sub = commands.add_parser("demo", help="environments in worker processes feed a learner")
    sub.add_argument("--env", default="CartPole-v1", help="a Gymnasium environment (default: %(default)s)")
    sub.add_argument("--workers", type=_count, default=2, metavar="N", help="worker processes (default: %(default)s)")
    sub.add_argument(
        "--batch-size", type=_count, default=256, metavar="N", help="samples in a batch (default: %(default)s)"
    )
    sub.add_argument("--seconds", type=_seconds, default=10.0, help="how long to play (default: %(default)g)")
    sub.add_argument("--replay", action="store_true", help="fill a prioritised table, and draw batches from it")
    sub.set_defaults(
        command=lambda o: (replay_demo if o.replay else demo).run(o.env, o.workers, o.batch_size, o.seconds)
    )


def _add_looks(commands: _Commands) -> None:
    """The commands that only look."""
    sub = _explained(commands, "ls", "list this machine's segments, replays and rollouts", ls.HELP)
    sub.add_argument("--json", action="store_true", help="for scripts: a list of objects")
    sub.set_defaults(command=lambda o: ls.run(as_json=o.json))

    def of_one(name: str, summary: str, words: str) -> argparse.ArgumentParser:
        sub = _explained(commands, name, summary, words)
        what = "a segment, a replay or rollouts that `echo-shm ls` lists (default: the only one)"
        sub.add_argument("name", metavar="NAME", nargs="?", help=what)
        return sub

    sub = of_one("top", "watch a ring, a replay or rollouts: rates, occupancy, and who waits", _TOP_HELP)
    sub.add_argument("--interval", type=_seconds, default=1.0, help="seconds between readings (default: %(default)g)")
    sub.add_argument("--once", action="store_true", help="print one reading and exit")
    _add_ray(sub)
    sub.set_defaults(command=_top)

    sub = of_one("metrics", "figures of a ring, a replay or rollouts for Prometheus", metrics.HELP)
    sub.add_argument("--port", type=_port, default=0, help="port to listen on (default: any free port)")
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    sub.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana and exit")
    sub.set_defaults(command=_metrics)

    sub = of_one("dash", "a page that shows a ring, a replay or rollouts as they move", dash.HELP + ray_figures.HELP)
    sub.add_argument("--port", type=_port, default=0, help="port of 127.0.0.1 to listen on (default: any free port)")
    _add_ray(sub)
    sub.set_defaults(command=_dash)

    sub = of_one("record", "write a trace of who claims, commits, takes and waits, for Perfetto", record.HELP)
    sub.add_argument("--trace", required=True, metavar="FILE", help="the file to write: JSON")
    sub.add_argument("--seconds", type=_seconds, default=5.0, help="how long to record (default: %(default)g)")
    sub.add_argument(
        "--period", type=_seconds, default=1e-4, metavar="SECONDS", help="between two looks (default: %(default)g)"
    )
    sub.set_defaults(command=lambda o: record.run(o.name or _only_one(), o.trace, o.seconds, o.period))


def _add_ray(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--ray", action="store_true", help="of a Ray cluster: NAME is a RayReplay's")
    sub.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster (default: this machine's)")


def _ray_address(options: argparse.Namespace) -> str | None:
    """Where the cluster is that was asked for; None: none was."""
    if options.address is not None and not options.ray:
        raise console.UsageError("--address is that of a Ray cluster: use it with --ray")
    return (options.address or "auto") if options.ray else None


def _add_services(commands: _Commands) -> None:
    """The commands that serve other processes."""
    sub = _explained(commands, "replay", "serve a replay from a process of its own", replay_serve.HELP)
    sub.add_argument("config", metavar="CONFIG", help="a TOML file, or module:function")
    sub.set_defaults(command=lambda o: replay_serve.run(o.config))

    sub = commands.add_parser("bridge", help="let clients on other hosts send to a running ring")
    sub.add_argument("name", metavar="NAME", help="a segment or a replay that `echo-shm ls` lists")
    sub.add_argument("--port", type=int, default=0, help="port to listen on (default: any free port)")
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    sub.add_argument("--authkey-file", metavar="FILE", help="a file with the key that clients must know")
    sub.add_argument(_ALLOW, action="store_true", help="listen beyond this machine without a key")
    sub.add_argument("--wire-version", type=int, choices=(1, 2), default=2, help="1 for clients of id-echo")
    sub.add_argument("--max-connections", type=_count, default=1024, metavar="N", help="default: %(default)s")
    sub.add_argument("--processes", type=_count, default=1, metavar="N", help="bridge processes (default: %(default)s)")
    sub.set_defaults(command=_bridge)


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


def _port(text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= int(text) <= 65535:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")


# --- top ----------------------------------------------------------------------


def _top(options: argparse.Namespace) -> int:
    if (address := _ray_address(options)) is not None:
        console.need("rich.console", "cli")
        return watching.run(ray_top.RayWatch(options.name, address), options.interval, once=options.once)
    name = options.name or _only_one(or_rollouts=True)
    try:
        is_ring = lockfile.check_name(name) in lockfile.names()
    except ValueError as error:
        raise console.UsageError(str(error)) from None
    console.need("rich.console", "cli")
    watch: watching.Watched
    if not is_ring and name in listing.names():
        watch = replay_top.ReplayWatch(name)
    elif not is_ring and name in rollouts.names():
        watch = rollouts_top.RolloutsWatch(name)
    else:
        watch = top.Watch(name)
    return watching.run(watch, options.interval, once=options.once)


def _dash(options: argparse.Namespace) -> int:
    if (address := _ray_address(options)) is not None:
        return dash.serve(ray_state.RayState(options.name, address), options.port)
    return dash.run(options.name or _only_one(or_rollouts=True), options.port)


def _metrics(options: argparse.Namespace) -> int:
    if options.dashboard:
        return metrics.print_dashboard()
    return metrics.run(options.name or _only_one(or_rollouts=True), options.host, options.port)


def _only_one(*, or_rollouts: bool = False) -> str:
    """The ring or the replay that is in use, if there is one and no other; or the rollouts."""
    rings, replays, engines = ls.in_use()
    kinds = {"ring": rings, "replay": replays} | ({"rollouts": engines} if or_rollouts else {})
    if len(found := sorted(name for names in kinds.values() for name in names)) == 1:
        return found[0]
    if not found:
        raise SegmentError("no ring and no replay is in use")
    what = " and ".join(f"{kind.removesuffix('s')}s" for kind, names in kinds.items() if names)
    raise SegmentError(f"{len(found)} {what} are in use: name one of {', '.join(found)}")


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
        of_replay = options.name in listing.names()
        found = segment.Segment.attach(options.name + (INBOX if of_replay else ""), read_only=True)
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
