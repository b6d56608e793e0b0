"""A folder's files as arrays: how a checkpoint of a replay becomes part of a framework's state."""

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.replay.restoring import opened
from echo_shm.spec import Array


def check_restorable(path: str | Path, store: str | os.PathLike[str], what: str) -> None:
    """Raises what keeps a checkpoint from being restored, before the replay in whose place it comes is closed.

    Args:
        path: The checkpoint, as for :meth:`Replay.restore`.
        store: Of the new replay.
        what: The call, for messages.

    Raises:
        SegmentError: There is no checkpoint.
        ValueError: The store is a directory that is not empty.

    """
    with opened(Path(path)):
        pass
    if store not in ("memory", "shm") and Path(store).exists() and any(Path(store).iterdir()):
        raise ValueError(
            f"{what}: store={os.fspath(store)!r} is a directory that holds a replay or other files, and a new replay "
            "needs an empty one: make a buffer with another directory or with store='memory', and load into that"
        )


def read_files(folder: str) -> dict[str, Any]:
    """The files below a folder by their names: of each its size and what is in it, without its holes."""
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "parts": dict(_parts(path))}
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def _parts(path: Path) -> Iterator[tuple[int, Array]]:
    """What is in a file between its holes, as arrays of bytes, and where it begins."""
    end, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while end < size:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # there is only a hole left
                    raise
                return
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            yield begin, np.fromfile(path, np.uint8, end - begin, offset=begin)


def write_files(folder: str, files: Mapping[str, Any]) -> None:
    """Writes such files. The parts may be tensors, too."""
    for name, content in files.items():
        (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
        with (Path(folder) / name).open("wb") as file:
            file.truncate(content["size"])
            for begin, part in content["parts"].items():
                file.seek(begin)
                file.write(np.asarray(part).data)
