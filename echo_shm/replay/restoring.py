"""Restores a checkpoint: into a store as the one it was made of, or into one of other tables or another capacity."""

import contextlib
import dataclasses
import errno
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, SpecMismatchError, error_from
from echo_shm.replay import checkpoint_files as files
from echo_shm.replay.checkpoint_files import DRAWN, ENVIRONMENT, RECORDS, Progress
from echo_shm.replay.described import about_items, describe_store, items_of, table_name
from echo_shm.replay.item import Item
from echo_shm.replay.layout import Layout, lay_out
from echo_shm.replay.new_store import create_store
from echo_shm.replay.store import Store
from echo_shm.replay.table import Table, check_tables, lay_out_table, table_config
from echo_shm.spec import Array, Spec, Tree

if TYPE_CHECKING:
    from echo_shm._core import CData, TableConfig

#: About so much is read at once (bytes).
_SOME = 64 << 20

#: What is said of a table that has another setting now: the fields of an ``es_table_config``.
_SETTINGS = (
    "max_size",
    "max_times_sampled",
    "min_size",
    "ratio",
    "min_diff",
    "max_diff",
    "replacement",
    "is_protected",
)


#: What two selectors differ in: the fields of an ``es_selector_config``.
_SELECTOR = ("kind", "parameter", "beta", "target", "share", "hot_size", "age", "max_age")


@dataclasses.dataclass(frozen=True)
class Restored:
    """What came of a checkpoint.

    Attributes:
        path: The checkpoint.
        steps: How many steps it had that are stored now. Those that no item of the tables refers to are gone.
        steps_dropped: How many there was no room for: the oldest ones.
        items: For each table how many items it has from the checkpoint.
        items_dropped: For each table how many there was no room for, or whose steps are gone.
        changes: What differs from the replay that was saved, in words: tables and settings. Empty if nothing does.

    """

    path: str
    steps: int
    steps_dropped: int
    items: dict[str, int]
    items_dropped: dict[str, int]
    changes: tuple[str, ...]

    def lost(self) -> Iterator[str]:
        """What there was no room for, in words."""
        if self.steps_dropped:
            yield f"there was no room for the {self.steps_dropped} oldest steps"
        for name, dropped in self.items_dropped.items():
            if dropped:
                yield f"table {name!r}: {dropped} items were dropped, and {self.items[name]} came"


def _environments(manifest: Mapping[str, Any]) -> Array:
    """The environments of a checkpoint's own steps. One that does not list them has one."""
    first = manifest["writer"]
    rows = manifest.get("environments", [[first["number"], first["index"], first["episode"], 0]])
    return np.array([(*map(int, row), 0) for row in rows], ENVIRONMENT)


class Checkpoint:
    """A complete checkpoint, which was checked but for its rows. Use :func:`opened`."""

    def __init__(self, path: Path, directory: int, manifest: dict[str, Any]) -> None:
        self.path, self.directory, self.manifest = path, directory, manifest
        self.what = f"checkpoint {str(path)!r}"
        try:
            self.history = [[str(uuid), int(first)] for uuid, first in manifest["history"]]
            self.arrivals, self.rows = int(manifest["arrivals"]), max(1, int(manifest["chunk_rows"]))
            self.stream, self.environments = int(manifest["writer"]["stream"]), _environments(manifest)
            self._check_files(manifest["files"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise files.damaged(path, f"its manifest lacks something ({error!r})") from None
        self.drawn = (path / DRAWN).read_bytes()
        self.records = self._map(RECORDS)
        base, size = self.memory
        code = lib.es_checkpoint_check(base, size)
        if code == lib.ES_EVERSION:
            raise error_from(code, self.what)
        if code != lib.ES_OK:
            raise files.damaged(path, f"{RECORDS}: {error_from(code, 'the file')}")
        self.geo, self.configs, schema, _ = describe_store(self.what, base, size)
        self.spec = Spec.from_schema(schema, self.what)
        self.names = [table_name(config, self.what) for config in self.configs]
        self.items = items_of(self.spec, len(self.names), self.what)

    @property
    def memory(self) -> "tuple[CData, int]":
        """The records, which are private to this process, and their size."""
        return ffi.from_buffer("uint8_t[]", self.records), len(self.records)

    def _map(self, name: str) -> mmap.mmap:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.directory)
        try:
            return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)

    def _check_files(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises SegmentError unless all files are there as they were written. Rows are checked when they are read."""
        for name in {RECORDS, DRAWN, *said}:
            expected = said[name]
            try:
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.directory)
            except OSError as error:
                raise files.damaged(self.path, f"{name} cannot be opened: {os.strerror(error.errno or 0)}") from None
            try:
                size = os.fstat(fd).st_size
                if size != expected["size"]:
                    raise files.damaged(
                        self.path, f"{name} has {size:,} bytes, and was written with {expected['size']:,}"
                    )
                if "head" in expected:
                    head = bytes.fromhex(expected["head"])
                    same = os.pread(fd, len(head), 0) == head
                else:
                    same = files.crc_of_file(fd) == expected["crc32"]
                if not same:
                    raise files.damaged(self.path, f"{name} was changed after it was written")
            finally:
                os.close(fd)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Checkpoint]:
    """A checkpoint: that one, or the newest complete one in a directory of several. It is not removed meanwhile.

    Raises:
        SegmentError: There is none, it is damaged, or it is of another version.

    """
    try:
        if not any((path / name).exists() for name in (files.MANIFEST, files.DONE, RECORDS)):
            there = files.complete(path)
            if not there:
                raise SegmentError(errno.ENOENT, f"there is no complete checkpoint in {str(path)!r}")
            path = there[-1]
        with files.reading(path) as directory:
            checkpoint = Checkpoint(path, directory, files.read_manifest(path))
            yield checkpoint
    except SegmentError:
        raise
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(path)):
            raise
        raise SegmentError(
            error.errno, f"checkpoint {str(path)!r} cannot be read: {os.strerror(error.errno or 0)}"
        ) from None


class Plan:
    """The store that a checkpoint is restored to.

    Args:
        checkpoint: The checkpoint.
        tables: Those of the new replay; None: as they were.
        capacity, max_items: None: as they were.
        example: As for :meth:`Replay.restore`.

    Raises:
        SpecMismatchError, ValueError, TypeError: As :meth:`Replay.restore`.

    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tables: Sequence[Table] | None,
        capacity: int | None,
        max_items: int | None,
        example: Tree,
    ) -> None:
        self._checkpoint = checkpoint
        geo, old = checkpoint.geo, checkpoint.geo.capacity
        self.capacity = old if capacity is None else capacity
        if tables is not None:
            check_tables(tables)
        items = checkpoint.items if tables is None else tuple(table.item for table in tables)
        self.spec = _spec_of(checkpoint, items, example)
        self.configs: list[Any]
        if tables is None:
            self.names = checkpoint.names
            layouts = [lay_out(item, self.spec) for item in items]
            self.configs = [
                _resized(config, name, layout, old, self.capacity)
                for config, name, layout in zip(checkpoint.configs, self.names, layouts, strict=True)
            ]
        else:
            self.names = [table.name for table in tables]
            layouts = [lay_out_table(table, self.spec) for table in tables]
            self.configs = [
                table_config(table, layout, self.capacity, max_items)
                for table, layout in zip(tables, layouts, strict=True)
            ]
        self._memory = ffi.new("es_table_config[]", self.configs)
        self.configs = list(self._memory)
        self.outputs = [output for layout in layouts for output in layout.outputs]
        if max_items is None:
            most = sum(min(config.max_size, self.capacity) for config in self.configs)
            before = sum(min(config.max_size, old) for config in checkpoint.configs)
            max_items = geo.max_items if geo.max_items != before else most
        self.max_items = max_items
        #: For each table the one of the checkpoint that its items come from, or -1.
        self.sources = [checkpoint.names.index(name) if name in checkpoint.names else -1 for name in self.names]
        self._items = items

    def make(
        self, kind: str, name: str | None, sync_every: float | None, progress: Progress | None
    ) -> tuple[Store, Restored]:
        """Makes the store. If it fails, nothing is left behind."""
        checkpoint = self._checkpoint
        came: list[Restored] = []
        store = create_store(
            kind,
            name,
            self.spec,
            self.capacity,
            self.max_items,
            checkpoint.geo.seed,
            self.configs,
            self.outputs,
            sync_every,
            lambda made: came.append(self._fill(made, progress)),
            notes=checkpoint.geo.notes,
        )
        store.history = [*checkpoint.history, *([uuid, checkpoint.arrivals] for uuid, _ in store.history)]
        return store, came[0]

    def _fill(self, store: Store, progress: Progress | None) -> Restored:
        checkpoint = self._checkpoint
        restored, why = ffi.new("es_restored *"), ffi.new("es_trouble *")
        sources, position = ffi.new("int32_t[]", self.sources), ffi.new("uint64_t *")
        code = lib.es_checkpoint_records(*store.memory, *checkpoint.memory, sources, restored, why)
        if code == lib.ES_EDAMAGED:
            raise files.damaged(checkpoint.path, f"record {why.index} contradicts another")
        if code != lib.ES_OK:
            raise error_from(code, checkpoint.what)
        done, row_bytes = 0, restored.steps * max(1, int(checkpoint.manifest["row_size"]))
        while n := lib.es_checkpoint_rows(*store.memory, checkpoint.directory, checkpoint.rows, position, _SOME, why):
            if n == lib.ES_EDAMAGED or n == -errno.ENOENT:
                raise files.damaged(checkpoint.path, f"the row of step {why.index} is missing, or was changed")
            if n < 0:
                raise error_from(n, checkpoint.what)
            done += n
            if progress is not None:
                progress(min(done, row_bytes), row_bytes)
        gone = [number for number, source in enumerate(sources) if source < 0 <= self.sources[number]]
        self.sources = list(sources)
        limits = {
            number: {"min_diff": restored.min_diff[number], "max_diff": restored.max_diff[number]}
            for number, source in enumerate(sources)
            if source >= 0 and not restored.has_limits[number]
        }
        return Restored(
            str(checkpoint.path),
            restored.steps,
            restored.steps_dropped,
            {name: restored.items[i] for i, name in enumerate(self.names)},
            {name: restored.items_dropped[i] for i, name in enumerate(self.names)},
            tuple(self._changes(set(gone), limits)),
        )

    @property
    def is_same(self) -> bool:
        """Whether nothing has changed, so that all items have the keys that they had."""
        return self.capacity == self._checkpoint.geo.capacity and not list(self._changes(set(), {}))

    def _changes(self, gone: set[int], limits: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
        """What differs. gone: tables whose items are others than they were. limits: those that did not come."""
        checkpoint = self._checkpoint
        for label, now, before in (
            ("capacity", self.capacity, checkpoint.geo.capacity),
            ("max_items", self.max_items, checkpoint.geo.max_items),
        ):
            if now != before:
                yield f"{label}={now}, and was {before}"
        for name in checkpoint.names:
            if name not in self.names:
                yield f"table {name!r} is no more: its items are dropped"
        for number, name in enumerate(self.names):
            if name not in checkpoint.names:
                yield f"table {name!r} is new, and empty"
                continue
            before = checkpoint.names.index(name)
            item, old = self._items[number], checkpoint.items[before]
            if number in gone:
                yield f"table {name!r} has items of {item!r}, and had some of {old!r}: these are dropped"
            elif item != old:
                yield f"table {name!r} has items of {item!r}, and had them of {old!r}"
            differ = list(_differences(self.configs[number], checkpoint.configs[before], limits.get(number, {})))
            if differ:
                yield f"table {name!r}: {', '.join(differ)}"


def go_on(core: Core, checkpoint: Checkpoint, plan: Plan, same_episode: bool) -> None:
    """What is in no record, once the store is open: what was drawn already, and which step the next one follows."""
    drawn = checkpoint.drawn if plan.is_same else b""
    code = core.restore(drawn, checkpoint.stream, checkpoint.environments.tobytes())
    if code == lib.ES_EDAMAGED:
        raise files.damaged(checkpoint.path, f"{DRAWN} does not fit the tables")
    if code != lib.ES_OK:
        raise error_from(code, checkpoint.what)
    if not same_episode:
        core.end_episode(None)


def _differences(now: "TableConfig", before: "TableConfig", limits: Mapping[str, float]) -> Iterator[str]:
    """What differs of a table. limits: those that it had last, if it has others now."""
    for field in _SETTINGS:
        was = limits.get(field, getattr(before, field))
        if getattr(now, field) != was:
            yield f"{field}={getattr(now, field)}, and was {was}"
    for which in ("sampler", "remover"):
        one, other = getattr(now, which), getattr(before, which)
        if any(getattr(one, field) != getattr(other, field) for field in _SELECTOR):
            yield f"another {which}"


def _spec_of(checkpoint: Checkpoint, items: Sequence[Item], example: Tree) -> Spec:
    """What a step looks like, with a schema that describes the tables' items."""
    saved = checkpoint.spec
    if example is not None:
        Spec.from_example(example, saved.about).check_same(saved, checkpoint.what)
    elif saved.treespec is None:
        raise SpecMismatchError(
            f"{checkpoint.what} holds steps with node types beyond dict, OrderedDict, list, tuple and None: "
            "pass an example, Replay.restore(path, example=example)"
        )
    else:  # of those dtypes and shapes, but without memory for them
        leaves = [np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) for leaf in saved.leaves]
        example = saved.treespec.unflatten(leaves)
    return Spec.from_example(example, about_items(items))


def _resized(config: "TableConfig", name: str, layout: Layout, old: int, capacity: int) -> "TableConfig":
    """A table of a replay of another capacity. One that could hold all steps can do so still."""
    if layout.span > capacity:
        raise ValueError(
            f"table {name!r}: an item refers to up to {layout.span} steps, and the replay holds at most "
            f"capacity={capacity}: use a larger capacity"
        )
    if config.min_size > capacity:
        raise ValueError(
            f"table {name!r} waits for {config.min_size} items, and the replay holds at most capacity={capacity} steps"
            ": use a larger capacity, or tables with another limiter"
        )
    resized = ffi.new("es_table_config *", config)[0]
    if config.max_size == old:
        resized.max_size = capacity
    return resized
