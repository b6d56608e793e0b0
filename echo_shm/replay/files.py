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
import errno
import logging
import os
import stat
import time
from typing import TYPE_CHECKING

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError
from echo_shm.replay import disk
from echo_shm.replay.disk import BOOT_ID, LOCK, SNAPSHOTS, Manifest, denied, read_manifest, remove_files, write_file
from echo_shm.replay.mapped import map_parts, range_size
from echo_shm.replay.snapshots import HEADER as SNAPSHOT_HEADER
from echo_shm.replay.snapshots import Snapshots
from echo_shm.ring.lockfile import CREATOR_BYTE, LockFile, holder_of, open_lockfile_at

if TYPE_CHECKING:
    from echo_shm._core import CData

_log = logging.getLogger("echo_shm")


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

    def __init__(self, path: str, manifest: Manifest, lockfile: LockFile, *, made: bool = False) -> None:
        self.path = path
        self.what = f"replay {path!r}"
        self.manifest = manifest
        self._made = made
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
                copies,
                manifest.parts[0].size,
                bytes.fromhex(manifest.uuid),
                self._fds[1:],
                self.what,
                self._distrust,
            )
        except BaseException:
            self._close_files()
            raise

    @property
    def records(self) -> memoryview:
        """The records, as they are mapped."""
        assert self.base is not None
        return memoryview(ffi.buffer(self.base, self.manifest.parts[0].size))

    def recover(self) -> None:
        """Makes the records those of one moment, whatever has happened since they were last in use.

        Raises:
            SegmentError: The machine went down, and there is no snapshot.

        """
        now, path = disk.boot_id(), os.path.join(self.path, BOOT_ID)
        self.snapshots.flush()
        with open(path, "rb") as file:
            same = file.read() == now
        if same:
            return
        if self.snapshots.restore(self.records):
            when = time.strftime("%F %T", time.localtime(self.snapshots.time))
            _log.warning(
                "%s: the machine went down while it was open. It goes on from its last sync, %s", self.what, when
            )
        write_file(path, now)  # whoever is killed before this leaves it to the next one

    def _distrust(self) -> None:
        """The next process takes the snapshot, as if the machine had gone down."""
        with contextlib.suppress(OSError):
            write_file(os.path.join(self.path, BOOT_ID), b"")

    def release(self) -> None:
        """Closes the files, and lets go of the lock. The mapping ends with its last user."""
        self.base = None
        self._close_files()
        if self._held:  # otherwise it may be another object's of this process by now
            self._held = False
            lib.es_segment_locks_drop(self.lockfile.locks, CREATOR_BYTE)

    def _close_files(self) -> None:
        if hasattr(self, "snapshots"):
            self.snapshots.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def remove(self) -> None:
        """Removes a store that was created just now, and could not be opened: files, and a directory made for them."""
        files = [part.file for part in self.manifest.parts]
        self.release()
        remove_files(self.path, files, made=self._made)


def _open_file(path: str, size: int, what: str) -> int:
    """Opens a file that is to be mapped. A page beyond its end would kill whoever touches it."""
    file = os.path.basename(path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SegmentError(
            errno.ENOENT, f"{what} cannot be used: its file {file!r} is missing. Restore it, or remove the directory"
        ) from None
    except OSError as error:
        raise denied(what, error) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        os.close(fd)
        got = f"has {status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "is no regular file"
        raise SegmentError(
            f"{what} cannot be used: its file {file!r} {got}, and the manifest says {size:,} bytes. Restore it, or "
            "remove the directory"
        )
    return fd


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
        raise denied(what, error) from None
    if not lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(f"{what} is in use: {holder_of(lockfile)} has it. Only one process at a time can attach")
    with contextlib.ExitStack() as undo:
        undo.callback(lib.es_segment_locks_drop, lockfile.locks, CREATOR_BYTE)
        if not lockfile.is_at(os.path.join(path, LOCK)):
            raise SegmentError(f"{what} was removed just now")
        directory = Directory(path, manifest, lockfile)
        undo.callback(directory.release)
        try:
            directory.recover()
        except FileNotFoundError as error:
            raise SegmentError(
                errno.ENOENT, f"{what} cannot be used: its file {BOOT_ID!r} is missing: {error}"
            ) from None
        undo.pop_all()
    return directory
