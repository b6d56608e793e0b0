"""Lock files, by which the kernel tells which owners are alive; and the names of segments.

A segment named ``run`` is two files. ``echo_shm.run`` is the POSIX shared-memory object with the ring.
``echo_shm_locks.run`` is the lock file. It is empty: only the record locks on its bytes matter.

- Owner ``i`` holds byte ``i`` for as long as it lives.
- The segment's creator holds one byte above all owners' bytes, from before the segment exists until it is unlinked.
- Above that, each learner has a second byte. A process that reaps the learner holds it meanwhile.

If no process holds any byte, nobody is attached and the segment is garbage.

What else is kept in shared memory has the same two files under prefixes of its own: see :class:`Files`.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
import tempfile
import threading
import weakref
from typing import NamedTuple

import posix_ipc

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from


class Files(NamedTuple):
    """The prefixes of two files, shared memory and lock file, and what a message calls them together."""

    shm: str
    locks: str
    what: str


#: A segment's files.
SEGMENT = Files("echo_shm.", "echo_shm_locks.", "segment")

#: How the names of a replay's rings end: the one that brings steps, the one that brings updates, those with batches.
INBOX, UPDATES, BATCHES = ".inbox", ".updates", ".batches"

#: How the names of segments with weights end.
WEIGHTS = ".weights"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")

#: A ``struct flock`` of Linux.
_FLOCK = "hhqqi4x"

#: Where Linux shows shared memory as files. On other systems, lock files are in the temporary directory.
_SHM_DIR = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: The byte that a segment's creator holds. Owners' bytes are below it, and the learners' second bytes above.
CREATOR_BYTE: int = lib.es_segment_creator_byte()


def check_name(name: str, files: Files = SEGMENT) -> str:
    """Returns ``name``. Raises ValueError if a segment cannot have that name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"bad {files.what} name {name!r}: use 1 to 200 letters, digits, '.', '_' and '-', not starting with '.'"
        )
    return name


class LockFile:
    """This process's locks on one lock file. A process has at most one object for a file."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._fd = fd
        self._file = status.st_dev, status.st_ino
        self.locks = ffi.gc(lib.es_segment_locks_new(fd, CREATOR_BYTE + 1), lib.es_segment_locks_free)

    def is_linked(self, name: str, files: Files = SEGMENT) -> bool:
        """Whether this file still has its name."""
        return self.is_at(lockfile_path(name, files))

    def is_at(self, path: str) -> bool:
        """Whether this file is at that path."""
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return self._file == (status.st_dev, status.st_ino)

    def try_lock(self, byte: int) -> bool:
        """Locks a byte. Returns False if it is locked already, by this process or another."""
        code = lib.es_segment_locks_try(self.locks, byte)
        if code not in (0, -errno.EAGAIN):
            raise error_from(code, "the segment's lock file")
        return bool(code == 0)

    def holder(self, byte: int) -> int | None:
        """The PID of the other process that holds a byte; None if there is none, 0 if this one cannot see it."""
        lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(self._fd, fcntl.F_GETLK, lock))
        return None if kind == fcntl.F_UNLCK else int(pid)


class PrivateLockFile(LockFile):
    """The locks of a segment that no other process knows: there is no file."""

    def __init__(self) -> None:
        self.locks = ffi.gc(lib.es_segment_locks_new(-1, CREATOR_BYTE + 1), lib.es_segment_locks_free)

    def is_linked(self, name: str, files: Files = SEGMENT) -> bool:
        """There is no name to lose."""
        return True


def holder_of(lockfile: LockFile, byte: int = CREATOR_BYTE) -> str:
    """Which process holds a byte of a lock file, in words: that of a creator, or of who has a store, or another one."""
    pid = lockfile.holder(byte)
    return "this process" if pid is None else f"process {pid}" if pid else "a process of another container"


_open: "weakref.WeakValueDictionary[tuple[int, int, int], LockFile]" = weakref.WeakValueDictionary()
#: Held while a lock file is opened, or locked as a whole: one process must not do both at once.
_opening = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: the thread that held the lock at the fork does not exist there."""
    global _opening
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def lockfile_path(name: str, files: Files = SEGMENT) -> str:
    """The path of a segment's lock file."""
    return os.path.join(_SHM_DIR or tempfile.gettempdir(), files.locks + name)


def ipc_name(name: str, files: Files = SEGMENT) -> str:
    """The name of a segment's shared-memory object."""
    return "/" + files.shm + name


def shm_file(name: str, files: Files = SEGMENT) -> tuple[int, int] | None:
    """Device and inode of the segment's file, (0, 0) if there is none; None if this system has no such files."""
    if _SHM_DIR is None:
        return None
    try:
        status = os.lstat(os.path.join(_SHM_DIR, files.shm + name))
    except FileNotFoundError:
        return (0, 0)
    return status.st_dev, status.st_ino


def open_lockfile(name: str, files: Files = SEGMENT, *, create: bool) -> LockFile:
    """Opens the lock file of that name; see :func:`open_lockfile_at`."""
    return open_lockfile_at(lockfile_path(name, files), create=create)


def open_lockfile_at(path: str, *, create: bool) -> LockFile:
    """Opens a lock file, or returns it from this process's registry.

    Closing any descriptor of the file would drop every lock that this process has on it. So a file that is open in
    this process is never opened again.
    """
    with _opening:
        if not create:
            known = os.lstat(path)
            if not stat.S_ISREG(known.st_mode):
                raise SegmentError(f"{path} is not a regular file; it is not trusted")
            found = _open.get((lib.es_api_fork_generation(), known.st_dev, known.st_ino))
            if found is not None:
                return found
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o600)
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise SegmentError(f"{path} does not belong to this user (uid {status.st_uid}); it is not trusted")
        lockfile = LockFile(fd)
        _open[lib.es_api_fork_generation(), status.st_dev, status.st_ino] = lockfile
        return lockfile


def _is_open_here(status: os.stat_result) -> bool:
    """Whether this process has that file open as a lock file."""
    with _opening:
        return (lib.es_api_fork_generation(), status.st_dev, status.st_ino) in _open


def unlink_lockfile(name: str, files: Files = SEGMENT) -> None:
    """Removes a lock file's name, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(lockfile_path(name, files))


def names(files: Files = SEGMENT) -> list[str]:
    """The sorted names of this machine's segments, and of lock files whose segment does not exist yet."""
    # Only Linux shows shared memory as files. The lock files are visible everywhere.
    entries = os.listdir(_SHM_DIR or tempfile.gettempdir())
    prefixes = files.shm, files.locks
    found = {entry[len(prefix) :] for entry in entries for prefix in prefixes if entry.startswith(prefix)}
    return sorted(name for name in found if _NAME.fullmatch(name))


def collect(name: str, files: Files = SEGMENT) -> bool:
    """Removes a segment if no process holds a lock of it; returns False otherwise.

    Meanwhile the whole lock file is locked, so that no process can attach to what is being removed.
    """
    path = lockfile_path(name, files)
    with _opening:
        try:
            status = os.stat(path, follow_symlinks=False)
            if status.st_uid != os.geteuid() or _is_open_here(status):
                return False
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino != os.stat(path, follow_symlinks=False).st_ino:
                return False
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(ipc_name(name, files))
            unlink_lockfile(name, files)
        except (BlockingIOError, PermissionError, FileNotFoundError):
            return False
        finally:
            os.close(fd)
    return True
