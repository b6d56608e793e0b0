"""Decodes the videos of a LeRobot dataset, frame after frame."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.replay.datasets.common import need
from echo_shm.replay.datasets.lerobot_features import EPISODES_FILES, Feature, Info
from echo_shm.spec import Array


class Videos:
    """The videos of a dataset. A video has the frames of several episodes. It is a context manager.

    Frames that are asked for in their order are each decoded once.

    Args:
        folder: The dataset's.
        info: What it says of itself.

    """

    def __init__(self, folder: Path, info: Info) -> None:
        self._folder = folder
        self._info = info
        self._begins: dict[str, dict[int, tuple[Path, float]]] = {}  # by feature and episode: the file, and the second
        self._open: dict[str, tuple[Path, Generator[tuple[int, Any], None, None]]] = {}
        self._next: dict[str, int] = {}  # by feature: the frame that comes next

    def frames(self, feature: Feature, episode: int, timestamps: Array, where: str) -> Array:
        """The frames of an episode at these seconds of it, as uint8.

        Raises:
            ImportError: PyAV is not installed: ``pip install 'echo-shm[lerobot-video]'``.
            ValueError: The video is missing, damaged or too short.

        """
        need("av", "lerobot-video")
        begins = self._begins.get(feature.name)
        if begins is None:
            begins = self._begins[feature.name] = self._read_begins(feature.name)
        if episode not in begins:
            raise ValueError(f"{where}: meta/episodes does not say which video it is in")
        file, begin = begins[episode]
        found = [
            self._frame(feature, file, round((begin + float(second)) * self._info.fps), where) for second in timestamps
        ]
        frames = np.stack(found)
        return np.moveaxis(frames, -1, 1) if feature.is_channels_first else frames

    def close(self) -> None:
        """Closes the files."""
        for _, frames in self._open.values():
            frames.close()
        self._open = {}

    def __enter__(self) -> "Videos":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _frame(self, feature: Feature, file: Path, number: int, where: str) -> Array:
        """A frame by its number in a file."""
        name = feature.name
        if name not in self._open or self._open[name][0] != file or number < self._next[name]:
            if name in self._open:
                self._open.pop(name)[1].close()
            self._open[name] = (file, self._decoded(file, number))
            self._next[name] = number
        try:
            for at, frame in self._open[name][1]:
                if at >= number:
                    self._next[name] = at + 1
                    if at == number:
                        array: Array = frame.to_ndarray(format="rgb24")
                        return array
                    break
        except (OSError, ValueError, need("av.error", "lerobot-video").FFmpegError) as error:
            raise ValueError(f"{where}: {file} cannot be decoded: {error}") from None
        raise ValueError(f"{where}: {file} has no frame at {number / self._info.fps:.3f} s")

    def _decoded(self, file: Path, number: int) -> Generator[tuple[int, Any], None, None]:
        """The frames of a file with their numbers, from this one or an earlier one."""
        with need("av", "lerobot-video").open(str(file)) as container:
            stream = container.streams.video[0]
            start = int(number / self._info.fps / stream.time_base) - 1
            container.seek(max(0, start), stream=stream)  # to the frame before, which needs no other
            for frame in container.decode(stream):
                if frame.pts is not None:
                    yield round(float(frame.pts * stream.time_base) * self._info.fps), frame

    def _read_begins(self, name: str) -> dict[int, tuple[Path, float]]:
        begins = {}
        wanted = ["episode_index", *(f"videos/{name}/{one}" for one in ("chunk_index", "file_index", "from_timestamp"))]
        for row in self._entries(wanted):
            episode, chunk, file, begin = (row[one] for one in wanted)
            path = self._info.video_path.format(video_key=name, chunk_index=chunk, file_index=file)
            begins[episode] = (self._folder / path, begin)
        return begins

    def _entries(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        """These columns of what is said of each episode."""
        pq = need("pyarrow.parquet", "lerobot")
        for file in sorted(self._folder.glob(EPISODES_FILES)):
            try:
                with pq.ParquetFile(file) as parquet:
                    missing = [name for name in columns if name not in parquet.schema_arrow.names]
                    if missing:
                        raise ValueError(f"it has no column {missing[0]!r}")
                    yield from parquet.read(columns=columns).to_pylist()
            except (OSError, ValueError) as error:
                raise ValueError(f"{file} cannot be read: {error}") from None
