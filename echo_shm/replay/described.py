"""What a store, or the records of a checkpoint, says of itself: its header, and its schema."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError
from echo_shm.replay.item import Item, item_from
from echo_shm.spec import Spec

if TYPE_CHECKING:
    from echo_shm._core import CData, StoreGeometry, TableConfig, TableConfigs

#: Where the schema has the tables' items.
_ITEMS = "items"


def about_items(items: Sequence[Item]) -> dict[str, Any]:
    """What a store's schema says of its tables' items."""
    return {_ITEMS: [item.describe() for item in items]}


def items_of(spec: Spec, num_tables: int, what: str) -> tuple[Item, ...]:
    """The items that a store's schema describes.

    Raises:
        SegmentError: It describes none, or those of another number of tables.

    """
    said = spec.about.get(_ITEMS) if isinstance(spec.about, dict) else None
    try:
        items = tuple(map(item_from, said if isinstance(said, list) else ()))
    except ValueError as error:
        raise SegmentError(f"{what} cannot be used: its schema is damaged: {error}") from None
    if len(items) != num_tables:
        raise SegmentError(f"{what} cannot be used: its schema describes {len(items)} tables of {num_tables}")
    return items


def describe_store(what: str, base: "CData", size: int) -> "tuple[StoreGeometry, TableConfigs, bytes, bytes]":
    """The geometry, the tables, the schema, and the uuid, of a store or of a checkpoint's records that were checked.

    The tables' settings live as long as the array that has them.
    """
    geo, uuid = ffi.new("es_store_geometry *"), ffi.new("uint8_t[16]")
    pid, created = ffi.new("int64_t *"), ffi.new("int64_t *")
    lib.es_replay_describe(base, size, geo, uuid, pid, created, ffi.NULL, 0, ffi.NULL, 0)
    room, count = geo.schema_size, geo.num_tables
    schema, configs = ffi.new("uint8_t[]", room), ffi.new("es_table_config[]", [{}] * count)
    lib.es_replay_describe(base, size, geo, uuid, pid, created, schema, room, configs, count)
    if (geo.schema_size, geo.num_tables) != (room, count):
        raise SegmentError(f"{what} cannot be used: its header was changed just now")
    return geo, configs, bytes(schema), bytes(uuid)


def table_name(config: "TableConfig", what: str) -> str:
    """A table's name. Raises SegmentError if it is none."""
    try:
        return ffi.string(config.name).decode()
    except UnicodeDecodeError:
        raise SegmentError(f"{what} cannot be used: a table's name is not UTF-8: it is damaged") from None
