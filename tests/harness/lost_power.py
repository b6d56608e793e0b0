"""What a disk may hold of a directory, and of those in it, when the machine goes down.

A file's sectors are those of its last flush, or any that it had since, each for itself. The same holds for each name in
a directory: which file it names, if any. So a rename may be there at one end, at both, or at none.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

SECTOR = 512

Bytes = npt.NDArray[np.uint8]
#: Picks one of n versions, of which 0 is the oldest.
Choose = Callable[[int], int]


def mix(versions: list[Bytes], choose: Choose) -> Bytes:
    """What a file may be: each sector is one of a version."""
    length = len(versions[choose(len(versions))])
    content = np.zeros(length, np.uint8)
    for start in range(0, length, SECTOR):
        sectors: list[Bytes] = []
        for version in versions:
            part = np.zeros(min(SECTOR, length - start), np.uint8)
            there = version[start : start + len(part)]
            part[: len(there)] = there
            if not sectors or not np.array_equal(part, sectors[-1]):
                sectors.append(part)
        content[start : start + SECTOR] = sectors[choose(len(sectors))]
    return content


class Disk:
    """The disk below a directory. Its files and directories are known by their inodes, which it keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[int, int] = {}  # a descriptor for each inode: it stays what it is
        self._files: dict[int, list[Bytes]] = {}
        self._names: dict[int, dict[str, list[int | None]]] = {}
        self.look()
        for inode in list(self._names) + list(self._files):
            self.flush(inode)

    def close(self) -> None:
        """Lets go of the inodes."""
        for fd in self._kept.values():
            os.close(fd)

    def look(self) -> None:
        """Notes what is there now: any of it may be on the disk from now on."""
        self._look_at(self.path)

    def _look_at(self, path: Path) -> int:
        status = path.stat()
        inode = status.st_ino
        if inode not in self._kept:
            self._kept[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISDIR(status.st_mode):
            now = {entry.name: self._look_at(entry) for entry in path.iterdir()}
            names = self._names.setdefault(inode, {})
            for name in now.keys() | names.keys():
                seen = names.setdefault(name, [None])
                if seen[-1] != now.get(name):
                    seen.append(now.get(name))
        else:
            content = np.fromfile(path, np.uint8)
            versions = self._files.setdefault(inode, [np.zeros(0, np.uint8)])
            if not np.array_equal(versions[-1], content):
                versions.append(content)
        return inode

    def flush(self, inode: int) -> None:
        """All that the file or directory is now is on the disk."""
        for seen in [self._files.get(inode, []), *self._names.get(inode, {}).values()]:
            del seen[:-1]

    def crash(self, to: Path, choose: Choose) -> None:
        """Makes a directory as the machine may find it."""
        self._make(os.stat(self.path).st_ino, to, choose)

    def _make(self, inode: int, to: Path, choose: Choose) -> None:
        if inode in self._files:
            mix(self._files[inode], choose).tofile(to)
            return
        to.mkdir()
        for name, seen in sorted(self._names[inode].items()):
            one = seen[choose(len(seen))]
            if one is not None:
                self._make(one, to / name, choose)
