"""Who waits for what in a replay, and since when. Its board says so."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from echo_shm._core import lib
from echo_shm.replay.batch import TableInfo, why_no_insert, why_no_sample
from echo_shm.ring.batch_names import BatchRing

#: Most waits that are told of, so that they fit on the board.
_MOST = 16


class Wait(NamedTuple):
    """Somebody waits.

    Attributes:
        who: In words: ``"writers"``.
        what: What keeps them waiting, in words.
        since: When it began, on the clock of ``time.time()``.

    """

    who: str
    what: str
    since: float


class Activity(NamedTuple):
    """When something last happened to a table, on the clock of ``time.time()``; None if it never did."""

    inserted: float | None
    sampled: float | None


class Waits:
    """Remembers since when each wait lasts, and when each table was used last, from one look to the next."""

    def __init__(self) -> None:
        self._since: dict[Any, float] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._used: dict[tuple[str, str], float] = {}

    def look(
        self, tables: Mapping[str, TableInfo], steps: str | None, rings: Iterable[tuple[BatchRing, int]]
    ) -> tuple[list[Wait], dict[str, Activity]]:
        """Looks at a replay: who waits, and when each table was used last.

        Args:
            tables: The tables' figures, by name, in order.
            steps: Why a step that has come cannot be stored; None if there is none.
            rings: The rings of batches, each with the code that says why it got no more.

        """
        now = time.time()
        found = {key: (who, what) for key, who, what in self._find(tables, steps, rings)}
        self._since = {key: self._since.get(key, now) for key in found}
        for table, info in tables.items():
            for what, count in (("inserted", info.inserted), ("sampled", info.sampled)):
                if self._counts.get((table, what), 0) < count:
                    self._used[table, what] = now
                self._counts[table, what] = count
        return (
            [Wait(*words, self._since[key]) for key, words in found.items()][:_MOST],
            {
                table: Activity(self._used.get((table, "inserted")), self._used.get((table, "sampled")))
                for table in tables
            },
        )

    @staticmethod
    def _find(
        tables: Mapping[str, TableInfo], steps: str | None, rings: Iterable[tuple[BatchRing, int]]
    ) -> Iterable[tuple[Any, str, str]]:
        if steps is not None:
            yield "steps", "writers", steps
        for name, info in tables.items():
            if info.parked:
                items = "1 parked item" if info.parked == 1 else f"{info.parked} parked items"
                yield ("parked", name), f"{items} of table {name!r}", why_no_insert(name, info)
        names = list(tables)
        for one, code in rings:
            if one.table >= len(names):  # the replay is closed meanwhile
                continue
            name = names[one.table]
            batches = f"batches of {one.n} of table {name!r}"
            if code == lib.ES_SHORT:
                who = f"rank {one.rank} of {one.world_size}, for" if one.world_size else "learners of"
                yield one, f"{who} {batches}", why_no_sample(name, tables[name])
            elif code == lib.ES_FULL and one.world_size:
                behind = f"it is the turn of rank {one.rank}, which has not released its oldest batch"
                yield one, f"the group of {one.world_size} for {batches}", behind


def read_waits(said: object) -> tuple[Wait, ...]:
    """The waits that a board says, which any process of the user may have written; what is no wait is left out."""
    given = said if isinstance(said, list) else []
    return tuple(
        Wait(who, what, since)
        for who, what, since in (one for one in given if isinstance(one, list) and len(one) == 3)
        if isinstance(who, str) and isinstance(what, str) and _is_time(since)
    )


def read_activity(said: object, table: str) -> Activity:
    """What a board says of a table."""
    given = said.get(table) if isinstance(said, dict) else None
    times = given if isinstance(given, list) and len(given) == 2 else [None, None]
    return Activity(*(one if _is_time(one) else None for one in times))


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**64
