"""A folder's files as arrays: how a checkpoint of a replay becomes part of a framework's state."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.spec import Array


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
    with path.open("rb") as file, contextlib.suppress(OSError):  # ENXIO: there is only a hole left
        while end < size:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
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
