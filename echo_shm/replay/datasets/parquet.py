"""Steps as a Parquet file: one row a step, one column a leaf.

A leaf of numbers is a column of numbers if its shape is (), and of fixed-size lists if not. A leaf of any other dtype
is a column of bytes, which are the step's. A leaf without bytes has no column. What a step looks like is in the file's
metadata.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import Header, Importer, header_from, header_of, need
from echo_shm.replay.episodes import Piece, pieces
from echo_shm.replay.replay import Replay
from echo_shm.replay.validation import integer
from echo_shm.spec import Array, Leaf, Tree

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA = b"echo_shm"

#: The columns beside the leaves.
_OWN = {
    "episode": np.int64,
    "stream": np.uint64,
    "environment": np.int64,
    "index": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "final": np.bool_,
}

#: About how many bytes of steps a row group has. Parquet takes up to 16 times as much to encode lists of small numbers.
_GROUP = 8 << 20

#: Most rows of a row group.
_ROWS = 1 << 17


def write_parquet(
    replay: Replay,
    file: "str | PathLike[str]",
    *,
    row_group_size: int | None = None,
    compression: str = "zstd",
) -> int:
    """Writes the steps that a replay has to a Parquet file, a row a step, the episodes one after the other.

    The name of a nested leaf is ``obs/image``. A leaf of shape (2, 3) is a list of 6; the shape and the dtype are in
    the field's metadata. The other columns:

    - ``episode``: counts the episodes in the file, from 0. ``index``: the step's place in its episode.
    - ``stream``, ``environment``: whose episode it is, as in a :class:`StoredEpisode`.
    - ``terminated``, ``truncated``: how the episode ends with this step.
    - ``final``: the row is no step, but what the episode ended with. It follows the last step.

    Args:
        replay: The replay. It may be used meanwhile: see :meth:`Replay.episodes`.
        file: It must not exist.
        row_group_size: Most rows of a row group, and at least 2 where an episode ends with a final observation. About
            two of them are in memory at a time. None: about 8 MiB of steps.
        compression: As ``pyarrow.parquet.ParquetWriter`` takes it.

    Returns:
        How many steps were written; final observations do not count.

    Raises:
        ImportError: pyarrow is not installed: ``pip install 'echo-shm[parquet]'``.
        FileExistsError: There is such a file.
        OSError: It cannot be written.
        ConnectionClosedError, MemoryError, ForkedError: As :meth:`Replay.episodes`.

    """
    pa, pq = need("pyarrow", "parquet"), need("pyarrow.parquet", "parquet")
    header = header_of(replay, _OWN.__contains__)
    most = _group_size(header, row_group_size)
    schema = _schema(header)
    steps = 0
    with open(file, "xb") as sink, contextlib.ExitStack() as undo:
        undo.callback(Path(file).unlink, missing_ok=True)  # it is not finished
        with pq.ParquetWriter(sink, schema, compression=compression) as writer:
            for group in _groups(_batches(header, pieces(replay, most), schema), most):
                steps += sum(batch.num_rows - batch["final"].true_count for batch in group)
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=most + 1)
        undo.pop_all()
    return steps


def read_parquet(replay: Replay, file: "str | PathLike[str]", *, timeout: float | None = 0.0) -> int:
    """Adds the steps of such a file to a replay, in their order. Their items get each table's highest priority.

    An episode that had not ended is over with its last step, as after :meth:`Replay.end_episode`. About 8 MiB of
    steps are in memory at a time, beside the row group that is decompressed.

    Args:
        replay: The replay. Its steps must look as those of the file.
        file: What :func:`write_parquet` has written.
        timeout: As for :meth:`Replay.extend`.

    Returns:
        How many steps were added; final observations do not count.

    Raises:
        ImportError: pyarrow is not installed: ``pip install 'echo-shm[parquet]'``.
        SpecMismatchError: The steps have another structure, or a column has another type.
        ValueError: The file is damaged, or is not of :func:`write_parquet`.
        OSError: It cannot be read.
        TimeoutError, ConnectionClosedError, EchoShmError, ForkedError: As :meth:`Replay.extend`. The message and the
            attribute ``sent`` say how many steps are stored.

    """
    with _open(file) as (parquet, header):
        header.check_fits(replay, fspath(file))
        _check_columns(header, parquet.schema_arrow, fspath(file))
        with Importer(replay, timeout, fspath(file)) as importer:
            rows = _Rows(importer, fspath(file))
            for batch in _read_batches(parquet, _group_size(header, None), fspath(file)):
                rows.add(batch, header)
            rows.end()
            return importer.added


def parquet_example(file: "str | PathLike[str]") -> Tree:
    """One step of such a file, with zeros in its leaves: ``Replay(parquet_example(file), capacity)``.

    Raises:
        ImportError: pyarrow is not installed: ``pip install 'echo-shm[parquet]'``.
        ValueError: The file is damaged, or is not of :func:`write_parquet`, or the steps have node types beyond dict,
            list, tuple and None.
        OSError: It cannot be read.

    """
    with _open(file) as (_, header):
        return header.example(fspath(file))


def _group_size(header: Header, given: int | None) -> int:
    if given is not None:
        return integer("row_group_size", given, 1)
    return min(max(1, _GROUP // max(1, header.spec.sample_bytes)), _ROWS)


# --- columns -------------------------------------------------------------------


def _is_number(leaf: Leaf) -> bool:
    """Whether Arrow has the leaf's dtype."""
    return leaf.dtype.kind in "biuf" and leaf.dtype.itemsize <= 8 and leaf.dtype.isnative and leaf.dtype.names is None


def _type(leaf: Leaf) -> "pa.DataType":
    """A leaf's type in a column."""
    pa = need("pyarrow", "parquet")
    if not _is_number(leaf):
        return pa.binary(leaf.nbytes)
    value = pa.from_numpy_dtype(leaf.dtype)
    return pa.list_(value, math.prod(leaf.shape)) if leaf.shape else value


def _schema(header: Header) -> "pa.Schema":
    pa = need("pyarrow", "parquet")
    fields = [
        pa.field(name, _type(leaf), False, {"shape": json.dumps(leaf.shape), "dtype": str(leaf.dtype)})
        for name, leaf in zip(header.names, header.spec.leaves, strict=True)
        if leaf.nbytes
    ]
    fields += [pa.field(name, pa.from_numpy_dtype(dtype), False) for name, dtype in _OWN.items()]
    return pa.schema(fields, {_METADATA: header.to_json()})


def _to_arrow(leaf: Leaf, array: Array) -> "pa.Array":
    pa = need("pyarrow", "parquet")
    kind = _type(leaf)
    if not _is_number(leaf):
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(array), [None, pa.py_buffer(array.tobytes())])
    values = pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, type=kind) if leaf.shape else values


def _from_arrow(leaf: Leaf, column: "pa.Array") -> Array:
    n = len(column)
    if not _is_number(leaf):
        raw = np.frombuffer(column.buffers()[1], np.uint8)
        raw = raw[column.offset * leaf.nbytes : (column.offset + n) * leaf.nbytes]
        array: Array = np.ndarray((n, *leaf.shape), leaf.dtype, raw.tobytes())
        return array
    values = column.flatten() if leaf.shape else column
    array = np.ascontiguousarray(values.to_numpy(zero_copy_only=False))
    return array.reshape(n, *leaf.shape)


# --- writing -------------------------------------------------------------------


def _batches(header: Header, found: Iterator[Piece], schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    """The rows of each piece."""
    pa = need("pyarrow", "parquet")
    episode = -1
    for piece in found:
        n = len(piece.listed)
        if not piece.goes_on:
            if piece.final and n == 1:
                continue  # the steps before what it ended with are gone
            episode += 1
        own: dict[str, Array] = {name: np.zeros(n, dtype) for name, dtype in _OWN.items()}
        own["episode"][:] = episode
        for name in ("stream", "environment", "index"):
            own[name][:] = piece.listed[name]
        own["final"][-1] = piece.final
        last = n - 1 - piece.final
        own["terminated"][last], own["truncated"][last] = piece.terminated, piece.truncated
        columns = [
            _to_arrow(leaf, array) for leaf, array in zip(header.spec.leaves, piece.leaves, strict=True) if leaf.nbytes
        ]
        yield pa.RecordBatch.from_arrays([*columns, *map(pa.array, own.values())], schema=schema)


def _groups(batches: Iterator["pa.RecordBatch"], most: int) -> Iterator[list["pa.RecordBatch"]]:
    """Batches that make a row group together: at most ``most`` rows, or one batch."""
    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if group and rows + batch.num_rows > most:
            yield group
            group, rows = [], 0
        group.append(batch)
        rows += batch.num_rows
    if group:
        yield group


# --- reading -------------------------------------------------------------------


def _read_batches(parquet: Any, rows: int, what: str) -> Iterator["pa.RecordBatch"]:
    """What a file has, so many rows at a time."""
    pa = need("pyarrow", "parquet")
    try:
        for group in range(parquet.num_row_groups):  # pyarrow keeps what it has read of all groups that it is asked for
            yield from parquet.iter_batches(batch_size=rows, row_groups=[group])
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # not the file's contents, but the disk
            raise
        raise ValueError(f"{what} cannot be read: {error}") from None


@contextlib.contextmanager
def _open(file: "str | PathLike[str]") -> Iterator[tuple[Any, Header]]:
    """A file to read, and its header."""
    pa, pq = need("pyarrow", "parquet"), need("pyarrow.parquet", "parquet")
    with open(file, "rb") as source:
        try:
            parquet = pq.ParquetFile(source)
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(f"{fspath(file)} is not a Parquet file: {error}") from None
        said = (parquet.schema_arrow.metadata or {}).get(_METADATA)
        if said is None:
            raise ValueError(f"{fspath(file)} does not say what a step looks like: write_parquet() has not written it")
        yield parquet, header_from(said, fspath(file))[0]


def _check_columns(header: Header, got: "pa.Schema", file: str) -> None:
    """Raises SpecMismatchError unless a file has the columns that its header promises."""
    for field in _schema(header):
        index = got.get_field_index(field.name)
        if index < 0:
            raise SpecMismatchError(f"{file} has no column {field.name!r}, or several")
        if got.field(index).type != field.type:
            raise SpecMismatchError(
                f"{file}: column {field.name!r}: got {got.field(index).type}, expected {field.type}"
            )


class _Rows:
    """Adds the rows of a file to a replay. An episode may come in several batches."""

    def __init__(self, importer: Importer, file: str) -> None:
        self._importer = importer
        self._file = file
        self._row = 0  # of the file
        self._episode: int | None = None
        self._ends = (False, False)  # with its last step so far
        self._is_over = False

    def add(self, batch: "pa.RecordBatch", header: Header) -> None:
        """Adds a batch of rows."""
        own = {name: self._column(batch, name).to_numpy(zero_copy_only=False) for name in _OWN}
        leaves = [
            _from_arrow(leaf, self._column(batch, name))
            if leaf.nbytes
            else np.zeros((len(batch), *leaf.shape), leaf.dtype)
            for name, leaf in zip(header.names, header.spec.leaves, strict=True)
        ]
        ends = own["terminated"] | own["truncated"]
        begins = np.flatnonzero(own["episode"][1:] != own["episode"][:-1]) + 1
        for begin, end in zip([0, *begins], [*begins, len(batch)], strict=True):
            if begin == end:
                continue
            if self._episode != own["episode"][begin]:
                self.end()
                self._episode, self._is_over = int(own["episode"][begin]), False
            self._check(own["final"][begin:end], ends[begin:end], begin)
            last = int(end) - bool(own["final"][end - 1])
            if last > begin:
                self._importer.steps([array[begin:last] for array in leaves])
                self._ends = bool(own["terminated"][last - 1]), bool(own["truncated"][last - 1])
            if last < end:
                self._importer.end(*self._ends, [array[last, ...].reshape(array.shape[1:]) for array in leaves])
                self._is_over = True
        self._row += len(batch)

    def _check(self, final: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_], first: int) -> None:
        """Raises ValueError unless rows can be the next ones of an episode."""
        ended_before = np.append(any(self._ends), ends[:-1])
        wrong = np.append(self._is_over, final[:-1]) | (ended_before != final)
        if wrong.any():
            i = int(wrong.argmax())
            row = f"{self._file}, row {self._row + first + i}"
            if final[i] and not ended_before[i]:
                raise ValueError(f"{row} is what episode {self._episode} ended with, but no step before it ends it")
            raise ValueError(f"{row}: episode {self._episode} goes on after its end")

    def _column(self, batch: "pa.RecordBatch", name: str) -> "pa.Array":
        column = batch.column(name)
        if column.null_count:
            raise ValueError(f"{self._file}: column {name!r} has nulls")
        return column

    def end(self) -> None:
        """The episode is over."""
        self._importer.end(*self._ends)  # of an episode that is over already, this is nothing
        self._ends = (False, False)
