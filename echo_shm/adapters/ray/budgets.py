"""A rate limiter that holds for all shards together: each has a part of what the whole may do.

With ``I``, ``S`` and ``ratio`` as in :mod:`echo_shm.replay.rate_limiters`, a shard's ``d_i = I_i * ratio - S_i`` stays
between its own bounds, and so their sum stays between the sums of the bounds. Those are the whole's. Where workers
insert and where the learner draws changes, and so do the parts.

The rule by which they are divided keeps two things. The sums of the bounds are the whole's. And no state blocks: either
each shard that has items may be sampled once more, or each may be inserted into once more. What is left below,
``s = sum(d) - low``, goes by where the draws are, and what is left above, ``u = high - sum(d)``, by where the
insertions are. But if there is twice as much as one for each shard, each has one first. On one side at least there is,
for ``s + u >= 2 * shards * (1 + ratio)``.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from echo_shm.replay import RateLimiter, Table

#: A bound is wider by so much than it has to be.
_EPSILON = 1e-6


class Part(NamedTuple):
    """What a shard did, and what it will do.

    Attributes:
        diff: ``d_i``.
        drawn: Its share of the draws, 0 if it has no items; the shares of all sum to 1.
        inserted: Its share of the insertions, likewise.

    """

    diff: float
    drawn: float
    inserted: float


class Bounds(NamedTuple):
    """Between which a ``diff`` stays."""

    low: float
    high: float


def is_limited(limiter: RateLimiter) -> bool:
    """Whether it does more than to wait for enough items."""
    return math.isfinite(limiter.min_diff) or math.isfinite(limiter.max_diff)


def check(table: Table, shards: int) -> None:
    """Raises ValueError if the limiter of a table cannot be divided among so many shards."""
    limiter = table.rate_limiter
    least = 2 * shards * (1 + limiter.ratio)
    if limiter.max_diff - limiter.min_diff < least:
        raise ValueError(
            f"table {table.name!r}: rate_limiter={limiter!r} has a range of {limiter.max_diff - limiter.min_diff!r}, "
            f"and {shards} shards need one of {least!r} or more, 2 * shards * (1 + ratio): use a larger error_buffer"
        )


def least(table: Table) -> int:
    """How many items all shards must hold together before a learner draws. 0: each shard waits for its own part.

    It is so where items go that were drawn as often as they may be: what a shard draws ahead would go, too, below the
    ``min_size`` of the whole.
    """
    return 0 if table.max_times_sampled else table.rate_limiter.min_size


def part_of(table: Table, shards: int) -> Table:
    """A new shard's part of a table. Bounds are those of the keeper; so far they are any that may be."""
    given = table.rate_limiter
    size = 1 if least(table) else math.ceil(given.min_size / shards)
    high = max(size, 1) * given.ratio if math.isfinite(given.max_diff) else math.inf
    low = -1.0 if math.isfinite(given.min_diff) else -math.inf
    most = None if table.max_size is None else max(size, math.ceil(table.max_size / shards))
    return dataclasses.replace(table, max_size=most, rate_limiter=RateLimiter(size, given.ratio, low, high))


def divide(low: float, high: float, ratio: float, parts: Mapping[int, Part]) -> dict[int, Bounds]:
    """The bounds of each shard, so that their sums are ``low`` and ``high``.

    Args:
        low, high: The whole's. Either may be infinite.
        ratio: The limiter's.
        parts: The shards, by their numbers. One without items has no share of the draws.

    """
    diff = sum(one.diff for one in parts.values())
    below = _shared(diff - low, 1.0, {number: one.drawn for number, one in parts.items()}, all_alike=False)
    above = _shared(high - diff, ratio, {number: one.inserted for number, one in parts.items()}, all_alike=True)
    return {
        # A shard whose bound is an item's own number must not miss it by a rounding error.
        number: Bounds(one.diff - below[number] - _EPSILON, one.diff + above[number] + _EPSILON)
        for number, one in parts.items()
    }


def _shared(left: float, one: float, shares: dict[int, float], *, all_alike: bool) -> dict[int, float]:
    """What is left, by shares; if there is enough, one for each first: for all, or for those that have a share."""
    takers = [number for number, share in shares.items() if all_alike or share > 0]
    if math.isinf(left):
        return dict.fromkeys(shares, left)
    first = one if left >= 2 * one * len(takers) else 0.0
    rest = left - first * len(takers)
    return {number: rest * share + first * (number in takers) for number, share in shares.items()}


def common(one: Bounds, other: Bounds) -> Bounds:
    """What both allow. It may be nothing, with ``low`` above ``high``."""
    return Bounds(max(one.low, other.low), min(one.high, other.high))


def is_far(old: Bounds, new: Bounds, part: Part, ratio: float) -> bool:
    """Whether a change is worth two calls: the new bounds allow what the old ones forbid, or are far from them."""
    if (part.diff - 1 < old.low and part.diff - 1 >= new.low) or old.high < part.diff + ratio <= new.high:
        return True
    width = new.high - new.low
    step = max(1.0, width / 16) if math.isfinite(width) else 1.0
    return any(abs(a - b) >= step for a, b in zip(old, new, strict=True) if math.isfinite(a) or math.isfinite(b))
