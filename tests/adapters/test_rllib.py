"""The episode buffers for RLlib: what they return for what was added, priorities, states, and a training."""

import time
from collections import Counter

import pytest
from harness.packages import need

need("ray")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.utils import replay_buffers  # noqa: E402

from echo_shm.adapters.rllib import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer  # noqa: E402

#: Frameworks take long to import, and Numba to compile.
pytestmark = pytest.mark.watchdog(300)

SPACES = {"observation_space": gymnasium.spaces.Box(-1e6, 1e6, (2,)), "action_space": gymnasium.spaces.Discrete(9)}


def piece(episode, first, n, end=""):
    """n steps of an episode. The observation after t steps is ``[100 * episode + t, t]``; action and reward are t."""
    times = range(first, first + n)
    return SingleAgentEpisode(
        id_=str(episode),
        observations=[np.array([100 * episode + t, t], np.float32) for t in (*times, first + n)],
        actions=[np.int64(t) for t in times],
        rewards=[float(t) for t in times],
        terminated=end == "terminated",
        truncated=end == "truncated",
        len_lookback_buffer=0,
        t_started=first,
        **SPACES,
    )


@pytest.fixture
def buffer():
    """Two episodes, whose pieces come by turns: one of 7 steps that is terminated, and one of 5 that is truncated."""
    made = PrioritizedEpisodeReplayBuffer(1000, n_step=3, gamma=0.5, alpha=1.0)
    made.add([piece(1, 0, 4), piece(2, 0, 2)])
    made.add([piece(2, 2, 3, "truncated"), piece(1, 4, 3, "terminated")])
    made.add(piece(3, 0, 2))
    yield made
    made.close()


def test_transitions_go_on_from_piece_to_piece(buffer):
    """Each is over three steps of one episode, or over those that are left of it; the discounted rewards are summed."""
    ends = {1: 7, 2: 5}
    seen = Counter()
    for one in buffer.sample(500, n_step=3, gamma=0.5, beta=0.4, sample_episodes=True):
        before, after = one.get_observations()
        episode, t = divmod(int(before[0]), 100)
        n = min(3, ends[episode] - t)
        assert after.tolist() == [100 * episode + t + n, t + n]
        assert one.get_actions()[0] == t
        assert one.get_rewards()[0] == pytest.approx(sum(0.5**i * (t + i) for i in range(n)))
        assert one.get_extra_model_outputs("n_step") == [n]
        assert one.get_extra_model_outputs("weights") == [1.0]
        assert (one.is_terminated, one.is_truncated) == (episode == 1 and t + n == 7, False)
        assert one.observation_space is not None
        seen[episode, t] += 1
    assert set(seen) == {(1, t) for t in range(7)} | {(2, t) for t in range(5)}
    assert (len(buffer), buffer.get_added_timesteps(), buffer.get_sampled_timesteps()) == (12, 14, 500)
    assert buffer.get_num_episodes() == 2
    assert buffer.get_metrics()


def test_priorities_are_those_of_the_last_sample(buffer):
    """RLlib gives its errors in the order of the sample."""
    assert isinstance(buffer, replay_buffers.PrioritizedEpisodeReplayBuffer)
    actions = [one.get_actions()[0] for one in buffer.sample(200)]
    buffer.update_priorities(np.where(np.array(actions) == 4, 1e9, 0.0))
    again = buffer.sample(100, beta=1.0)
    assert {one.get_actions()[0] for one in again} == {4}
    assert again[0].get_extra_model_outputs("weights")[0] < 1e-6


def test_a_state_brings_all_back(buffer):
    """What is drawn next is the same, and priorities are those of the last sample."""
    last = [one.get_actions()[0] for one in buffer.sample(50)]
    state = buffer.get_state()
    other = PrioritizedEpisodeReplayBuffer(1000, n_step=3, gamma=0.5)
    try:
        other.set_state(state)
        pairs = zip(buffer.sample(50), other.sample(50), strict=True)
        assert all(a.get_observations()[0].tolist() == b.get_observations()[0].tolist() for a, b in pairs)
        assert (len(other), other.get_added_timesteps()) == (12, 14)
        other.set_state(state)
        other.update_priorities(np.where(np.array(last) == 4, 1e9, 0.0))
        assert {one.get_actions()[0] for one in other.sample(50)} == {4}
        other.add(piece(4, 0, 4, "terminated"))
        assert len(other) == 16
    finally:
        other.close()


def observed(buffer, n=300):
    """The observations before and after, in pairs, of n transitions: numbers of steps."""
    drawn = [one.get_observations() for one in buffer.sample(n)]
    return {(int(before[1]), int(after[1])) for before, after in drawn}


def test_an_episode_is_cut_where_a_piece_was_lost():
    """No transition leads from one piece to another that does not follow it."""
    buffer = EpisodeReplayBuffer(100)
    try:
        buffer.add(piece(1, 0, 2))
        buffer.add(piece(1, 7, 2))
        buffer.add(piece(1, 9, 1, "terminated"))
        assert observed(buffer) == {(0, 1), (7, 8), (8, 9), (9, 10)}
        buffer.add([piece(2, 20, 2), piece(2, 21, 2)])
        assert observed(buffer) >= {(20, 21), (21, 22)}
        assert buffer.get_num_episodes() == 4
    finally:
        buffer.close()


def test_a_thousand_episodes_go_on_at_the_same_time():
    """Where there are more the oldest are cut. All others go on where they were."""
    buffer = EpisodeReplayBuffer(5000)
    try:
        buffer.add([piece(episode, 0, 1) for episode in range(1100)])
        assert len(buffer) == 0
        buffer.add([piece(episode, 1, 1) for episode in range(1099, 99, -1)])
        assert len(buffer) == 1000
        assert observed(buffer) == {(0, 1)}
    finally:
        buffer.close()


def test_nothing_is_drawn_before_a_transition_is_complete(buffer):
    """The error comes at once, and says what is missing. So it does when nothing was drawn, or nothing added."""
    one = PrioritizedEpisodeReplayBuffer(100, n_step=3)
    try:
        one.add(piece(1, 0, 0))
        with pytest.raises(RuntimeError, match="nothing was added yet"):
            one.sample(1)
        one.add(piece(1, 0, 1))
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="no transition is complete yet: one takes n_step=3 steps"):
            one.sample(1)
        assert time.monotonic() - began < 10
        with pytest.raises(RuntimeError, match=r"call sample\(\) first"):
            one.update_priorities([1.0])
        one.add([piece(1, 1, 0), piece(1, 1, 4)])
        assert observed(one) == {(0, 3), (1, 4)}
        with pytest.raises(ValueError, match="priorities"):
            one.update_priorities([1.0])
    finally:
        one.close()


def test_a_state_of_an_empty_buffer_empties_a_buffer(buffer):
    """It begins again with the next step."""
    empty = PrioritizedEpisodeReplayBuffer(1000, n_step=3, gamma=0.5)
    buffer.sample(1)
    buffer.set_state(empty.get_state())
    assert len(buffer) == buffer.get_added_timesteps() == 0
    buffer.add(piece(1, 0, 3, "terminated"))
    with pytest.raises(RuntimeError, match=r"call sample\(\) first"):
        buffer.update_priorities([1.0])
    assert len(buffer) == 3


def test_a_state_of_other_transitions_is_refused(buffer):
    """What the buffer has is still there."""
    for options in ({"n_step": 1, "gamma": 0.5}, {"n_step": 3, "gamma": 0.9}):
        other = PrioritizedEpisodeReplayBuffer(1000, **options)
        with pytest.raises(ValueError, match=r"\(n_step, gamma\) = .* make a buffer with those of the state"):
            buffer.set_state(other.get_state())
    assert len(buffer) == 12


def test_the_capacity_is_the_buffers_own(buffer):
    """Of a state of more steps the newest come."""
    small = PrioritizedEpisodeReplayBuffer(6, n_step=3, gamma=0.5)
    try:
        small.set_state(buffer.get_state())
        assert 0 < len(small) <= 6
        for first in range(0, 30, 10):
            small.add(piece(4, first, 10))
        assert 0 < len(small) <= 6
        assert min(observed(small))[0] >= 24
    finally:
        small.close()


def test_a_directory_is_not_overwritten_by_a_state(buffer, tmp_path):
    """What is in it goes on."""
    state = buffer.get_state()
    other = PrioritizedEpisodeReplayBuffer(1000, n_step=3, gamma=0.5, store=str(tmp_path / "run"))
    try:
        other.set_state(state)
        assert len(other) == 12
        with pytest.raises(ValueError, match=r"set_state\(\): store=.* needs an empty one"):
            other.set_state(state)
        other.add(piece(4, 0, 4, "terminated"))
        assert len(other) == 16
    finally:
        other.close()


def test_what_it_does_not_have_is_refused(buffer):
    """The message says what to do."""
    with pytest.raises(ValueError, match="replay_buffer_config"):
        buffer.sample(4, n_step=1)
    with pytest.raises(ValueError, match="batch_length_T: this buffer has transitions alone"):
        buffer.sample(4, batch_length_T=8)
    with pytest.raises(RuntimeError, match="nothing was added"):
        EpisodeReplayBuffer(10).sample(1)
    with pytest.raises(ValueError, match="gamma"):
        EpisodeReplayBuffer(10, gamma=0)


def test_its_dqn_learns():
    """RLlib's DQN balances the pole with this buffer, by the name in its configuration."""
    import ray
    import torch
    from ray.rllib.algorithms.dqn import DQNConfig

    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    buffer = {"type": "echo_shm.adapters.rllib.PrioritizedEpisodeReplayBuffer", "capacity": 20_000, "n_step": 3}
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .training(
            replay_buffer_config={**buffer, "alpha": 0.6, "beta": 0.4},
            n_step=3,
            lr=1e-3,
            train_batch_size_per_learner=64,
            training_intensity=32.0,
            num_steps_sampled_before_learning_starts=200,
            target_network_update_freq=200,
            epsilon=[(0, 1.0), (1500, 0.05)],
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"})
        .reporting(min_sample_timesteps_per_iteration=500, metrics_num_episodes_for_smoothing=10)
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    returns = []
    try:
        while max(returns, default=0.0) < 60 and len(returns) < 10:
            returns.append(algorithm.train()["env_runners"]["episode_return_mean"])
        assert isinstance(algorithm.local_replay_buffer, PrioritizedEpisodeReplayBuffer)
        assert len(algorithm.local_replay_buffer) > 500
        assert max(returns) > 60
    finally:
        algorithm.local_replay_buffer.close()
        algorithm.stop()
        ray.shutdown()
