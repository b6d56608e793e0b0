"""How a learner draws from the shards of a replay."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from echo_shm.adapters.ray.directory import Look, Place, Watch
from echo_shm.adapters.ray.filling import RayBatch
from echo_shm.adapters.ray.merging import Merger
from echo_shm.adapters.ray.mixing import Mixer
from echo_shm.adapters.ray.shares import Mass, mass_of
from echo_shm.adapters.ray.sources import Clients, ShardSource

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

    """

    def __init__(self, watch: Watch, clients: Clients, table: str) -> None:
        self._watch, self._clients, self._table = watch, clients, table
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
            self._masses = {number: mass_of(report.tables[self._table]) for number, (report, _) in found.items()}
            self._oldest = max((age for _, age in found.values()), default=0.0)
            self._clients.keep(look.roster.places)
        return self._masses, self._oldest + time.monotonic() - look.at

    def source(self, number: int) -> ShardSource:
        """One of them."""
        last = self._places[number]

        def where() -> Place:
            nonlocal last
            last = self._places.get(number, last)
            return last

        return ShardSource(self._clients, where, self._table)


def batches(
    mixed: Mixer | Merger, timeout: float | None, check: Callable[[], None], watch: Watch
) -> Iterator[RayBatch]:
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
            box = [mixed.next()]
            now = time.monotonic()
            if now - looked > _WORKERS:
                looked = now
                check()
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
