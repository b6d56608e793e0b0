"""Steps of a replay by an index of one's own, as Tianshou's buffers need it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import optree
from tianshou.data import Batch as TianshouBatch
from tianshou.data import to_numpy

from echo_shm.replay import Batch, CustomSelector, Replay, Table
from echo_shm.replay.selectors import Selector
from echo_shm.spec import Array, Tree

#: The part of a key that is an index into arrays: see :class:`CustomSelector`.
_SLOT = np.uint64(0xFFFF_FFFF)


class _Order(CustomSelector):
    """A remover that takes the oldest item, as Fifo does; it also tells what the keys of new items are."""

    def __init__(self) -> None:
        self.keys: dict[int, None] = {}
        self.new: list[int] = []

    def insert(self, key: int, priority: float) -> None:
        self.keys[key] = None
        self.new.append(key)

    def update(self, key: int, priority: float) -> None:
        """Priorities do not matter."""

    def remove(self, key: int) -> None:
        del self.keys[key]

    def draw(self, numbers: npt.NDArray[np.float64]) -> tuple[Any, Any]:
        return [next(iter(self.keys))] * len(numbers), [1.0] * len(numbers)

    def probability(self, key: int) -> float:
        return float(key == next(iter(self.keys)))


class Rows:
    """A replay of at most ``size`` steps that stay where they are put, at indices from 0 to ``size - 1``.

    Args:
        size: How many indices there are.
        most: Most steps of one call of :meth:`append`.
        sampler: Of the replay's table.
        options: As for :class:`Replay`.

    """

    def __init__(self, size: int, most: int, sampler: Selector, **options: Any) -> None:
        self._order = _Order()
        self._table = Table("default", sampler, self._order)
        self._capacity, self._options = size + most, options
        self._replay: Replay | None = None
        self._dtypes: Any = None
        self._keys = np.zeros(size, np.uint64)  # of the step at an index, if there is one
        self._every = np.arange(size)
        self._there = np.zeros(size, np.bool_)
        self._index_of = np.zeros(self._capacity + 257, np.int64)  # by the slot of a key
        self.null = np.zeros(size, np.bool_)  # whether the step has a NaN

    def append(self, steps: Tree) -> tuple[Array, Array]:
        """Stores steps: their keys, and whether each has a NaN. :meth:`put` or :meth:`drop` comes next.

        Args:
            steps: A tree of arrays of shape ``(n, *leaf.shape)``. Numbers are cast to the first step's dtypes if they
                are of the same kind.

        Raises:
            SpecMismatchError: A step is not like the first one.

        """
        if self._replay is None:
            example = optree.tree_map(lambda array: array[0], steps)
            self._replay = Replay(example, self._capacity, [self._table], **self._options)
            self._dtypes = optree.tree_map(lambda array: array.dtype, steps)
        elif optree.tree_structure(steps) == optree.tree_structure(self._dtypes):
            steps = optree.tree_map(_cast, steps, self._dtypes)
        self._order.new.clear()
        self._replay.extend(steps)
        null = np.zeros(len(self._order.new), np.bool_)
        for array in optree.tree_leaves(steps):
            if array.dtype.kind == "f":
                null |= np.isnan(array).reshape(len(null), -1).any(1)
        return np.array(self._order.new, np.uint64), null

    def put(self, indices: Array, appended: tuple[Array, Array]) -> None:
        """Puts the steps that :meth:`append` has stored at indices. Those that were there go."""
        assert self._replay is not None
        keys, null = appended
        self._replay.delete(self._keys[indices[self._there[indices]]])
        self._keys[indices], self._there[indices], self.null[indices] = keys, True, null
        self._index_of[(keys & _SLOT).astype(np.int64)] = indices

    def drop(self, appended: tuple[Array, Array]) -> None:
        """Removes the steps that :meth:`append` has stored."""
        assert self._replay is not None
        self._replay.delete(appended[0])

    def draw(self, n: int) -> tuple[Batch, Array]:
        """Draws steps: a batch, and their indices.

        Raises:
            IndexError: There are none.
            ConnectionClosedError: The replay is closed.

        """
        if self._replay is None or not self._there.any():
            raise IndexError("the buffer is empty: collect first")
        batch = self._replay.sample(n)
        if batch is None:
            self._replay.info()  # raises
        assert batch is not None
        return batch, self._index_of[(batch.key & _SLOT).astype(np.int64)]

    def read(self, index: Any) -> Batch:
        """The steps at an index, or at an array of them in C order.

        Raises:
            IndexError: There is no step at an index.

        """
        return self._open().get(self._keys_at(index))

    def update(self, index: Any, priorities: Any) -> None:
        """Gives the steps at indices priorities."""
        keys = self._keys_at(index)
        self._open().update(keys, np.broadcast_to(np.asarray(priorities, np.float64).reshape(-1), keys.shape))

    def _keys_at(self, index: Any) -> Array:
        indices = self._every[index].reshape(-1)
        there = self._there[indices]
        if not there.all():
            raise IndexError(f"index {indices[int(there.argmin())]}: no step is there")
        keys: Array = self._keys[indices]
        return keys

    def _open(self) -> Replay:
        if self._replay is None:
            raise IndexError("the buffer is empty: collect first")
        return self._replay

    def clear(self) -> None:
        """Removes all steps."""
        self._there[:] = self.null[:] = False
        if self._replay is not None:
            self._replay.reset()

    def close(self) -> None:
        """Ends the replay. Idempotent."""
        if self._replay is not None:
            self._replay.close()


class Column:
    """What stands for ``buffer.obs``, ``buffer.act`` and ``buffer.obs_next``: it reads from the replay at an index.

    Args:
        buffer: A buffer whose ``get()`` reads it.
        key: Its name.

    """

    def __init__(self, buffer: Any, key: str) -> None:
        self._buffer, self._key = buffer, key

    def __getitem__(self, index: Any) -> Any:
        return self._buffer.get(np.arange(self._buffer.maxsize)[index], self._key, stack_num=1)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"buffer.{self._key} is no array and has no {name!r}: use buffer[indices].{self._key}")

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise TypeError(f"buffer.{self._key} is in a replay and is no array: use buffer[indices].{self._key}")

    __array__ = __iter__ = __len__ = __setitem__ = _refuse


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    return array.astype(dtype, copy=False) if np.can_cast(array.dtype, dtype, "same_kind") else array


def arrays(tree: Any) -> Any:
    """A tree of dicts and arrays."""
    if isinstance(tree, dict | TianshouBatch):
        return {key: arrays(value) for key, value in tree.items()}
    return np.asarray(to_numpy(tree))


def at_index(tree: Any, index: Any) -> Any:
    """What was read at an index, in the shape of the index."""
    if isinstance(tree, dict):
        return {key: at_index(value, index) for key, value in tree.items()}
    shape = np.shape(index)
    return tree.reshape((*shape, *tree.shape[1:])) if shape else tree[0]
