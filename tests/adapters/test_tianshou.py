"""The buffers for Tianshou, beside Tianshou's own: the same calls give the same."""

import pytest
from harness.packages import need

need("tianshou")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import tianshou.data  # noqa: E402
from tianshou.data import Batch  # noqa: E402

from echo_shm.adapters.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402

#: Frameworks take long to import, and Numba to compile.
pytestmark = pytest.mark.watchdog(300)

ENVS = 3


class Play:
    """Steps of environments whose episodes have lengths of their own. An observation says which one, and which step."""

    def __init__(self):
        self.at = np.zeros(ENVS, np.int64)

    def batch(self, ids):
        """The next step of these environments."""
        ids = np.asarray(ids)
        self.at[ids] += 1
        at = self.at[ids]
        ends = at % (5 + ids) == 0
        obs = {"pos": np.stack([ids * 1000 + at, at], 1).astype(np.float32), "time": at.astype(np.float64)}
        following = {"pos": obs["pos"] + [0, 1], "time": obs["time"] + 1}
        return Batch(
            obs=Batch(obs),
            act=at % 4,
            rew=at.astype(float),
            terminated=ends & (at % 2 == 0),
            truncated=ends & (at % 2 == 1),
            obs_next=Batch(following),
            info=Batch(env_id=ids),
        )


def pair(**options):
    """A buffer, and Tianshou's own."""
    return VectorReplayBuffer(30, ENVS, **options), tianshou.data.VectorReplayBuffer(30, ENVS, **options)


def same(ours, theirs):
    """Asserts that two batches, or arrays, have the same in them."""
    if isinstance(theirs, Batch):
        assert set(ours.get_keys()) == set(theirs.get_keys())
        for key in theirs.get_keys():
            same(ours[key], theirs[key])
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("ignore_obs_next", [False, True])
def test_it_does_what_tianshous_own_does(stack, ignore_obs_next):
    """Indices, episodes, what is at an index, before and after it: the same, when old steps have gone, too."""
    ours, theirs = pair(stack_num=stack, ignore_obs_next=ignore_obs_next)
    rng, plays = np.random.default_rng(0), (Play(), Play())
    try:
        for _ in range(40):
            ids = np.flatnonzero(rng.random(ENVS) < 0.7)
            if not len(ids):
                continue
            added = [one.add(play.batch(ids), ids) for one, play in zip((ours, theirs), plays, strict=True)]
            for mine, other in zip(*added, strict=True):
                same(mine, other)
            assert len(ours) == len(theirs)
            found = theirs.sample_indices(0)
            same(ours.sample_indices(0), found)
            same(ours.prev(found), theirs.prev(found))
            same(ours.next(found), theirs.next(found))
            same(ours.unfinished_index(), theirs.unfinished_index())
            same(ours[found], theirs[found])
            same(ours[int(found[-1])], theirs[int(found[-1])])
        same(ours[:], theirs[:])
        same(ours.rew, theirs.rew)
        for index in (found, int(found[-1]), slice(0, 2), found[:4].reshape(2, 2), found.tolist()):
            same(ours.obs[index], theirs.obs[index])
            same(ours.act[index], theirs.act[index])
            if not ignore_obs_next:
                same(ours.obs_next[index], theirs.obs_next[index])
        assert hasattr(ours, "obs_next") == hasattr(theirs, "obs_next")
        batch, indices = ours.sample(64)
        same(batch, theirs[indices])
        assert set(indices) <= set(found)
        assert len(set(indices)) > 15
        for one in (ours, theirs):
            one.reset()
            assert len(one) == 0
        same(ours.add(plays[0].batch([1]), [1])[0], theirs.add(plays[1].batch([1]), [1])[0])
        same(ours[:], theirs[:])
    finally:
        ours.close()


def test_what_is_no_array_does_not_look_like_one():
    """All but reading at an index says what to do; nobody goes on with nothing."""
    ours, _ = pair()
    try:
        assert not hasattr(ours, "obs")
        ours.add(Play().batch(range(ENVS)))
        for use in (np.asarray, len, list, lambda act: act.shape, lambda act: act.__setitem__(0, 1)):
            with pytest.raises((TypeError, AttributeError), match=r"use buffer\[indices\].act"):
                use(ours.act)
        with pytest.raises(IndexError, match="index 1: no step is there"):
            ours.obs[1]
    finally:
        ours.close()


def test_priorities_decide_and_weights_correct():
    """What has the highest priority is drawn, and weights are those of the prioritized buffer of Tianshou."""
    options = {"alpha": 0.6, "beta": 0.4}
    ours = PrioritizedVectorReplayBuffer(30, ENVS, **options)
    theirs = tianshou.data.PrioritizedVectorReplayBuffer(30, ENVS, **options)
    play, other = Play(), Play()
    try:
        for _ in range(8):
            ours.add(play.batch(range(ENVS)))
            theirs.add(other.batch(range(ENVS)))
        found = theirs.sample_indices(0)
        priorities = np.linspace(0.01, 1.0, len(found))
        for one in (ours, theirs):
            one.update_weight(found, priorities)
        np.testing.assert_allclose(ours[found].weight / theirs[found].weight, 1.0, rtol=1e-5)
        ours.set_beta(0.0)
        assert (ours.sample(10)[0].weight == 1).all()
        ours.update_weight(found[3:4], np.array([1e15]))
        assert set(ours.sample(100)[1]) == {found[3]}
        assert not hasattr(VectorReplayBuffer, "update_weight")
    finally:
        ours.close()


def test_what_cannot_be_done_says_so():
    """Each error says what to do."""
    ours, _ = pair()
    play = Play()
    try:
        with pytest.raises(IndexError, match="collect first"):
            ours.sample(4)
        ours.add(play.batch(range(ENVS)))
        with pytest.raises(IndexError, match="index 5: no step is there"):
            ours[np.array([0, 5])]
        with pytest.raises(NotImplementedError, match="HDF5"):
            ours.save_hdf5("file")
        wrong = play.batch(range(ENVS))
        wrong.act = np.zeros((ENVS, 2))
        with pytest.raises(ValueError, match="act"):
            ours.add(wrong)
        assert len(ours) == ENVS
        assert not ours.hasnull()
        wrong = play.batch(range(ENVS))
        wrong.obs.pos[1] = np.nan
        ours.add(wrong)
        assert ours.hasnull()
        ours.reset()
        ours.add(play.batch(range(ENVS)))
        assert not ours.hasnull()
        ours.set_array_at_key(np.array([1.0, np.nan, 3.0]), "returns", ours.sample_indices(0), 0.0)
        np.testing.assert_array_equal(ours[:].returns, [1, np.nan, 3])
        assert ours.hasnull()
    finally:
        ours.close()


def test_its_dqn_learns():
    """Tianshou's DQN balances the pole over three steps with this buffer and priorities."""
    import torch
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    envs, test_envs = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * n) for n in (4, 4))
    envs.seed(0)
    test_envs.seed(1)
    space = envs.get_env_attr("action_space", 0)[0]
    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=network, action_space=space, eps_training=0.1, eps_inference=0.0)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=3,
        target_update_freq=100,
    )
    buffer = PrioritizedVectorReplayBuffer(10_000, 4, alpha=0.6, beta=0.4)
    try:
        collector = Collector[CollectStats](algorithm, envs, buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=500, random=True)
        result = algorithm.run_training(
            OffPolicyTrainerParams(
                training_collector=collector,
                test_collector=Collector[CollectStats](algorithm, test_envs),
                max_epochs=6,
                epoch_num_steps=1000,
                collection_step_num_env_steps=8,
                update_step_num_gradient_steps_per_sample=0.125,
                batch_size=64,
                test_step_num_episodes=4,
                test_in_training=False,
                training_fn=None,
                stop_fn=lambda score: score > 100,
                show_progress=False,
                verbose=False,
            )
        )
        assert result.best_reward > 100
    finally:
        buffer.close()
