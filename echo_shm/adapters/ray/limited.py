"""Draws over tables whose items are drawn a limited number of times, such as queues: none of them may be lost.

An item that was drawn has gone from its shard. So a learner leaves all items with their shards until a whole batch is
there, and says that it is done with them when its user asks for the next one. If it is killed before that, other
learners get them.

There are two exceptions. A shard holds a bounded number of items that were drawn and are not done: where several
learners share them and each waits for more, none could go on. And a shard that is about to be handed over leaves
nothing behind. So a learner to which nothing comes and that nobody else can make room for, or that has items of such a
shard, takes what is there, says that it is done with that, and keeps it for its batch.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from echo_shm.adapters.ray.filling import Filling, Left, RayBatch
from echo_shm.adapters.ray.merging import Order
from echo_shm.adapters.ray.shares import Mass, Shares
from echo_shm.replay.stock import Stock

#: How long a learner to which nothing comes keeps others waiting for the room that it has (seconds).
PATIENCE = 0.1


class Items(Stock, Protocol):
    """The items of one shard."""

    @property
    def is_settling(self) -> bool:
        """Whether what is there is to be taken soon, and done: the shard is about to be handed over."""


class Shards(Protocol):
    """All shards, as a learner of such a table sees them."""

    def masses(self) -> tuple[Mapping[int, Mass], float]:
        """Of those that are there, and how old they are (seconds). The same object as before: nothing is new."""

    def stock(self, number: int) -> Items:
        """Those of one of them."""


class _Limited:
    """Batches over several shards.

    Args:
        shards: The shards.
        n: Items of a batch.
        beta: The exponent of the importance weights.
        least: How many items there are in all, at least, where a batch is drawn.
        left: What the iteration before had of a batch when it ended, and was done with; it comes first. Then what this
            one has.

    """

    def __init__(self, shards: Shards, n: int, beta: float, least: int, left: deque[Left]) -> None:
        self._shards, self._n, self._beta, self._least, self._left = shards, n, beta, least, left
        self._stocks: dict[int, Items] = {}
        self._masses: Mapping[int, Mass] = {}
        self._shares = Shares({}, beta, 0.0)
        self._begin()
        self._is_in_use = False
        self._there, self._since = 0, 0.0  # how many items were there, and since when as many

    def _begin(self) -> None:
        self._filling, self._filled, self._share = Filling(self._n), 0, np.ones(self._n)
        self._places = self._order_of_places()

    def _order_of_places(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(self._n)

    def next(self) -> RayBatch | None:
        """The next batch; None: not now. What was in the last one is done."""
        if self._is_in_use:
            self._is_in_use = False
            self._done()
        self._look()
        with contextlib.suppress(IndexError):
            while self._filled < self._n:
                self._put(self._left.popleft())
        if self._filled < self._n and not self._gather():
            return None
        filled, share, self._is_in_use = self._filling, self._share, True
        self._begin()
        return filled.done(self._shares, share)

    def _gather(self) -> bool:
        """Fills the batch, if all that is missing is there. Returns whether nothing is missing."""
        raise NotImplementedError

    def _look(self) -> None:
        """What the shards say now. Those that are gone, or absent, are not waited for."""
        masses, age = self._shards.masses()
        if masses is not self._masses:
            self._masses, self._shares = masses, Shares(masses, self._beta, age)
            for gone in [number for number in self._stocks if number not in masses]:
                self._stocks.pop(gone).close()
        self._shares.age = age

    def _of(self, number: int) -> Items:
        stock = self._stocks.get(number)
        if stock is None:
            stock = self._stocks[number] = self._shards.stock(number)
        return stock

    def _waits(self, there: int) -> None:
        """Notes how many items are there of a batch that is not whole."""
        if there != self._there:
            self._there, self._since = there, time.monotonic()

    def _must_take(self, number: int) -> bool:
        """Whether what is there of a shard has to be taken, though the batch is not whole."""
        stock = self._of(number)
        return stock.is_settling or (time.monotonic() - self._since > PATIENCE and stock.is_full)

    def _take(self, number: int) -> bool:
        """Takes an item of a shard, if it is still there."""
        item = self._of(number).take()
        if item is not None:
            self._put(Left(number, self._shares.share.get(number, 1.0), item))
        return item is not None

    def _put(self, one: Left) -> None:
        place = self._places[self._filled : self._filled + 1]
        self._filling.put(place, one.number, one.item, slice(0, 1))
        self._share[place] = one.share
        self._filled += 1

    def _done(self) -> None:
        """All that was taken is done."""
        for stock in self._stocks.values():
            stock.done()

    def close(self) -> None:
        """Ends. What was not taken goes back; what was taken for a batch that is not whole is kept for the next one."""
        self._left.extendleft(reversed(self._filling.left(self._share)))
        for stock in self._stocks.values():
            stock.close()


class LimitedMixer(_Limited):
    """Batches over several shards, whose tables are drawn from by weights.

    Args:
        random: Chooses the shards.
        shards, n, beta, least, left: As for all.

    """

    def __init__(
        self, shards: Shards, n: int, beta: float, least: int, random: np.random.Generator, left: deque[Left]
    ) -> None:
        self._random = random
        self._planned: Counter[int] = Counter()  # how many items are to come of each shard
        super().__init__(shards, n, beta, least, left)

    def _order_of_places(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._random.permutation(self._n)  # places in a batch are alike

    def _gather(self) -> bool:
        if not self._choose():
            return False
        there = {number: min(k, self._of(number).count(k)) for number, k in self._planned.items()}
        if sum(there.values()) < self._planned.total():
            self._waits(sum(there.values()))
            for number in [one for one in there if self._must_take(one)]:
                while self._planned[number] and self._take_planned(number):
                    pass
                self._of(number).done()
            return False
        while self._planned:
            if not self._take_planned(next(iter(self._planned))):
                self._done()  # it has gone to another learner: what is there must not be held while this one waits
                return False
        return True

    def _take_planned(self, number: int) -> bool:
        taken = self._take(number)
        self._planned[number] -= taken
        self._planned += Counter()  # without those of which nothing is to come
        return taken

    def _choose(self) -> bool:
        """Plans whose items the missing ones are to be. Returns whether all are planned."""
        share = self._shares.share
        self._planned = Counter({number: k for number, k in self._planned.items() if number in self._masses})
        # Where a table is empty, what was drawn ahead has gone from it, and comes first.
        ahead = {}
        for number in [one for one in self._masses if one not in share]:
            ready = self._of(number).count(self._n)
            self._planned[number] = min(self._planned[number], ready)
            ahead[number] = ready - self._planned[number]
        more = self._n - self._filled - self._planned.total()
        some = min(more, sum(ahead.values()))
        if some:
            chosen = self._random.multivariate_hypergeometric(list(ahead.values()), some)
            self._planned += Counter(dict(zip(ahead, chosen.tolist(), strict=True)))
        if more > some:
            if not share or (not self._filled and self._shares.size < self._least):
                return False
            self._planned += Counter(self._shares.choose(self._random, more - some).tolist())
        self._planned += Counter()
        return True


class LimitedMerger(_Limited):
    """Batches over several shards, whose tables are drawn from in an order: see :mod:`echo_shm.adapters.ray.merging`.

    Args:
        sampler: The tables' sampler.
        shards, n, least, left: As for all.

    """

    def __init__(self, shards: Shards, n: int, sampler: object, least: int, left: deque[Left]) -> None:
        self._order = Order(sampler, self._priority)
        self._priorities: dict[int, float] = {}  # of the next items that were looked at
        super().__init__(shards, n, 0.0, least, left)

    def _gather(self) -> bool:
        self._priorities.clear()
        wanted = self._n - self._filled
        there = Counter({number: self._of(number).count(wanted) for number in self._masses})
        if not self._filled and self._shares.size + there.total() < self._least:
            return False
        if there.total() < wanted:
            self._waits(there.total())
            now = Counter({number: k for number, k in there.items() if self._must_take(number)})
            self._take_in_order(now, now.total())
            for number in now:
                self._of(number).done()
            return False
        if not self._take_in_order(there, wanted):
            self._done()  # one has gone to another learner: what is there must not be held while this one waits
            return False
        return True

    def _take_in_order(self, there: Counter[int], wanted: int) -> bool:
        """Takes so many of those that are there. Returns False if one is not there any more."""
        for _ in range(wanted):
            number = self._order.first([one for one, k in there.items() if k > 0], self._masses)
            self._priorities.pop(number, None)
            if not self._take(number):
                return False
            there[number] -= 1
        return True

    def _priority(self, number: int) -> float:
        """Of a shard's next item."""
        found = self._priorities.get(number)
        if found is None:
            item = self._of(number).peek()
            # One that is not there any more is noticed when it is taken.
            found = self._priorities[number] = 0.0 if item is None else float(item.priority[0])
        return found
