"""The demo's policy gradient: what it takes for an episode, and that it learns."""

import numpy as np
import pytest

from echo_shm.cli.demo.policy import choose, learning_for, probabilities

#: One transition of an environment with three observations.
BLANK = {"obs": np.zeros(3, np.float32)}


def _batch(rows):
    """Transitions of (worker, obs, action, reward, done)."""
    worker, obs, action, reward, done = map(np.array, zip(*rows, strict=True))
    return {
        "worker": worker, "obs": obs, "action": action, "reward": reward, "terminated": done, "truncated": done & False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dtype", "actions"), [((), "f4", 2), ((3, 3), "f4", 2), ((3,), "i8", 2), ((3,), "f4", None)]
)
def test_what_it_cannot_learn(shape, dtype, actions):
    """Observations that are no vector of floats, and actions without numbers."""
    assert learning_for({"obs": np.zeros(shape, dtype)}, actions) is None


def test_episodes_of_workers_that_alternate():
    """The parts of an episode are put together for each worker, over batches, too."""
    learning = learning_for(BLANK, 2)
    obs = np.zeros(3, np.float32)
    rows = [(w, obs, 0, float(w), t % 5 == 4) for t in range(10) for w in (1, 2)]
    for start in range(0, len(rows), 3):
        assert not learning.add(_batch(rows[start : start + 3]))
    assert learning.mean_return == pytest.approx((5 * 1 + 5 * 2) / 2)
    assert learning.first is None


def test_it_learns():
    """What pays is done more and more often: the action that the sign of an observation asks for."""
    learning, random, returns = learning_for(BLANK, 2), np.random.default_rng(0), []
    for _ in range(400):
        rows = []
        for t in range(32):
            obs = random.standard_normal(3).astype(np.float32)
            action = choose(learning.params, obs, random.random())
            rows.append((7, obs, action, float(action == (obs[1] > 0)), t % 8 == 7))
        learning.add(_batch(rows))
        returns.append(learning.mean_return)
    assert learning.first == pytest.approx(4, abs=1)
    assert returns[-1] > 7
    assert learning.best >= returns[-1] - 0.5
    sure = probabilities(learning.params, np.array([[0, 2, 0], [0, -2, 0]], np.float32))
    assert (sure.argmax(1) == [1, 0]).all()
    assert (sure.max(1) > 0.9).all()


def test_numbers_at_the_edge():
    """Each number from 0 on and below 1 gives an action."""
    params = learning_for(BLANK, 3).params
    assert [choose(params, np.zeros(3), number) for number in (0.0, 0.34, 0.999999999)] == [0, 1, 2]
