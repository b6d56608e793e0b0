"""Where a replay keeps its steps: memory that is formatted once, and held by one process at a time.

It is memory of this process, shared memory, or mapped files in a directory: see ``files.py``.

A store in shared memory has two files, as a ring's segment has. ``echo_shm_replay.NAME`` is the memory.
``echo_shm_replay_locks.NAME`` is the lock file: the replay holds one byte of it, and the kernel drops the lock when
its process dies. The store stays then, for :meth:`Replay.attach`.
"""

import contextlib
import errno
import functools
import mmap
import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import posix_ipc

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, SpecMismatchError, error_from
from echo_shm.replay.batch import COLUMNS, Settings
from echo_shm.replay.custom import CustomSelectors
from echo_shm.replay.described import describe_store, items_of, table_name
from echo_shm.replay.disk import COLUMN_HEADER, is_directory
from echo_shm.replay.files import Directory, attach_directory
from echo_shm.replay.layout import Layout, lay_out
from echo_shm.replay.selectors import CustomSelector
from echo_shm.replay.syncing import Syncing
from echo_shm.ring.fast_path import plain_form
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    Files,
    LockFile,
    check_name,
    holder_of,
    ipc_name,
    open_lockfile,
    unlink_lockfile,
)
from echo_shm.ring.pages import ask_for_huge_pages
from echo_shm.ring.segment import map_trusted
from echo_shm.spec import Spec, Tree

if TYPE_CHECKING:
    from echo_shm._batch import Leaf
    from echo_shm._core import CData, ReplayHold, StoreGeometry

#: The files of a store in shared memory. No segment's file has such a prefix.
FILES = Files("echo_shm_replay.", "echo_shm_replay_locks.", "replay")

#: The functions that ``_replay`` calls.
_FUNCTIONS = (
    "es_api_fork_generation",
    "es_replay_add",
    "es_replay_add_last",
    "es_replay_add_vector",
    "es_replay_extend",
    "es_replay_sample",
    "es_replay_weigh",
    "es_replay_put_back",
    "es_replay_get",
    "es_replay_update",
    "es_replay_delete",
    "es_replay_reset",
    "es_replay_set_limits",
    "es_replay_learned",
    "es_replay_notes",
    "es_replay_set_notes",
    "es_replay_can_sample",
    "es_replay_can_insert",
    "es_replay_check_priority",
    "es_replay_info",
    "es_replay_num_steps",
    "es_replay_list_steps",
    "es_replay_read_steps",
    "es_replay_end_episode",
    "es_replay_end_episodes",
    "es_replay_environments",
    "es_replay_set_version",
    "es_replay_version",
    "es_replay_connect_inbox",
    "es_replay_connect_updates",
    "es_replay_connect_batches",
    "es_replay_put",
    "es_replay_disconnect",
    "es_replay_turn",
    "es_replay_snapshot",
    "es_replay_snapshot_done",
    "es_replay_hold",
    "es_replay_room",
    "es_replay_free",
    "es_checkpoint_begin",
    "es_checkpoint_take",
    "es_checkpoint_write",
    "es_checkpoint_end",
    "es_checkpoint_drawn",
    "es_checkpoint_go_on",
)

#: Flags of a batch's arrays: numpy's NPY_ARRAY_CARRAY.
_OWN_ARRAY = 0x1 | 0x100 | 0x400


class Store:
    """A formatted store that this process holds.

    Attributes:
        name: Its name, or None in the process's own memory.
        directory: The files of a store in a directory, or None.
        syncing: What brings them to the disk, once it is open.
        spec: What a step looks like.
        capacity: Most steps.
        tables: The tables' settings, by their names, in order.
        items: What an item of each table is.
        custom: The selectors that are written in Python.
        notes_size: Bytes that its replay keeps beside the steps.

    """

    def __init__(self, name: str | None, mapping: mmap.mmap | Directory, lockfile: LockFile) -> None:
        self.name = name
        #: The name of the replay's rings, by which other processes find it; None: whatever is free.
        self.known_as = name
        self.lockfile = lockfile
        self.directory = mapping if isinstance(mapping, Directory) else None
        self.syncing: Syncing | None = None
        where = name if self.directory is None else self.directory.path
        self.what = "this replay" if where is None else f"replay {where!r}"
        base, size = memory_of(mapping)
        code = lib.es_replay_check(base, size)
        if code != lib.ES_OK:
            raise error_from(code, self.what)
        geo, configs, schema, uuid = describe_store(self.what, base, size)
        self.capacity: int = geo.capacity
        self.spec = Spec.from_schema(schema, self.what)
        self.tables = {table_name(config, self.what): Settings.from_c(config) for config in configs}
        self.items = items_of(self.spec, len(self.tables), self.what)
        self.custom = CustomSelectors(self.what, where)
        #: Which stores the steps were in, for a checkpoint: the uuid of each, and the first step that arrived there.
        self.history: list[list[Any]] = [[uuid.hex(), 0]]
        self._spare: int = geo.spare
        self.notes_size: int = geo.notes
        self._held, self._is_attached = True, False
        if self.directory is not None:
            _check_columns(self.directory, geo, self.spec)
        # It keeps the mapping. The core takes it over, so that close() gives the memory back.
        self._memory: CData | None = base
        self._size = size

    def open(
        self,
        samplers: Mapping[str, CustomSelector] | None = None,
        removers: Mapping[str, CustomSelector] | None = None,
    ) -> Core:
        """Recovers what a killed process has left, and returns the calls of the replay. It is called once.

        Args:
            samplers, removers: Those that are written in Python, by table.

        Raises:
            SegmentError: The store is damaged.
            ValueError, TypeError: A selector is missing, or is something else.
            ConnectionClosedError: A selector raised an exception.
            MemoryError: There is no memory for what is derived from the store.

        """
        error, why = ffi.new("int *"), ffi.new("es_trouble *")
        calls, num_calls = self.custom.bind(self.tables, samplers, removers)
        memory, self._memory = self._memory, None
        assert memory is not None
        replay = lib.es_replay_open(memory, self._size, secrets.randbits(64), calls, num_calls, error, why)
        if replay == ffi.NULL:
            if error[0] == lib.ES_ESELECTOR:
                self.custom.reraise()
            if error[0] == lib.ES_EDAMAGED:
                raise SegmentError(f"{self.what} cannot be used: record {why.index} contradicts another: it is damaged")
            if error[0] == -errno.ENOMEM:
                raise MemoryError(f"{self.what}: there is no memory for what is derived from it")
            raise error_from(error[0], self.what)
        try:
            self._check_layout(replay)
            core = self._core(replay, memory)
        except BaseException:
            lib.es_replay_free(replay)
            raise
        if self.directory is not None:
            if self._is_attached:
                # The files may be those of an earlier moment: of a copy, or of the last sync. What came after that
                # moment has the same numbers in a checkpoint, but it is not the same.
                self.history.append([secrets.token_hex(16), lib.es_replay_arrivals(replay)])
            self.directory.base = None
            every = self.directory.manifest.sync_every
            self.syncing = Syncing(core, self.directory.snapshots, every, self._spare)
        return core

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """What a batch of each table looks like.

        Raises:
            SegmentError: What the schema says of the items does not fit the steps.

        """
        try:
            return tuple(lay_out(item, self.spec) for item in self.items)
        except (ValueError, TypeError) as error:
            raise SegmentError(f"{self.what} cannot be used: its schema is damaged: {error}") from None

    @property
    def memory(self) -> "tuple[CData, int]":
        """Where it is, and its size, before it is opened."""
        assert self._memory is not None
        return self._memory, self._size

    def _check_layout(self, replay: "ReplayHold") -> None:
        """Raises SegmentError unless the C core and Python have read the same layout. The core copies by its own."""
        num_tables, num_leaves = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        lib.es_replay_shape(replay, num_tables, num_leaves)
        steps = [lib.es_replay_leaf_size(replay, i) for i in range(num_leaves[0])]
        batches = [
            [lib.es_replay_output_size(replay, table, i) for i in range(lib.es_replay_num_outputs(replay, table))]
            for table in range(num_tables[0])
        ]
        if steps != sizes_of(self.spec) or batches != [sizes_of(layout.data) for layout in self.layouts]:
            raise SegmentError(f"{self.what} cannot be used: its schema does not fit its layout")

    def _core(self, replay: "ReplayHold", memory: "CData") -> Core:
        columns: list[Leaf] = [(dtype, (0,), 0, dtype.itemsize, _OWN_ARRAY) for dtype in COLUMNS]
        tables = tuple((plain_form(one.data), (*_arrays(one.data), *columns)) for one in self.layouts)
        addresses = {name: int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in _FUNCTIONS}
        address = int(ffi.cast("uintptr_t", replay))
        return Core(addresses, address, _arrays(self.spec), tables, plain_form(self.spec), memory)

    def make_room(self) -> None:
        """Waits until a step can be stored: the core said ES_UNSYNCED.

        Raises:
            SegmentError: The disk does not take what has to be synced first.

        """
        if self.syncing is not None:
            self.syncing.make_room()

    def end(self) -> None:
        """The replay is closed: removes a store in shared memory, and lets go of one in a directory."""
        if self.directory is not None:
            self.release()
        else:
            self.remove()

    def remove(self) -> None:
        """Removes the files, and lets go of the lock."""
        if self.directory is not None:
            self.directory.remove()
            return
        if self.name is None or not self._held:
            return
        if self.lockfile.is_linked(self.name, FILES):  # otherwise the name may be another store's by now
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(ipc_name(self.name, FILES))
            unlink_lockfile(self.name, FILES)
        self.release()

    def release(self) -> None:
        """Lets go of the lock. The store stays."""
        if self.directory is not None:
            self.directory.release()
            return
        self._held = False
        lib.es_segment_locks_drop(self.lockfile.locks, CREATOR_BYTE)


def memory_of(mapping: mmap.mmap | Directory) -> "tuple[CData, int]":
    """Address and bytes. The address keeps the mapping."""
    if isinstance(mapping, Directory):
        assert mapping.base is not None
        return mapping.base, mapping.size
    return ffi.from_buffer("uint8_t[]", mapping), len(mapping)


def _check_columns(directory: Directory, geo: "StoreGeometry", spec: Spec) -> None:
    """Raises SegmentError unless the files are where the core looks for the columns, and as large."""
    rows = geo.capacity + 2 + geo.spare
    columns = [COLUMN_HEADER + rows * leaf.nbytes for leaf in spec.leaves]
    if not geo.columns or [part.size for part in directory.manifest.parts[1:]] != columns:
        raise SegmentError(f"{directory.what} cannot be used: its records do not fit its other files: it is damaged")


def sizes_of(spec: Spec) -> list[int]:
    """Bytes of each leaf."""
    return [leaf.nbytes for leaf in spec.leaves]


def _arrays(spec: Spec) -> "tuple[Leaf, ...]":
    """Arrays of n of what a spec describes, one for each leaf: for the C core, which sets n and the address."""
    return tuple((leaf.dtype, (0, *leaf.shape), 0, leaf.nbytes, _OWN_ARRAY) for leaf in spec.leaves)


def attach_store(name: str | os.PathLike[str], example: Tree) -> Store:
    """Maps a store that no process has, and holds it. A path names a directory.

    Raises:
        SegmentError: There is none of that name, its process lives, it is another user's, or it is damaged.
        SpecMismatchError: The example does not fit the store, or one is needed.

    """
    if is_directory(name):
        directory = attach_directory(os.fspath(name))
        with contextlib.ExitStack() as undo:
            undo.callback(directory.release)
            store = Store(directory.manifest.name, directory, directory.lockfile)
            store._is_attached = True
            _use_example(store, example)
            undo.pop_all()
        return store
    assert isinstance(name, str)
    check_name(name, FILES)
    what = f"replay {name!r}"
    try:
        lockfile = open_lockfile(name, FILES, create=False)
    except FileNotFoundError:
        raise SegmentError(errno.ENOENT, f"no replay is named {name!r}") from None
    except SegmentError:
        raise
    except OSError as error:
        raise SegmentError(error.errno, f"{what}: its lock file cannot be opened: {error}") from None
    if not lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(f"{what} is in use: {holder_of(lockfile)} has it. Only one process at a time can attach")
    with contextlib.ExitStack() as undo:
        undo.callback(lib.es_segment_locks_drop, lockfile.locks, CREATOR_BYTE)
        if not lockfile.is_linked(name, FILES):
            raise SegmentError(f"{what} was closed just now")
        mapping = map_existing(name, what)
        ask_for_huge_pages(mapping)
        store = Store(name, mapping, lockfile)
        _use_example(store, example)
        undo.pop_all()
    return store


def _use_example(store: Store, example: Tree) -> None:
    """Has an attached store take its steps' structure from an example, if there is one."""
    if example is not None:
        mine = Spec.from_example(example, store.spec.about)
        mine.check_same(store.spec, store.what)
        store.spec = mine
    if store.spec.treespec is None:
        where = store.name if store.directory is None else store.directory.path
        raise SpecMismatchError(
            f"{store.what} holds steps with node types beyond dict, OrderedDict, list, tuple and None: "
            f"pass an example, Replay.attach({where!r}, example)"
        )


def map_existing(name: str, what: str, *, read_only: bool = False) -> mmap.mmap:
    """Maps a store.

    Raises:
        SegmentError: There is none, it cannot be opened, it is another user's, or it was never finished.

    """
    try:
        # Non-blocking: there may be a FIFO of that name.
        shm = posix_ipc.SharedMemory(ipc_name(name, FILES), os.O_NONBLOCK, read_only=read_only)
    except posix_ipc.ExistentialError:
        raise SegmentError(
            f"{what} is only a lock file: its process died while it made it; `echo-shm gc {name}` removes it"
        ) from None
    except (OSError, ValueError, posix_ipc.Error) as error:
        raise SegmentError(f"{what} cannot be opened: {error}") from None
    try:
        return map_trusted(shm.fd, what, read_only=read_only)[0]
    finally:
        shm.close_fd()
