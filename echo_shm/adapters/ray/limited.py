"""Draws over tables whose items are drawn a limited number of times, such as queues: none of them may be lost.

An item that was drawn has gone from its shard. So a learner leaves all items with their shards until a whole batch is
there, and says that it is done with them when its user asks for the next one. If it is killed before that, other
learners get them.

There are two exceptions. A shard holds a bounded number of items that were drawn and are not done. Learners that share
them could wait for each other without end. So where nothing comes for a while, and only this learner can make room, it
takes what is there, says that it is done with that, and keeps it for its batch. It does the same with the items of a
shard that is about to be handed over. Once that takes nothing more, what a learner has of it is its own, and what none
has goes along.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from echo_shm.adapters.ray.filling import Filling, Left, RayBatch, left_of
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

    def is_known(self, number: int) -> bool:
        """Whether it is one of them, also while nothing is heard of it."""

    def stock(self, number: int) -> Items:
        """Those of one of them."""


class _Limited:
    """Batches over several shards.

    Args:
        shards: The shards.
        n: Items of a batch.
        beta: The exponent of the importance weights.
        left: What the iteration before had of a batch when it ended, and was done with; it comes first. Then what this
            one has.

    """

    def __init__(self, shards: Shards, n: int, beta: float, left: deque[Left]) -> None:
        self._shards, self._n, self._beta, self._left = shards, n, beta, left
        self._stocks: dict[int, Items] = {}
        self._masses: Mapping[int, Mass] = {}
        self._shares = Shares({}, beta, 0.0)
        self._begin()
        self._is_in_use = False

    def _begin(self) -> None:
        self._filling, self._filled, self._share_at = Filling(self._n), 0, np.ones(self._n)
        self._places = self._order_of_places()
        self._there, self._since = -1, 0.0  # how many items were there, and since when as many

    def _order_of_places(self) -> npt.NDArray[np.int64]:
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
        filled, share, self._is_in_use = self._filling, self._share_at, True
        self._begin()
        return filled.done(self._shares, share)

    def _gather(self) -> bool:
        """Fills the batch, if all that is missing is there. Returns whether nothing is missing."""
        there, is_all = self._count()
        if is_all:
            if self._take_all():
                return True
            self._done()  # one has gone to another learner: the others must not be held while this one waits
            return False
        if there != self._there:
            self._there, self._since = there, time.monotonic()
        for number in [one for one in self._stocks if self._must_take(one)]:
            for _ in range(min(self._of(number).count(self._missing), self._missing)):
                self._take(number)
            self._of(number).done()
        return not self._missing

    @property
    def _missing(self) -> int:
        return self._n - self._filled

    def _count(self) -> tuple[int, bool]:
        """How many items of the batch are there, and whether all that are missing are."""
        raise NotImplementedError

    def _take_all(self) -> bool:
        """Takes them. Returns False if one is not there any more."""
        raise NotImplementedError

    def _must_take(self, number: int) -> bool:
        """Whether what is there of a shard has to be taken, though the batch is not whole."""
        stock = self._of(number)
        # Nobody waits for room in a shard that is absent.
        has_waited = time.monotonic() - self._since > PATIENCE and number in self._masses
        return stock.is_settling or (has_waited and stock.is_full)

    def _look(self) -> None:
        """What the shards say now. Those that are gone, or absent, are not waited for.

        The stock of an absent one stays: it knows what is done, and the shard has not heard it. Another stock would get
        that again.
        """
        masses, age = self._shards.masses()
        if masses is not self._masses:
            self._masses, self._shares = masses, Shares(masses, self._beta, age)
            for number, stock in tuple(self._stocks.items()):
                if number not in masses and (stock.is_settling or not self._shards.is_known(number)):
                    self._leave(number)
        self._shares.age = age

    def _leave(self, number: int) -> None:
        stock = self._stocks.pop(number)
        while stock.is_settling and stock.count(self._n) and (item := stock.take()) is not None:
            self._left.append(left_of(number, 1.0, item))  # nobody else can have it there
        self._end(number, stock)

    def _end(self, number: int, stock: Items) -> None:
        self._left.extend(Left(number, 1.0, item) for item in stock.close())

    def _of(self, number: int) -> Items:
        stock = self._stocks.get(number)
        if stock is None:
            stock = self._stocks[number] = self._shards.stock(number)
        return stock

    def _take(self, number: int) -> bool:
        """Takes an item of a shard, if it is still there."""
        item = self._of(number).take()
        if item is not None:
            self._put(Left(number, self._shares.share.get(number, 1.0), item))
        return item is not None

    def _put(self, one: Left) -> None:
        place = self._places[self._filled : self._filled + 1]
        self._filling.put(place, one.number, one.item, slice(0, 1))
        self._share_at[place] = one.share
        self._filled += 1

    def _done(self) -> None:
        """All that was taken is done."""
        for stock in self._stocks.values():
            stock.done()

    def close(self) -> None:
        """Ends. What was not taken goes back; what was taken for a batch that is not whole is kept for the next one."""
        self._left.extendleft(reversed(self._filling.left(self._share_at)))
        for number, stock in self._stocks.items():
            self._end(number, stock)


class LimitedMixer(_Limited):
    """Batches over several shards, whose tables are drawn from by weights.

    Args:
        random: Chooses the shards.
        shards, n, beta, left: As for all.

    """

    def __init__(self, shards: Shards, n: int, beta: float, random: np.random.Generator, left: deque[Left]) -> None:
        self._random = random
        self._planned: Counter[int] = Counter()  # how many items are to come of each shard
        super().__init__(shards, n, beta, left)

    def _order_of_places(self) -> npt.NDArray[np.int64]:
        return self._random.permutation(self._n)  # places in a batch are alike

    def _count(self) -> tuple[int, bool]:
        is_planned = self._plan()
        for number, stock in self._stocks.items():
            if number not in self._planned:
                stock.count(0)  # others may have what is there
        there = sum(min(k, self._of(number).count(k)) for number, k in self._planned.items())
        return there, is_planned and there == self._missing

    def _take_all(self) -> bool:
        return all(self._take(number) for number in list(self._planned.elements()))

    def _take(self, number: int) -> bool:
        taken = super()._take(number)
        self._planned -= Counter({number: taken})
        return taken

    def _plan(self) -> bool:
        """Says whose items the missing ones are to be. Returns whether that is known of all."""
        share, planned = self._shares.share, self._planned
        # Where a table is empty, no more come than were drawn ahead.
        self._planned = planned = Counter(
            {
                number: k if number in share else min(k, self._of(number).count(k))
                for number, k in planned.items()
                if number in self._masses
            }
        )
        if planned.total() > self._missing:  # items came that were not planned
            kept = self._random.multivariate_hypergeometric(list(planned.values()), self._missing)
            self._planned = planned = Counter(dict(zip(planned, kept.tolist(), strict=True)))
        more = self._missing - planned.total()
        if more:
            # What was drawn ahead has gone from an empty table, and comes first.
            ahead = {
                number: max(0, self._of(number).count(planned[number] + more) - planned[number])
                for number in self._masses
                if number not in share
            }
            some = min(more, sum(ahead.values()))
            if some:
                chosen = self._random.multivariate_hypergeometric(list(ahead.values()), some)
                planned += Counter(dict(zip(ahead, chosen.tolist(), strict=True)))
            more -= some
            if more and share:
                planned += Counter(self._shares.choose(self._random, more).tolist())
                more = 0
        self._planned = +planned
        return not more


class LimitedMerger(_Limited):
    """Batches over several shards, whose tables are drawn from in an order: see :mod:`echo_shm.adapters.ray.merging`.

    Args:
        sampler: The tables' sampler.
        shards, n, left: As for all.

    """

    def __init__(self, shards: Shards, n: int, sampler: object, left: deque[Left]) -> None:
        self._order = Order(sampler, self._priority)
        self._counts: Counter[int] = Counter()  # how many items of each shard are there
        self._priorities: dict[int, float] = {}  # of the next items that were looked at
        super().__init__(shards, n, 0.0, left)

    def _count(self) -> tuple[int, bool]:
        self._priorities.clear()
        self._counts = Counter({number: self._of(number).count(self._missing) for number in self._masses})
        return self._counts.total(), self._counts.total() >= self._missing

    def _take_all(self) -> bool:
        while self._missing:
            number = self._order.first(list(+self._counts), self._masses)
            self._priorities.pop(number, None)
            if not self._take(number):
                return False
            self._counts[number] -= 1
        return True

    def _priority(self, number: int) -> float:
        """Of a shard's next item."""
        found = self._priorities.get(number)
        if found is None:
            item = self._of(number).peek()
            # One that is not there any more is noticed when it is taken.
            found = self._priorities[number] = 0.0 if item is None else float(item.priority[0])
        return found
