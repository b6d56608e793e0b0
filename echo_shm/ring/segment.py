"""Segments: attach, map and unlink them, and look at the segments of this machine. creation.py creates them."""

import contextlib
import errno
import mmap
import os
import secrets
import stat
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
    open_lockfile,
    shm_file,
    unlink_lockfile,
)
from echo_shm.ring.pages import ask_for_huge_pages
from echo_shm.spec import Array, Spec

if TYPE_CHECKING:
    from echo_shm._core import Geometry as CGeometry


class Geometry(NamedTuple):
    """What determines a segment's layout, together with its Spec. Times are in seconds."""

    batch_size: int
    num_buffers: int
    max_producers: int
    order: str
    detailed_metrics: bool
    reap_interval: float
    max_remotes: int = 0
    weights: bool = False

    @property
    def capacity(self) -> int:
        """How many samples the ring holds."""
        return self.batch_size * self.num_buffers

    def to_c(self, spec: Spec) -> "CGeometry":
        """The same as an ``es_geometry``."""
        flags = lib.ES_FLAG_READY_ORDER if self.order == "ready" else 0
        flags |= lib.ES_FLAG_DETAILED if self.detailed_metrics else 0
        flags |= lib.ES_FLAG_WEIGHTS if self.weights else 0
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
            weights=bool(geo.flags & lib.ES_FLAG_WEIGHTS),
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
        code = lib.es_segment_check(self.base, self.size)
        if code != lib.ES_OK:
            raise error_from(code, f"segment {name!r}")
        lib.es_segment_describe(self.base, self.size, geo, uuid, pid, created, ffi.NULL, 0)
        room: int = geo.schema_size
        schema = ffi.new("uint8_t[]", room)
        lib.es_segment_describe(self.base, self.size, geo, uuid, pid, created, schema, room)
        self.uuid = bytes(uuid)
        self.creator_pid: int = pid[0]
        self.created: float = created[0] / 1e9
        self.geometry = Geometry.from_c(geo)
        self.spec = Spec.from_schema(bytes(schema), f"segment {name!r}")

    @classmethod
    def private(cls, what: str, spec: Spec, geometry: Geometry) -> "Segment":
        """Creates a segment in this process's own memory, for this process alone. ``what`` names it in messages."""
        geo = geometry.to_c(spec)
        sizes = ffi.new("uint64_t[]", [leaf.nbytes for leaf in spec.leaves])
        size: int = lib.es_segment_size(geo, sizes)
        if size == 0:
            raise ValueError(f"{geometry} with {spec.sample_bytes} bytes a sample is out of range")
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        uuid = ffi.new("uint8_t[16]", secrets.token_bytes(16))
        base = ffi.from_buffer("uint8_t[]", mapping)
        lib.es_segment_format(base, size, geo, sizes, ffi.from_buffer(spec.schema), uuid, os.getpid(), time.time_ns())
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
            mapping, status = map_trusted(shm.fd, f"segment {name!r}", read_only=read_only)
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
            lib.es_segment_locks_drop(self.lockfile.locks, CREATOR_BYTE)


def map_trusted(fd: int, what: str, *, read_only: bool) -> tuple[mmap.mmap, os.stat_result]:
    """Maps shared memory that somebody has created, and says what file it is.

    Raises:
        SegmentError: It is something else, another user's, or it was never finished; or there is no memory.

    """
    status = os.fstat(fd)
    if stat.S_IFMT(status.st_mode) not in (0, stat.S_IFREG):  # 0: systems where shared memory is not a file
        raise SegmentError(f"{what} cannot be used: it is not shared memory")
    if status.st_uid != os.geteuid():
        raise SegmentError(f"{what} belongs to uid {status.st_uid}, not to {os.geteuid()}; it is not trusted")
    if status.st_size == 0:
        raise error_from(lib.ES_EINIT, what)
    access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
    return map_file(fd, status.st_size, what, access), status


def map_file(fd: int, size: int, what: str, access: int) -> mmap.mmap:
    """Maps the file of ``what``, as messages name it; SegmentError if this process has no room for it."""
    try:
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=access)
    except OSError as error:
        raise SegmentError(
            error.errno,
            f"{what} of {size:,} bytes cannot be mapped ({os.strerror(error.errno or 0)}): is there a limit "
            "on this process's address space (ulimit -v, RLIMIT_AS)?",
        ) from None


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
        locked=lib.es_segment_locks_any(lockfile.locks) != 0,
        creator_alive=lib.es_segment_locks_held(lockfile.locks, CREATOR_BYTE) != 0,
        segment=segment,
        fault=fault,
    )
