"""Writes the files of a LeRobot dataset.

``meta/info.json`` is written last: a folder without it is not finished.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.replay.datasets.common import need
from echo_shm.replay.datasets.lerobot_features import (
    DATA,
    EPISODES,
    FILES_PER_CHUNK,
    INFO,
    OWN,
    STATS,
    TASKS,
    VERSION,
    Feature,
    column_type,
    to_arrow,
)
from echo_shm.replay.datasets.lerobot_stats import NAMES, Stats, merged, stats_of
from echo_shm.spec import Array

#: A file of frames that has this many bytes gets no further episode. LeRobot's figures say MB.
_FILE_MB = 100

#: How many episodes' entries are in memory, at most.
_EPISODES = 100


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder, or takes one that is empty. If what is done there fails, it is as it was.

    Raises:
        FileExistsError: The folder has files.

    """
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files: give a folder that is empty or does not exist")
    try:
        yield
    except BaseException:
        for name in ("data", "meta"):
            shutil.rmtree(folder / name, ignore_errors=True)
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


class Frames:
    """The frames and episodes of a dataset, as they are written. It is a context manager.

    Args:
        folder: An empty one.
        features: Those of a frame, without LeRobot's own.
        fps: Frames a second.
        task: The task of all episodes.

    Attributes:
        frames, episodes: How many are written.

    """

    def __init__(self, folder: Path, features: list[Feature], fps: int, task: str) -> None:
        pa = need("pyarrow", "lerobot")
        self._folder = folder
        self._features = [*features, *(Feature(name, dtype, (1,)) for name, dtype in OWN.items())]
        self._fps = fps
        self._task = task
        self._schema = pa.schema([(feature.name, column_type(feature)) for feature in self._features])
        self._data: Any = None  # the writer of the newest file
        self._file = -1  # its number
        self._listed: Any = None  # the writer of the episodes' entries
        self._entries: list[dict[str, Any]] = []
        self._stats: dict[str, Stats] = {}  # of the episodes before this one
        self._current: dict[str, Stats] = {}
        self._begin = 0  # where this episode begins
        self.frames = 0
        self.episodes = 0

    def add(self, arrays: Mapping[str, Array], goes_on: bool) -> None:
        """Adds frames, of the episode before if it ``goes_on``: arrays with a leading n, at least 1, by feature."""
        if not goes_on:
            self._end_episode()
            self._begin_file_if_full()
        n = len(next(iter(arrays.values())))
        at = np.arange(self.frames - self._begin, self.frames - self._begin + n)
        arrays = {
            **arrays,
            "timestamp": (at / self._fps).astype(np.float32),
            "frame_index": at,
            "episode_index": np.full(n, self.episodes),
            "index": at + self._begin,
            "task_index": np.zeros(n, np.int64),
        }
        pa = need("pyarrow", "lerobot")
        columns = [to_arrow(feature, arrays[feature.name]) for feature in self._features]
        self._data.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=n)
        _merge(self._current, {feature.name: stats_of(feature, arrays[feature.name]) for feature in self._features})
        self.frames += n

    def finish(self, robot_type: str | None) -> None:
        """Ends the dataset, and says in ``meta/info.json`` what it is."""
        pa, pq = need("pyarrow", "lerobot"), need("pyarrow.parquet", "lerobot")
        self._end_episode()
        self.close()
        columns = [_column("task_index", "int64"), _column("task", "unicode")]
        pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
        tasks = pa.table({"task_index": [0], "task": [self._task]})
        pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), self._folder / TASKS)
        stats = {name: {key: value.tolist() for key, value in found.items()} for name, found in self._stats.items()}
        (self._folder / STATS).write_text(json.dumps(stats, indent=4))
        info = {
            "codebase_version": VERSION,
            "fps": self._fps,
            "features": {feature.name: feature.to_json() for feature in self._features},
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": 1,
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": 200,
            "data_path": DATA,
            "video_path": None,
            "robot_type": robot_type,
            "splits": {"train": f"0:{self.episodes}"},
        }
        (self._folder / INFO).write_text(json.dumps(info, indent=4))

    def close(self) -> None:
        """Closes the files."""
        if self._entries:
            self._write_entries()
        for writer in (self._data, self._listed):
            if writer is not None:
                writer.close()
        self._data = self._listed = None

    def __enter__(self) -> "Frames":
        return self

    def __exit__(self, *_: object) -> None:
        self._entries = []
        self.close()

    def _begin_file_if_full(self) -> None:
        if self._data is not None and self._path().stat().st_size < _FILE_MB << 20:
            return
        pq = need("pyarrow.parquet", "lerobot")
        if self._data is not None:
            self._data.close()
        self._file += 1
        self._path().parent.mkdir(parents=True, exist_ok=True)
        self._data = pq.ParquetWriter(self._path(), self._schema)

    def _place(self) -> dict[str, int]:
        """Where the newest file is."""
        chunk, file = divmod(self._file, FILES_PER_CHUNK)
        return {"chunk_index": chunk, "file_index": file}

    def _path(self) -> Path:
        return self._folder / DATA.format(**self._place())

    def _end_episode(self) -> None:
        if not self._current:
            return
        entry: dict[str, Any] = {
            "episode_index": self.episodes,
            "tasks": [self._task],
            "length": self.frames - self._begin,
            "dataset_from_index": self._begin,
            "dataset_to_index": self.frames,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        entry |= {f"data/{name}": number for name, number in self._place().items()}
        for name, found in self._current.items():
            entry |= {f"stats/{name}/{key}": value.tolist() for key, value in found.items()}
        self._entries.append(entry)
        _merge(self._stats, self._current)
        self._current = {}
        self._begin = self.frames
        self.episodes += 1
        if len(self._entries) == _EPISODES:
            self._write_entries()

    def _write_entries(self) -> None:
        pa, pq = need("pyarrow", "lerobot"), need("pyarrow.parquet", "lerobot")
        schema = self._entry_schema(pa)
        if self._listed is None:
            (self._folder / EPISODES).parent.mkdir(parents=True)
            self._listed = pq.ParquetWriter(self._folder / EPISODES, schema)
        self._listed.write_table(pa.Table.from_pylist(self._entries, schema))
        self._entries = []

    def _entry_schema(self, pa: Any) -> Any:
        numbers = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
        places = [f"{where}/{name}" for where in ("data", "meta/episodes") for name in ("chunk_index", "file_index")]
        fields = [(name, pa.int64()) for name in (*numbers, *places)]
        fields.append(("tasks", pa.list_(pa.string())))
        for feature in self._features:
            for name in NAMES:
                kind = pa.list_(pa.int64() if name == "count" else pa.float64())
                if feature.is_image and name != "count":
                    kind = pa.list_(pa.list_(kind))
                fields.append((f"stats/{feature.name}/{name}", kind))
        return pa.schema(fields)


def _merge(into: dict[str, Stats], more: dict[str, Stats]) -> None:
    for name, found in more.items():
        into[name] = merged(into[name], found) if name in into else found


def _column(name: str, kind: str) -> dict[str, Any]:
    """What pandas says of a column."""
    numpy_type = "object" if kind == "unicode" else kind
    return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
