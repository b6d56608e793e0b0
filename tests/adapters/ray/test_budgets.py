"""A rate limiter that is divided among shards allows what it allows, and never blocks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

need("ray")

from echo_shm import Replay, Table  # noqa: E402
from echo_shm.adapters.ray import budgets, limits  # noqa: E402
from echo_shm.adapters.ray.budgets import Bounds, Part  # noqa: E402
from echo_shm.adapters.ray.directory import Look, Place, Report, Roster  # noqa: E402
from echo_shm.replay import MinSize, Queue, SampleToInsertRatio  # noqa: E402

#: Of a sum of bounds.
NEAR = 1e-4

SHARES = st.lists(st.floats(0, 1), min_size=8, max_size=8)


def shares(given, n):
    """So many of them, whose sum is 1."""
    total = sum(given[:n])
    return [one / total for one in given[:n]] if total > 0 else [1 / n] * n


@st.composite
def divided(draw):
    """Shards with what they did, and bounds of the whole with room for all."""
    n, ratio = draw(st.integers(1, 8)), draw(st.sampled_from([0.25, 1.0, 4.0, 32.0]))
    diffs = draw(st.lists(st.floats(-1000, 1000), min_size=n, max_size=n))
    parts = zip(diffs, shares(draw(SHARES), n), shares(draw(SHARES), n), strict=True)
    width = 2 * n * (1 + ratio) * draw(st.floats(1, 50))
    low = sum(diffs) - width * draw(st.floats(-0.5, 1.5))
    return low, low + width, ratio, {number: Part(*one) for number, one in enumerate(parts)}


@settings(max_examples=300, deadline=None)
@given(divided())
def test_the_parts_are_the_whole_and_none_blocks(case):
    """The sums of the bounds are the whole's, and each shard can be sampled, or each inserted into."""
    low, high, ratio, parts = case
    found = budgets.divide(low, high, ratio, parts)
    assert math.isclose(sum(one.low for one in found.values()), low, abs_tol=NEAR)
    assert math.isclose(sum(one.high for one in found.values()), high, abs_tol=NEAR)
    sampled = all(parts[number].diff - 1 >= one.low for number, one in found.items() if parts[number].drawn)
    inserted = all(parts[number].diff + ratio <= one.high for number, one in found.items())
    assert sampled or inserted


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any))
def test_a_queue_gives_all_that_it_has(waiting):
    """Few items are left: each shard may be sampled as often as items wait there, to the last one."""
    parts = {number: Part(float(size), size / sum(waiting), 1 / len(waiting)) for number, size in enumerate(waiting)}
    found = budgets.divide(0.0, 10_000.0, 1.0, parts)
    assert math.isclose(sum(one.low for one in found.values()), 0.0, abs_tol=NEAR)
    if sum(waiting) < 2 * sum(map(bool, waiting)):
        assert all(-NEAR < one.low <= 0 for one in found.values())


@settings(max_examples=100, deadline=None)
@given(divided(), st.booleans())
def test_one_bound_alone(case, is_low):
    """The other one is infinite for each shard, too."""
    low, high, ratio, parts = case
    low, high = (low, math.inf) if is_low else (-math.inf, high)
    found = budgets.divide(low, high, ratio, parts)
    for given_bound, bounds in (
        (low, [one.low for one in found.values()]),
        (high, [one.high for one in found.values()]),
    ):
        assert math.isclose(sum(bounds), given_bound, abs_tol=NEAR)
        assert all(math.isfinite(one) == math.isfinite(given_bound) for one in bounds)


def test_what_draws_and_insertions_take():
    """The shard that is drawn from has what is left below, and the one with the workers what is left above."""
    parts = {0: Part(0.0, 1.0, 0.0), 1: Part(0.0, 0.0, 1.0)}
    found = budgets.divide(-100.0, 100.0, 1.0, parts)
    assert found[0] == pytest.approx(Bounds(-100.0, 1.0), abs=NEAR)
    assert found[1] == pytest.approx(Bounds(0.0, 99.0), abs=NEAR)
    found = budgets.divide(-1.0, 1.0, 1.0, parts)  # too little for one each
    assert found[0] == pytest.approx(Bounds(-1.0, 0.0), abs=NEAR)


def test_common_bounds_and_small_changes():
    """A change is made where something is allowed that was forbidden, or where it is large."""
    assert budgets.common(Bounds(0, 10), Bounds(5, 20)) == Bounds(5, 10)
    middle = Part(80.0, 0.5, 0.5)
    assert budgets.is_far(Bounds(0, 160), Bounds(10, 160), middle, 1.0)
    assert not budgets.is_far(Bounds(0, 160), Bounds(9, 160), middle, 1.0)
    assert not budgets.is_far(Bounds(-math.inf, 160.5), Bounds(-math.inf, 160), middle, 1.0)
    assert budgets.is_far(Bounds(0.5, 160), Bounds(0, 160), Part(1.0, 0.5, 0.5), 1.0)
    assert budgets.is_far(Bounds(0, 159.5), Bounds(0, 160), Part(159.0, 0.5, 0.5), 1.0)


def test_parts_of_tables():
    """A shard waits for one item, whatever all wait for; but where drawn items go, for its part."""
    given = Table("t", max_size=1000, rate_limiter=SampleToInsertRatio(4.0, 100, 50.0))
    part = budgets.part_of(given, 3)
    assert (part.rate_limiter.min_size, part.rate_limiter.ratio, part.max_size) == (1, 4.0, 334)
    assert budgets.least(given) == 100
    assert budgets.part_of(Table("t", rate_limiter=MinSize(100)), 3).rate_limiter.max_diff == math.inf
    queue = budgets.part_of(Table("t", rate_limiter=Queue(50)), 3)
    assert (queue.max_times_sampled, type(queue.sampler).__name__) == (1, "Fifo")
    once = Table("t", rate_limiter=MinSize(100), max_times_sampled=1)
    assert (budgets.part_of(once, 3).rate_limiter.min_size, budgets.least(once)) == (34, 0)


def test_too_narrow_a_range():
    """It is refused, with what it would have to be."""
    table = Table("t", rate_limiter=SampleToInsertRatio(4.0, 100, 10.0))
    budgets.check(table, 2)
    with pytest.raises(ValueError, match=r"table 't': .* range of 20.0, and 3 shards need one of 30.0 or more"):
        budgets.check(table, 3)


def test_a_shard_that_settles_keeps_its_part(monkeypatch):
    """A new one gets its part of the rest, and all together never have more than the whole."""
    table, told = Table("q", rate_limiter=Queue(100)), {}
    replays = [Replay({"x": np.array(0)}, 100, [table]) for _ in range(3)]
    monkeypatch.setattr(limits, "ray", SimpleNamespace(wait=lambda calls, **_: (calls, []), get=lambda found: found))

    def actor(number):
        def remote(_, low, high):
            told[number] = Bounds(low, high)

        return SimpleNamespace(set_limits=SimpleNamespace(remote=remote))

    def look(n):
        reports = {i: (Report(i, 0, 0, 100, {"q": replays[i].info()}, 0), 0.0) for i in range(n)}
        return Look(Roster(1, tuple(Place(i, 0, "", "", 0) for i in range(n))), reports)

    actors = {i: actor(i) for i in range(3)}
    made = limits.Limits([table])
    made.divide(look(2), actors)
    before = told.pop(0)
    for k in range(10):
        replays[1].add({"x": np.array(k)})
    made.divide(look(3), actors, {0})
    assert set(told) == {1, 2}
    assert sum(one.high for one in (before, *told.values())) == pytest.approx(100, abs=NEAR)
    assert sum(one.low for one in (before, *told.values())) == pytest.approx(0, abs=NEAR)
    assert told[2].high > 1
    made.divide(look(3), actors)
    assert sum(one.high for one in told.values()) == pytest.approx(100, abs=NEAR)
    assert set(told) == {0, 1, 2}
