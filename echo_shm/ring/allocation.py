"""Creating two files, shared memory and its lock file; and the errors that say why that cannot be."""

import contextlib
import errno
import mmap
import os
import sys
from collections.abc import Callable

import posix_ipc

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    SEGMENT,
    Files,
    LockFile,
    ipc_name,
    names,
    open_lockfile,
    unlink_lockfile,
)
from echo_shm.ring.pages import ask_for_huge_pages, populate
from echo_shm.ring.segment import listing, map_file

#: Shared memory is allocated in steps of this size (bytes): posix_fallocate starts over when a signal interrupts it.
_ALLOCATION_STEP = 64 << 20


def create_files(
    name: str,
    size: int,
    undo: contextlib.ExitStack,
    files: Files = SEGMENT,
    *,
    taken: Callable[[str], str],
    smaller: str,
) -> tuple[LockFile, mmap.mmap]:
    """Creates a lock file, locks the creator's byte, and creates ``size`` bytes of shared memory, filled with zeros.

    Args:
        name: A name that :func:`check_name` has passed.
        size: Bytes.
        undo: Gets what removes all of it again.
        files: The files' prefixes.
        taken: Says what has the name already.
        smaller: What the user makes smaller so that less memory is needed.

    Raises:
        SegmentError: The name is taken, or shared memory is too small.

    """
    lockfile = _create_lockfile(name, files, taken)
    undo.callback(unlink_lockfile, name, files)
    # gc may have locked and removed the file before this lock was taken.
    if not lockfile.try_lock(CREATOR_BYTE) or not lockfile.is_linked(name, files):
        raise SegmentError(f"{files.what} {name!r} was removed as garbage by `echo-shm gc` just now; try again")
    undo.callback(lib.es_segment_locks_drop, lockfile.locks, CREATOR_BYTE)
    return lockfile, _create_mapping(name, size, undo, files, smaller)


def _create_lockfile(name: str, files: Files, taken: Callable[[str], str]) -> LockFile:
    try:
        return open_lockfile(name, files, create=True)
    except FileExistsError:
        raise SegmentError(taken(name)) from None
    except SegmentError:
        raise
    except OSError as error:
        raise cannot_be_made(name, files, error) from None


def _create_mapping(name: str, size: int, undo: contextlib.ExitStack, files: Files, smaller: str) -> mmap.mmap:
    try:
        shm = posix_ipc.SharedMemory(ipc_name(name, files), posix_ipc.O_CREX, mode=0o600)
    except posix_ipc.ExistentialError:
        if sys.platform == "linux" and not os.path.isdir("/dev/shm"):
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            raise cannot_be_made(name, files, missing) from None
        raise SegmentError(
            f"a {files.what} named {name!r} exists already, without a lock file; remove it by hand"
        ) from None
    except (OSError, posix_ipc.Error) as error:
        raise cannot_be_made(name, files, error) from None
    undo.callback(posix_ipc.unlink_shared_memory, ipc_name(name, files))
    try:
        return allocate(shm.fd, size, f"{files.what} {name!r}", smaller)
    finally:
        shm.close_fd()


def cannot_be_made(name: str, files: Files, error: Exception) -> SegmentError:
    """The error if not even an empty file can be created."""
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None else str(error)
    advice = (
        "It is full, of bytes or of files (df -i): remove some there; `echo-shm gc` removes what killed processes left"
        if number in (errno.ENOSPC, errno.EDQUOT)
        else "Shared memory needs a tmpfs there that this user may write to: mount -t tmpfs tmpfs /dev/shm, or "
        "docker run --shm-size=..."
    )
    return SegmentError(
        number or errno.EACCES,
        f"{files.what} {name!r} cannot be made: no file can be created in /dev/shm ({reason}). {advice}",
    )


def allocate(fd: int, size: int, what: str, smaller: str) -> mmap.mmap:
    """Allocates all pages of new shared memory now, and maps them.

    The kernel kills a process that touches a missing page of a sparse segment. Pages that are allocated through a
    mapping may be huge; posix_fallocate() allocates the rest, or says that there is no space for it.

    Args:
        fd: Of the memory.
        size: Bytes.
        what: It has this memory, in words.
        smaller: What the user makes smaller so that less memory is needed.

    Raises:
        SegmentError: Shared memory is too small.

    """
    free = _free_bytes(fd)
    try:
        if free is not None and free < size:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(fd, size)
        mapping = map_file(fd, size, what, mmap.PROT_READ | mmap.PROT_WRITE)
        if hasattr(os, "posix_fallocate"):
            ask_for_huge_pages(mapping)
            for _ in populate(mapping):
                pass
            for offset in range(0, size, _ALLOCATION_STEP):
                os.posix_fallocate(fd, offset, min(_ALLOCATION_STEP, size - offset))
        return mapping
    except SegmentError:
        raise
    except OSError as error:
        available = "an unknown number of" if free is None else f"{free:,}"
        raise SegmentError(
            error.errno,
            f"{what} needs {size:,} bytes of shared memory, and {available} bytes are free in /dev/shm "
            f"({os.strerror(error.errno or 0)}). {_unused()}Use a smaller {smaller}, or enlarge "
            "/dev/shm: "
            f"docker run --shm-size={_round_up_gib(size)}g, or mount -o remount,size=... /dev/shm",
        ) from None


def _free_bytes(fd: int) -> int | None:
    try:
        status = os.fstatvfs(fd)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _round_up_gib(size: int) -> int:
    return -(-size // (1 << 30)) + 1


def _unused() -> str:
    """How much memory the segments have that nobody uses, as a sentence, or nothing."""
    found = []
    for name in names():
        with contextlib.suppress(SegmentError, OSError):
            seen = listing(name)
            if not seen.locked and seen.segment is not None:
                found.append(seen.segment.size)
    if not found:
        return ""
    of = "1 segment that nobody uses holds" if len(found) == 1 else f"{len(found)} segments that nobody uses hold"
    return f"{of} {sum(found):,} bytes more: `echo-shm gc` frees them. "
