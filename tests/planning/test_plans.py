"""Shared plans, and how surprising a plan is."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm._core import lib
from echo_shm.planning import EmaPlan, plan_surprise, plans, temporal_kl

from . import twins

DTYPES = st.sampled_from([np.float32, np.float64])
WEIGHTS = st.floats(0, 10)
DIMS = st.one_of(st.integers(1, 100), st.integers(500, 1100))


def drawn(seed, n, dim, dtype):
    """Plans of any size, and rewards."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, dim)) * 10 ** rng.uniform(-3, 3)).astype(dtype), rng.standard_normal(n)


def close(got, right, *dtypes):
    """Sums of squares may be added in any order, and among float32 they are float32."""
    single = all(dtype == np.float32 for dtype in dtypes)
    np.testing.assert_allclose(got, right, rtol=1e-6 if single else 1e-13, atol=0, strict=True)


@settings(deadline=None)
@given(
    st.integers(0, 2**32), st.integers(0, 6), DIMS, DTYPES, DTYPES, st.floats(0, 1, exclude_max=True),
    WEIGHTS, WEIGHTS, st.integers(0, 6),
)  # fmt: skip
def test_each_plan_is_scored_before_it_is_taken(seed, n, dim, dtype, given_dtype, decay, plan_weight, reward_weight, k):
    """Scores and shared plans are those of the twin, however the plans are cut into batches."""
    ema, mean, right = EmaPlan(dim, decay, dtype), None, []
    rows, rewards = drawn(seed, n, dim, given_dtype)
    for plan, reward in zip(rows.astype(dtype), rewards, strict=True):
        right += list(twins.surprise(plan[None], mean, [reward], plan_weight, reward_weight))
        mean = plan if mean is None else twins.take(mean, plan, decay)
    weights = {"plan_weight": plan_weight, "reward_weight": reward_weight}
    got = [ema.score_and_update(rows[part], rewards[part], **weights) for part in (slice(k), slice(k, None))]
    close(np.concatenate(got), np.array(right), dtype)
    assert ema.updates == n
    if n == 0:
        assert ema.plan is None
        return
    np.testing.assert_array_equal(ema.plan, mean, strict=True)
    unscored = EmaPlan(dim, decay, dtype)
    unscored.update(rows[0])
    unscored.update(rows[1:])
    np.testing.assert_array_equal(unscored.plan, mean, strict=True)
    assert unscored.score_and_update(rows[0], 0.5, **weights) == pytest.approx(
        plan_surprise(rows[0].astype(dtype), mean, 0.5, **weights), rel=1e-6
    )


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 6),
    DIMS,
    DTYPES,
    DTYPES,
    WEIGHTS,
    WEIGHTS,
)
def test_surprise_is_its_twin(seed, n, dim, dtype, other, plan_weight, reward_weight):
    """All plans of a batch are compared with one; where one of the two is float64, both are."""
    rows, rewards = drawn(seed, n, dim, dtype)
    mean = drawn(seed + 1, 1, dim, other)[0][0]
    got = plan_surprise(rows, mean, rewards, plan_weight, reward_weight)
    close(got, twins.surprise(rows, mean, rewards, plan_weight, reward_weight), dtype, other)
    before = EmaPlan(dim)
    close(plan_surprise(rows, before, rewards, plan_weight, reward_weight), reward_weight * np.abs(rewards), float)
    if n:
        one = plan_surprise(rows[0], mean, rewards[0], plan_weight, reward_weight)
        assert isinstance(one, float)
        assert one == got[0]


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 6),
    DIMS,
    DTYPES,
    st.booleans(),
    st.booleans(),
)
def test_divergence_is_its_twin(seed, n, dim, dtype, one_previous, one_sigma):
    """Each plan against the previous one of its own, or against one of all."""
    rows, previous = drawn(seed, n, dim, dtype)[0], drawn(seed + 1, max(n, 1), dim, dtype)[0]
    previous = previous[0] if one_previous else previous[:n]
    sigma = 0.3 if one_sigma else np.linspace(0.1, 2, n)
    right = np.array([float(twins.distances([row], base)[0]) for row, base in zip(
        rows, np.broadcast_to(previous, rows.shape), strict=True)])  # fmt: skip
    close(temporal_kl(rows, previous, sigma), right / (2 * np.float64(sigma) ** 2), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_instructions_give_the_same_bits(dtype, monkeypatch):
    """What a processor without AVX2 computes is what one with it does."""
    best = lib.es_plan_best()
    for dim in [*range(1, 132), 511, 512, 513, 1100]:
        found = []
        for kind in {0, best}:
            monkeypatch.setattr(plans, "_BEST", kind)
            ema, (rows, rewards) = EmaPlan(dim, dtype=dtype), drawn(dim, 3, dim, dtype)
            scores = ema.score_and_update(rows, rewards)
            found.append([scores.tobytes(), ema.plan.tobytes(), plan_surprise(rows, ema, rewards).tobytes()])
        assert found[0] == found[-1]


def test_a_plan_stays_as_it_was():
    """What ``plan`` gave is not changed by updates, and cannot be written to."""
    ema = EmaPlan(2, decay=0.5)
    first = np.array([1, 3], np.float32)
    ema.update(first)
    seen = ema.plan
    first[:] = 0
    ema.update([3, 5])
    assert seen.tolist() == [1, 3]
    assert ema.plan.tolist() == [2, 4]
    with pytest.raises(ValueError, match="read-only"):
        ema.plan[0] = 1


def test_a_state_goes_on():
    """A plan with another's state gives the scores that the other would, also before the first plan."""
    rows, rewards = drawn(0, 4, 3, np.float64)
    first = EmaPlan(3, dtype=np.float64)
    for _ in range(2):
        second = EmaPlan(3, dtype=np.float64)
        second.state = first.state
        assert second.updates == first.updates
        assert second.score_and_update(rows, rewards).tolist() == first.score_and_update(rows, rewards).tolist()
    state = first.state
    state["plan"][:] = 0
    assert first.plan.any()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda ema: pickle.loads(pickle.dumps(ema))])
def test_a_copy_is_read_only(again):
    """What was read of a copy cannot be written to, and so cannot change it."""
    first = EmaPlan(2)
    assert again(first).plan is None
    first.update([1, 2])
    other = again(first)
    with pytest.raises(ValueError, match="read-only"):
        other.plan[0] = 5
    other.update([3, 4])
    assert (first.updates, other.updates) == (1, 2)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"plan": np.zeros(2, np.float32)}, r"has 'plan' and 'updates', this one \['plan'\]"),
        ({"plan": np.zeros(3, np.float32), "updates": 1}, r"plan is float32\[3\], this EmaPlan's float32\[2\]"),
        ({"plan": np.zeros(2), "updates": 1}, r"plan is float64\[2\], this EmaPlan's float32\[2\]"),
        (
            {"plan": np.full(2, np.nan, np.float32), "updates": 1},
            r"the state's plan\[0\] is nan as float32",
        ),
        ({"plan": np.zeros(2, np.float32), "updates": -1}, "updates=-1: use an integer, 0 or more"),
    ],
)
def test_a_bad_state_is_refused(state, message):
    """A state of another plan, or a damaged one, changes nothing."""
    ema = EmaPlan(2)
    ema.update([1, 2])
    with pytest.raises(ValueError, match=message):
        ema.state = state
    assert ema.plan.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ema: EmaPlan(0), "dim=0: use an integer, 1 or more"),
        (lambda ema: EmaPlan(2, decay=1), "decay=1: use a number from 0 to below 1"),
        (lambda ema: EmaPlan(2, dtype=np.int32), "dtype=.*: use float32 or float64"),
        (lambda ema: ema.update([1, 2, 3]), r"plans has shape \(3,\): use \(2,\) or \(n, 2\)"),
        (lambda ema: ema.update([[[1, 2]]]), r"plans has shape \(1, 1, 2\): use \(2,\) or \(n, 2\)"),
        (lambda ema: ema.update(["1", "2"]), "plans holds <U1: use real numbers"),
        (lambda ema: ema.update([True, False]), "plans holds bool: use real numbers"),
        (lambda ema: ema.update([[1, 2], [3]]), "plans: .*inhomogeneous"),
        (lambda ema: ema.update([[1, 2], [1, np.nan]]), r"plans\[1, 1\] is nan as float32: use finite numbers"),
        (
            lambda ema: ema.score_and_update([[1, 2], [np.inf, 1]], 0),
            r"plans\[1, 0\] is inf as float32",
        ),
        (lambda ema: ema.update([1e300, 1]), r"plans\[0, 0\] is inf as float32: use finite numbers"),
        (lambda ema: ema.score_and_update([1, 2], np.nan), "rewards is nan: use finite numbers"),
        (lambda ema: ema.score_and_update([[1, 2]], [1, 2]), r"rewards has shape \(2,\): use one number, or \(1,\)"),
        (lambda ema: ema.score_and_update([1, 2], 1, plan_weight=-1), "plan_weight=-1: use a finite number"),
        (lambda ema: ema.score_and_update([1, 2], 1e300, reward_weight=1e300), "the score of plan 0 overflows"),
        (lambda ema: plan_surprise([1, 2, 3], ema, 0), r"plans has shape \(3,\): use \(2,\)"),
        (lambda ema: plan_surprise([1, 2], [[1, 2]], 0), r"ema has shape \(1, 2\): use \(2,\)$"),
        (lambda ema: plan_surprise([1, 2], [1, np.nan], 0), r"ema\[1\] is nan: use finite numbers"),
        (lambda ema: plan_surprise([1, np.nan], None, 0), r"plans\[0, 1\] is nan"),
        (lambda ema: plan_surprise([1, 1e200], ema, 0), "the score of plan 0 overflows: use smaller plans"),
        (lambda ema: temporal_kl([1, 2], [[1, 2], [3, 4]]), "previous has 2 plans, plans 1: use as many"),
        (lambda ema: temporal_kl([1, 2], [1, 2], 0), "sigma is 0: use finite numbers above 0"),
        (lambda ema: temporal_kl([1, 2], [1, np.inf]), r"previous\[0, 1\] is inf"),
        (lambda ema: temporal_kl([1, 2], [3, 4], 1e-200), "a divergence overflows"),
    ],
)
def test_bad_input(call, message):
    """What a plan cannot take is refused, and changes nothing."""
    ema = EmaPlan(2)
    ema.update([1, 2])
    with pytest.raises(ValueError, match=message):
        call(ema)
    assert ema.plan.tolist() == [1, 2]
    assert ema.updates == 1
