"""Checkpoints of a run: a file a checkpoint, and beside it the checkpoints of its replay.

A file is complete when it has its name. It is written after the replay's checkpoint, which it names, and a replay's
checkpoint is removed only when no file names it. So whoever is killed at any moment, each file has all that it names.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echo_shm.errors import SegmentError
from echo_shm.missing import needs
from echo_shm.replay.checkpoint_files import Folder

with needs("planning.training", "PyTorch", "torch", extra="planning-agents"):
    import torch

_FILE = re.compile(r"run-(\d{6,})\.pt")

#: How many files stay.
_KEEP = 2


def _files(directory: Path) -> list[tuple[int, Path]]:
    """The complete ones, the oldest first."""
    found = ((_FILE.fullmatch(path.name), path) for path in directory.glob("run-*.pt"))
    return sorted((int(name[1]), path) for name, path in found if name)


def newest(directory: str | Path) -> Path | None:
    """The file of the newest checkpoint there; None if there is none."""
    files = _files(Path(directory))
    return files[-1][1] if files else None


def replays(directory: Path) -> Path:
    """Where the checkpoints of a run's replay are."""
    return directory / "replay"


def save(directory: Path, state: Mapping[str, Any]) -> Path:
    """Writes a checkpoint, and removes all but the newest two, and the replay's checkpoints that these do not name.

    Args:
        directory: Where the run's checkpoints are.
        state: Tensors and plain values. ``"replay"`` is the name of the replay's checkpoint, or None.

    Raises:
        OSError: It cannot be written. Those that are there stay.

    """
    directory.mkdir(parents=True, exist_ok=True)
    files = _files(directory)
    path = directory / f"run-{(files[-1][0] if files else 0) + 1:06}.pt"
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    for _, old in _files(directory)[:-_KEEP]:
        old.unlink()
    if state.get("replay") is not None:
        prune_replays(directory)
    return path


def prune_replays(directory: Path) -> None:
    """Removes the replay's checkpoints that no file names: a run has ended before it could write one.

    Nothing is removed while there is a file that cannot be read, since nobody knows what it names. What cannot be
    removed is tried the next time.
    """
    if not replays(directory).is_dir():
        return
    try:
        named = {load(path, mmap=True)["replay"] for _, path in _files(directory)}
    except (ValueError, KeyError):
        return
    with contextlib.suppress(SegmentError), Folder(replays(directory)) as folder:
        for path in folder.complete():
            if path.name not in named:
                with contextlib.suppress(OSError):
                    folder.remove(path)


def load(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """The state of a file. Tensors are on processors. Only tensors and plain values are read from it, no code.

    Args:
        path: The file.
        mmap: Tensors are mapped from the file, and not read.

    Raises:
        ValueError: It is no checkpoint, or it is damaged.

    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # what torch.load raises for a damaged file is not documented
        raise ValueError(f"{path} is no checkpoint of a run, or it is damaged: {error!r:.200}") from None
    return state
