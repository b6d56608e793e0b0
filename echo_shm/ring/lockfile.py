"""Sidecars: the lock files by which the kernel tells who is alive, and how segments are named.

A segment named ``run`` is two files. ``echo_shm.run`` is the POSIX
shared-memory object with the ring. ``echo_shm_locks.run``, the lockfile, is
empty: only record locks on its bytes matter. Byte ``i`` is held by owner ``i``
for as long as it lives, and a byte past all owners by the segment's creator,
from before the segment exists until it is unlinked. Past that, learners have a
second byte each, which whoever reaps one holds meanwhile. When nobody holds any
byte, nobody is attached, and the segment is garbage.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import threading
import weakref

import posix_ipc

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from

_SEGMENT_PREFIX = "echo_shm."
_LOCKFILE_PREFIX = "echo_shm_locks."
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")

#: Where POSIX shared memory shows as files, on Linux; elsewhere sidecars go to the temporary directory.
_SHM_DIR = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: The sidecar's byte that a segment's creator holds; the owners' bytes lie below, learners' second ones above.
CREATOR_BYTE: int = lib.es_creator_byte()


def check_name(name: str) -> str:
    """Returns ``name``, or raises ValueError when no segment can be called so."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"bad segment name {name!r}: use 1 to 200 letters, digits, '.', '_' and '-', not starting with '.'"
        )
    return name


class LockFile:
    """This process's locks on one sidecar file. There is never more than one of them for a file."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self._file = status.st_dev, status.st_ino
        self.locks = ffi.gc(lib.es_locks_new(fd, CREATOR_BYTE + 1), lib.es_locks_free)

    def is_linked(self, name: str) -> bool:
        """Whether this very file still goes by its name."""
        try:
            status = os.stat(lockfile_path(name), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return self._file == (status.st_dev, status.st_ino)

    def try_lock(self, byte: int) -> bool:
        """Takes a byte; False when somebody, this process included, holds it."""
        code = lib.es_locks_try(self.locks, byte)
        if code not in (0, -errno.EAGAIN):
            raise error_from(code, "the segment's lock file")
        return bool(code == 0)


class PrivateLockFile(LockFile):
    """In place of one, for a segment that no other process knows."""

    def __init__(self) -> None:
        self.locks = ffi.gc(lib.es_locks_new(-1, CREATOR_BYTE + 1), lib.es_locks_free)

    def is_linked(self, name: str) -> bool:
        """It goes by no name."""
        return True


_open: "weakref.WeakValueDictionary[tuple[int, int, int], LockFile]" = weakref.WeakValueDictionary()
#: Held while a lockfile is opened, or locked as a whole: the two must not meet in one process.
_opening = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: a thread that held the lock at the fork does not exist there."""
    global _opening
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def lockfile_path(name: str) -> str:
    """Where a segment's lockfile is."""
    return os.path.join(_SHM_DIR or tempfile.gettempdir(), _LOCKFILE_PREFIX + name)


def ipc_name(name: str) -> str:
    """What the segment's shared-memory object is called."""
    return "/" + _SEGMENT_PREFIX + name


def shm_file(name: str) -> tuple[int, int] | None:
    """Device and inode of what goes by the segment's name, or None where that cannot be seen."""
    if _SHM_DIR is None:
        return None
    try:
        status = os.lstat(os.path.join(_SHM_DIR, _SEGMENT_PREFIX + name))
    except FileNotFoundError:
        return (0, 0)
    return status.st_dev, status.st_ino


def open_lockfile(name: str, *, create: bool) -> LockFile:
    """Opens a sidecar through the process-wide registry.

    Closing any descriptor of the file would drop every lock that this process
    has on it, so a file that is open here already is never opened again.
    """
    path = lockfile_path(name)
    with _opening:
        if not create:
            known = os.lstat(path)
            if not stat.S_ISREG(known.st_mode):
                raise SegmentError(f"{path} is not a regular file; it is not trusted")
            found = _open.get((lib.es_fork_generation(), known.st_dev, known.st_ino))
            if found is not None:
                return found
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o600)
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise SegmentError(f"{path} does not belong to this user (uid {status.st_uid}); it is not trusted")
        lockfile = LockFile(fd)
        _open[lib.es_fork_generation(), status.st_dev, status.st_ino] = lockfile
        return lockfile


def _is_open_here(status: os.stat_result) -> bool:
    """Whether this process has that file open as a lockfile."""
    with _opening:
        return (lib.es_fork_generation(), status.st_dev, status.st_ino) in _open


def unlink_lockfile(name: str) -> None:
    """Removes a sidecar's name, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(lockfile_path(name))


def names() -> list[str]:
    """The names of this machine's segments, in order; also of sidecars whose segment is not made yet."""
    # Only Linux shows shared memory as files; the sidecars do elsewhere.
    entries = os.listdir(_SHM_DIR or tempfile.gettempdir())
    found = {
        e[len(prefix) :] for e in entries for prefix in (_SEGMENT_PREFIX, _LOCKFILE_PREFIX) if e.startswith(prefix)
    }
    return sorted(name for name in found if _NAME.fullmatch(name))


def collect(name: str) -> bool:
    """Removes a segment that nobody holds a lock of; False when somebody does.

    The whole lockfile is locked meanwhile, so nobody can join what is being removed.
    """
    path = lockfile_path(name)
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
                posix_ipc.unlink_shared_memory(ipc_name(name))
            unlink_lockfile(name)
        except (BlockingIOError, PermissionError, FileNotFoundError):
            return False
        finally:
            os.close(fd)
    return True
