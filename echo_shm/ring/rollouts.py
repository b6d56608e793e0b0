"""The board of a RolloutEngine: figures in shared memory, which the engine's process writes and ``echo-shm`` shows.

It has a lock file, whose creator's byte the engine's process holds for as long as it lives. A board that nobody holds
is garbage: its engine was killed.
"""

import contextlib
import dataclasses
import json
import math
from typing import Any, NamedTuple, get_args

import posix_ipc

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.ring import lockfile
from echo_shm.ring.allocation import create_files
from echo_shm.ring.board import Board, read_board
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    Files,
    LockFile,
    holder_of,
    ipc_name,
    open_lockfile,
    unlink_lockfile,
)

#: The files of a board, and how its name ends: the engine of a run, its replay and its ring may have one name.
FILES = Files("echo_shm_rollouts.", "echo_shm_rollouts_locks.", "rollouts")
ENDING = ".rollouts"

_SIZE = 4096

#: Of the figures. Another one is not read.
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class RolloutFigures:
    """What an engine says of itself. All are numbers; None is said of what the engine does not have.

    What is counted, and what a cost is, is said at ``Counts``, ``Efficiency`` and ``RemoteLimits`` of
    ``echo_shm.planning``.
    """

    pid: int
    #: When it was written, on the clock of ``time.time()``.
    time: float
    #: Rollouts that run, that wait in ``submit`` until they may, and that have ended, by how.
    running: int
    waiting: int
    submitted: int
    finished: int
    failed: int
    timed_out: int
    cancelled: int
    closed: int
    #: Attempts after the first of a rollout, and why attempts failed.
    retried: int
    workers_lost: int
    environment_errors: int
    backbone_errors: int
    #: Worker processes that are connected, and those that there should be.
    workers: int
    workers_max: int
    steps: int
    episodes: int
    successes: int
    reward: float
    bandwidth_spent: float
    bandwidth_total: float
    learner_cost: float
    learner_updates: int
    context_tokens: int
    reused_tokens: int
    environment_tokens: int
    #: Seconds that these figures and the next ones are of.
    seconds: float
    eta: float
    reuse_rate: float
    #: Environment tokens a second.
    etps: float
    cost_per_success: float | None
    #: Tokens that the backbone has answered.
    tokens: int
    #: Sequences that lost their blocks.
    preempted: int
    #: Of a local backbone: blocks of the KV cache, and those of them that no rollout and no prefix has.
    blocks: int | None = None
    blocks_free: int | None = None
    #: Of a local backbone: in how many dispatches one rollout was passed over at most, and the bound on that.
    longest_wait: int | None = None
    wait_bound: int | None = None
    #: Of a remote backbone: requests, those of them that were repeated, tokens sent, and what all of it has cost.
    requests: int | None = None
    requests_retried: int | None = None
    input_tokens: int | None = None
    remote_cost: float | None = None

    @property
    def ended(self) -> dict[str, int]:
        """How many rollouts have ended, by how."""
        return {name: getattr(self, name) for name in ("finished", "failed", "timed_out", "cancelled", "closed")}

    @property
    def attempts_failed(self) -> dict[str, int]:
        """How many attempts have failed, by what did."""
        return {"worker": self.workers_lost, "environment": self.environment_errors, "backbone": self.backbone_errors}


def full_name(name: str) -> str:
    """A board's name with its ending.

    Raises:
        ValueError: Nothing can have that name.

    """
    return lockfile.check_name(name if name.endswith(ENDING) else name + ENDING, FILES)


class RolloutsBoard:
    """The engine's side. One process writes.

    Args:
        name: Of :func:`full_name`. A board of that name that a killed engine has left is replaced.

    Raises:
        SegmentError: A living engine has that name, or there is no room in shared memory.

    """

    def __init__(self, name: str) -> None:
        lockfile.collect(name, FILES)
        self._name = name
        with contextlib.ExitStack() as undo:
            # The descriptor of the lock file must stay open.
            self._lock, memory = create_files(name, _SIZE, undo, FILES, taken=_taken, smaller="number of boards")
            self._board = Board(memory)
            undo.pop_all()  # remove() looks first whose files they are

    def write(self, figures: RolloutFigures) -> None:
        """Replaces what the board says."""
        self._board.write({"version": _VERSION, **dataclasses.asdict(figures)})

    def remove(self) -> None:
        """Removes both files, if they are still this board's. Idempotent."""
        if self._lock.is_linked(self._name, FILES):  # otherwise the name may be another board's by now
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(ipc_name(self._name, FILES))
            unlink_lockfile(self._name, FILES)
        lib.es_segment_locks_drop(self._lock.locks, CREATOR_BYTE)


def _taken(name: str) -> str:
    with contextlib.suppress(SegmentError, OSError):
        return f"a RolloutEngine named {name!r} is {holder_of(_lock(name))}'s: choose another name"
    return f"a RolloutEngine named {name!r} exists already: choose another name"


# --- looking ------------------------------------------------------------------


class RolloutsListing(NamedTuple):
    """One engine's board, as another process sees it.

    Attributes:
        name: Its name.
        alive: Whether the engine's process lives.
        figures: What the board says, or None.
        fault: Why it says nothing, or ``""``.

    """

    name: str
    alive: bool
    figures: RolloutFigures | None
    fault: str


def names() -> list[str]:
    """The sorted names of this machine's boards of rollouts."""
    return lockfile.names(FILES)


def look(name: str) -> RolloutsListing:
    """Looks at a board. Nothing changes.

    Raises:
        SegmentError: There is none of that name, it has no lock file, or it is another user's.

    """
    if name not in names():
        raise SegmentError(f"no rollouts are named {name!r}: `echo-shm ls` lists those that exist")
    alive = lib.es_segment_locks_held(_lock(name).locks, CREATOR_BYTE) != 0
    figures, fault = None, ""
    try:
        figures = _read(read_board(name, FILES))
    except SegmentError as error:
        fault = error.strerror or str(error)
    return RolloutsListing(name, alive, figures, fault)


def collect(name: str) -> bool:
    """Removes a board whose engine is dead. Returns False if it lives, or the board is another user's."""
    return lockfile.collect(name, FILES)


def _lock(name: str) -> LockFile:
    try:
        return open_lockfile(name, FILES, create=False)
    except FileNotFoundError:
        raise SegmentError(f"rollouts {name!r} have no lock file, so nothing tells whether they are in use") from None
    except PermissionError:
        raise SegmentError(f"rollouts {name!r} belong to another user") from None


def _read(said: dict[str, Any]) -> RolloutFigures:
    """The figures of a board, which any process of the user may have written."""
    if not said:
        raise SegmentError("the board says nothing that can be read")
    version = said.pop("version", None)
    if version != _VERSION:
        raise SegmentError(
            f"the board's figures are of version {json.dumps(version)[:20]}, and this echo_shm reads version "
            f"{_VERSION}: use the engine's"
        )
    found: dict[str, Any] = {}
    for field in dataclasses.fields(RolloutFigures):
        value = found[field.name] = said.get(field.name)
        if value is None and type(None) in get_args(field.type):
            continue
        types = (int,) if field.type in (int, int | None) else (int, float)
        if type(value) not in types or (type(value) is int and abs(value) >= 2**64):
            raise SegmentError(f"the board's figure {field.name!r} is no number that it can be")
    if not math.isfinite(found["time"]):
        raise SegmentError("the board's figure 'time' is not finite")
    return RolloutFigures(**found)
