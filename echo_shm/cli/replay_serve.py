"""``echo-shm replay``: a replay in a process of its own, until a signal ends it."""

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from echo_shm.cli import replay_config, replay_figures
from echo_shm.cli.console import UsageError
from echo_shm.cli.progress import Progress
from echo_shm.errors import EchoShmError, SegmentError, SpecMismatchError
from echo_shm.replay import CustomSelector, Replay, Table, checkpoint_files
from echo_shm.replay.disk import is_directory
from echo_shm.replay.settings import differences, is_left

_log = logging.getLogger("echo_shm.cli")

#: Which signals the process waits for. :func:`_obey` says what each does.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

#: Time between two lines in the log (seconds).
_LOG_INTERVAL = 60.0

#: Time between two looks whether all threads and processes of the replay still work (seconds).
_SLICE = 1.0

#: The same for a replay that has no thread: this one does its work in between.
_SHORT = 0.02

#: What the command is about, for its ``--help``.
HELP = """\
CONFIG is a TOML file, or module:function. Such a function returns a Replay, or
a dict of its arguments. A TOML file:

  name = "run"                  # for ReplayClient("run") in other processes
  capacity = 1_000_000          # steps
  store = "shm"                 # outlives a crash; "dir/" the machine's, too; or "memory", the default
  checkpoint = "saved"          # where SIGUSR1, and the end, write checkpoints
  seed = 0

  [example]                     # one step: a tree of dtypes and shapes
  obs = { dtype = "uint8", shape = [84, 84] }
  reward = { dtype = "float32" }

  [[tables]]
  name = "train"
  sampler = { type = "Prioritized", alpha = 0.6 }
  remover = "Fifo"
  rate_limiter = { type = "SampleToInsertRatio", ratio = 4.0, min_size = 1000, error_buffer = 100.0 }

  [transport]                   # for workers on other hosts
  port = 7777
  host = "127.0.0.1"
  authkey_file = "key"
  tls = { certfile = "cert.pem", keyfile = "key.pem" }

Other keys are those of Replay, Table and TcpTransport. A relative file name
starts at the directory of CONFIG. SIGTERM and Ctrl-C end the replay, and remove
a store in shared memory. After a crash, the same command goes on with the store.
With the key checkpoint, SIGUSR1 writes a checkpoint there, and the replay goes
on; SIGTERM and Ctrl-C write one before the end. Where no store is left, the
same command restores the newest one. Once a minute a line on stderr says how
the replay is.
"""


def run(config: str) -> int:
    """Serves a replay. Returns the exit status.

    Raises:
        UsageError: The configuration cannot be used.
        EchoShmError: The replay cannot be opened, or cannot go on.

    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    with _signals() as signals:  # first: one that comes early ends the process in order, too
        found = replay_config.read(config)
        try:
            replay = _open(found)
        except EchoShmError:
            raise
        except (OSError, MemoryError) as error:  # the transport's port; a store in memory
            print(f"echo-shm: {(isinstance(error, OSError) and error.strerror) or error}", file=sys.stderr)
            return 1
        try:
            _serve(replay, signals, found.checkpoint)
        except BaseException:
            if replay._store.name is not None:
                replay._let_go()  # the next process goes on with the store
            raise
        finally:
            replay.close()
    return 0


# --- opening ------------------------------------------------------------------


def _open(config: replay_config.Config) -> Replay:
    """The replay of a configuration: the one that a process has left, or has saved, or a new one."""
    if isinstance(config.arguments, Replay):
        return config.arguments
    arguments = dict(config.arguments)
    tables = arguments.get("tables") or []
    customs = [
        {table.name: one for table in tables if isinstance(one := getattr(table, role, None), CustomSelector)}
        for role in ("sampler", "remover")
    ]
    thread = arguments.pop("thread", not any(customs))
    left = _left(arguments)
    try:
        if left is None:
            if config.checkpoint is not None and _has_saved(config):
                return _restore(config.checkpoint, arguments, thread)
            return Replay(**arguments, thread=thread)
        _check_settings(config, arguments, left)
    except (ValueError, TypeError) as error:
        if isinstance(error, SpecMismatchError):
            raise
        raise config.explain(error) from None
    replay = Replay.attach(
        left,
        arguments["example"],
        thread=thread,
        transport=arguments.get("transport"),
        samplers=customs[0],
        removers=customs[1],
    )
    killed = "its process was killed; this one goes on with what it held"
    _log.info("replay %r: %s", replay.name, "it goes on with its files" if is_directory(left) else killed)
    return replay


def _left(arguments: replay_config.Arguments) -> str | None:
    """The store that a process has left, by its name or its directory; None if there is none."""
    store, name = arguments.get("store", "memory"), arguments.get("name")
    where = os.fspath(store) if is_directory(store) else name if store == "shm" else None
    return where if where is not None and is_left(where) else None


def _has_saved(config: replay_config.Config) -> bool:
    """Whether there is a checkpoint of it."""
    assert config.checkpoint is not None
    try:
        return bool(checkpoint_files.complete(Path(config.checkpoint)))
    except FileNotFoundError:  # the first one makes the directory
        return False
    except OSError as error:
        raise UsageError(f"{config.source}: checkpoint={config.checkpoint!r}: {error.strerror}") from None


def _restore(checkpoint: str, arguments: replay_config.Arguments, thread: bool) -> Replay:
    """The replay as its newest checkpoint has it. What the configuration says otherwise counts."""
    given = {key: value for key, value in arguments.items() if key != "seed"}
    replay = Replay.restore(checkpoint, **{"tables": [Table("default")], **given}, thread=thread)
    assert replay.restored is not None
    _log.info("replay %r: restored from %s", replay.name, replay.restored.path)
    return replay


def _check_settings(config: replay_config.Config, arguments: replay_config.Arguments, name: str) -> None:
    """Raises UsageError if the store was made for another configuration."""
    compared = {key: arguments[key] for key in ("example", "capacity", "tables", "max_items") if key in arguments}
    try:
        found = differences(name, **compared)
    except SpecMismatchError as error:
        found = [str(error)]
    if found:
        remove = f"rm -r {name}" if is_directory(name) else f"echo-shm gc {name}"
        raise UsageError(
            f"{config.source}: replay {name!r} was killed, and its store was made for another configuration: "
            f"{'; '.join(found)}. Use that one again, or drop what the store holds: `{remove}`"
        )


# --- serving ------------------------------------------------------------------


def _serve(replay: Replay, signals: int, checkpoint: str | None) -> None:
    """Lets the replay work until a signal ends it."""
    name = replay.handle.name
    before = replay_figures.read(name)
    kind = "memory of its own" if before.seen.store_bytes is None else "shared memory"
    kind = kind if before.seen.directory is None else f"files in {before.seen.directory}"
    at = "".join(f", port {port}" for port in _ports(replay))
    _log.info("replay %r: process %d, %d steps in %s%s", name, os.getpid(), before.seen.steps or 0, kind, at)
    due = time.monotonic() + _LOG_INTERVAL
    while _obey(_next_signal(replay, signals), replay, checkpoint):
        replay._rings.check()
        if time.monotonic() >= due:
            latest = replay_figures.read(name)
            _log.info("replay %r: %s", name, replay_figures.line(before, latest))
            before, due = latest, due + _LOG_INTERVAL
    _log.info("replay %r: closing", name)


def _obey(number: int, replay: Replay, checkpoint: str | None) -> bool:
    """Does what a signal asks for; 0 is none. Returns whether the replay goes on.

    Raises:
        SegmentError: The last checkpoint cannot be written. The replay ends without it.

    """
    goes_on = number not in (signal.SIGTERM, signal.SIGINT)
    if number == 0 or (goes_on and checkpoint is None):
        if number:
            _log.warning("replay %r: its configuration has no key checkpoint: SIGUSR1 does nothing", replay.name)
        return goes_on
    if checkpoint is not None:
        try:
            with Progress(f"replay {replay.name!r}: checkpoint", _log) as progress:
                path = replay.checkpoint(checkpoint, progress=progress)
            _log.info("replay %r: checkpoint %s", replay.name, path)
        except SegmentError as error:
            if not goes_on:
                raise
            _log.error("replay %r: %s", replay.name, error)
    return goes_on


def _ports(replay: Replay) -> list[int]:
    with contextlib.suppress(RuntimeError):  # there is no transport
        return [replay.port]
    return []


def _next_signal(replay: Replay, signals: int) -> int:
    """The next signal, or 0 after a while. A replay without a thread works meanwhile."""
    if not replay.has_thread:
        replay._rings.pump(_SHORT)
    timeout = _SLICE if replay.has_thread else 0
    ready, _, _ = select.select([signals], [], [], timeout)
    return os.read(signals, 1)[0] if ready else 0


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """In this block, signals are bytes that come out of a pipe. Yields its end to read from."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    me = os.getpid()

    def note(number: int, frame: object) -> None:
        if os.getpid() == me:  # not in a child that was forked for a bridge
            with contextlib.suppress(BlockingIOError):
                os.write(into, bytes([number]))

    previous = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield out
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(out)
        os.close(into)
