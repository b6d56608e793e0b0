"""How a learner draws from the shards of a replay."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, cast

import numpy as np

from echo_shm.adapters.ray import nodes
from echo_shm.adapters.ray.directory import Look, Place, Report, Watch
from echo_shm.adapters.ray.filling import Left, RayBatch
from echo_shm.adapters.ray.limited import LimitedMerger, LimitedMixer
from echo_shm.adapters.ray.merging import ORDERED, Merger
from echo_shm.adapters.ray.mixing import Mixer
from echo_shm.adapters.ray.shares import Mass, mass_of
from echo_shm.adapters.ray.sources import Clients, ShardSource, ShardStock, prefetch_of, stock_of
from echo_shm.replay import Prioritized, Softmax, Table
from echo_shm.replay.batch_rings import batch_spec
from echo_shm.replay.layout import lay_out
from echo_shm.spec import Spec, Tree

#: A table that nothing is drawn of any more.
_NOTHING = Mass(0, -math.inf, math.inf)

#: Between two looks at shards that have nothing (seconds).
_NAP = 1e-3

#: Between two looks at whether a worker has failed (seconds).
_WORKERS = 0.2


class ShardsOfTable:
    """A table of all shards.

    Args:
        watch: What the directory says.
        clients: This process's ways into shards.
        table: Its name.
        n: Items of a batch.
        item_bytes: Of an item.
        prefetch: How many batches a shard draws ahead; None: by their size, and where it is.
        is_limited: Whether its items are drawn a limited number of times.

    """

    def __init__(
        self,
        watch: Watch,
        clients: Clients,
        table: str,
        n: int,
        *,
        item_bytes: int,
        prefetch: int | None,
        is_limited: bool,
    ) -> None:
        self._watch, self._clients, self._table = watch, clients, table
        self._n, self._item_bytes, self._prefetch, self._is_limited = n, item_bytes, prefetch, is_limited
        self._node = nodes.here()
        self._look: Look | None = None
        self._places: dict[int, Place] = {}
        self._masses: dict[int, Mass] = {}
        self._oldest = 0.0

    def masses(self) -> tuple[Mapping[int, Mass], float]:
        """Of those that are there."""
        look = self._watch.look
        if look is not self._look:
            self._look, self._places = look, {one.number: one for one in look.present}
            found = {number: look.reports[number] for number in self._places if number in look.reports}
            self._masses = {number: self._mass(report) for number, (report, _) in found.items()}
            self._oldest = max((age for _, age in found.values()), default=0.0)
            self._clients.keep(look.roster.places)
        return self._masses, self._oldest + time.monotonic() - look.at

    def is_known(self, number: int) -> bool:
        """Whether it is one of them, also while nothing is heard of it."""
        return self._look is not None and any(one.number == number for one in self._look.roster.places)

    def _mass(self, report: Report) -> Mass:
        return _NOTHING if report.settling and self._is_limited else mass_of(report.tables[self._table])

    def source(self, number: int) -> ShardSource:
        """One of them."""
        where = self._where(number)

        def prefetch(n: int) -> int:
            return self._prefetch or prefetch_of(n * self._item_bytes, where().node == self._node)

        return ShardSource(self._clients, where, self._table, prefetch)

    def stock(self, number: int) -> ShardStock:
        """The items of one of them. It draws ahead what several batches have of it."""
        where, ahead = self._where(number), stock_of(self._n, self._item_bytes, is_alone=len(self._places) == 1)
        return ShardStock(self._clients, where, self._table, ahead, lambda: self._is_settling(number))

    def _is_settling(self, number: int) -> bool:
        found = None if self._look is None else self._look.reports.get(number)
        return found is not None and found[0].settling

    def _where(self, number: int) -> Callable[[], Place]:
        """Says where it is."""
        last = self._places[number]

        def where() -> Place:
            nonlocal last
            last = self._places.get(number, last)
            return last

        return where


def item_bytes(table: Table, example: Tree) -> int:
    """Bytes of an item of a batch of that table, of such steps."""
    return batch_spec(lay_out(table.item, Spec.from_example(example)).data, table.item).sample_bytes


def mixed_of(shards: ShardsOfTable, n: int, sampler: object, least: int, left: deque[Left] | None) -> "Mixed":
    """What makes batches of n items of a table.

    Args:
        shards: The table.
        n: Items of a batch.
        sampler: The table's.
        least: How many items there are in all, at least, where a batch is drawn. It is 0 where there is ``left``.
        left: Where items are drawn a limited number of times: what iterations leave to each other. None: they are not.

    """
    if isinstance(sampler, ORDERED):
        if left is not None:
            return LimitedMerger(shards, n, sampler, left)
        return Merger(shards, n, sampler, least)
    beta = sampler.beta if isinstance(sampler, Prioritized | Softmax) else 0.0
    random = np.random.default_rng()  # learners that chose the same shards would not be independent
    if left is not None:
        return LimitedMixer(shards, n, beta, random, left)
    return Mixer(shards, n, beta, least, random)


class Mixed(Protocol):
    """What makes batches of what the shards have drawn."""

    def next(self) -> RayBatch | None:
        """The next batch; None: not now."""

    def close(self) -> None:
        """Ends."""


def batches(mixed: Mixed, timeout: float | None, check: Callable[[], None], watch: Watch) -> Iterator[RayBatch]:
    """Yields batches, until the replay is closed.

    Args:
        mixed: Where they come from.
        timeout: It ends once nothing came for so many seconds; None: no limit.
        check: Called now and then: raises what is to end it.
        watch: Says whether the replay is closed.

    """
    waits_since = looked = time.monotonic()
    try:
        while not watch.closed:
            now = time.monotonic()
            if now - looked > _WORKERS:
                looked = now
                check()  # before there is a batch, which would be lost
            box = [mixed.next()]
            if box[0] is not None:
                # The generator itself must not refer to the batch while its user works on it, or waits.
                yield cast(RayBatch, box.pop())
                waits_since = time.monotonic()
            elif timeout is not None and now - waits_since > timeout:
                return
            else:
                time.sleep(_NAP)
    finally:
        mixed.close()
