"""Making the files of a store in a directory: all of them, or none."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Sequence

import numpy as np

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.replay import disk
from echo_shm.replay.disk import (
    BOOT_ID,
    COLUMN_HEADER,
    HALF_MADE,
    LOCK,
    MANIFEST,
    RECORDS,
    SNAPSHOTS,
    VERSION,
    Manifest,
    Part,
    flush,
    remove_files,
    write_file,
)
from echo_shm.replay.files import Directory
from echo_shm.replay.snapshots import HEADER as SNAPSHOT_HEADER
from echo_shm.ring.lockfile import CREATOR_BYTE, LockFile, open_lockfile_at
from echo_shm.spec import Leaf

#: Of file systems that cannot allocate. Then a full disk is not noticed at once.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.ENOSYS)


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
        raise ValueError(
            f"{leaf.name} has a dtype whose description is {len(text):,} bytes long: use at most {room - 1:,}"
        )
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


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
        SegmentError: The directory is not empty, or cannot be made, or the disk is full. Nothing is left behind.

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
        undo.callback(remove_files, path, [part.file for part in parts], made)
        lockfile = _lock_new(path, what)
        undo.callback(lib.es_segment_locks_drop, lockfile.locks, CREATOR_BYTE)
        copies = [Part(file, SNAPSHOT_HEADER + records) for file in SNAPSHOTS]
        needed = sum(part.size for part in (*parts, *copies))
        for part, header in zip((*parts, *copies), (b"", *headers, b"", b""), strict=True):
            _allocate(os.path.join(path, part.file), part.size, header, needed, what)
        directory = Directory(path, manifest, lockfile, made=made)
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
            f"{what} cannot be made: "
            + (HALF_MADE if half else f"the directory holds other files, {there[0]!r} for one. Use an empty one"),
        )
    return False


def _lock_new(path: str, what: str) -> LockFile:
    try:
        lockfile = open_lockfile_at(os.path.join(path, LOCK), create=True)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise SegmentError(errno.EEXIST, f"{what} cannot be made: {HALF_MADE}") from None
        raise SegmentError(
            error.errno,
            f"{what} cannot be made: {os.strerror(error.errno or 0)}: choose a place that this user may write to",
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
    write_file(os.path.join(path, BOOT_ID), disk.boot_id())
    for file in (*(part.file for part in manifest.parts), *SNAPSHOTS, BOOT_ID):  # not the lock: see below
        flush(os.path.join(path, file))
    text = {
        "what": "a replay of echo_shm: Replay.attach() goes on with it",
        "version": VERSION,
        **manifest._asdict(),
        "parts": [{"file": part.file, "bytes": part.size} for part in manifest.parts],
        "steps": about,
    }
    new = os.path.join(path, MANIFEST + ".new")
    write_file(new, json.dumps(text, indent=1).encode())
    flush(new)
    flush(path)  # all other names, before that of the manifest
    os.replace(new, os.path.join(path, MANIFEST))
    flush(path)
    flush(os.path.dirname(os.path.abspath(path)))
