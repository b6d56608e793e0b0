"""The items of a replay: what every call does that names some, or a table of them."""

import errno
from typing import Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import ConnectionClosedError, EchoShmError, ForkedError, error_from
from echo_shm.replay import arguments
from echo_shm.replay.batch import Batch, TableInfo, table_info
from echo_shm.replay.rate_limiters import new_limits
from echo_shm.replay.rings import Rings
from echo_shm.replay.store import Store
from echo_shm.ring.fast_path import compile_tree
from echo_shm.spec import Array, Tree


class Items:
    """The part of a :class:`Replay` that changes, removes and describes the items that are in its tables.

    Each call first stores what workers have sent, unless a thread does so.
    """

    def _describe(self, core: Core, store: Store, rings: Rings) -> None:
        """Begins. The arguments belong to the replay."""
        self._core = core
        self._store = store
        self._rings = rings
        self._spec = store.spec
        self._names = tuple(store.tables)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        # The number of the table that is meant where none is named.
        self._only = 0 if len(self._names) == 1 else None
        self._data = tuple(layout.data for layout in store.layouts)  # what a batch of each table has
        self._builders = tuple((compile_tree(data), len(data.leaves)) for data in self._data)
        self._finals = tuple(sorted({leaf for layout in store.layouts for leaf in layout.finals}))

    @property
    def capacity(self) -> int:
        """Most steps."""
        return self._store.capacity

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return self._names

    @property
    def num_steps(self) -> int:
        """How many steps are stored."""
        self._rings.look()
        return self._checked(self._core.num_steps())

    def __len__(self) -> int:
        """The size of the largest table, in items."""
        self._rings.look()
        return max(self._info(table).size for table in range(len(self._names)))

    # -- items by their keys

    def update(self, keys: Any, priorities: Any, table: str | None = None) -> int:
        """Gives items new priorities. Items that are gone are ignored. In a table without records nothing changes.

        Args:
            keys: ``batch.key``, or part of it: uint64 of shape (n,). Of a key that comes several times, the last
                priority counts.
            priorities: Floats of shape (n,), finite, 0 or more: arrays, or what ``numpy.asarray`` makes arrays of.
            table: The table. None: the only one.

        Returns:
            How many different items had their priorities set.

        Raises:
            ValueError: An argument is out of range: the message names the index. Nothing has changed.
            ConnectionClosedError: The replay is closed.
            ForkedError: Called in a child of the process that opened the replay.

        """
        number = self._only if table is None else self._numbers.get(table)
        if number is None:
            number = self._number(table)
        if self._rings.idle:
            self._rings.turn()
        done = self._core.update(number, keys, priorities)
        if done is None:
            keys = arguments.keys(keys)
            done = self._core.update(number, keys, arguments.new_priorities(priorities, len(keys)))
        if isinstance(done, int):
            return done
        assert done is not None
        code, _, index = done
        if code == lib.ES_EPRIORITY:
            value = float(np.asarray(priorities)[index])
            raise ValueError(arguments.bad_priority(f"priorities[{index}]", value, self._names[number]))
        raise self._error(code)

    def delete(self, keys: Any, table: str | None = None) -> int:
        """Removes items from a table. Items that are gone are ignored.

        Args:
            keys: As for :meth:`update`.
            table: The table. None: the only one.

        Returns:
            How many different items were removed.

        Raises:
            ValueError, ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        self._rings.look()
        done = self._checked(self._core.delete(self._number(table), arguments.keys(keys)))
        if self._core.waiting:
            self._rings.tell()
        return done

    def get(self, keys: Any, table: str | None = None) -> Batch:
        """The items with these keys. It counts as no sample.

        Args:
            keys: As for :meth:`update`, at least one.
            table: The table. None: the only one.

        Returns:
            A :class:`Batch` in the order of the keys. ``probability`` is that of a draw now.

        Raises:
            KeyError: An item is gone. The message names the index.
            ValueError, ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        self._rings.look()
        number, wanted = self._number(table), arguments.keys(keys)
        if not len(wanted):
            raise ValueError("keys: got none, expected at least one")
        got = self._core.get(number, wanted)
        if isinstance(got[0], np.ndarray):
            return self._batch(number, got)
        code, _, index = got
        if code == lib.ES_ENOITEM:
            raise KeyError(
                f"keys[{index}]={int(wanted[index])} is not in table {self._names[number]!r}, or not any more"
            )
        raise self._error(int(code))

    # -- tables

    def can_sample(self, n: int = 1, table: str | None = None) -> bool:
        """Whether a table's limiter allows n items to be sampled now. None for the table: the only one."""
        self._rings.look()
        return bool(self._checked(self._core.can_sample(self._number(table), arguments.count(n))))

    def can_insert(self, n: int = 1, table: str | None = None) -> bool:
        """Whether a table's limiter allows n items to be inserted now. None for the table: the only one."""
        self._rings.look()
        return bool(self._checked(self._core.can_insert(self._number(table), arguments.count(n))))

    def reset(self, table: str | None = None) -> None:
        """Removes all items of a table, and counts from 0. None: the only table.

        Raises:
            ValueError, ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        self._rings.look()
        self._checked(self._core.reset(self._number(table)))
        if self._core.waiting:
            self._rings.tell()

    def set_limits(self, table: str | None, min_diff: float, max_diff: float) -> None:
        """Gives a table's rate limiter other limits, from now on. Its ``min_size`` and its ``ratio`` stay.

        Whoever waits for the table looks again: samplers, writers, and items that wait until the limiter lets them in.
        If ``inserted * ratio - sampled`` is out of the new range, one side alone goes on until it is not: above
        ``max_diff`` writers wait for samplers, below ``min_diff`` samplers wait for writers.

        The limits are the table's own: they outlive :meth:`reset` and this process. :meth:`Replay.attach` finds them,
        and :meth:`Replay.checkpoint` writes them down. :meth:`Replay.restore` brings them back unless its ``tables``
        have another limiter for this table than the one that it was made with.

        Args:
            table: The table. None: the only one.
            min_diff: The least that ``inserted * ratio - sampled`` may become by sampling; may be ``-inf``.
            max_diff: The most that it may become by inserting; may be ``inf``. The range need not contain
                ``ratio * min_size``.

        Raises:
            ValueError: The table is unknown, or has no records (see :class:`Table`); a limit is no number, or at the
                wrong infinity; or the range is so narrow that the table would come to allow neither an insertion nor a
                sample. Nothing has changed.
            ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        name = self._names[self._number(table)]
        self._set_limits(name, *new_limits(self._store.tables[name].ratio, min_diff, max_diff))

    def _set_limits(self, name: str, low: float, high: float) -> None:
        """As :meth:`set_limits`. The range may be narrow, or empty: then it allows nothing until the next call."""
        self._rings.look()
        code = self._core.set_limits(self._number(name), low, high)
        if code == -errno.EINVAL:
            raise ValueError(arguments.no_limits(name))
        self._checked(code)
        self._rings.look()  # lets in what was parked
        self._rings.tell()

    def learned(self, table: str | None = None) -> None:
        """The learner has made an update: the items of a table whose sampler is :class:`HotCold` are one older.

        Some of those that are old enough become cold, or go. What :meth:`sample` returns never waits for that. A
        learner in another process has :meth:`ReplayClient.learned`.

        Args:
            table: The table. None: the only one.

        Raises:
            ValueError: The table is unknown, or has another sampler.
            ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        self._rings.look()
        number = self._number(table)
        name = self._names[number]
        if not self._store.tables[name].is_hot_cold:
            raise ValueError(arguments.no_ages(name))
        self._checked(self._core.learned(number))
        if self._core.waiting:
            self._rings.tell()

    def info(self, table: str | None = None) -> TableInfo | dict[str, TableInfo]:
        """The figures of a table. Without a name: those of the only one, or if there are several, a dict of all.

        Raises:
            ValueError, ConnectionClosedError, ForkedError: As :meth:`update`.

        """
        self._rings.look()
        if table is None and self._only is None:
            return {name: self._info(number) for number, name in enumerate(self._names)}
        return self._info(self._number(table))

    def _info(self, number: int) -> TableInfo:
        got = self._core.info(number)
        if isinstance(got, int):
            raise self._error(got)
        return table_info(self._store.tables[self._names[number]], ffi.from_buffer("es_table_info *", got))

    # -- helpers

    def _batch(self, number: int, got: tuple[Array, ...], out: Tree = None) -> Batch:
        if out is None and (made := self._core.batch(number, Batch, got)) is not None:
            return made
        build, leaves = self._builders[number]
        data = build(*got[:leaves]) if out is None else out
        # The same as Batch(...), without the call of the named tuple's own __new__.
        return tuple.__new__(Batch, (data, *got[leaves:]))

    def _number(self, table: object) -> int:
        """The number of a table, or of the only one."""
        if table is None and self._only is not None:
            return self._only
        if table is None:
            raise ValueError(f"this replay has {arguments.listed(self._names)}: say which one, table=...")
        if not isinstance(table, str) or table not in self._numbers:
            raise ValueError(arguments.unknown_table(table, self._names))
        return self._numbers[table]

    def _accepts(self, number: int, priority: float) -> bool:
        return self._core.check_priority(number, priority) != lib.ES_EPRIORITY

    def _refuse_closed(self) -> None:
        self._checked(self._core.num_steps())

    def _checked(self, result: int) -> int:
        """Raises what a code says; returns everything else."""
        if result < 0:
            raise self._error(result)
        return result

    def _error(self, code: int) -> Exception:
        what = self._store.what
        if code == lib.ES_ESELECTOR:
            self._store.custom.reraise()
        if code == lib.ES_EREENTERED:
            return EchoShmError(
                f"{what} was called by code that runs inside one of its own calls: by a selector, or by what "
                "interrupted it. Selectors must not use the replay"
            )
        if code == lib.ES_EDETACHED:
            return ConnectionClosedError(self._store.custom.why or f"{what} is closed")
        if code == lib.ES_EFORK:
            return ForkedError(f"{what} was inherited through a fork and belongs to the parent process")
        if code == -errno.ENOMEM:
            return MemoryError(f"{what}: there is no memory for it")
        if code == lib.ES_NO_ROOM:
            protected = [name for name, config in self._store.tables.items() if config.is_protected]
            all_steps = self._core.num_steps() >= self.capacity
            if not protected:
                return EchoShmError(
                    f"{what} has no room for the items of one step in all its tables: use a larger max_items, or give "
                    "priorities for fewer tables"
                )
            full = f"all of its {self.capacity:,} steps" if all_steps else "as many items as max_items allows"
            return EchoShmError(
                f"{what} is full: {full} belong to protected tables ({', '.join(map(repr, protected))}). "
                f"Delete items of these, or use a larger {'capacity' if all_steps else 'max_items'}"
            )
        return error_from(code, what)
