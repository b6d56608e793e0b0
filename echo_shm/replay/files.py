"""A store in a directory: mapped files that outlive the process, and the machine's last boot.

===================  ==================================================================================================
``manifest.json``    What the files are. It is written last: a directory without one is not complete.
``<leaf>.npy``       One for each leaf, named by its path in a step: the column with that leaf of all rows. Any process
                     may read it: ``numpy.load(path, mmap_mode="r")``. ``records`` says which rows are steps.
``records``          The store but for the columns: settings, counters, the records of steps and items.
``snapshot.0``, .1   Copies of the records, for what comes after a loss of power: see ``snapshots.py``.
``boot_id``          In which boot of the machine ``records`` was used last.
``lock``             An empty file. The replay that has the store holds a lock on a byte of it, which the kernel drops
                     when its process dies, or when that process opens and closes the file by other means.
===================  ==================================================================================================

``records`` and the columns are mapped one after the other into one range of addresses, so the C core sees one store.
Each starts at a multiple of 64 KiB, and the header of a column takes 4096 bytes.

All bytes are allocated when the store is created. On file systems that copy on write (btrfs, ZFS) the disk may be full
all the same later on, and the kernel then kills the process at a write to a mapped page.
"""

import contextlib
import ctypes
import errno
import json
import logging
import math
import mmap
import os
import re
import shutil
import stat
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError
from echo_shm.replay.snapshots import HEADER as SNAPSHOT_HEADER
from echo_shm.replay.snapshots import Snapshots
from echo_shm.ring.lockfile import CREATOR_BYTE, LockFile, check_name, open_lockfile_at
from echo_shm.spec import Leaf

if TYPE_CHECKING:
    from echo_shm._core import CData

_log = logging.getLogger("echo_shm")

#: Bytes before a column, and what the start of each file in the range of addresses is a multiple of.
COLUMN_HEADER, _FILE = 4096, 65536

MANIFEST, LOCK, RECORDS, BOOT_ID, SNAPSHOTS = "manifest.json", "lock", "records", "boot_id", ("snapshot.0", "snapshot.1")

_VERSION = 1

#: Of file systems that cannot allocate. Then a full disk is not noticed at once.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS)

_MAP_NORESERVE = 0x4000
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value


class Part(NamedTuple):
    """One mapped file: ``records``, or a column."""

    file: str
    size: int


class Manifest(NamedTuple):
    """What ``manifest.json`` says.

    Attributes:
        name: The name of the replay's rings.
        uuid: Of the store, 32 hexadecimal digits.
        sync_every: Seconds between two syncs, or None.
        parts: ``records``, and the columns in the order of the leaves.

    """

    name: str
    uuid: str
    sync_every: float | None
    parts: tuple[Part, ...]


# --- names and headers --------------------------------------------------------


def is_directory(store: object) -> bool:
    """Whether ``store`` names a directory: a path object, or a string with a slash."""
    return isinstance(store, os.PathLike) or (isinstance(store, str) and "/" in store)


def column_files(leaves: Sequence[Leaf]) -> list[str]:
    """The names of the columns' files: the keys of the leaf's path, with dots between them."""
    files: list[str] = []
    for leaf in leaves:
        keys = [quoted or plain for quoted, plain in re.findall(r"""(?:\[['"](.*?)['"]\])|([^\[\].]+)""", leaf.path)]
        stem = re.sub(r"[^\w.+-]", "_", ".".join(keys))[:200].lstrip(".") or "step"
        file, again = f"{stem}.npy", 1
        while file in files:
            again += 1
            file = f"{stem}-{again}.npy"
        files.append(file)
    return files


def npy_header(leaf: Leaf, rows: int) -> bytes:
    """The first :data:`COLUMN_HEADER` bytes of a column's file: numpy's format, version 1.0."""
    descr = np.lib.format.dtype_to_descr(leaf.dtype) if leaf.dtype.isbuiltin != 2 else leaf.dtype.str
    text = repr({"descr": descr, "fortran_order": False, "shape": (rows, *leaf.shape)}).encode("latin1", "replace")
    room = COLUMN_HEADER - len(b"\x93NUMPY\x01\x00..")
    if len(text) >= room:
        raise ValueError(f"{leaf.name} has a dtype whose description is {len(text):,} bytes long: use at most {room - 1:,}")
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


def boot_id() -> bytes:
    """Which boot of the machine this is. Where the kernel does not say so, every process is one of its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex().encode()


# --- mapping ------------------------------------------------------------------


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def range_size(parts: Sequence[Part]) -> int:
    """Bytes of addresses that the files take."""
    return sum(-(-part.size // _FILE) * _FILE for part in parts)


def map_parts(fds: Sequence[int], parts: Sequence[Part], what: str) -> "CData":
    """Maps the files one after the other: the address of the first, as a ``uint8_t *`` that keeps the mapping."""
    libc, size = _libc(), range_size(parts)

    def mapped(address: int | None, length: int, access: int, flags: int, fd: int) -> int:
        got = libc.mmap(address, length, access, flags, fd, 0)
        if got in (None, _MAP_FAILED):
            number = ctypes.get_errno()
            raise SegmentError(
                number,
                f"{what} of {size:,} bytes cannot be mapped ({os.strerror(number)}): is there a limit on this "
                "process's address space (ulimit -v, RLIMIT_AS)?",
            )
        return int(got)

    base = mapped(None, size + _FILE, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0,
                  mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    memory: CData = ffi.gc(ffi.cast("uint8_t *", base + -base % _FILE), lambda _: libc.munmap(base, size + _FILE))
    address = base + -base % _FILE
    for fd, part in zip(fds, parts, strict=True):
        mapped(address, part.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd)
        address += -(-part.size // _FILE) * _FILE
    return memory


# --- the directory --------------------------------------------------------------


class Directory:
    """The files of a store, mapped, in the process that has their lock.

    Attributes:
        path: The directory.
        what: The store, in messages.
        manifest: What the files are.
        base: Where they are mapped; it keeps the mapping. The store takes it over.
        size: Bytes there.
        snapshots: The copies of the records.

    """

    def __init__(self, path: str, manifest: Manifest, lockfile: LockFile) -> None:
        self.path = path
        self.what = f"replay {path!r}"
        self.manifest = manifest
        self.lockfile = lockfile
        self.size = range_size(manifest.parts)
        self._held = True
        self._fds: list[int] = []
        try:
            for part in manifest.parts:
                self._fds.append(_open_file(os.path.join(path, part.file), part.size, self.what))
            self.base: CData | None = map_parts(self._fds, manifest.parts, self.what)
            copies = [os.path.join(path, file) for file in SNAPSHOTS]
            for copy in copies:
                os.close(_open_file(copy, SNAPSHOT_HEADER + manifest.parts[0].size, self.what))
            self.snapshots = Snapshots(
                copies, manifest.parts[0].size, bytes.fromhex(manifest.uuid), self._fds[1:], self.what
            )
        except BaseException:
            self._close_files()
            raise

    @property
    def records(self) -> memoryview:
        """The records, as they are mapped."""
        return memoryview(ffi.buffer(self.base, self.manifest.parts[0].size))

    def recover(self) -> None:
        """Makes the records those of one moment, whatever has happened since they were last in use.

        Raises:
            SegmentError: The machine went down, and there is no snapshot.

        """
        now, path = boot_id(), os.path.join(self.path, BOOT_ID)
        self.snapshots.flush()
        with open(path, "rb") as file:
            same = file.read() == now
        if same:
            return
        if self.snapshots.restore(self.records):
            when = time.strftime("%F %T", time.localtime(self.snapshots.time))
            _log.warning("%s: the machine went down while it was open. It goes on from its last sync, %s", self.what, when)
        _write_file(path, now)  # whoever is killed before this leaves it to the next one

    def release(self) -> None:
        """Closes the files, and lets go of the lock. The mapping ends with its last user."""
        self.base = None
        self._close_files()
        if self._held:  # otherwise it may be another object's of this process by now
            self._held = False
            lib.es_api_locks_drop(self.lockfile.locks, CREATOR_BYTE)

    def _close_files(self) -> None:
        if hasattr(self, "snapshots"):
            self.snapshots.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def remove(self) -> None:
        """Removes the files of a store that was created just now, and could not be opened."""
        files = [part.file for part in self.manifest.parts]
        self.release()
        _remove(self.path, files, made=True)


def _open_file(path: str, size: int, what: str) -> int:
    """Opens a file that is to be mapped. Its size is checked, because a page beyond its end kills whoever touches it."""
    file = os.path.basename(path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SegmentError(
            errno.ENOENT, f"{what} cannot be used: its file {file!r} is missing. Restore it, or remove the directory"
        ) from None
    except OSError as error:
        raise _denied(what, error) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        os.close(fd)
        got = f"has {status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "is no regular file"
        raise SegmentError(
            f"{what} cannot be used: its file {file!r} {got}, and the manifest says {size:,} bytes. Restore it, or "
            "remove the directory"
        )
    return fd


def _denied(what: str, error: OSError) -> SegmentError:
    return SegmentError(
        error.errno,
        f"{what} cannot be opened: {os.path.basename(str(error.filename))}: {error.strerror}. The user that runs this "
        "process must be able to read and write all of its files, on a file system that is not mounted read-only",
    )


# --- creating -------------------------------------------------------------------


def create_directory(
    path: str, name: str, uuid: bytes, sync_every: float | None, records: int, rows: int, leaves: Sequence[Leaf]
) -> Directory:
    """Makes the files of a store, filled with zeros, but for the columns' headers. :func:`complete` makes it one.

    Args:
        path: The directory. It does not exist, or it is empty. Its parent exists.
        name: Of the replay's rings.
        uuid: Of the store.
        sync_every: Seconds between two syncs, or None.
        records: Bytes before the columns.
        rows: Of each column.
        leaves: Of a step.

    Raises:
        SegmentError: The directory is in use, not empty, or cannot be made, or the disk is full. Nothing is left behind.

    """
    what = f"replay {path!r}"
    headers = [npy_header(leaf, rows) for leaf in leaves]
    columns = [
        Part(file, COLUMN_HEADER + rows * leaf.nbytes) for file, leaf in zip(column_files(leaves), leaves, strict=True)
    ]
    parts = (Part(RECORDS, records), *columns)
    manifest = Manifest(name, uuid.hex(), sync_every, parts)
    made = _make_directory(path, what)
    with contextlib.ExitStack() as undo:
        undo.callback(_remove, path, [part.file for part in parts], made)
        lockfile = _lock_new(path, what)
        undo.callback(lib.es_api_locks_drop, lockfile.locks, CREATOR_BYTE)
        copies = [Part(file, SNAPSHOT_HEADER + records) for file in SNAPSHOTS]
        needed = sum(part.size for part in (*parts, *copies))
        for part, header in zip((*parts, *copies), (b"", *headers, b"", b""), strict=True):
            _allocate(os.path.join(path, part.file), part.size, header, needed, what)
        directory = Directory(path, manifest, lockfile)
        undo.pop_all()
    return directory


def _make_directory(path: str, what: str) -> bool:
    """Whether it was made; it was there, and is empty, otherwise."""
    try:
        os.mkdir(path, 0o700)
        return True
    except FileExistsError:
        pass
    except OSError as error:
        hint = "make its parent first" if error.errno == errno.ENOENT else "choose a place that this user may write to"
        raise SegmentError(error.errno, f"{what} cannot be made: {error.strerror}: {hint}") from None
    try:
        there = os.listdir(path)
    except OSError as error:
        raise SegmentError(error.errno, f"{what} cannot be made: {error.strerror}") from None
    if MANIFEST in there:
        raise SegmentError(
            errno.EEXIST,
            f"{what} exists already. Go on with it: Replay.attach({path!r}), or remove the directory: rm -r {path}",
        )
    if there:
        half = LOCK in there
        raise SegmentError(
            errno.ENOTEMPTY,
            f"{what} cannot be made: " + (_HALF_MADE if half else f"the directory holds other files, {there[0]!r} for one. Use an empty one"),
        )
    return False


_HALF_MADE = "the directory holds a replay that is being made, or whose process died while it made it. If none is at work, remove the directory"


def _lock_new(path: str, what: str) -> LockFile:
    try:
        lockfile = open_lockfile_at(os.path.join(path, LOCK), create=True)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise SegmentError(errno.EEXIST, f"{what} cannot be made: {_HALF_MADE}") from None
        raise SegmentError(
            error.errno, f"{what} cannot be made: {os.strerror(error.errno or 0)}: choose a place that this user may write to"
        ) from None
    if not lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(f"{what} cannot be made: another process is attaching to it just now")
    return lockfile


def _allocate(path: str, size: int, header: bytes, needed: int, what: str) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, size)
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno not in _NO_ALLOCATION:
                    raise
            os.pwrite(fd, header, 0)
        finally:
            os.close(fd)
    except OSError as error:
        free = shutil.disk_usage(os.path.dirname(path)).free
        raise SegmentError(
            error.errno,
            f"{what} needs {needed:,} bytes, and its files cannot be made ({os.strerror(error.errno or 0)}; "
            f"{free:,} bytes are free there now). Use a smaller capacity, or another disk",
        ) from None


def complete(directory: Directory, about: object) -> None:
    """Makes a directory whose records were formatted a store. ``about``: what its steps look like, for people."""
    path, manifest = directory.path, directory.manifest
    directory.snapshots.write_first(directory.records)
    _write_file(os.path.join(path, BOOT_ID), boot_id())
    for file in (*(part.file for part in manifest.parts), *SNAPSHOTS, BOOT_ID):  # not the lock: see below
        _flush(os.path.join(path, file))
    text = {
        "what": "a replay of echo_shm: Replay.attach() goes on with it",
        "version": _VERSION,
        **manifest._asdict(),
        "parts": [{"file": part.file, "bytes": part.size} for part in manifest.parts],
        "steps": about,
    }
    new = os.path.join(path, MANIFEST + ".new")
    _write_file(new, json.dumps(text, indent=1).encode())
    _flush(new)
    _flush(path)  # all other names, before that of the manifest
    os.replace(new, os.path.join(path, MANIFEST))
    _flush(path)
    _flush(os.path.dirname(os.path.abspath(path)))


def _write_file(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _flush(path: str) -> None:
    """Flushes a file that this process holds no lock on: closing a descriptor of it would drop them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: str, files: Sequence[str], made: bool) -> None:
    """Removes the files of a store that is not complete, and the directory if it was made for it."""
    for file in (MANIFEST, MANIFEST + ".new", BOOT_ID, *SNAPSHOTS, *files, LOCK):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, file))
    if made:
        with contextlib.suppress(OSError):
            os.rmdir(path)


# --- attaching --------------------------------------------------------------------


def attach_directory(path: str) -> Directory:
    """Maps the store of a directory that no process has, and holds it. Its records are those of one moment.

    Raises:
        SegmentError: There is none, a living process has it, it is damaged, or it cannot be opened.

    """
    what = f"replay {path!r}"
    manifest = read_manifest(path)
    try:
        lockfile = open_lockfile_at(os.path.join(path, LOCK), create=False)
    except FileNotFoundError:
        raise SegmentError(
            errno.ENOENT, f"{what} cannot be used: its file {LOCK!r} is missing. Make an empty one, with mode 0600"
        ) from None
    except OSError as error:
        if isinstance(error, SegmentError):
            raise
        raise _denied(what, error) from None
    if not lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(f"{what} is in use: {holder_of(lockfile)} has it. Only one process at a time can attach")
    with contextlib.ExitStack() as undo:
        undo.callback(lib.es_api_locks_drop, lockfile.locks, CREATOR_BYTE)
        if not lockfile.is_at(os.path.join(path, LOCK)):
            raise SegmentError(f"{what} was removed just now")
        directory = Directory(path, manifest, lockfile)
        undo.callback(directory.release)
        try:
            directory.recover()
        except FileNotFoundError as error:
            raise SegmentError(errno.ENOENT, f"{what} cannot be used: its file {BOOT_ID!r} is missing: {error}") from None
        undo.pop_all()
    return directory


def read_manifest(path: str) -> Manifest:
    """What a directory says that it is.

    Raises:
        SegmentError: There is none, or it is not a store, or another version's.

    """
    what = f"replay {path!r}"
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            said: Any = json.loads(file.read(64 << 20))
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.isdir(path):
            raise SegmentError(errno.ENOENT, f"{path!r} is no directory: there is no replay") from None
        why = _HALF_MADE if os.path.lexists(os.path.join(path, LOCK)) else f"it holds no {MANIFEST}: it is no replay's"
        raise SegmentError(errno.ENOENT, f"{what} cannot be used: {why}") from None
    except OSError as error:
        raise _denied(what, error) from None
    except (ValueError, RecursionError):
        said = None
    version = said.get("version") if isinstance(said, dict) else None
    if isinstance(version, int) and version != _VERSION:
        raise SegmentError(
            f"{what} cannot be used: its files have version {version}, and this echo_shm reads version {_VERSION}: use "
            f"the {'newer' if version > _VERSION else 'older'} echo_shm that made it, or remove the directory"
        )
    try:
        sync_every = None if said["sync_every"] is None else float(said["sync_every"])
        parts = tuple(Part(part["file"], int(part["bytes"])) for part in said["parts"])
        manifest = Manifest(check_name(said["name"]), said["uuid"], sync_every, parts)
    except (KeyError, TypeError, ValueError):
        manifest = None
    if manifest is None or not _is_possible(manifest):
        raise SegmentError(
            f"{what} cannot be used: its {MANIFEST} is damaged, or another program's. Restore it, or remove the directory"
        )
    return manifest


def _is_possible(manifest: Manifest) -> bool:
    every, parts = manifest.sync_every, manifest.parts
    return (
        isinstance(manifest.uuid, str)
        and re.fullmatch(r"[0-9a-f]{32}", manifest.uuid) is not None
        and (every is None or 0 < every < math.inf)
        and len(parts) > 1
        and all(isinstance(one.file, str) and re.fullmatch(r"[^/\0]+", one.file) and one.size > 0 for one in parts)
    )


def holder_of(lockfile: LockFile) -> str:
    """Which process has a store, in words."""
    pid = lockfile.holder(CREATOR_BYTE)
    return "this process" if pid is None else f"process {pid}" if pid else "a process of another container"
