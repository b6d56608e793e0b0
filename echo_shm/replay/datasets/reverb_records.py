"""The files of a Reverb checkpoint: records, their fields, and the arrays in them. Reverb itself is not needed.

A checkpoint is a folder with ``tables.tfrecord``, ``items.tfrecord``, ``chunks.tfrecord`` and an empty ``DONE``. A file
is compressed by zlib, and has a length and two checksums around every record. A record is a protocol buffer. A chunk
has some consecutive steps of some columns, each compressed by Snappy. An item refers to slices of chunks.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from echo_shm.replay.datasets.common import need
from echo_shm.spec import Array

#: numpy's names of TensorFlow's numbers of dtypes.
_DTYPES = {
    1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 8: "c8", 9: "i8", 10: "?", 17: "u2", 18: "c16", 19: "f2",
    22: "u4", 23: "u8",
}  # fmt: skip

#: How much of a file is decompressed at a time (bytes).
_BLOCK = 1 << 20

#: A field's values, by its number.
_Fields: TypeAlias = dict[int, list[Any]]


class Slice(NamedTuple):
    """A part of a chunk: ``length`` steps of its column ``tensor``, from ``offset`` on."""

    chunk: int
    offset: int
    length: int
    tensor: int


class Chunk(NamedTuple):
    """Consecutive steps of an episode, from number ``start`` to ``end``; some of them, if ``is_sparse``."""

    episode: int
    start: int
    end: int
    is_sparse: bool
    is_delta: bool
    tensors: list[bytes]

    def column(self, index: int) -> Array:
        """A column: an array with a leading dimension, the steps."""
        proto = fields(self.tensors[index])
        number = one(proto, 1)
        if number not in _DTYPES:
            raise ValueError(f"a column has TensorFlow's dtype {number}, and numpy has no such numbers")
        dtype = np.dtype(_DTYPES[number])
        dims = [one(fields(dim), 1) for dim in fields(one(proto, 2, b"")).get(2, [])]
        size = math.prod(dims) * dtype.itemsize
        try:
            raw = _unpacked(one(proto, 4, b""), size) if size else b""
            array = np.frombuffer(raw, dtype).reshape(dims)
        except (OSError, ValueError) as error:
            raise ValueError(f"a column of the checkpoint is damaged: {error}") from None
        if self.is_delta and dtype.kind in "iu" and array.ndim > 1:
            unsigned = array.view(f"u{dtype.itemsize}")
            array = np.cumsum(unsigned, axis=0, dtype=unsigned.dtype).view(dtype)
        return array


def _unpacked(data: bytes, size: int) -> bytes:
    """What Snappy has compressed."""
    raw: bytes = need("pyarrow", "parquet").decompress(data, size, codec="snappy", asbytes=True)
    return raw


def tables(folder: Path) -> list[str]:
    """The names of a checkpoint's tables."""
    return [one(fields(record), 1, b"").decode() for record in records(folder / "tables.tfrecord")]


def chunks(folder: Path) -> dict[int, Chunk]:
    """The chunks of a checkpoint, by their keys. Their columns stay compressed."""
    found = {}
    for record in records(folder / "chunks.tfrecord"):
        chunk = fields(record)
        steps = fields(one(chunk, 2, b""))
        tensors = fields(one(chunk, 5, b"")).get(1, []) or chunk.get(3, [])
        found[one(chunk, 1)] = Chunk(
            one(steps, 1), one(steps, 2), one(steps, 3), bool(one(steps, 4)), bool(one(chunk, 4)), tensors
        )
    return found


def items(folder: Path, table: str) -> Iterator[list[list[Slice]]]:
    """The items of a table: for each column of an item the slices of chunks that it is made of."""
    for record in records(folder / "items.tfrecord"):
        item = fields(record)
        if one(item, 2, b"").decode() != table:
            continue
        columns = fields(one(item, 8, b"")).get(1, [])
        yield [[_slice(part) for part in fields(column).get(1, [])] for column in columns]


def _slice(part: bytes) -> Slice:
    found = fields(part)
    return Slice(one(found, 1), one(found, 2), one(found, 3), one(found, 4))


def records(file: Path) -> Iterator[bytes]:
    """The records of a file.

    Raises:
        ValueError: It is missing or damaged.

    """
    try:
        yield from _records(file)
    except (OSError, zlib.error, struct.error) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def _records(file: Path) -> Iterator[bytes]:
    unpack = zlib.decompressobj()
    ready = bytearray()
    with open(file, "rb") as source:
        while block := source.read(_BLOCK):
            ready += unpack.decompress(block)
            at = 0
            while len(ready) - at >= 12:
                (length,) = struct.unpack_from("<Q", ready, at)
                if len(ready) - at < length + 16:
                    break
                yield bytes(ready[at + 12 : at + 12 + length])
                at += length + 16
            del ready[:at]
    if ready or (not unpack.eof and file.stat().st_size):
        raise struct.error("it ends within a record")


def fields(data: bytes) -> _Fields:
    """The fields of a protocol buffer: numbers, and bytes.

    Raises:
        ValueError: It is damaged.

    """
    found: _Fields = {}
    at = 0
    try:
        while at < len(data):
            key, at = _varint(data, at)
            kind = key & 7
            if kind == 0:
                number, at = _varint(data, at)
                found.setdefault(key >> 3, []).append(number)
            else:
                size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
                found.setdefault(key >> 3, []).append(data[at : at + size])
                at += size
    except (IndexError, KeyError):
        at = len(data) + 1
    if at != len(data):
        raise ValueError("a record of the checkpoint is damaged")
    return found


def one(found: _Fields, number: int, missing: Any = 0) -> Any:
    """The value of a field that comes once."""
    return found[number][-1] if number in found else missing


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
