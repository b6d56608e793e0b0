"""Steps from a checkpoint of a Reverb server. Neither Reverb nor TensorFlow is needed."""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets import reverb_records
from echo_shm.replay.datasets.common import Importer
from echo_shm.replay.datasets.reverb_records import Chunk, Slice
from echo_shm.replay.replay import Replay
from echo_shm.spec import Array, Spec, Tree

#: Of one column: by episode, the chunks that items refer to, as (key, index), and which of their steps.
_Used = dict[int, dict[tuple[int, int], npt.NDArray[np.bool_]]]


def read_reverb(
    replay: Replay,
    checkpoint: "str | PathLike[str]",
    table: str,
    *,
    columns: Sequence[int] | None = None,
    terminated: Callable[[Tree], Any] | None = None,
    truncated: Callable[[Tree], Any] | None = None,
    timeout: float | None = 0.0,
) -> int:
    """Adds the steps that the items of a Reverb table refer to. Their items here get each table's highest priority.

    A step is added once, however many items share it, in its place in its episode. Reverb numbers the steps of an
    episode, and does not know how it ended. Items there have columns, each of which is made of steps. All columns of
    an item must end with the same step. One may be longer than another, as stacked frames are. Only steps that have all
    columns are added.

    Args:
        replay: The replay.
        checkpoint: The folder of a checkpoint, or one that has some: the newest of them.
        table: The table's name there.
        columns: For each leaf of a step, in their order (dicts by sorted keys), the number of a column. Columns that
            are not named do not matter. None: the columns are the leaves.
        terminated: Says which steps end their episode, and nothing follows from their last state. It gets the tree of a
            step whose leaves have a leading n, and returns bools of shape (n,). None: no step does.
        truncated: The same for steps that end an episode which would have gone on.
        timeout: As for :meth:`Replay.extend`.

    Returns:
        How many steps were added.

    Raises:
        ImportError: pyarrow is not installed: ``pip install 'echo-shm[parquet]'``.
        ValueError: There is no such checkpoint or table, or the checkpoint is damaged, or the columns of an item end
            with different steps.
        SpecMismatchError: A column has another dtype or shape than the leaf, or there are more of them.
        TimeoutError, ConnectionClosedError, EchoShmError, ForkedError: As :meth:`Replay.extend`. The message and the
            attribute ``sent`` say how many steps are stored.

    The compressed data of the whole checkpoint is in memory meanwhile.
    """
    folder = _newest(Path(checkpoint))
    what = f"table {table!r} of {folder}"
    known = reverb_records.tables(folder)
    if table not in known:
        raise ValueError(f"{folder} has no table {table!r}: it has {', '.join(map(repr, sorted(known))) or 'none'}")
    spec = replay._spec
    chunks = reverb_records.chunks(folder)
    used = _used(chunks, reverb_records.items(folder, table), columns, len(spec.leaves), what)
    with Importer(replay, timeout, what) as importer:
        for leaves in _episodes(chunks, used, spec, what):
            ends = [
                _flags(spec, leaves, say, name) for say, name in ((terminated, "terminated"), (truncated, "truncated"))
            ]
            begin = 0
            for end in [*(np.flatnonzero(ends[0] | ends[1]) + 1), len(leaves[0])]:
                if end > begin:
                    importer.steps([array[begin:end] for array in leaves])
                    importer.end(bool(ends[0][end - 1]), bool(ends[1][end - 1]))
                begin = end
        return importer.added


def _newest(folder: Path) -> Path:
    """The folder of a checkpoint that was finished."""
    found = [folder] if (folder / "DONE").exists() else sorted(done.parent for done in folder.glob("*/DONE"))
    if not found:
        raise ValueError(f"{folder} is no finished checkpoint of Reverb, and has none: there is no file DONE")
    return found[-1]  # their names are times


def _used(
    chunks: dict[int, Chunk],
    items: Iterator[list[list[Slice]]],
    columns: Sequence[int] | None,
    num_leaves: int,
    what: str,
) -> list[_Used]:
    """For each leaf, which steps items refer to."""
    used: list[_Used] = [{} for _ in range(num_leaves)]
    for number, item in enumerate(items):
        chosen = range(len(item)) if columns is None else columns
        if len(chosen) != num_leaves or not all(0 <= column < len(item) for column in chosen):
            raise SpecMismatchError(
                f"{what}: item {number} has {len(item)} columns, and a step has {num_leaves} leaves: "
                f"columns={columns!r} must have the number of a column for each leaf"
            )
        ends = set()
        for leaf, column in enumerate(chosen):
            end = None
            for part in item[column]:
                chunk = _chunk(chunks, part, what)
                first = chunk.start + part.offset
                if end is not None and end != (chunk.episode, first - 1):
                    raise ValueError(f"{what}: column {column} of item {number} is not of consecutive steps")
                end = chunk.episode, first + part.length - 1
                rows = used[leaf].setdefault(chunk.episode, {})
                mask = rows.setdefault((part.chunk, part.tensor), np.zeros(chunk.end - chunk.start + 1, bool))
                mask[part.offset : part.offset + part.length] = True
            ends.add(end)
        if len(ends) != 1:
            raise ValueError(
                f"{what}: the columns of item {number} end with different steps, so they are not columns of one step: "
                "name those that are with columns=[...], one for each leaf"
            )
    return used


def _chunk(chunks: dict[int, Chunk], part: Slice, what: str) -> Chunk:
    """The chunk that a slice is of."""
    chunk = chunks.get(part.chunk)
    if chunk is None or part.tensor >= len(chunk.tensors) or part.offset + part.length > chunk.end - chunk.start + 1:
        raise ValueError(f"{what}: an item refers to data that the checkpoint does not have: it is damaged")
    if chunk.is_sparse:
        raise ValueError(f"{what}: a column does not have all steps of its episode, so its steps have no numbers")
    return chunk


def _episodes(chunks: dict[int, Chunk], used: list[_Used], spec: Spec, what: str) -> Iterator[list[Array]]:
    """The steps that have all leaves, in their order. Where one is missing, an episode is cut."""
    for episode in used[0]:
        if not all(episode in column for column in used):
            continue
        places = [_places(chunks, column[episode]) for column in used]
        numbers = places[0][0]
        for other, _, _ in places[1:]:
            numbers = np.intersect1d(numbers, other)
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if len(run):
                yield [
                    _gathered(chunks, list(column[episode]), place, run, spec, leaf, what)
                    for leaf, (column, place) in enumerate(zip(used, places, strict=True))
                ]


def _places(chunks: dict[int, Chunk], rows: dict[tuple[int, int], Any]) -> tuple[Array, Array, Array]:
    """Of an episode's column: the steps' numbers, sorted; the chunk of each, counted in ``rows``; and its row there."""
    found = [
        (chunks[key].start + np.flatnonzero(mask), np.full(int(mask.sum()), i), np.flatnonzero(mask))
        for i, ((key, _), mask) in enumerate(rows.items())
    ]
    numbers, which, row = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    numbers, first = np.unique(numbers, return_index=True)
    return numbers, which[first], row[first]


def _gathered(
    chunks: dict[int, Chunk],
    keys: list[tuple[int, int]],
    place: tuple[Array, Array, Array],
    run: Array,
    spec: Spec,
    number: int,
    what: str,
) -> Array:
    """A leaf of consecutive steps."""
    leaf = spec.leaves[number]
    numbers, which, row = place
    at = np.searchsorted(numbers, run)
    which, row = which[at], row[at]
    array: Array = np.empty((len(run), *leaf.shape), leaf.dtype)
    for i in np.unique(which):
        key, index = keys[i]
        column = chunks[key].column(index)
        if column.dtype != leaf.dtype or column.shape[1:] != leaf.shape:
            raise SpecMismatchError(
                f"{what}: {leaf.name}: got a column of {column.dtype}{list(column.shape[1:])}, expected "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
        array[which == i] = column[row[which == i]]
    return array


def _flags(spec: Spec, leaves: list[Array], say: Callable[[Tree], Any] | None, name: str) -> Array:
    """Which steps end their episode, as a function of the user's says."""
    n = len(leaves[0])
    if say is None:
        return np.zeros(n, bool)
    flags = np.asarray(say(spec.structure.unflatten(leaves)))
    if flags.dtype != np.bool_ or flags.shape != (n,):
        raise ValueError(f"{name}: it returned {flags.dtype}{list(flags.shape)}, expected bool[{n}], one for each step")
    return flags
