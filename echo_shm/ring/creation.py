"""Creating a segment: both its files, its memory, its header; and the errors that say why that cannot be."""

import contextlib
import errno
import mmap
import os
import secrets
import sys
import time

import posix_ipc

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    LockFile,
    check_name,
    ipc_name,
    names,
    open_lockfile,
    unlink_lockfile,
)
from echo_shm.ring.metrics import RingView
from echo_shm.ring.pages import ask_for_huge_pages, populate
from echo_shm.ring.segment import Geometry, Segment, listing, map_file
from echo_shm.spec import Spec

#: Shared memory is allocated in steps of this size (bytes): posix_fallocate starts over when a signal interrupts it.
_ALLOCATION_STEP = 64 << 20


def create_segment(name: str | None, spec: Spec, geometry: Geometry) -> Segment:
    """Creates a segment and takes the creator's lock. If it fails, nothing is left behind.

    Raises:
        SegmentError: The name is taken, or shared memory is too small.
        ValueError: The name or the geometry is not possible.

    """
    name = f"{os.getpid()}-{secrets.token_hex(4)}" if name is None else check_name(name)
    geo = geometry.to_c(spec)
    sizes = ffi.new("uint64_t[]", [leaf.nbytes for leaf in spec.leaves])
    size: int = lib.es_api_segment_size(geo, sizes)
    if size == 0:
        raise ValueError(
            f"batch_size={geometry.batch_size}, num_buffers={geometry.num_buffers}, "
            f"max_producers={geometry.max_producers}, reap_interval={geometry.reap_interval} with "
            f"{spec.sample_bytes} bytes a sample is out of range: "
            "counts must be at least 1, batch_size at most 2**30, batch_size * num_buffers at most 2**32, "
            "max_producers at most 60000"
        )
    with contextlib.ExitStack() as undo:
        lockfile = _create_lockfile(name)
        undo.callback(unlink_lockfile, name)
        # gc may have locked and removed the file before this lock was taken.
        if not lockfile.try_lock(CREATOR_BYTE) or not lockfile.is_linked(name):
            raise SegmentError(f"segment {name!r} was removed as garbage by `echo-shm gc` just now; try again")
        undo.callback(lib.es_api_locks_drop, lockfile.locks, CREATOR_BYTE)
        mapping = _create_mapping(name, size, undo)
        uuid = ffi.new("uint8_t[16]", secrets.token_bytes(16))
        base = ffi.from_buffer("uint8_t[]", mapping)
        code = lib.es_api_format(
            base, size, geo, sizes, ffi.from_buffer(spec.schema), uuid, os.getpid(), time.time_ns()
        )
        if code != lib.ES_OK:
            raise error_from(code, f"segment {name!r}")
        segment = Segment(name, mapping, lockfile)
        segment.spec = spec
        undo.pop_all()
    return segment


def _create_lockfile(name: str) -> LockFile:
    try:
        return open_lockfile(name, create=True)
    except FileExistsError:
        raise SegmentError(_taken(name)) from None
    except SegmentError:
        raise
    except OSError as error:
        raise _cannot_be_made(name, error) from None


def _taken(name: str) -> str:
    """What has the name already: since when, who uses it, what is in it, and what to do."""
    what, other = f"a segment named {name!r} exists already", f"join it: Server.attach({name!r})"
    try:
        seen = listing(name)
    except (SegmentError, OSError) as error:
        return f"{what}: {error}"
    if seen.segment is None:
        remove = "; choose another name" if seen.locked else "; `echo-shm gc` removes it"
        return f"{what}: {seen.fault}{remove}"
    found = seen.segment
    samples, full = RingView(found).committed()
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created))
    what += f", created on {since} by process {found.creator_pid}"
    holds = f"It holds {samples:,} committed samples, {full:,} full batches of {found.geometry.batch_size:,}"
    if seen.creator_alive:
        return f"{what}, which is alive. {holds}. Choose another name, or {other}"
    if seen.locked:
        return f"{what}, which is dead; other processes are attached. {holds}. Choose another name, or {other}"
    return (
        f"{what}, which is dead; nobody is attached. {holds}. To drop them, run `echo-shm gc`, which removes all such "
        f"segments. To take them first, {other}"
    )


def _create_mapping(name: str, size: int, undo: contextlib.ExitStack) -> mmap.mmap:
    try:
        shm = posix_ipc.SharedMemory(ipc_name(name), posix_ipc.O_CREX, mode=0o600)
    except posix_ipc.ExistentialError:
        if sys.platform == "linux" and not os.path.isdir("/dev/shm"):
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            raise _cannot_be_made(name, missing) from None
        raise SegmentError(f"a segment named {name!r} exists already, without a lock file; remove it by hand") from None
    except (OSError, posix_ipc.Error) as error:
        raise _cannot_be_made(name, error) from None
    undo.callback(posix_ipc.unlink_shared_memory, ipc_name(name))
    try:
        return _allocate(shm.fd, name, size)
    finally:
        shm.close_fd()


def _cannot_be_made(name: str, error: Exception) -> SegmentError:
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
        f"segment {name!r} cannot be made: no file can be created in /dev/shm ({reason}). {advice}",
    )


def _allocate(fd: int, name: str, size: int) -> mmap.mmap:
    """Allocates all pages now, and maps them.

    The kernel kills a process that touches a missing page of a sparse segment. Pages that are allocated through a
    mapping may be huge; posix_fallocate() allocates the rest, or says that there is no space for it.
    """
    free = _free_bytes(fd)
    try:
        if free is not None and free < size:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(fd, size)
        mapping = map_file(fd, size, name, mmap.PROT_READ | mmap.PROT_WRITE)
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
            f"segment {name!r} needs {size:,} bytes of shared memory, and {available} bytes are free in /dev/shm "
            f"({os.strerror(error.errno or 0)}). {_unused()}Use a smaller batch_size or num_buffers, or enlarge "
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
