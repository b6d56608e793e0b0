"""Reads the frames of a LeRobot dataset, a few of one episode at a time."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.datasets.common import need
from echo_shm.replay.datasets.lerobot_features import Info, from_arrow
from echo_shm.replay.datasets.lerobot_videos import Videos
from echo_shm.spec import Array

if TYPE_CHECKING:
    import pyarrow as pa

_EPISODE = "episode_index"


class Rows(Mapping[str, Array]):
    """The features of frames that follow each other in an episode, by name. They are decoded when they are asked for.

    A value has a leading n, the number of frames. A feature of shape (1,) is of shape (n,).

    Attributes:
        episode: Its number.
        where: What messages call them.

    """

    def __init__(self, batch: "pa.RecordBatch", info: Info, videos: Videos, episode: int, where: str) -> None:
        self._batch = batch
        self._info = info
        self._videos = videos
        self._arrays: dict[str, Array] = {}
        self.episode = episode
        self.where = where

    @property
    def n(self) -> int:
        """How many frames."""
        return int(self._batch.num_rows)

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            feature = self._info.features[name]
            where = f"{self.where}, feature {name!r}"
            if feature.is_video:
                array = self._videos.frames(feature, self.episode, self["timestamp"], where)
            else:
                array = from_arrow(feature, self._batch.column(name), where)
            self._arrays[name] = array.reshape(self.n) if feature.shape == (1,) else array
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._batch.schema.names, *(name for name, one in self._info.features.items() if one.is_video)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def read_rows(folder: Path, info: Info, names: Collection[str], most: int) -> Iterator[Rows]:
    """The frames of a dataset in their order, up to ``most`` at a time, with these features.

    Raises:
        ValueError: A file is damaged, or some are missing.
        SpecMismatchError: A column is not what the features say.

    """
    columns = [name for name in names if not info.features[name].is_video]
    _check_files(folder, info, columns)
    pa, pq = need("pyarrow", "lerobot"), need("pyarrow.parquet", "lerobot")
    with Videos(folder, info) as videos:
        for file in info.files:
            row = 0
            try:
                with pq.ParquetFile(file) as parquet:
                    for batch in _batches(parquet, most, columns):
                        yield from _runs(batch, info, videos, f"{file}, row {row}")
                        row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if getattr(error, "errno", None):  # not the file's contents, but the disk
                    raise
                raise ValueError(f"{file} cannot be read: {error}") from None


def _batches(parquet: Any, most: int, columns: list[str]) -> Iterator["pa.RecordBatch"]:
    """The rows of a file. pyarrow keeps what it has read of all row groups that it is asked for at once."""
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(batch_size=most, row_groups=[group], columns=columns)


def _check_files(folder: Path, info: Info, names: Collection[str]) -> None:
    """Raises unless the files have all frames, with these features, before any of them is added."""
    pa, pq = need("pyarrow", "lerobot"), need("pyarrow.parquet", "lerobot")
    frames = 0
    for file in info.files:
        try:
            with pq.ParquetFile(file) as parquet:
                found = parquet.schema_arrow.names
                frames += parquet.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
        missing = [name for name in names if found.count(name) != 1]
        if missing:
            raise SpecMismatchError(f"{file} has no column {', '.join(map(repr, missing))}, or several")
    if frames != info.frames:
        raise ValueError(
            f"{folder} is not complete: its {len(info.files)} Parquet files have {frames:,} frames, but info.json says "
            f"{info.frames:,}"
        )


def _runs(batch: "pa.RecordBatch", info: Info, videos: Videos, where: str) -> Iterator[Rows]:
    """The frames of each episode in a batch."""
    episodes = Rows(batch, info, videos, -1, where)[_EPISODE]
    begins = [0, *(np.flatnonzero(episodes[1:] != episodes[:-1]) + 1), len(episodes)]
    for begin, end in itertools.pairwise(begins):
        if begin < end:
            episode = int(episodes[begin])
            yield Rows(batch.slice(begin, end - begin), info, videos, episode, f"{where}, episode {episode}")
