"""What attention costs, and which rollout is served first."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning import (
    attention_cost,
    bandwidth_efficiency,
    effective_cost,
    importance_weights,
    rollout_priorities,
)

from . import twins

LENGTHS = st.one_of(st.integers(0, 5), st.integers(2**31 - 5, 2**31), st.integers(0, 2**31))
SCALES = st.sampled_from([1.0, 0.0, 0.3, 2048.0])
NUMBERS = st.floats(-1e6, 1e6)
AMOUNTS = st.floats(0, 1e6)


@settings(deadline=None)
@given(st.lists(st.tuples(LENGTHS, LENGTHS), max_size=9), SCALES)
def test_costs_are_those_of_unlimited_integers(pairs, scale):
    """Nothing cancels or overflows up to 2**31 tokens, also where a prefix is longer than the sequence."""
    lengths, reused = np.array(pairs, np.int64).reshape(-1, 2).T
    assert attention_cost(lengths, scale).tolist() == [twins.attention_cost(t, scale) for t, _ in pairs]
    assert effective_cost(lengths, reused, scale).tolist() == [twins.effective_cost(t, r, scale) for t, r in pairs]


@settings(deadline=None)
@given(st.lists(st.tuples(NUMBERS, AMOUNTS, AMOUNTS), max_size=9), AMOUNTS, AMOUNTS, st.floats(1e-9, 1))
def test_priorities_are_the_formula(rollouts, bandwidth_weight, queue_weight, epsilon):
    """To the bit."""
    reward, cost, queue_time = columns = np.array(rollouts).reshape(-1, 3).T
    right = reward / (bandwidth_weight * cost + queue_weight * queue_time + epsilon)
    assert rollout_priorities(*columns, bandwidth_weight, queue_weight, epsilon).tolist() == right.tolist()


@settings(deadline=None)
@given(st.lists(NUMBERS), st.lists(AMOUNTS), st.lists(NUMBERS))
def test_efficiency_is_the_formula(rewards, costs, learner_costs):
    """Sums are those of doubles of twice the length, also where rewards cancel."""
    right, spent = twins.bandwidth_efficiency(rewards, costs, learner_costs), sum(costs) + sum(map(abs, learner_costs))
    tolerance = 1e-28 * math.fsum(map(abs, rewards)) / max(spent, 1e-12)
    assert bandwidth_efficiency(rewards, costs, learner_costs) == pytest.approx(right, rel=1e-15, abs=tolerance)


def test_shapes_and_types():
    """Numbers give a float, arrays their common shape, and float32 rewards float32 priorities."""
    assert attention_cost(4) == 10
    assert type(attention_cost(np.int32(4))) is float
    assert effective_cost(4, 3, 2.0) == 8
    assert effective_cost([[4], [5]], [3, 5]).tolist() == [[4, 0], [9, 0]]
    assert attention_cost(np.zeros((0, 2), int)).shape == (0, 2)
    assert type(rollout_priorities(1, 2, 3)) is float
    priorities = rollout_priorities(np.float32([1, 2]), [[1], [2]], 0)
    assert (priorities.dtype, priorities.shape) == (np.float32, (2, 2))
    assert rollout_priorities([1e308, -1e308], 0, 0).tolist() == [math.inf, -math.inf]
    assert rollout_priorities(1, 1e308, 0, bandwidth_weight=1e308) == 0
    assert bandwidth_efficiency([1], [0.0], 1e-12) == 0
    assert bandwidth_efficiency([1e100, 1, -1e100], [[1]], -1) == 0.5
    assert bandwidth_efficiency([1e308, 1e308], [1]) == math.inf


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-9, 1), st.floats(0.1, 1))), st.integers(1, 10**9), st.floats(0, 2))
def test_weights_are_the_formula(draws, size, beta):
    """``(N * P) ** -beta``, with the share of the part in P."""
    probability, share = np.array(draws).reshape(-1, 2).T
    right = [twins.importance_weight(p, s, size, beta) for p, s in draws]
    np.testing.assert_allclose(importance_weights(probability, size, beta, share=share), right, rtol=1e-13)


def test_weights_of_shares_undo_the_draw():
    """The weighted mean of a batch is the mean of all items: of parts that are drawn in shares, and each by weight."""
    values, probability = np.arange(10.0), np.array([0.1] * 4 + [0.3] + [0.3] + [0.2] * 2 + [0.15] * 2)
    share = np.where(np.arange(10) < 5, 0.7, 0.3)
    probability[:5] /= probability[:5].sum()
    probability[5:] /= probability[5:].sum()
    weights = importance_weights(probability, 10, 1.0, share=share)
    assert np.sum(share * probability * weights * values) == pytest.approx(values.mean())
    assert importance_weights(0.5, 10, 1) == 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_cost(-1), "length is -1 and reused is 0: use lengths from 0 to 2\\*\\*31"),
        (lambda: effective_cost([5, 2**31 + 1], 0), r"length\[1\] is 2147483649"),
        (lambda: effective_cost([[5, 5]], [1, -1]), r"reused\[0, 1\] is -1"),
        (lambda: attention_cost(1.0), "length holds float64: use integers"),
        (lambda: attention_cost(True), "length holds bool: use integers"),
        (lambda: attention_cost(1, scale=math.nan), "scale=nan: use a number"),
        (lambda: attention_cost(2**31, scale=1e300), "scale=1e[+]300 makes a cost infinite: use a smaller one"),
        (lambda: effective_cost([1, 2], [1, 2, 3]), r"do not fit together: length \(2,\), reused \(3,\)"),
        (lambda: rollout_priorities([0, math.nan], 1, 1), r"reward\[1\] is nan, cost\[1\] is 1.0, queue_time\[1\]"),
        (lambda: rollout_priorities(1, -1, 1), "cost is -1.0, queue_time is 1.0: use finite numbers, and costs"),
        (lambda: rollout_priorities(1, 1, math.inf), "queue_time is inf"),
        (lambda: rollout_priorities(1, 1, 1, epsilon=0), "epsilon=0: use a finite number above 0"),
        (lambda: bandwidth_efficiency([1], [[1, -1]]), r"costs\[0, 1\] is -1.0: use finite numbers, 0 or more"),
        (lambda: bandwidth_efficiency([1], [1], [math.nan]), r"learner_costs\[0\] is nan: use finite numbers"),
        (lambda: importance_weights([0.5, 0.0], 9, 1), r"probability\[1\] is 0.0: use probabilities above 0"),
        (lambda: importance_weights(0.5, 9, 1, share=1.5), "share is 1.5: use probabilities above 0, at most 1"),
        (lambda: importance_weights(0.5, 9, 1, share=[[1], [0]]), r"share\[1, 0\] is 0.0: use probabilities above 0"),
        (lambda: importance_weights(0.5, 0, 1), "size=0: use an integer, 1 or more"),
        (lambda: importance_weights(0.5, 9, -1), "beta=-1: use a finite number, 0 or more"),
        (lambda: importance_weights([0.1, 1e-300], 1, 2), "the weight of element 1 overflows: N [*] P is 1e-300"),
    ],
)
def test_bad_input(call, message):
    """What makes no sense is refused, with its place."""
    with pytest.raises(ValueError, match=message):
        call()
