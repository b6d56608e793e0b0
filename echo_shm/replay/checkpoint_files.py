"""The files of checkpoints: which directory is a complete one, and what is left of one that was never finished.

A directory holds several checkpoints, each a directory of its own, whose name is its number::

    path/000011/  manifest.json   what the others are: sizes, checksums, the format's version
                  records         the first part of a store: settings, counters, steps, items
                  drawn           what was drawn for batches that were cut short
                  rows-...        the steps' leaves, some thousand steps a file, by the order in which they came
                  DONE            made last: the checksum of the manifest
    path/000012/  ...

A checkpoint is written under another name, and renamed once all of it is on disk. So a process that is killed, or a
machine that stops, leaves a complete checkpoint behind, or none. Nothing in these files is trusted.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.errors import SegmentError

FORMAT, VERSION = "echo_shm checkpoint", 2

MANIFEST, RECORDS, DRAWN, DONE = "manifest.json", "records", "drawn", "DONE"

#: An ``es_environment``. The manifest has its fields but for the last one.
ENVIRONMENT = np.dtype([("number", "u8"), ("index", "u4"), ("episode", "u4"), ("resets", "u4"), ("named", "u4")])

#: What a checkpoint is named while it is written, or removed.
_UNFINISHED = re.compile(r"\.echo-shm-checkpoint-\d+")
_NUMBER = re.compile(r"\d{6,}")

_BLOCK = 1 << 20


class Folder:
    """A directory of checkpoints, for whoever writes one: nobody else does meanwhile.

    What others have not finished is removed. Use it as a context manager.

    Raises:
        SegmentError: It cannot be made or opened, or another process writes a checkpoint there.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []

    def __enter__(self) -> "Folder":
        try:
            self._make(self.path)
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._unmake()
            raise fault(error, f"checkpoints cannot be written to {str(self.path)!r}") from None
        try:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SegmentError(
                    errno.EBUSY,
                    f"a checkpoint is being written to {str(self.path)!r} by another process: choose another path",
                ) from None
            self._clean()
        except BaseException:
            os.close(self.fd)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        os.close(self.fd)
        if kind is not None:
            self._unmake()

    def _make(self, path: Path) -> None:
        if not path.exists():
            self._make(path.parent)
            path.mkdir()
            self._made.append(path)
            with contextlib.suppress(PermissionError):  # one may be allowed to write there, and not to read
                sync_directory(path.parent)

    def _unmake(self) -> None:
        """Removes what was made for a checkpoint that has failed."""
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _clean(self) -> None:
        """Removes what a process that was killed has left."""
        for entry in list(self.path.iterdir()):
            numbered = _NUMBER.fullmatch(entry.name) and not (entry / DONE).exists() and _is_ours(entry)
            if numbered or _UNFINISHED.fullmatch(entry.name):
                self.remove(entry)

    def complete(self) -> list[Path]:
        """The complete checkpoints, the oldest first."""
        return complete(self.path)

    def new(self) -> tuple[Path, Path]:
        """Where the next one is written, which is a new directory, and what it is called once it is complete."""
        numbers = [int(entry.name) for entry in self.path.iterdir() if _NUMBER.fullmatch(entry.name)]
        number = max(numbers, default=0) + 1
        unfinished = self.path / f".echo-shm-checkpoint-{number}"
        unfinished.mkdir()
        return unfinished, self.path / f"{number:06}"

    def remove(self, path: Path) -> None:
        """Removes a checkpoint, or what there is of it. Cut short, it is none, and removed the next time."""
        if _NUMBER.fullmatch(path.name):
            try:
                with reading(path, exclusive=True):
                    unfinished = self.path / f".echo-shm-checkpoint-{int(path.name)}"
                    path.rename(unfinished)
            except BlockingIOError:
                return  # somebody restores it
            path = unfinished
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def reading(path: Path, *, exclusive: bool = False) -> Iterator[int]:
    """Keeps others from removing a checkpoint meanwhile. Gives a descriptor of its directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
        yield fd
    finally:
        os.close(fd)


def complete(path: Path) -> list[Path]:
    """The complete checkpoints of a directory, the oldest first."""
    found = [entry for entry in path.iterdir() if _NUMBER.fullmatch(entry.name) and (entry / DONE).exists()]
    return sorted(found, key=lambda entry: int(entry.name))


def _is_ours(path: Path) -> bool:
    """Whether that is a checkpoint, complete or not, and nothing of somebody else."""
    try:
        return bool(json.loads((path / MANIFEST).read_bytes())["format"] == FORMAT)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def fault(error: OSError, what: str) -> SegmentError:
    """What a system call has said, with what to do."""
    hints = {
        errno.ENOSPC: ": the disk is full: free some space, or choose another path",
        errno.EDQUOT: ": the quota of disk space is used up: free some space, or choose another path",
        errno.EROFS: ": the file system is read-only: choose another path",
        errno.EACCES: ": this user may not write there: choose another path, or change its permissions",
    }
    number = error.errno or 0
    said = f" ({os.strerror(number)})" if number else f" ({error})"
    return SegmentError(number, f"{what}{hints.get(number, '')}{said}")


# --- contents ----------------------------------------------------------------


def sync(fd: int) -> None:
    """Waits until a file, or the names in a directory, are on disk."""
    os.fsync(fd)


def sync_directory(path: Path) -> None:
    """The same of the directory of that name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file, and waits until it is on disk."""
    with path.open("xb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        sync(file.fileno())


def crc_of_file(fd: int) -> int:
    """The CRC-32 of a file."""
    crc, at = 0, 0
    while block := os.pread(fd, _BLOCK, at):
        crc, at = zlib.crc32(block, crc), at + len(block)
    return crc


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """A manifest as it is in its file."""
    return json.dumps(manifest, indent=1).encode() + b"\n"


def done_bytes(manifest: bytes) -> bytes:
    """What the mark of a complete checkpoint says."""
    return f"{zlib.crc32(manifest):08x}\n".encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a complete checkpoint.

    Raises:
        SegmentError: It is none, or damaged, or of another version.

    """
    what = f"checkpoint {str(path)!r}"
    try:
        data, mark = (path / MANIFEST).read_bytes(), (path / DONE).read_bytes()
    except FileNotFoundError as error:
        raise damaged(
            path, f"it has no {Path(str(error.filename)).name}: it was never finished, or files were removed"
        ) from None
    except OSError as error:
        raise SegmentError(error.errno, f"{what} cannot be read: {error}") from None
    try:
        manifest = json.loads(data)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ValueError
    except ValueError:
        raise damaged(path, f"its {MANIFEST} is not that of a checkpoint") from None
    version = manifest.get("version")
    if version != VERSION:
        raise SegmentError(
            f"{what} has version {version} of the format, and this echo_shm reads version {VERSION}: restore it with "
            f"the echo_shm that wrote it ({manifest.get('echo_shm')})"
        )
    if mark != done_bytes(data):
        raise damaged(path, f"its {MANIFEST} was changed after it was written")
    if manifest["byteorder"] != sys.byteorder:
        raise SegmentError(f"{what} was written on a {manifest['byteorder']}-endian machine, and this one is not")
    return manifest


def damaged(path: Path, why: str) -> SegmentError:
    """A checkpoint that cannot be used, and what can be."""
    others = [str(other) for other in complete_beside(path) if other != path]
    hint = f": restore another one, the newest is {others[-1]!r}" if others else ""
    return SegmentError(errno.EIO, f"checkpoint {str(path)!r} is damaged: {why}{hint}")


def complete_beside(path: Path) -> list[Path]:
    """The complete checkpoints in the same directory."""
    try:
        return complete(path.parent) if _NUMBER.fullmatch(path.name) else []
    except OSError:
        return []


Progress = Callable[[int, int], object]
