"""The replays of this machine, as a process sees them that has none of them; and the removal of what dead ones left.

A replay has several files in shared memory: a store and its lock file (only with ``store="shm"``), two rings with their
lock files, a board, and for each table and batch size that learners iterate over a ring with its lock file. Whoever has
it holds the store's lock; without a store there, the rings' creator's locks. A store in a directory is on the board.
Nothing here looks at its files, or removes them.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import posix_ipc

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.replay import store
from echo_shm.replay.batch import TableInfo, read_table_info
from echo_shm.replay.disk import MANIFEST
from echo_shm.replay.waits import Activity, Wait, read_activity, read_waits
from echo_shm.ring import board, lockfile, segment
from echo_shm.ring.batch_names import batch_ring
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    INBOX,
    UPDATES,
    LockFile,
    check_name,
    ipc_name,
    open_lockfile,
    unlink_lockfile,
)


class ReplayListing(NamedTuple):
    """One replay, as a process sees it that does not have it.

    Attributes:
        name: Its name.
        has_store: Whether it has a store in shared memory.
        directory: The directory with its store; None without one, or if it was removed.
        alive: Whether a process has it.
        attached: Whether any process has it, or is attached to its rings.
        pid: The process that has it, or had it last; None if nothing says so.
        heard: When it last wrote its board, on the clock of ``time.time()``; None if it has none.
        waits: Why it cannot store what writers send, or None.
        steps, capacity: How many steps it holds, and most; None if nothing says so.
        tables: What its tables said of themselves at that time, by their names.
        rings: Its rings that exist.
        store_bytes: Bytes of its store; None without one.
        fault: What is wrong with the store, or ``""``.
        waiting: Who waits for what, as its board says.
        activity: When each table was used last, by its name.

    """

    name: str
    has_store: bool
    directory: str | None
    alive: bool
    attached: bool
    pid: int | None
    heard: float | None
    waits: str | None
    steps: int | None
    capacity: int | None
    tables: dict[str, TableInfo]
    rings: tuple[segment.Listing, ...]
    store_bytes: int | None
    fault: str
    waiting: tuple[Wait, ...]
    activity: dict[str, Activity]

    @property
    def goes_on(self) -> bool:
        """Whether another process can go on with its store."""
        return self.has_store or self.directory is not None

    @property
    def bytes(self) -> int:
        """Bytes of all its shared memory, but for the board."""
        rings = (ring.segment.size for ring in self.rings if ring.segment is not None)
        return (self.store_bytes or 0) + sum(rings)


# --- looking ------------------------------------------------------------------


def names() -> list[str]:
    """The sorted names of this machine's replays that other processes can know of."""
    return sorted({*lockfile.names(store.FILES), *lockfile.names(board.FILES)})


def parts() -> dict[str, str]:
    """The names of all rings that a replay may have, each with the replay's name."""
    replays, rings = names(), lockfile.names()
    found = {name + ending: name for name in replays for ending in (INBOX, UPDATES)}
    return found | {ring: name for name in replays for ring in rings if batch_ring(name, ring)}


def look(name: str) -> ReplayListing:
    """Looks at a replay without attaching. Nothing changes.

    Raises:
        SegmentError: There is none of that name, it has no lock file, or it is another user's.

    """
    if name not in names():
        raise SegmentError(f"no replay is named {name!r}: `echo-shm ls` lists those that exist")
    rings = tuple(_rings(name))
    lock = _store_lock(name)
    said = _board(name)
    tables = _tables(said)
    has_store = lock is not None and lockfile.shm_file(name, store.FILES) != (0, 0)
    size, capacity, fault = _look_at_store(name, lock) if lock is not None and has_store else (None, None, "")
    if lock is not None:
        alive = lib.es_segment_locks_held(lock.locks, CREATOR_BYTE) != 0
    else:
        alive = any(ring.creator_alive for ring in rings)
    # While the next process recovers a store, the board is still the last one's.
    holder = _holder(name, lock) if alive else 0
    return ReplayListing(
        name=name,
        has_store=has_store,
        directory=_directory(said),
        alive=alive,
        attached=alive or any(ring.locked for ring in rings),
        pid=holder or _number(said, "pid"),
        heard=_number(said, "time"),
        waits=said["waits"] if isinstance(said.get("waits"), str) else None,
        steps=_number(said, "steps"),
        capacity=capacity if capacity is not None else _number(said, "capacity"),
        tables=tables,
        rings=rings,
        store_bytes=size,
        fault=fault,
        waiting=read_waits(said.get("waiting")),
        activity={table: read_activity(said.get("activity"), table) for table in tables},
    )


def _rings(name: str) -> Iterator[segment.Listing]:
    there = set(lockfile.names())
    batches = sorted(ring for ring in there if batch_ring(name, ring))
    for ring in (name + INBOX, name + UPDATES, *batches):
        if ring in there:
            with contextlib.suppress(SegmentError):  # it was closed just now
                yield segment.listing(ring)


def _store_lock(name: str) -> LockFile | None:
    """The lock file of a replay's store; None if there is none. Without a store, its process died while it made it."""
    try:
        return open_lockfile(name, store.FILES, create=False)
    except FileNotFoundError:
        if name in lockfile.names(store.FILES):
            raise SegmentError(
                f"the store of replay {name!r} has no lock file, so nothing tells whether it is in use"
            ) from None
        return None
    except PermissionError:
        raise SegmentError(f"replay {name!r} belongs to another user") from None


def _look_at_store(name: str, lock: LockFile) -> tuple[int | None, int | None, str]:
    """Bytes, capacity, and what is wrong. The store is mapped read-only."""
    try:
        mapping = store.map_existing(name, f"replay {name!r}", read_only=True)
    except SegmentError as error:
        return None, None, str(error)
    try:
        return len(mapping), store.Store(name, mapping, lock).capacity, ""
    except SegmentError as error:
        return len(mapping), None, str(error)


def _holder(name: str, lock: LockFile | None) -> int:
    """The PID of the process that has a living replay; 0 if this one cannot see it."""
    with contextlib.suppress(SegmentError, OSError):
        held = open_lockfile(name + INBOX, create=False) if lock is None else lock
        holder = held.holder(CREATOR_BYTE)
        return os.getpid() if holder is None else holder
    return 0


def _board(name: str) -> dict[str, Any]:
    try:
        return board.read_board(name)
    except SegmentError:
        return {}


def _directory(said: dict[str, Any]) -> str | None:
    path = said.get("directory")
    return path if isinstance(path, str) and os.path.exists(os.path.join(path, MANIFEST)) else None


def _number(said: dict[str, Any], field: str) -> Any:
    """A number of a board, which any process of the user may have written; None if it is something else."""
    value: Any = said.get(field)
    return value if type(value) in (int, float) and 0 <= value < 2**64 else None


def _tables(said: dict[str, Any]) -> dict[str, TableInfo]:
    found = {}
    tables = said.get("tables")
    for name, info in tables.items() if isinstance(tables, dict) else ():
        with contextlib.suppress(TypeError):
            found[name] = read_table_info(info)
    return found


# --- removing -----------------------------------------------------------------


def remove(name: str) -> None:
    """Removes a replay that no process has, with all its files.

    Its lock is held meanwhile, so that no process attaches to what is being removed, or creates another one.

    Raises:
        SegmentError: A process has it, or is attached to one of its rings; there is none; or it is another user's.
            Then nothing was removed, unless that process came just now.

    """
    check_name(name, store.FILES)
    if name not in names():
        raise SegmentError(f"no replay is named {name!r}: `echo-shm ls` lists those that exist")
    with _held(name):
        rings = [ring.name for ring in _rings(name)]
        if any(ring.locked for ring in _rings(name)) or not all(map(lockfile.collect, rings)):
            raise SegmentError(
                f"replay {name!r} is in use: its process is dead, but others are attached to its rings: "
                f"`echo-shm top {name}{INBOX}` shows them"
            )
        for files in (board.FILES, store.FILES):
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(ipc_name(name, files))
        unlink_lockfile(name, store.FILES)


@contextlib.contextmanager
def _held(name: str) -> Iterator[None]:
    """In this block this process has the replay of that name, whether it has a store or not."""
    lock = _store_lock(name)
    made = lock is None
    if lock is None:
        try:
            lock = open_lockfile(name, store.FILES, create=True)
        except FileExistsError:
            raise SegmentError(f"replay {name!r} is in use: it was created just now") from None
    if not lock.try_lock(CREATOR_BYTE):
        raise SegmentError(f"replay {name!r} is in use: {lockfile.holder_of(lock)} has it. Close it there, or end it")
    try:
        if not lock.is_linked(name, store.FILES):
            raise SegmentError(f"replay {name!r} was closed just now")
        yield
    finally:
        if made and lock.is_linked(name, store.FILES):
            unlink_lockfile(name, store.FILES)
        lib.es_segment_locks_drop(lock.locks, CREATOR_BYTE)
