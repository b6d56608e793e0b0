"""A new store: in this process's memory, in shared memory, or in files.

If it cannot be made, nothing is left behind.
"""

import contextlib
import json
import mmap
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.files import Directory
from echo_shm.replay.new_files import complete, create_directory
from echo_shm.replay.sources import UPDATE_SLOTS, end_left, inbox_slots
from echo_shm.replay.store import FILES, Store, memory_of, sizes_of
from echo_shm.ring.allocation import create_files
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    LockFile,
    PrivateLockFile,
    check_name,
    holder_of,
    names,
    open_lockfile,
)
from echo_shm.ring.pages import ask_for_huge_pages
from echo_shm.spec import Spec

if TYPE_CHECKING:
    from echo_shm._core import StoreGeometry, StoreParts

#: A store in a directory has at least so many spare rows, or as many as its capacity.
_LEAST_SPARE = 256

#: From linux/mman.h: a forked child finds zeros.
_MADV_WIPEONFORK = 18


def create_store(
    kind: str,
    name: str | None,
    spec: Spec,
    capacity: int,
    max_items: int,
    seed: int,
    tables: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, int]],
    sync_every: float | None = None,
    fill: Callable[[Store], None] | None = None,
    notes: int = 0,
) -> Store:
    """Creates a store, and holds it. If it fails, nothing is left behind.

    Args:
        kind: ``"memory"``, ``"shm"``, or the path of a directory.
        name: By which other processes find it. None: a unique name is made.
        spec: What a step looks like. Its schema also says what the tables' items are, as :func:`about_items`.
        capacity: Most steps.
        max_items: Most items of all tables together.
        seed: Of what the samplers draw.
        tables: The fields of an ``es_table_config`` for each.
        outputs: The fields of an ``es_output`` for each array of their batches, one table after the other.
        sync_every: Of a store in a directory: seconds between two syncs, or None.
        fill: Is called with the store, which is empty, before anybody else can use it.
        notes: Bytes beside the steps, which whoever has the store keeps there.

    Raises:
        SegmentError: The name is taken, shared memory is too small, or the directory cannot be made.
        MemoryError: So much memory cannot be mapped.
        ValueError: The name is not possible, or a number is out of range.

    """
    in_files = kind not in ("memory", "shm")
    if name is not None:
        check_name(name, FILES)
    elif kind != "memory":
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
    if kind == "memory" and name is not None:
        if name in names(FILES):
            raise SegmentError(_taken(name))
        end_left(name)
    geo = ffi.new(
        "es_store_geometry *",
        {
            "capacity": capacity,
            "max_items": max_items,
            "seed": seed,
            "num_leaves": len(spec.leaves),
            "num_tables": len(tables),
            "schema_size": len(spec.schema),
            "inbox_slots": inbox_slots(spec),
            "update_slots": UPDATE_SLOTS,
            "columns": in_files,
            "spare": _spare(capacity) if in_files and sync_every is not None else 0,
            "notes": notes,
        },
    )
    arrays = {  # the struct below has their addresses alone
        "leaf_sizes": ffi.new("uint64_t[]", sizes_of(spec)),
        "tables": ffi.new("es_table_config[]", tables),
        "outputs": ffi.new("es_output[]", outputs),
        "schema": ffi.from_buffer(spec.schema),
    }
    parts = ffi.new("es_store_parts *", arrays)
    size = lib.es_replay_store_size(geo, parts)
    if size == 0:
        raise ValueError(
            f"capacity={capacity}, max_items={max_items} with {spec.sample_bytes} bytes a step is out of range: "
            "use at most 2**31 of each"
        )
    uuid = secrets.token_bytes(16)
    with contextlib.ExitStack() as undo:
        if in_files:
            assert name is not None
            records, rows = lib.es_replay_records_size(geo, parts), geo.capacity + 2 + geo.spare
            directory = create_directory(kind, name, uuid, sync_every, records, rows, spec.leaves)
            undo.callback(directory.remove)
            store = _format(name, directory, directory.lockfile, geo, parts, uuid, spec)
        elif kind == "shm":
            assert name is not None
            lockfile, mapping = create_files(name, size, undo, FILES, taken=_taken, smaller="capacity")
            store = _format(name, mapping, lockfile, geo, parts, uuid, spec)
        else:
            # Without a file, too: with its locks a process begins to count its forks.
            store = _format(None, _private(size, capacity, spec), PrivateLockFile(), geo, parts, uuid, spec)
            store.known_as = name
        if fill is not None:
            fill(store)
        if store.directory is not None:
            complete(store.directory, json.loads(spec.schema))
        undo.pop_all()
    return store


def _spare(capacity: int) -> int:
    """Rows for the steps that come between two syncs, while those that have gone are held."""
    return min(capacity, max(_LEAST_SPARE, capacity // 8))


def _private(size: int, capacity: int, spec: Spec) -> mmap.mmap:
    """Memory of this process alone.

    A forked child finds zeros there, so no page is copied for it. Most systems have huge pages for private memory, and
    not for shared memory.
    """
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(
            f"a replay of {capacity:,} steps of {spec.sample_bytes:,} bytes needs {size:,} bytes of memory, which "
            f"cannot be mapped ({error}): use a smaller capacity"
        ) from None
    ask_for_huge_pages(mapping)
    with contextlib.suppress(OSError):  # Linux before 4.14: a child has copies of what its parent writes to
        mapping.madvise(_MADV_WIPEONFORK)
    return mapping


def _format(
    name: str | None,
    mapping: mmap.mmap | Directory,
    lockfile: LockFile,
    geo: "StoreGeometry",
    parts: "StoreParts",
    uuid: bytes,
    spec: Spec,
) -> Store:
    code = lib.es_replay_format(
        *memory_of(mapping),
        geo,
        parts,
        ffi.new("uint8_t[16]", uuid),
        os.getpid(),
        time.time_ns(),
    )
    if code != lib.ES_OK:
        raise error_from(code, "this replay" if name is None else f"replay {name!r}")
    store = Store(name, mapping, lockfile)
    store.spec = spec
    return store


def _taken(name: str) -> str:
    """What has the name already, and what to do."""
    what = f"a replay named {name!r} exists already"
    try:
        lockfile = open_lockfile(name, FILES, create=False)
    except (SegmentError, OSError) as error:
        return f"{what}: {error}"
    if lib.es_segment_locks_held(lockfile.locks, CREATOR_BYTE):
        return f"{what}; {holder_of(lockfile)} has it. Choose another name"
    return (
        f"{what}, and its process is dead. Go on with it: Replay.attach({name!r}), or remove it: `echo-shm gc {name}`"
    )
