"""The calls of a replay, as ``csrc/python/replaymodule.c`` has them."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from echo_shm._batch import Leaf
from echo_shm.spec import Tree

_Tuple = TypeVar("_Tuple", bound=tuple[Any, ...])
_Array = npt.NDArray[Any]

#: A code of the C core that says what is wrong, and of what its ``es_trouble`` names: the table, the index.
Trouble = tuple[int, int, int]

class Block:
    """The memory of one batch. Each array over it refers to it. It is used again after the last reference."""

class Core:
    """A process's hold of a store. Threads may share it: one call at a time runs.

    Tables are numbers from 0. Where a method returns a code, ``ES_EDETACHED`` says that it is closed, ``ES_EFORK`` that
    it was inherited through a fork, and ``ES_EREENTERED`` that code called it that runs inside another of its calls.
    """

    waiting: int

    def __new__(
        cls,
        addresses: dict[str, int],
        es_replay: int,
        steps: tuple[Leaf, ...],
        tables: tuple[tuple[Tree, tuple[Leaf, ...]], ...],
        form: Tree,
        keep: object,
        /,
    ) -> Core:
        """Makes one.

        Args:
            addresses: Of the C functions.
            es_replay: The address of what ``es_replay_open`` returned. It belongs to the new object.
            steps: Of n steps: the leaves. Each shape begins with 0, in place of n, and each address is 0.
            tables: Of each table the form of its data, as of a step, and of a batch, likewise: the leaves of its data,
                then the columns of a :class:`Batch` in their order.
            form: A step's tree with the leaves' numbers at its leaves, or None if :meth:`add` cannot take it apart.
            keep: Keeps the store's memory.

        """
    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
    @property
    def free_blocks(self) -> int:
        """Batches that nobody refers to any more, whose memory waits for the next."""
    @property
    def free_bytes(self) -> int:
        """Bytes of them."""
    def add(
        self, step: object, terminated: object, truncated: object, priority: object, timeout: object, /
    ) -> bool | Trouble | None:
        """Stores a step, if all is as most callers give it.

        That is: a tree of the form, whose leaves are contiguous arrays of their dtypes and shapes, or the usual scalars
        that fit; a number or None as priority; and a valid timeout, which is not used.

        Returns:
            None: it is stored. True: so it is, and threads wait for a change. False: an argument is of another kind,
            and may be wrong.

        """
    def add_each(
        self, terminated: object, truncated: object, priorities: bytes, /, *leaves: object
    ) -> bool | Trouble | None:
        """The same with such leaves, and a float64 for each table, as ``es_replay_add`` takes them, unchecked.

        With twice as many arrays, the second half is what the episode ends with, as ``es_replay_add_last`` takes it.
        """
    def add_vector(
        self,
        steps: object,
        terminated: object,
        truncated: object,
        autoreset: object,
        final: object,
        priorities: object,
        environments: object,
        timeout: object,
        needed: tuple[int, ...],
        /,
    ) -> bool | tuple[int, Trouble] | None:
        """Stores a step of each of several environments, if all is as most callers give it.

        That is: trees of the form, ``final`` with a part of its dicts' keys, whose leaves are contiguous arrays; arrays
        of bool or None; no priorities; int64 or None as environments; a valid timeout, which is not used. ``final`` has
        at least the leaves with the numbers ``needed``, if a row ends an episode.

        Returns:
            As :meth:`add`. Or how many rows are done, and why no more are.

        """
    def add_rows(
        self,
        first: int,
        n: int,
        leaves: tuple[_Array, ...],
        finals: tuple[_Array, ...] | None,
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        skips_resets: bool,
        priorities: npt.NDArray[np.float64] | None,
        environments: npt.NDArray[np.int64] | None,
        /,
    ) -> tuple[int, Trouble]:
        """The same with exact arrays, and from row ``first`` on: see ``es_replay_add_vector``.

        ``finals`` has a row for each of the n rows that ends an episode. ``priorities`` has shape ``(n, tables)``.
        """
    def extend(
        self,
        leaves: tuple[_Array, ...],
        total: int,
        first: int,
        n: int,
        flags: npt.NDArray[np.uint8] | None,
        priorities: npt.NDArray[np.float64] | None,
        /,
    ) -> tuple[int, Trouble]:
        """Stores n of ``total`` steps, from ``first`` on: how many are in, and why no more are.

        Each leaf is an exact array of shape ``(total, *leaf.shape)``. ``priorities`` has shape ``(total, tables)``,
        as ``es_replay_extend`` takes them.
        """
    def sample(
        self, table: int, n: int, beta: float | None, out: tuple[_Array, ...] | None, /
    ) -> tuple[_Array, ...] | int:
        """The leaves and the columns of n items, or a code. With ``out``, the leaves are these arrays.

        With a negative ``beta`` the weights are left to :meth:`weigh`.
        """
    def batch(self, table: int, type: type[_Tuple], arrays: tuple[_Array, ...], /) -> _Tuple | None:
        """A tuple of that type: the tree of a table's data, then the columns. None without a form of it."""
    def weigh(self, table: int, weights: npt.NDArray[np.float64], /) -> int:
        """Makes the weights of a batch, with the sampler's own exponent: a code."""
    def put_back(self, table: int, arrays: tuple[_Array, ...], /) -> int:
        """Takes a batch back, which was not weighed. It comes first in the next call: a code."""
    def get(self, table: int, keys: npt.NDArray[np.uint64], /) -> tuple[_Array, ...] | Trouble:
        """The same of the items with these keys."""
    def update(self, table: int, keys: object, priorities: object, /) -> int | Trouble | None:
        """How many items have new priorities. None: an array needs a conversion.

        ``keys`` is a contiguous array of uint64, ``priorities`` an array of float64 or float32, both of shape (n,).
        """
    def delete(self, table: int, keys: npt.NDArray[np.uint64], /) -> int:
        """How many items went, or a code."""
    def reset(self, table: int, /) -> int:
        """Empties a table."""
    def learned(self, table: int, /) -> int:
        """The items of a table with a hot and a cold part are one update of the learner older: a code."""
    def set_limits(self, table: int, min_diff: float, max_diff: float, /) -> int:
        """A table's limiter has other limits: a code."""
    def notes(self, array: npt.NDArray[np.uint8], /) -> int:
        """Fills an array with what the store keeps beside its steps, from its begin: a code."""
    def set_notes(self, array: npt.NDArray[np.uint8], /) -> int:
        """Has the store keep these bytes: all or none of them, whatever happens. A code."""
    def can_sample(self, table: int, n: int, /) -> int:
        """1 or 0, or a code."""
    def can_insert(self, table: int, n: int, /) -> int:
        """1 or 0, or a code."""
    def check_priority(self, table: int, priority: float, /) -> int:
        """A code: whether an item of the table can have that priority."""
    def info(self, table: int, /) -> bytes | int:
        """The bytes of an ``es_table_info``, or a code."""
    def end_episode(self, environments: npt.NDArray[np.int64] | None, /) -> int:
        """The next step of these environments begins an episode; None: of all. Returns ES_OK or a code."""
    def set_version(self, version: int, by_hand: bool, /) -> int:
        """Says which version of the weights the next steps are made with. Returns ES_OK or a code."""
    def version(self) -> int:
        """That version, or a code."""
    def num_steps(self) -> int:
        """How many steps are stored, or a code."""
    def list_steps(self) -> bytes | int:
        """The bytes of an ``es_stored_step`` for each step, in no order, or a code."""
    def read_steps(self, listed: bytes, leaves: tuple[_Array, ...], /) -> int:
        """Copies the leaves of steps that were listed into arrays with a leading n.

        Returns:
            How many: fewer than n if the next one is not stored any more. Or a code.

        """
    def connect(self, updates: bool, ring: int, segment: int, uuid: bytes, /) -> int: ...
    def connect_batches(
        self, table: int, ring: int, segment: int, uuid: bytes, rank: int, world_size: int, /
    ) -> int: ...
    def put(self, number: int, n: int, leaves: int, /) -> int:
        """Does what ``es_replay_put`` does. ``leaves`` is the address of an array of addresses."""
    def disconnect(self) -> int: ...
    def turn(
        self, most: int, /
    ) -> tuple[int, int, int, int, int, int, int, tuple[int, int, int, int], tuple[int, ...]] | int:
        """Does what ``es_replay_turn`` does.

        Returns:
            How much it was; what stopped the steps, and the updates; the table whose limiter holds back a step;
            whether a sweep is due; how much was refused; how many items are parked; the ring of batches that somebody
            asks for, as its table, batch size (0: nobody asks), number of batches, and how many such rings take turns;
            and for each ring of batches why it got no more.

        """
    def save_begin(
        self, directory: int, records: int, drawn: int, first: int, rows: int, /
    ) -> tuple[int, bytes, bytes] | int:
        """Begins a checkpoint, as ``es_checkpoint_begin`` does: the numbers are the fields of an ``es_save_config``.

        Returns:
            The address of an ``es_save``, for :meth:`save_end` and then ``es_checkpoint_free``, the bytes of an
            ``es_save_state``, and those of an ``es_environment`` for each environment; or a code.

        """
    def save_some(self, save: int, /) -> int | None:
        """Writes some rows: how many bytes of them are done so far, or a code. None: there are none left.

        Other calls run meanwhile.
        """
    def save_end(self, save: int, /) -> int:
        """Ends a checkpoint: a code. It belongs to the caller then, also of a replay that is closed."""
    def restore(self, drawn: bytes, stream: int, environments: bytes, /) -> int:
        """Takes what a checkpoint has beside the store: a code.

        ``drawn``: as ``es_checkpoint_drawn`` takes it; empty: none. ``environments``: as :meth:`save_begin` gave them,
        at least one.
        """
    def snapshot(self, address: int, /) -> int:
        """Brings the copy of the records at that address up to date: how many bytes were changed. Or a code."""
    def snapshot_done(self) -> int:
        """The last copy is on the disk. A code."""
    def hold(self, address: int, /) -> int:
        """The store was opened just now, and its last copy is at that address. 0: none is of use any more. A code."""
    def room(self) -> int:
        """How many steps can be stored before the next copy is on the disk. Or a code."""
    def close(self) -> None:
        """Lets go of the store, once a call that runs has ended. In a forked child it does nothing. Idempotent."""
