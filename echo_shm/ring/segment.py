"""Segments: create, attach, map and unlink them, and look at the segments of this machine."""

import contextlib
import errno
import mmap
import os
import secrets
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import posix_ipc

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.ring.lockfile import (
    CREATOR_BYTE,
    LockFile,
    PrivateLockFile,
    check_name,
    ipc_name,
    names,
    open_lockfile,
    shm_file,
    unlink_lockfile,
)
from echo_shm.ring.pages import ask_for_huge_pages, populate
from echo_shm.spec import Array, Spec

if TYPE_CHECKING:
    from echo_shm._core import Geometry as CGeometry

#: Shared memory is allocated in steps of this size (bytes): posix_fallocate starts over when a signal interrupts it.
_ALLOCATION_STEP = 64 << 20


class Geometry(NamedTuple):
    """What determines a segment's layout, together with its Spec. Times are in seconds."""

    batch_size: int
    num_buffers: int
    max_producers: int
    order: str
    detailed_metrics: bool
    reap_interval: float
    max_remotes: int = 0

    @property
    def capacity(self) -> int:
        """How many samples the ring holds."""
        return self.batch_size * self.num_buffers

    def to_c(self, spec: Spec) -> "CGeometry":
        """The same as an ``es_geometry``."""
        flags = lib.ES_FLAG_READY_ORDER if self.order == "ready" else 0
        flags |= lib.ES_FLAG_DETAILED if self.detailed_metrics else 0
        return ffi.new(
            "es_geometry *",
            {
                "batch_size": self.batch_size,
                "num_batches": self.num_buffers,
                "reap_interval_ns": int(self.reap_interval * 1e9),
                "max_producers": self.max_producers,
                "max_remotes": self.max_remotes,
                "num_leaves": len(spec.leaves),
                "schema_size": len(spec.schema),
                "flags": flags,
            },
        )

    @classmethod
    def from_c(cls, geo: "CGeometry") -> "Geometry":
        """Reads an ``es_geometry``."""
        return cls(
            batch_size=geo.batch_size,
            num_buffers=geo.num_batches,
            max_producers=geo.max_producers,
            order="ready" if geo.flags & lib.ES_FLAG_READY_ORDER else "fifo",
            detailed_metrics=bool(geo.flags & lib.ES_FLAG_DETAILED),
            reap_interval=geo.reap_interval_ns / 1e9,
            max_remotes=geo.max_remotes,
        )


# --- segments -----------------------------------------------------------------


class Segment:
    """A mapped segment.

    The mapping lives as long as anything refers to it: this object, or an array that :meth:`array` returned.
    Closing or unlinking the segment does not remove the mapping.

    Attributes:
        name: The segment's name.
        uuid: 16 random bytes that tell this segment from an earlier one of the same name.
        spec, geometry: What it holds.
        mapping: The memory.
        lockfile: The lock file, or None for a read-only mapping.

    """

    def __init__(self, name: str, mapping: mmap.mmap, lockfile: LockFile | None) -> None:
        self.name = name
        self.lockfile = lockfile
        self._file: tuple[int, int] | None = None
        self.mapping = mapping
        self._view = memoryview(mapping)
        # Through a memoryview, numpy still finds that the mapping is writable. Through an array it does not.
        self._read_only = np.asarray(self._view.toreadonly())
        self.size = len(self._view)
        self.base = ffi.from_buffer("uint8_t[]", mapping)
        geo, uuid = ffi.new("es_geometry *"), ffi.new("uint8_t[16]")
        pid, created = ffi.new("int64_t *"), ffi.new("int64_t *")
        code = lib.es_api_check(self.base, self.size)
        if code != lib.ES_OK:
            raise error_from(code, f"segment {name!r}")
        lib.es_api_describe(self.base, self.size, geo, uuid, pid, created, ffi.NULL, 0)
        room: int = geo.schema_size
        schema = ffi.new("uint8_t[]", room)
        lib.es_api_describe(self.base, self.size, geo, uuid, pid, created, schema, room)
        self.uuid = bytes(uuid)
        self.creator_pid: int = pid[0]
        self.created: float = created[0] / 1e9
        self.geometry = Geometry.from_c(geo)
        self.spec = Spec.from_schema(bytes(schema), f"segment {name!r}")

    @classmethod
    def create(cls, name: str | None, spec: Spec, geometry: Geometry) -> "Segment":
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
            segment = cls(name, mapping, lockfile)
            segment.spec = spec
            undo.pop_all()
        return segment

    @classmethod
    def private(cls, what: str, spec: Spec, geometry: Geometry) -> "Segment":
        """Creates a segment in this process's own memory, for this process alone. ``what`` names it in messages."""
        geo = geometry.to_c(spec)
        sizes = ffi.new("uint64_t[]", [leaf.nbytes for leaf in spec.leaves])
        size: int = lib.es_api_segment_size(geo, sizes)
        if size == 0:
            raise ValueError(f"{geometry} with {spec.sample_bytes} bytes a sample is out of range")
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        uuid = ffi.new("uint8_t[16]", secrets.token_bytes(16))
        base = ffi.from_buffer("uint8_t[]", mapping)
        lib.es_api_format(base, size, geo, sizes, ffi.from_buffer(spec.schema), uuid, os.getpid(), time.time_ns())
        segment = cls(what, mapping, PrivateLockFile())
        segment.spec = spec
        return segment

    @classmethod
    def attach(cls, name: str, uuid: bytes | None = None, *, read_only: bool = False) -> "Segment":
        """Maps an existing segment, after it has checked the whole header.

        Args:
            name: The segment's name.
            uuid: Accept only the segment with this uuid, not a later one of the same name.
            read_only: Map without write access.

        Raises:
            SegmentError: There is no such segment, it is another user's, or it is damaged or not finished.

        """
        check_name(name)
        try:
            # Non-blocking: there may be a FIFO of that name.
            shm = posix_ipc.SharedMemory(ipc_name(name), os.O_NONBLOCK, read_only=read_only)
        except posix_ipc.ExistentialError:
            raise SegmentError(
                errno.ENOENT, f"no segment is named {name!r}: `echo-shm ls` lists those that exist"
            ) from None
        except posix_ipc.PermissionsError:
            raise SegmentError(f"segment {name!r} belongs to another user") from None
        except (OSError, ValueError, posix_ipc.Error) as error:
            raise SegmentError(f"segment {name!r} cannot be opened: {error}") from None
        try:
            status = os.fstat(shm.fd)
            if stat.S_IFMT(status.st_mode) not in (0, stat.S_IFREG):  # 0: systems where shared memory is not a file
                raise SegmentError(f"segment {name!r} cannot be used: it is not shared memory")
            if status.st_uid != os.geteuid():
                raise SegmentError(
                    f"segment {name!r} belongs to uid {status.st_uid}, not to {os.geteuid()}; it is not trusted"
                )
            if status.st_size == 0:
                raise error_from(lib.ES_EINIT, f"segment {name!r}")
            access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
            mapping = mmap.mmap(shm.fd, status.st_size, flags=mmap.MAP_SHARED, prot=access)
            ask_for_huge_pages(mapping)
        finally:
            shm.close_fd()
        segment = cls(name, mapping, None)
        segment._file = status.st_dev, status.st_ino
        if uuid is not None and segment.uuid != uuid:
            raise SegmentError(f"segment {name!r} is not the handle's: that one was closed, and this one is newer")
        if not read_only:
            try:
                segment.lockfile = open_lockfile(name, create=False)
            except FileNotFoundError:
                raise SegmentError(f"segment {name!r} was closed just now, or its lock file was deleted") from None
            except SegmentError:
                raise
            except OSError as error:
                raise SegmentError(error.errno, f"segment {name!r}: its lock file cannot be opened: {error}") from None
        return segment

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, writable: bool) -> Array:
        """An array over the segment's memory. It keeps the mapping alive."""
        view = self._view if writable else self._read_only
        try:
            array: Array = np.ndarray(shape, dtype, buffer=view, offset=offset)
        except (ValueError, TypeError) as error:  # the shape comes from the schema, which is not trusted
            raise SegmentError(f"segment {self.name!r} cannot be used: its schema is damaged ({error})") from None
        return array

    def is_linked(self) -> bool:
        """Whether other processes still find this segment and its lock file by the segment's name."""
        if self._file is not None and shm_file(self.name) not in (None, self._file):
            return False
        return self.lockfile is not None and self.lockfile.is_linked(self.name)

    def unlink(self) -> None:
        """Removes the name and drops the creator's lock. Processes that are attached keep their mapping."""
        if self.is_linked():  # otherwise the name may be another segment's by now
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_shared_memory(ipc_name(self.name))
            unlink_lockfile(self.name)
        if self.lockfile is not None:
            lib.es_api_locks_drop(self.lockfile.locks, CREATOR_BYTE)


def _create_lockfile(name: str) -> LockFile:
    try:
        return open_lockfile(name, create=True)
    except FileExistsError:
        raise SegmentError(
            f"a segment named {name!r} exists already. Is it in use (`echo-shm ls`)? Then choose another name, or "
            f"join it as a further learner with Server.attach({name!r}). Was its creator killed? Then `echo-shm gc` "
            "removes it"
        ) from None
    except SegmentError:
        raise
    except OSError as error:
        raise _cannot_be_made(name, error) from None


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
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        if hasattr(os, "posix_fallocate"):
            ask_for_huge_pages(mapping)
            for _ in populate(mapping):
                pass
            for offset in range(0, size, _ALLOCATION_STEP):
                os.posix_fallocate(fd, offset, min(_ALLOCATION_STEP, size - offset))
        return mapping
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


# --- segments of this machine --------------------------------------------------


class Listing(NamedTuple):
    """One segment, as a process sees it that is not attached.

    Attributes:
        locked: Whether any process holds one of its locks. If none does, the segment is garbage.
        creator_alive: Whether its creator holds its lock.
        segment: A read-only mapping, or None if the header cannot be used.
        fault: What is wrong with the header, or ``""``.

    """

    name: str
    locked: bool
    creator_alive: bool
    segment: Segment | None
    fault: str


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
    return f"{of} {sum(found):,} bytes of it: `echo-shm gc` frees them. "


def listing(name: str) -> Listing:
    """Looks at a segment without attaching.

    Raises:
        SegmentError: It has no lock file, or the lock file is another user's.

    """
    try:
        lockfile = open_lockfile(name, create=False)
    except FileNotFoundError:
        raise SegmentError(f"segment {name!r} has no lock file, so nothing tells whether it is in use") from None
    except PermissionError:
        raise SegmentError(f"segment {name!r} belongs to another user") from None
    segment, fault = None, ""
    try:
        segment = Segment.attach(name, read_only=True)
    except SegmentError as error:
        fault = str(error)
        if error.errno == errno.ENOENT:
            fault = f"segment {name!r} is only a lock file: it is being made, or its creator died doing so"
    return Listing(
        name=name,
        locked=lib.es_api_locks_any(lockfile.locks) != 0,
        creator_alive=lib.es_api_locks_held(lockfile.locks, CREATOR_BYTE) != 0,
        segment=segment,
        fault=fault,
    )
