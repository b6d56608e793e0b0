"""Whether a store that a killed replay has left is the one that somebody means to go on with."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.described import describe_store, items_of
from echo_shm.replay.disk import MANIFEST, RECORDS, is_directory
from echo_shm.replay.store import FILES, map_existing
from echo_shm.replay.table import Table, check_tables, lay_out_table, table_config
from echo_shm.ring import lockfile
from echo_shm.ring.lockfile import CREATOR_BYTE, open_lockfile
from echo_shm.spec import Spec, Tree


def is_left(name: str) -> bool:
    """Whether there is a store of that name whose process is dead, or one in that directory."""
    if is_directory(name):
        return os.path.exists(os.path.join(name, MANIFEST))
    if name not in lockfile.names(FILES) or lockfile.shm_file(name, FILES) == (0, 0):
        return False
    try:
        lock = open_lockfile(name, FILES, create=False)
    except (OSError, SegmentError):  # another user's: whoever creates a store is told so
        return False
    return bool(lib.es_segment_locks_held(lock.locks, CREATOR_BYTE) == 0)


def differences(
    name: str, example: Tree, capacity: int, tables: Sequence[Table] | None = None, max_items: int | None = None
) -> list[str]:
    """What a store has otherwise than a new replay with these arguments, in words; nothing if they are the same.

    Args:
        name: The store's name, or its directory.
        example, capacity, tables, max_items: As for :class:`Replay`.

    Raises:
        SegmentError: There is no such store, or it cannot be read.
        SpecMismatchError: It has other steps.
        ValueError, TypeError: An argument is wrong, as for :class:`Replay`.

    """
    what = f"replay {name!r}"
    given = [Table("default")] if tables is None else tables
    check_tables(given)
    step = Spec.from_example(example)
    wanted = [table_config(one, lay_out_table(one, step), capacity, max_items) for one in given]
    mapping = _map_records(name) if is_directory(name) else map_existing(name, what, read_only=True)
    base, size = ffi.from_buffer("uint8_t[]", mapping), len(mapping)
    code = lib.es_checkpoint_check(base, size)  # what comes before the rows says it all
    if code != lib.ES_OK:
        raise error_from(code, what)
    geometry, configs, schema, _ = describe_store(what, base, size)
    there = Spec.from_schema(schema, what)
    Spec.from_example(example, there.about).check_same(there, what)
    found = []
    for key, value in (("capacity", capacity), ("max_items", max_items)):
        if value is not None and getattr(geometry, key) != value:
            found.append(f"{key}={getattr(geometry, key)}, now {value}")
    if found:
        return found  # what follows from them differs, too
    names = [ffi.string(config.name) for config in configs]
    if names != [one["name"] for one in wanted]:
        return [f"tables {_listed(names)}, now {_listed([one['name'] for one in wanted])}"]
    for item, table in zip(items_of(there, len(given), what), given, strict=True):
        if item != table.item:
            found.append(f"table {table.name!r}: item={item!r}, now {table.item!r}")
    if found:
        return found
    for config, one in zip(configs, wanted, strict=True):
        found += [f"table {one['name'].decode()!r}: {text}" for text in _unlike(config, one)]
    return found


def _map_records(directory: str) -> mmap.mmap:
    """The records of a store in a directory."""
    try:
        with open(os.path.join(directory, RECORDS), "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise SegmentError(f"replay {directory!r} cannot be used: its file {RECORDS!r}: {error}") from None


def _unlike(config: Any, wanted: dict[str, Any], before: str = "") -> list[str]:
    """The fields of a C struct that are not as wanted."""
    found = []
    for key, value in wanted.items():
        there = getattr(config, key)
        if isinstance(value, dict):
            found += _unlike(there, value, f"{key}.")
        elif key != "name" and there != value:
            found.append(f"{before}{key}={there}, now {value}")
    return found


def _listed(names: Sequence[bytes]) -> str:
    return ", ".join(repr(name.decode(errors="replace")) for name in names)
