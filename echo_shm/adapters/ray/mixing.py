"""Draws over the tables of several shards as if they were one table: see :mod:`echo_shm.adapters.ray.shares`.

Each draw first chooses a shard by the shares, and then takes what that shard has drawn next.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from echo_shm.adapters.ray.filling import Filling, RayBatch, copied, of_one
from echo_shm.adapters.ray.shares import Mass, Shares
from echo_shm.adapters.ray.sources import Source
from echo_shm.replay import Batch


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

    """

    def __init__(self, source: Source) -> None:
        self._source, self._size = source, 0
        self.batch: Batch | None = None
        self._used, self._is_copied = 0, False

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
            # A power of four, so that there are few different ones: each has a ring of its own, and a shard has room
            # for 32. It is changed only where it is far off.
            wanted = most if whole else 4 ** (max(0, most.bit_length() - 1) // 2)
            if not (self._size == wanted if whole else wanted / 4 < self._size <= 4 * wanted):
                self._size = wanted
                self._source.ask(wanted)
            self.batch, self._used, self._is_copied = self._source.next(), 0, False
        return self.batch is not None

    def next_whole(self, n: int) -> Batch | None:
        """The next n items; None: not now. What is left of another batch is dropped: draws do not depend on others."""
        if self.batch is not None and (self._used or len(self.batch.key) != n):
            self.batch = None
        return self.take_whole(n) if self.fill(n, True) else None

    def take_whole(self, n: int) -> Batch | None:
        """All n items of :attr:`batch`; None: they are fewer, or some were taken."""
        batch = self.batch
        if batch is None or self._used or len(batch.key) != n:
            return None
        self.batch = None
        return batch

    def let_go(self) -> None:
        """Copies what was not taken: the batch of a near shard has a place in its ring, which other learners wait for.

        They may be in the same thread, or have a batch that this learner waits for. A far shard's batch gives up its
        place by itself.
        """
        if self.batch is None or self._is_copied:
            return
        is_used_up = self._used == len(self.batch.key)
        self.batch = None if is_used_up else copied(self.batch, slice(self._used, None))
        self._used, self._is_copied = 0, True

    @property
    def place(self) -> int:
        """Where the next item is in :attr:`batch`."""
        return self._used

    def close(self) -> None:
        """Ends. What was drawn is dropped."""
        self.batch, self._size = None, 0
        self._source.close()


class Unlimited(ABC):
    """Batches of tables whose draws are not counted. Between two no shard waits for what this learner has drawn."""

    def __init__(self) -> None:
        self._drawn: dict[int, Drawn] = {}

    def next(self) -> RayBatch | None:
        """The next batch; None: not now. What of it is there stays for the next call."""
        try:
            return self._next()
        finally:
            for one in self._drawn.values():
                one.let_go()

    @abstractmethod
    def _next(self) -> RayBatch | None:
        """The same. What is left in ``_drawn`` may have its place in a ring."""

    def close(self) -> None:
        """Ends all iterations."""
        for one in self._drawn.values():
            one.close()


class Mixer(Unlimited):
    """Batches over several shards, whose tables are drawn from by weights.

    Args:
        shards: The shards.
        n: Items of a batch.
        beta: The exponent of the importance weights.
        least: How many items there are in all, at least, where a batch is drawn.
        random: Chooses the shards.

    """

    def __init__(self, shards: Shards, n: int, beta: float, least: int, random: np.random.Generator) -> None:
        super().__init__()
        self._shards, self._n, self._beta, self._least, self._random = shards, n, beta, least, random
        self._masses: Mapping[int, Mass] = {}
        self._shares = Shares({}, beta, 0.0)
        self._chosen: npt.NDArray[np.int64] | None = None
        self._share: dict[int, float] = {}
        self._missing: dict[int, npt.NDArray[np.int64]] = {}
        self._filling = Filling(n)

    def _next(self) -> RayBatch | None:
        self._look()
        if not self._shares.share or (self._chosen is None and self._shares.size < self._least):
            return None
        if self._chosen is None:
            if len(self._shares.share) == 1:
                return self._of_the_only_one()
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
        self._shares.age = age

    def _choose(self) -> None:
        """The shards of the next batch."""
        self._chosen = chosen = self._shares.choose(self._random, self._n)
        self._share = dict(self._shares.share)
        self._missing = {number: np.flatnonzero(chosen == number) for number in np.unique(chosen).tolist()}

    def _of_the_only_one(self) -> RayBatch | None:
        """The batch; None: not now."""
        (number,) = self._shares.share
        batch = self._of(number).next_whole(self._n)
        return None if batch is None else of_one(number, batch, self._shares)

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
        if len(places) < self._n or not whole or not drawn.fill(most, whole):
            return None
        batch = drawn.take_whole(self._n)
        if batch is None:
            return None
        self._chosen, self._missing = None, {}
        return of_one(number, batch, self._shares)

    def _of(self, number: int) -> Drawn:
        drawn = self._drawn.get(number)
        if drawn is None:
            drawn = self._drawn[number] = Drawn(self._shards.source(number))
        return drawn

    def _most(self, number: int) -> tuple[int, bool]:
        """How many items a shard should draw at a time, and whether exactly so many: if nearly all are its own."""
        expected = self._n * self._shares.share[number]
        return (self._n, True) if expected > self._n - 0.5 else (max(1, int(expected)), False)
