"""Rate limiters that hold for all shards: their parts are divided anew as workers and learners change places."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray

from echo_shm.adapters.ray import budgets
from echo_shm.adapters.ray.budgets import Bounds, Part
from echo_shm.adapters.ray.directory import ABSENT, Look, Report
from echo_shm.adapters.ray.shares import Shares, mass_of
from echo_shm.replay import RateLimiter, Table, TableInfo


class Limits:
    """The rate limiters of a replay's tables.

    Args:
        tables: Those of the whole.

    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._limited = {one.name: one.rate_limiter for one in tables if budgets.is_limited(one.rate_limiter)}
        self._bounds: dict[str, dict[int, Bounds]] = {name: {} for name in self._limited}
        #: Insertions that each shard had at the last look, and the share of those since then.
        self._inserted: dict[str, dict[int, int]] = {name: {} for name in self._limited}
        self._rates: dict[str, dict[int, float]] = {name: {} for name in self._limited}
        #: What shards did that are gone.
        self._before: dict[str, float] = dict.fromkeys(self._limited, 0.0)

    def has_room(self, shards: int) -> bool:
        """Whether the limiters can be divided among so many."""
        return all(one.max_diff - one.min_diff >= shards * (1 + one.ratio) for one in self._limited.values())

    def move(self, number: int) -> None:
        """A shard goes on elsewhere, with all that it did: it has no bounds there yet."""
        for name in self._limited:
            self._bounds[name].pop(number, None)

    def lose(self, number: int, report: Report | None, again: Report | None) -> None:
        """A shard is gone. What it did counts on.

        Args:
            number: The shard's.
            report: What it said last; None: nothing.
            again: What it says now that has come back in its place, with what a store or a checkpoint had of it; None:
                it is gone for good, or has begun anew.

        """
        self.move(number)
        for name in self._limited:
            for sign, one in ((1, report), (-1, again)):
                if one is not None:
                    self._before[name] += sign * _diff(one.tables[name])

    def divide(self, look: Look, actors: Mapping[int, Any], settling: Collection[int] = ()) -> None:
        """Divides them by what shards did, and will do. Those that settle keep what they have."""
        for name, limiter in self._limited.items():
            infos = {
                one.number: found[0].tables[name] for one in look.present if (found := look.reports.get(one.number))
            }
            if not infos or len(infos) < len(look.roster.places):
                continue  # of an absent shard nobody knows what it does: all keep what they have
            held = self._bounds[name]
            low, high = self._whole(name, limiter, infos)
            for number in held.keys() & infos.keys() & set(settling):
                del infos[number]
                low = low - held[number].low if math.isfinite(low) else low
                high = high - held[number].high if math.isfinite(high) else high
            if not infos:
                continue
            parts = self._parts(name, limiter, infos)
            wanted = budgets.divide(low, high, limiter.ratio, parts)
            if any(
                number not in held or budgets.is_far(held[number], one, parts[number], limiter.ratio)
                for number, one in wanted.items()
            ):
                self._give(name, held, wanted, actors)

    def _whole(self, name: str, limiter: RateLimiter, infos: Mapping[int, TableInfo]) -> tuple[float, float]:
        """The bounds of all that are there together."""
        low, high = limiter.min_diff - self._before[name], limiter.max_diff - self._before[name]
        if sum(one.size for one in infos.values()) < limiter.min_size and math.isfinite(high):
            # A table with less than min_size items is inserted into in any case.
            diff = sum(map(_diff, infos.values()))
            high = max(high, diff + limiter.ratio * len(infos) + (1 + limiter.ratio) * len(infos))
        return low, high

    def _parts(self, name: str, limiter: RateLimiter, infos: Mapping[int, TableInfo]) -> dict[int, Part]:
        """What each shard did, and will do: draws go by masses or sizes, insertions as they went."""
        before, rates = self._inserted[name], self._rates[name]
        new = {number: max(0, one.inserted - before.get(number, 0)) for number, one in infos.items()}
        self._inserted[name] = {number: one.inserted for number, one in infos.items()}
        if sum(new.values()):
            share = {number: count / sum(new.values()) for number, count in new.items()}
            rates = {number: (rates.get(number, one) + one) / 2 for number, one in share.items()}
            self._rates[name] = rates = {number: one / sum(rates.values()) for number, one in rates.items()}
        even = 1 / len(infos)
        shares = Shares({number: mass_of(one) for number, one in infos.items()}, 0.0, 0.0).share
        inserted = {number: rates.get(number, 0.0) for number in infos}
        whole = sum(inserted.values())
        return {
            number: Part(
                _diff(one),
                shares.get(number, 0.0) if shares else even,
                inserted[number] / whole if whole else even,
            )
            for number, one in infos.items()
        }

    def _give(self, name: str, held: dict[int, Bounds], wanted: dict[int, Bounds], actors: Mapping[int, Any]) -> None:
        """First each shard is held to what the old and the new bounds both allow, and then it gets the new ones.

        So at no time do the shards together allow more than the whole does. If one cannot be reached in between, the
        others have too little until the next time, and never too much.
        """
        for bounds in (
            {number: budgets.common(one, held.get(number, one)) for number, one in wanted.items() if number in held},
            wanted,
        ):
            calls = [
                actors[number].set_limits.remote(name, *one)
                for number, one in bounds.items()
                if number in actors and held.get(number) != one
            ]
            done, late = ray.wait(calls, num_returns=len(calls), timeout=ABSENT) if calls else ([], [])
            ray.get(done)
            if late:
                return
            held.update(bounds)


def _diff(info: TableInfo) -> float:
    return info.limiter.diff
