"""Draws over the tables of several shards as if they were one table.

A sampler draws an item by its weight ``w``. In one table with all items it would come with ``w / sum(mass)``, where a
shard's mass is the sum of its weights. That is the shard's share, ``mass / sum(mass)``, times the ``w / mass`` with
which the shard's own table draws it. So each draw first chooses a shard by the shares, and then takes what that shard
has drawn next. Where all weights are 0, all items are alike, as they are in one table: then shares go by sizes.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import optree

from echo_shm.adapters.ray.sources import PREFETCH, Source
from echo_shm.replay import Batch, TableInfo
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


class Mass(NamedTuple):
    """What a shard's table says of itself.

    Attributes:
        size: Its items.
        log_mass: The logarithm of the sum of their weights; ``-inf`` if that is 0.
        log_least: The logarithm of the least positive weight; ``inf`` if there is none.

    """

    size: int
    log_mass: float
    log_least: float


def mass_of(info: TableInfo) -> Mass:
    """What a table's figures say."""
    if math.isnan(info.log_mass):  # the sampler goes by an order: sizes count
        return Mass(info.size, -math.inf, math.inf)
    return Mass(info.size, info.log_mass, info.least_log_weight)


class Shares:
    """What the masses of all shards at one time say of each.

    Args:
        masses: Of each shard, by its number.
        beta: The exponent of the importance weights.
        age: How old they were, in seconds.

    Attributes:
        share: With which probability a draw is of each shard; empty if there are no items.
        size: Items of all.
        age: As given.

    """

    def __init__(self, masses: Mapping[int, Mass], beta: float, age: float) -> None:
        self.size, self.age, self._beta = sum(one.size for one in masses.values()), age, beta
        greatest = max((one.log_mass for one in masses.values()), default=-math.inf)
        self._by_weight = greatest > -math.inf
        if self._by_weight:
            chosen = {number: math.exp(one.log_mass - greatest) for number, one in masses.items()}
        else:
            chosen = {number: float(one.size) for number, one in masses.items()}
        total = sum(chosen.values())
        self.share = {number: part / total for number, part in chosen.items() if part > 0}
        log_least = min((one.log_least for one in masses.values()), default=math.inf)
        #: Of the least likely item.
        self._least = math.exp(log_least - greatest) / total if self._by_weight and log_least < math.inf else 0.0
        self._numbers, self._p = list(self.share), np.array(list(self.share.values()))

    def choose(self, random: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        """The shard of each of n draws. There must be items."""
        return np.array(self._numbers)[random.choice(len(self._p), n, p=self._p)]

    def weights(self, probability: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Importance weights of items by their probabilities among all: 1 for the least likely one, as in one table."""
        if self._least == 0:
            return np.ones(len(probability))
        return np.maximum(probability / self._least, 1.0) ** -self._beta


class Shards(Protocol):
    """All shards, as a learner sees them."""

    def masses(self) -> tuple[Mapping[int, Mass], float]:
        """Of those that are there, and how old they are (seconds). The same object as before: nothing is new."""

    def source(self, number: int) -> Source:
        """One of them, from the beginning."""


class Drawn:
    """What one shard has drawn, and no batch has taken yet.

    Args:
        source: The shard.
        n: Items of a batch of all shards.

    """

    def __init__(self, source: Source, n: int) -> None:
        self._source, self._n = source, n
        self._size = 0
        self.batch: Batch | None = None
        self._used = 0

    def take(self, k: int, most: int, whole: bool) -> Iterator[tuple[Batch, slice]]:
        """The next items, k at most, in parts of batches; fewer if there are no more now.

        Each part is to be used before the next one is asked for.

        Args:
            k: At least 1.
            most: How many the shard should draw at a time, from its next batch on: about so many.
            whole: Exactly so many.

        """
        while k and self.fill(most, whole):
            assert self.batch is not None
            part = slice(self._used, min(len(self.batch.key), self._used + k))
            self._used, k = part.stop, k - (part.stop - part.start)
            yield self.batch, part

    def fill(self, most: int, whole: bool) -> bool:
        """Whether there is an item to take, as :meth:`take` takes it."""
        if self.batch is None or self._used == len(self.batch.key):
            self.batch = None  # its place is taken until nothing refers to it
            # A power of two, so that there are few different ones; changed only where it is far off.
            wanted = most if whole else 1 << max(0, most.bit_length() - 1)
            if not (self._size == wanted if whole else wanted / 4 < self._size <= 2 * wanted):
                self._size = wanted
                self._source.ask(wanted, self._n if whole and wanted == 1 else PREFETCH)
            self.batch, self._used = self._source.next(), 0
        return self.batch is not None

    @property
    def place(self) -> int:
        """Where the next item is in :attr:`batch`."""
        return self._used

    def close(self) -> None:
        """Ends. What was drawn is dropped."""
        self.batch, self._size = None, 0
        self._source.close()


class Filling:
    """A batch that is being filled."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._batch: RayBatch | None = None

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


class Mixer:
    """Batches over several shards, whose tables are drawn from by weights.

    Args:
        shards: The shards.
        n: Items of a batch.
        beta: The exponent of the importance weights.
        least: How many items there are in all, at least, where a batch is drawn.
        random: Chooses the shards.
        singly: Shards draw one item at a time. What a shard has drawn of a batch that is not full yet reaches nobody,
            and where items are drawn a limited number of times it would stay there at the end.

    """

    def __init__(
        self, shards: Shards, n: int, beta: float, least: int, random: np.random.Generator, *, singly: bool = False
    ) -> None:
        self._shards, self._n, self._beta, self._least, self._random = shards, n, beta, least, random
        self._singly = singly
        self._drawn: dict[int, Drawn] = {}
        self._masses: Mapping[int, Mass] = {}
        self._shares = Shares({}, beta, 0.0)
        self._chosen: npt.NDArray[np.int64] | None = None
        self._missing: dict[int, npt.NDArray[np.int64]] = {}
        self._filling = Filling(n)

    def next(self) -> RayBatch | None:
        """The next batch; None: not now. What of it is there stays for the next call."""
        self._look()
        if not self._shares.share or (self._chosen is None and self._shares.size < self._least):
            return None
        if self._chosen is None:
            self._choose()
        self._choose_again()
        if len(self._missing) == 1 and (found := self._from_one()) is not None:
            return found
        for number, places in list(self._missing.items()):
            for part, rows in self._of(number).take(len(places), *self._most(number)):
                k = rows.stop - rows.start
                self._filling.put(places[:k], number, part, rows)
                places = places[k:]
            if len(places):
                self._missing[number] = places
            else:
                del self._missing[number]
        if self._missing:
            return None
        assert self._chosen is not None
        # A shard that went meanwhile has no share any more; its items came by the one that it had.
        share = np.array([self._shares.share.get(one, self._share[one]) for one in self._chosen.tolist()])
        filled, self._filling, self._chosen = self._filling, Filling(self._n), None
        return filled.done(self._shares, share)

    def _look(self) -> None:
        """What the shards say now. Those that are gone, or absent, are not waited for."""
        masses, age = self._shards.masses()
        if masses is not self._masses:
            self._masses, self._shares = masses, Shares(masses, self._beta, age)
            for gone in [number for number in self._drawn if number not in masses]:
                self._drawn.pop(gone).close()
        if self._singly and not self._shares.share:
            # The tables are empty, but what was drawn ahead is not: it has gone from them.
            ready = [number for number in masses if self._of(number).fill(1, True)]
            self._shares = Shares({number: Mass(1, -math.inf, math.inf) for number in ready}, self._beta, age)
        self._shares.age = age

    def _choose(self) -> None:
        """The shards of the next batch."""
        chosen = self._chosen = self._shares.choose(self._random, self._n)
        self._share = dict(self._shares.share)
        self._missing = {number: np.flatnonzero(chosen == number) for number in np.unique(chosen).tolist()}

    def _choose_again(self) -> None:
        """Others for draws of shards that have nothing any more."""
        assert self._chosen is not None
        for gone in [number for number in self._missing if number not in self._shares.share]:
            places = self._missing.pop(gone)
            chosen = self._chosen[places] = self._shares.choose(self._random, len(places))
            for number in np.unique(chosen).tolist():
                more = [self._missing.get(number, places[:0]), places[chosen == number]]
                self._missing[number] = np.concatenate(more)
                self._share.setdefault(number, self._shares.share[number])

    def _from_one(self) -> RayBatch | None:
        """The batch, if all of it is of one shard and comes whole: then nothing is copied."""
        ((number, places),) = self._missing.items()
        most, whole = self._most(number)
        drawn = self._of(number)
        if len(places) < self._n or not whole or not drawn.fill(most, whole) or drawn.place:
            return None
        ((batch, rows),) = drawn.take(self._n, most, whole)
        if rows.stop < self._n:
            self._filling.put(places[: rows.stop], number, batch, rows)
            self._missing[number] = places[rows.stop :]
            return None
        drawn.batch, self._chosen, self._missing = None, None, {}
        return of_one(number, batch, self._shares)

    def _of(self, number: int) -> Drawn:
        drawn = self._drawn.get(number)
        if drawn is None:
            drawn = self._drawn[number] = Drawn(self._shards.source(number), self._n)
        return drawn

    def _most(self, number: int) -> tuple[int, bool]:
        """How many items a shard should draw at a time, and whether exactly so many: if nearly all are its own."""
        if self._singly:
            return 1, True
        expected = self._n * self._shares.share[number]
        return (self._n, True) if expected > self._n - 0.5 else (max(1, int(expected)), False)

    def close(self) -> None:
        """Ends all iterations."""
        for one in self._drawn.values():
            one.close()
