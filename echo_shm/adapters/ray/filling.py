"""Batches whose items come from several shards."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import optree

from echo_shm.adapters.ray.shares import Shares
from echo_shm.replay import Batch
from echo_shm.spec import Array, Tree

#: Of a key: the shard's number, and the item's key there.
KEY = np.dtype([("shard", np.uint64), ("key", np.uint64)])


class RayBatch(NamedTuple):
    """n items of a table of all shards. It is a named tuple, and so a pytree of arrays.

    Attributes:
        data: The items, as in a :class:`~echo_shm.replay.Batch`.
        key: Names each item among all shards. Shape ``(n,)``, of a structured dtype: ``"shard"``, the shard's number,
            and ``"key"``, the item's key there; both uint64.
        probability: With which the item was drawn from all of them; float64 of shape ``(n,)``, as the others have it.
        weight: The importance weight over all shards, at most 1; float64.
        priority, times_sampled, versions: As in a :class:`~echo_shm.replay.Batch`.
        table_size: How many items the tables of all shards held; int64.
        age: How many items were inserted into the item's own shard after it; int64.
        mass_age: How old the oldest of the masses was by which shards were chosen, in seconds; float64.

    """

    data: Tree
    key: npt.NDArray[np.void]
    probability: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    priority: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int64]
    table_size: npt.NDArray[np.int64]
    age: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    mass_age: npt.NDArray[np.float64]


class Left(NamedTuple):
    """An item that a shard has given away, and that is in no batch yet.

    Attributes:
        number: The shard's.
        share: The shard's share of the draws then.
        item: A batch of this item alone. Its arrays are its own.

    """

    number: int
    share: float
    item: Batch


def copied(batch: Batch, rows: slice) -> Batch:
    """A copy of items of a shard's batch."""
    data = optree.tree_map(lambda leaf: leaf[rows].copy(), batch.data)
    return Batch._make([data, *(column[rows].copy() for column in batch[1:])])


def left_of(number: int, share: float, part: Batch, i: int = 0) -> Left:
    """A copy of an item of a shard's batch, and whose it is."""
    return Left(number, share, copied(part, slice(i, i + 1)))


class Filling:
    """A batch that is being filled."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._batch: RayBatch | None = None
        self._filled = np.zeros(n, bool)

    def put(self, places: npt.NDArray[np.int64], number: int, part: Batch, rows: slice) -> None:
        """Copies items of a shard to their places."""
        if self._batch is None:
            data = optree.tree_map(lambda leaf: np.empty((self._n, *leaf.shape[1:]), leaf.dtype), part.data)
            columns = [np.empty(self._n, column.dtype) for column in part[2:]]
            self._batch = RayBatch._make([data, np.empty(self._n, KEY), *columns, np.empty(self._n)])
        mine = self._batch
        for to, of in zip(optree.tree_leaves(mine.data), optree.tree_leaves(part.data), strict=True):
            to[places] = of[rows]
        mine.key["shard"][places], mine.key["key"][places] = number, part.key[rows]
        for name in ("probability", "priority", "times_sampled", "age", "versions"):
            getattr(mine, name)[places] = getattr(part, name)[rows]
        self._filled[places] = True

    def left(self, share: Array) -> list[Left]:
        """What is in it, if it is given up. ``share``: of each item's shard."""
        found = []
        for place in np.flatnonzero(self._filled).tolist():
            assert self._batch is not None
            data, key, *columns, _ = self._batch
            item = Batch._make([data, key["key"], *columns])
            found.append(left_of(int(key["shard"][place]), float(share[place]), item, place))
        return found

    def done(self, shares: Shares, share: Array) -> RayBatch:
        """The batch. Nothing is missing in it any more.

        Args:
            shares: Of that time.
            share: Of each item's shard.

        """
        assert self._batch is not None
        return _finished(self._batch, shares, share)


def _finished(batch: RayBatch, shares: Shares, share: Array | float) -> RayBatch:
    """What concerns all shards. So far ``probability`` is that in its own shard."""
    probability = share * batch.probability
    n = len(probability)
    return batch._replace(
        probability=probability,
        weight=shares.weights(probability),
        table_size=np.full(n, shares.size),
        mass_age=np.full(n, shares.age),
    )


def of_one(number: int, batch: Batch, shares: Shares) -> RayBatch:
    """A batch whose items are all of one shard, without a copy."""
    key = np.empty(len(batch.key), KEY)
    key["shard"], key["key"] = number, batch.key
    return _finished(RayBatch._make([batch.data, key, *batch[2:], None]), shares, shares.share.get(number, 1.0))
