"""Draws over the tables of several shards whose samplers go by an order.

Each shard draws its own items in that order, so the next item of all is one of the shards' next ones. For heaps it is
that of the highest, or lowest, priority. For ``Fifo`` and ``Lifo`` nothing says which of two nodes' items came first.
There shards take turns in proportion to their sizes. So the items of all shards wait equally long: a shard with twice
as many is drawn from twice as often.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from echo_shm.adapters.ray.filling import Filling, RayBatch, of_one
from echo_shm.adapters.ray.mixing import Drawn, Shards, Unlimited
from echo_shm.adapters.ray.shares import Mass, Shares
from echo_shm.replay import Fifo, Lifo, MaxHeap, MinHeap

#: The samplers that go by an order.
ORDERED = (Fifo, Lifo, MinHeap, MaxHeap)


class Order:
    """Which shard's next item is the next of all.

    Args:
        sampler: The tables' sampler: one of ``ORDERED``.
        priority: Of a shard's next item, by the shard's number.

    """

    def __init__(self, sampler: object, priority: Callable[[int], float]) -> None:
        self._sign = 1.0 if isinstance(sampler, MinHeap) else -1.0 if isinstance(sampler, MaxHeap) else None
        self._priority = priority
        self._credit: dict[int, float] = {}

    def first(self, ready: Iterable[int], masses: Mapping[int, Mass]) -> int:
        """One of the shards that have an item. ``masses``: what the shards said of themselves."""
        sign = self._sign
        if sign is not None:
            return min(ready, key=lambda number: sign * self._priority(number))
        # The one that is furthest behind what its size makes due.
        sizes = {number: max(1, masses[number].size) for number in ready}
        total = sum(sizes.values())
        for number, size in sizes.items():
            self._credit[number] = self._credit.get(number, 0.0) + size / total
        first = max(sizes, key=lambda number: self._credit[number])
        self._credit[first] -= 1.0
        return first


class Merger(Unlimited):
    """Batches over several shards, whose tables are drawn from in an order.

    Args:
        shards: The shards.
        n: Items of a batch.
        sampler: The tables' sampler: one of ``ORDERED``.
        least: How many items there are in all, at least, where a batch is drawn.

    """

    def __init__(self, shards: Shards, n: int, sampler: object, least: int) -> None:
        super().__init__()
        self._shards, self._n, self._least = shards, n, least
        self._order = Order(sampler, self._priority)
        self._masses: Mapping[int, Mass] = {}
        self._shares = Shares({}, 0.0, 0.0)
        self._filling, self._filled = Filling(n), 0

    def _next(self) -> RayBatch | None:
        self._look()
        if not self._filled and self._shares.size < self._least:
            return None
        if len(self._drawn) == 1 and not self._filled:
            return self._from_one()
        # All together draw no more than a batch at a time.
        most = max(1, self._n // max(1, len(self._drawn))), False
        while self._filled < self._n:
            # A shard that has nothing when it is asked has its turn in the next call: no other one waits for it.
            ready = [number for number, drawn in self._drawn.items() if drawn.fill(*most)]
            if not ready:
                return None
            number = self._order.first(ready, self._masses)
            for part, rows in self._drawn[number].take(1, *most):
                self._filling.put(np.array([self._filled]), number, part, rows)
            self._filled += 1
        filled, self._filling, self._filled = self._filling, Filling(self._n), 0
        return filled.done(self._shares, np.ones(self._n))

    def _from_one(self) -> RayBatch | None:
        """The next batch of the only shard, without a copy."""
        ((number, drawn),) = self._drawn.items()
        for part, rows in drawn.take(self._n, self._n, True):
            if rows.start == 0 and rows.stop == self._n:
                drawn.batch = None
                return of_one(number, part, self._shares)
            count = rows.stop - rows.start  # it was drawn when there were more shards
            self._filling.put(np.arange(self._filled, self._filled + count), number, part, rows)
            self._filled += count
        return None

    def _look(self) -> None:
        masses, age = self._shards.masses()
        if masses is not self._masses:
            self._masses, self._shares = masses, Shares(masses, 0.0, age)
            for gone in [number for number in self._drawn if number not in masses]:
                self._drawn.pop(gone).close()
            for new in [number for number in masses if number not in self._drawn]:
                self._drawn[new] = Drawn(self._shards.source(new))
        self._shares.age = age

    def _priority(self, number: int) -> float:
        """Of a shard's next item."""
        drawn = self._drawn[number]
        assert drawn.batch is not None
        return float(drawn.batch.priority[drawn.place])
