"""The files of a store in a directory: their names, what the manifest says, and how they are written and flushed."""

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from echo_shm.errors import SegmentError
from echo_shm.ring.lockfile import check_name

#: Bytes before a column: numpy's header.
COLUMN_HEADER = 4096

#: What the start of each file in the range of addresses is a multiple of. Every system can map there.
FILE = 65536

MANIFEST, LOCK, RECORDS, BOOT_ID = "manifest.json", "lock", "records", "boot_id"
SNAPSHOTS = ("snapshot.0", "snapshot.1")

#: Of the manifest, and of what the files are.
VERSION = 1

HALF_MADE = (
    "the directory holds a replay that is being made, or whose process died while it made it. If none is at work, "
    "remove the directory"
)


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


def is_directory(store: object) -> bool:
    """Whether ``store`` names a directory: a path object, or a string with a slash."""
    return isinstance(store, os.PathLike) or (isinstance(store, str) and "/" in store)


def boot_id() -> bytes:
    """Which boot of the machine this is. Where the kernel does not say so, every process is one of its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex().encode()


# --- writing --------------------------------------------------------------------


def write_file(path: str, content: bytes) -> None:
    """Replaces what is in a file, or makes it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def flush(path: str) -> None:
    """Flushes a file that this process holds no lock on: closing a descriptor of it would drop them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_files(path: str, files: Sequence[str], made: bool) -> None:
    """Removes the files of a store that is not complete, and the directory if it was made for it."""
    for file in (MANIFEST, MANIFEST + ".new", BOOT_ID, *SNAPSHOTS, *files, LOCK):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, file))
    if made:
        with contextlib.suppress(OSError):
            os.rmdir(path)


# --- reading --------------------------------------------------------------------


def denied(what: str, error: OSError) -> SegmentError:
    """The error if a file cannot be opened."""
    return SegmentError(
        error.errno,
        f"{what} cannot be opened: {os.path.basename(str(error.filename))}: {error.strerror}. The user that runs this "
        "process must be able to read and write all of its files, on a file system that is not mounted read-only",
    )


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
        why = HALF_MADE if os.path.lexists(os.path.join(path, LOCK)) else f"it holds no {MANIFEST}: it is no replay's"
        raise SegmentError(errno.ENOENT, f"{what} cannot be used: {why}") from None
    except OSError as error:
        raise denied(what, error) from None
    except (ValueError, RecursionError):
        said = None
    version = said.get("version") if isinstance(said, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise SegmentError(
            f"{what} cannot be used: its files have version {version}, and this echo_shm reads version {VERSION}: use "
            f"the {'newer' if version > VERSION else 'older'} echo_shm that made it, or remove the directory"
        )
    try:
        sync_every = None if said["sync_every"] is None else float(said["sync_every"])
        parts = tuple(Part(part["file"], int(part["bytes"])) for part in said["parts"])
        manifest = Manifest(check_name(said["name"]), said["uuid"], sync_every, parts)
    except (KeyError, TypeError, ValueError):
        manifest = None
    if manifest is None or not _is_possible(manifest):
        raise SegmentError(
            f"{what} cannot be used: its {MANIFEST} is damaged, or another program's. Restore it, or remove the "
            "directory"
        )
    return manifest


def _is_possible(manifest: Manifest) -> bool:
    every, parts = manifest.sync_every, manifest.parts
    return (
        isinstance(manifest.uuid, str)
        and re.fullmatch(r"[0-9a-f]{32}", manifest.uuid) is not None
        and (every is None or 0 < every < math.inf)
        and len(parts) > 1
        and parts[0].size % FILE == 0
        and all(isinstance(one.file, str) and re.fullmatch(r"[^/\0]+", one.file) and one.size > 0 for one in parts)
    )
