"""Writes a checkpoint of a replay, while others use it."""

import contextlib
import datetime
import errno
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay import checkpoint_files as files
from echo_shm.replay.checkpoint_files import DONE, DRAWN, MANIFEST, RECORDS, Folder, Progress
from echo_shm.replay.store import Store

if TYPE_CHECKING:
    from echo_shm._core import SaveState

#: About so much is in one file of rows (bytes).
CHUNK_BYTES = 64 << 20

#: A row has 8 bytes more in its file.
_EXTRA = 8


def write_checkpoint(
    path: Path,
    core: Core,
    store: Store,
    incremental: bool,
    keep: int,
    progress: Progress | None,
    meanwhile: Callable[[], object],
) -> Path:
    """Writes one: its directory.

    Args:
        path: Where it is among others.
        core, store: Of the replay.
        incremental: Use files of the newest one there as they are.
        keep: So many stay, this one among them.
        progress: It is told of bytes done, and bytes in all.
        meanwhile: Called again and again while it is written.

    Raises:
        SegmentError: It cannot be written. Those that were there stay.
        ConnectionClosedError: The replay was closed.

    """
    with Folder(path) as folder:
        before = _last(folder, store) if incremental else None
        try:
            unfinished, final = folder.new()
            writer = _Writer(unfinished, core, store, before, progress, meanwhile)
        except OSError as error:
            raise _cannot(error, path) from None
        try:
            try:
                writer.write()
                files.write_file(unfinished / DONE, files.done_bytes(writer.manifest))
                files.sync_directory(unfinished)  # all of it is on disk before it has its name
                unfinished.rename(final)
                unfinished = final
                files.sync(folder.fd)
            except OSError as error:
                if isinstance(error, SegmentError | ConnectionError):
                    raise
                raise _cannot(error, path) from None
        except BaseException:
            with contextlib.suppress(OSError):
                folder.remove(unfinished)
            raise
        for old in folder.complete()[:-keep]:
            with contextlib.suppress(OSError):  # it is removed the next time
                folder.remove(old)
    return final


def _cannot(error: OSError, path: Path) -> SegmentError:
    return files.fault(error, f"the checkpoint cannot be written to {str(path)!r}, and those that are there stay")


class _Before:
    """The newest checkpoint, some of whose files can be used again."""

    def __init__(self, path: Path, manifest: dict[str, Any], shared: int) -> None:
        self.path = path
        self.files: dict[str, Any] = manifest["files"]
        self.rows: int = manifest["chunk_rows"]
        #: The steps with lower numbers of arrival are the same, and all in complete files.
        self.first = min(manifest["arrivals"], shared) // self.rows * self.rows


def _last(folder: Folder, store: Store) -> _Before | None:
    """The newest complete checkpoint, if it is one of this replay."""
    for path in reversed(folder.complete()):
        try:
            manifest = files.read_manifest(path)
            before = _Before(path, manifest, _shared(manifest["history"], store.history))
            if any((path / name).stat().st_size != said["size"] for name, said in before.files.items()):
                continue
        except (OSError, KeyError, TypeError, ValueError):
            continue  # whoever restores it is told what is wrong
        return before if before.first > 0 else None
    return None


def _shared(one: list[Any], other: list[Any]) -> int:
    """How many steps came before two replays were different ones.

    Each is a list of a store's uuid, and of the first step that arrived there.
    """
    for (uuid, first), (other_uuid, other_first) in zip(one, other, strict=False):
        if (uuid, first) != (other_uuid, other_first):
            return int(min(first, other_first))
    longer = max(one, other, key=len)
    return sys.maxsize if len(one) == len(other) else int(longer[min(len(one), len(other))][1])


class _Writer:
    """One checkpoint, while it is written to a directory."""

    def __init__(
        self,
        path: Path,
        core: Core,
        store: Store,
        before: _Before | None,
        progress: Progress | None,
        meanwhile: Callable[[], object],
    ) -> None:
        self._path, self._core, self._store = path, core, store
        self._before, self._progress, self._meanwhile = before, progress, meanwhile
        self._rows = before.rows if before else max(1, CHUNK_BYTES // (store.spec.sample_bytes + _EXTRA))
        self._files: dict[str, Any] = {}
        self._environments: list[list[int]] = []
        #: The bytes of its manifest, once it is written.
        self.manifest = b""

    def write(self) -> None:
        """Writes all of it, but for the mark that it is complete."""
        with contextlib.ExitStack() as stack:
            directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, directory)
            fds = [stack.enter_context(self._new_file(name)) for name in (RECORDS, DRAWN)]
            save, state = self._begin(directory, *fds)
            try:
                self._write_rows(save, state)
                for name, fd in zip((RECORDS, DRAWN), fds, strict=True):
                    files.sync(fd)
                    self._files[name] = {"size": os.fstat(fd).st_size, "crc32": files.crc_of_file(fd)}
                self._finish_rows(save)
            finally:
                self._core.save_end(save)
                lib.es_checkpoint_free(ffi.cast("es_save *", save))
        self.manifest = files.manifest_bytes(self._describe(state))
        files.write_file(self._path / MANIFEST, self.manifest)

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[int]:
        fd = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    def _begin(self, directory: int, records: int, drawn: int) -> "tuple[int, SaveState]":
        first = 0 if self._before is None else self._before.first
        got = self._core.save_begin(directory, records, drawn, first, self._rows)
        if isinstance(got, int):
            if got == lib.ES_ESELECTOR:
                self._store.custom.check()
            self._check(got)
            raise AssertionError
        save, state, environments = got
        rows = np.frombuffer(environments, files.ENVIRONMENT).tolist()
        used = max((i for i, row in enumerate(rows) if any(row)), default=0) + 1
        self._environments = [list(row[:-1]) for row in rows[:used]]
        return save, ffi.from_buffer("es_save_state *", state)

    def _check(self, code: int) -> None:
        """Raises unless a code says that all is well."""
        if code >= 0:
            return
        if code == lib.ES_EDAMAGED:
            raise SegmentError(errno.EIO, f"{self._store.what} cannot be saved: its records were damaged meanwhile")
        if code > -10000:
            raise OSError(-code, os.strerror(-code))
        raise error_from(code, self._store.what)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _write_rows(self, save: int, state: "SaveState") -> None:
        total = state.records_size + state.steps * state.row_size
        self._tell(state.records_size, total)
        while (done := self._core.save_some(save)) is not None:
            self._check(done)
            self._tell(state.records_size + done, total)
            self._meanwhile()
        self._check(self._core.save_end(save))

    def _finish_rows(self, save: int) -> None:
        """Completes the files of rows, and adds those of the checkpoint before."""
        held = ffi.cast("es_save *", save)
        for i in range(lib.es_checkpoint_num_chunks(held)):
            number = lib.es_checkpoint_chunk(held, i)
            name = f"rows-{number:016x}"
            if self._before is not None and number * self._rows < self._before.first:
                self._link(name, self._before)
                continue
            header = ffi.new("es_chunk_header *")
            self._check(lib.es_checkpoint_finish(held, i, header))
            size = os.stat(self._path / name).st_size
            self._files[name] = {"size": size, "head": bytes(ffi.buffer(header)).hex()}

    def _link(self, name: str, before: _Before) -> None:
        try:
            os.link(before.path / name, self._path / name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            shutil.copyfile(before.path / name, self._path / name)  # a file system without links
            fd = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files.sync(fd)
            finally:
                os.close(fd)
        self._files[name] = before.files[name]

    def _describe(self, state: "SaveState") -> dict[str, Any]:
        return {
            "format": files.FORMAT,
            "version": files.VERSION,
            "echo_shm": importlib.metadata.version("echo-shm"),
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "byteorder": sys.byteorder,
            "capacity": self._store.capacity,
            "tables": list(self._store.tables),
            "steps": state.steps,
            "arrivals": state.arrivals,
            "row_size": state.row_size,
            "chunk_rows": self._rows,
            "history": self._store.history,
            "writer": {name: getattr(state, name) for name in ("stream", "number", "episode", "index")},
            "environments": self._environments,
            "files": self._files,
        }
