"""The scheduler: its order, and its bound on waiting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler, BandwidthConfig


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        """What it shows."""
        return self.now


def slow_priority(config, reward, length, reused, waited):
    """The formula, of whole numbers."""
    cost = max(0, length * (length + 1) // 2 - reused * (reused + 1) // 2) * config.attention_scale
    return reward / (config.bandwidth_weight * cost + config.queue_weight * waited + config.schedule_epsilon)


@settings(max_examples=80, deadline=None)
@given(
    max_wait=st.integers(0, 6),
    dispatch=st.sampled_from(["bandwidth", "first_come"]),
    batch=st.integers(1, 4),
    script=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(0, 50)), max_size=4), max_size=25
    ),
)
def test_the_order_and_the_bound_on_waiting(max_wait, dispatch, batch, script):
    """At each dispatch the order is the model's. Nobody is passed over more often than the bound says."""
    clock = Clock()
    config = BandwidthConfig(bandwidth_weight=0.5, queue_weight=2.0, max_wait=max_wait, dispatch=dispatch)
    scheduler = BandwidthAwareScheduler(config, clock)
    waiting = {}  # who: reward, length, reused, since, passed over, others before it
    arrivals = 0
    waits, fewest = [], []
    for newcomers in [*script, *[[] for _ in range(200)]]:
        for reward, length, reused in newcomers:
            scheduler.add(arrivals, reward, length, min(reused, length))
            waiting[arrivals] = [reward, length, min(reused, length), clock.now, 0, len(waiting)]
            arrivals += 1
        clock.now += 1.0

        def rank(who):
            reward, length, reused, since, passed, _ = waiting[who]
            if dispatch == "first_come" or passed >= max_wait:
                return 0, 0.0, who
            return 1, -slow_priority(config, reward, length, reused, clock.now - since), who

        order = scheduler.order()
        assert order == sorted(waiting, key=rank)
        assert len(scheduler) == len(waiting)
        now = order[: batch + arrivals % 2]
        scheduler.dispatched(now)
        for who in now:
            *_, passed, before = waiting.pop(who)
            assert passed <= (max_wait if dispatch == "bandwidth" else 0) + before // batch
            waits.append((passed, -before))
        for one in waiting.values():
            one[4] += 1
        fewest += [len(now)] if waiting else []
        passed, before = max([(0, 0), *waits, *((one[4], -one[5]) for one in waiting.values())])
        bound = (max_wait if dispatch == "bandwidth" else 0) + -before // min(fewest, default=1)
        assert scheduler.longest_wait == (passed, bound)
        assert passed <= bound
        if not waiting and not newcomers and arrivals == sum(map(len, script)):
            break
    assert not waiting


def test_priorities():
    """The formula, by hand: rewards count for, costs and waiting against; what is reused costs nothing."""
    scheduler = BandwidthAwareScheduler(BandwidthConfig(attention_scale=2.0, schedule_epsilon=1.0))
    assert scheduler.compute_priority(6.0, 1, 3.0) == 6.0 / (2.0 + 3.0 + 1.0)
    assert scheduler.compute_priority(6.0, 4, 0.0, 3) == 6.0 / (2.0 * (10 - 6) + 1.0)
    assert scheduler.compute_priorities([1.0, 2.0], [0, 0], [0.0, 1.0]).tolist() == [1.0, 1.0]


def test_who_is_removed_does_not_come():
    """Removing is idempotent; nobody is added twice; nobody waits in an empty queue."""
    scheduler = BandwidthAwareScheduler()
    assert scheduler.order() == []
    scheduler.add("a")
    scheduler.add("b")
    with pytest.raises(ValueError, match="'a' waits already"):
        scheduler.add("a")
    scheduler.remove("a")
    scheduler.remove("a")
    assert scheduler.order() == ["b"]


@pytest.mark.parametrize(
    "bad",
    [
        {"attention_scale": 0},
        {"schedule_epsilon": 0.0},
        {"bandwidth_weight": -1.0},
        {"queue_weight": float("inf")},
        {"max_wait": 1.5},
        {"dispatch": "random"},
    ],
)
def test_bad_settings_are_named(bad):
    """The error has the setting and what to use."""
    with pytest.raises(ValueError, match=rf"^{next(iter(bad))}=.*: use "):
        BandwidthConfig(**bad)
