"""The buffers for Stable-Baselines3 hold what its own hold, and its algorithms learn from them."""

import copy
import tempfile

import numpy as np
import pytest
from harness.packages import need, readme_block

need("stable_baselines3")

import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3 import DQN, SAC  # noqa: E402
from stable_baselines3.common import buffers  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, SimpleMultiObsEnv  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage  # noqa: E402

from echo_shm.adapters.sb3 import DictReplayBuffer, ReplayBuffer  # noqa: E402
from echo_shm.adapters.sb3_dqn import PrioritizedDQN, PrioritizedReplayBuffer  # noqa: E402

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks, on a machine that does other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fill(envs, steps, *filled):
    """Plays at random, and stores each step in all buffers, as ``collect_rollouts`` does."""
    envs.seed(0)
    obs = envs.reset()
    envs.action_space.seed(0)
    for _ in range(steps):
        action = np.array([envs.action_space.sample() for _ in range(envs.num_envs)])
        after, reward, done, infos = envs.step(action)
        final = copy.deepcopy(after)
        for i in np.flatnonzero(done):
            if isinstance(final, dict):
                for name in final:
                    final[name][i] = infos[i]["terminal_observation"][name]
            else:
                final[i] = infos[i]["terminal_observation"]
        for buffer in filled:
            buffer.add(obs, final, action, reward, done, infos)
        obs = after


def rows(samples):
    """Each transition of a batch as a tuple of bytes; the rewards, which are summed in another order, are rounded."""
    fields = [
        samples.observations,
        samples.actions,
        samples.next_observations,
        samples.dones,
        samples.rewards.round(decimals=3),
    ]
    fields += [] if samples.discounts is None else [samples.discounts.round(decimals=4)]
    arrays = [one for field in fields for one in (field.values() if isinstance(field, dict) else [field])]
    return {tuple(array[i].numpy().tobytes() for array in arrays) for i in range(len(samples.dones))}


@pytest.mark.parametrize("n_steps", [1, 3])
def test_it_holds_what_their_buffer_holds(n_steps):
    """Time limits and terminations of two environments, the same shapes and dtypes, with memory saved as well."""
    envs = make_vec_env("CartPole-v1", 2, env_kwargs={"max_episode_steps": 15})
    spaces_ = envs.observation_space, envs.action_space
    theirs = buffers.NStepReplayBuffer(400, *spaces_, "cpu", 2, n_steps=n_steps, gamma=0.9)
    mine = ReplayBuffer(400, *spaces_, "cpu", 2, optimize_memory_usage=True, n_steps=n_steps, gamma=0.9)
    fill(envs, 80, theirs, mine)
    assert (mine.size(), mine.pos, mine.full) == (theirs.size(), theirs.pos, theirs.full) == (80, 80, False)
    mine.dones[mine.pos] = True  # as their learn() does where it cuts an episode: what is left is complete
    a, b = mine.sample(4000), theirs.sample(4000)
    if n_steps == 1:
        b = b._replace(discounts=None)
    assert rows(a) == rows(b)
    for one, other in zip(a, b, strict=True):
        assert (one is None and other is None) or (one.shape == other.shape and one.dtype == other.dtype)
    assert 0 < a.dones.sum() < 4000
    mine.close()


def test_dicts(shm_path, monkeypatch):
    """Observations with several parts; a saved buffer has all of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(shm_path))
    envs = make_vec_env(SimpleMultiObsEnv, 2, env_kwargs={"random_start": False, "discrete_actions": True})
    envs = VecTransposeImage(envs)
    made = [
        kind(200, envs.observation_space, envs.action_space, "cpu", 2)
        for kind in (buffers.DictReplayBuffer, DictReplayBuffer)
    ]
    fill(envs, 60, *made)
    made[1].dones[0] = True
    assert rows(made[0].sample(3000)) == rows(made[1].sample(3000))
    again = copy.deepcopy(made[1])
    assert rows(again.sample(3000)) == rows(made[1].sample(3000))
    again.close()
    made[1].close()


def test_tensors_are_the_batch_itself():
    """On the CPU nothing is copied once more."""
    envs = make_vec_env("CartPole-v1")
    mine = ReplayBuffer(100, envs.observation_space, envs.action_space, "cpu")
    fill(envs, 20, mine)
    batches, draw = [], mine._transitions.sample
    mine._transitions.sample = lambda n: batches.append(draw(n)) or batches[0]
    sample = mine.sample(8)
    data = batches[0].data
    for tensor, array in (
        (sample.observations, data["obs"]),
        (sample.next_observations, data["next"]["obs"]),
        (sample.actions, data["action"]),
        (sample.rewards, data["reward"]),
    ):
        assert np.shares_memory(tensor.numpy(), array)
    mine.close()


def test_a_frame_stack_is_stored_as_frames():
    """Behind ``VecFrameStack`` one frame a step is kept, and the stacks are those that it made."""

    def make():
        return FakeImageEnv(screen_height=8, screen_width=8, n_channels=1, discrete=True)

    envs = VecTransposeImage(VecFrameStack(DummyVecEnv([make, make]), 4))
    theirs = buffers.ReplayBuffer(200, envs.observation_space, envs.action_space, "cpu", 2)
    mine = ReplayBuffer(200, envs.observation_space, envs.action_space, "cpu", 2, stack=4)
    fill(envs, 50, theirs, mine)
    mine.dones[0] = True
    assert rows(mine.sample(3000)) == rows(theirs.sample(3000))
    assert next(iter(mine.replay.episodes())).steps["obs"].shape[1:] == (1, 8, 8)
    mine.close()


def test_observations_and_rewards_are_normalized():
    """As ``VecNormalize`` does it."""
    envs = VecNormalize(make_vec_env("CartPole-v1"))
    mine = ReplayBuffer(300, envs.observation_space, envs.action_space, "cpu")
    fill(envs.venv, 100, mine)
    envs.obs_rms.mean, envs.obs_rms.var, envs.ret_rms.var = np.full(4, 5.0), np.full(4, 4.0), 25.0
    sample = mine.sample(50, envs)
    assert sample.observations.mean() == pytest.approx(-2.5, abs=0.3)
    assert torch.allclose(sample.rewards, torch.tensor(0.2), atol=1e-4)
    mine.close()


def test_reset_and_a_full_buffer():
    """``pos`` goes round, and after ``reset()`` there is nothing."""
    envs = make_vec_env("CartPole-v1", 2)
    mine = ReplayBuffer(40, envs.observation_space, envs.action_space, "cpu", 2)
    fill(envs, 25, mine)
    assert (mine.size(), mine.pos, mine.full) == (20, 5, True)
    mine.reset()
    assert (mine.size(), mine.pos, mine.full) == (0, 0, False)
    with pytest.raises(ValueError, match="the buffer is empty"):
        mine.sample(1)
    mine.close()


def test_bad_input_is_named():
    """What was got, what was expected, what to do."""
    envs = make_vec_env("CartPole-v1", 2)
    mine = ReplayBuffer(40, envs.observation_space, envs.action_space, "cpu", 1)
    with pytest.raises(ValueError, match=r"obs: got shape \(2, 4\), expected \(1, 4\), one row for each of 1 env"):
        fill(envs, 1, mine)
    mine.close()
    with pytest.raises(ValueError, match="use a PrioritizedReplayBuffer, or leave it out"):
        PrioritizedDQN("MlpPolicy", envs, replay_buffer_class=ReplayBuffer)
    with pytest.raises(NotImplementedError, match="drawn by sample"):
        mine._get_samples(np.arange(3))


@pytest.mark.parametrize("algorithm", [DQN, PrioritizedDQN])
def test_it_learns(algorithm, tmp_path, shm_path, monkeypatch):
    """Which action belongs to which observation, from the first step on; the saved buffer has as much."""
    monkeypatch.setattr(tempfile, "tempdir", str(shm_path))
    kwargs = {} if algorithm is PrioritizedDQN else {"replay_buffer_class": ReplayBuffer}
    envs = DummyVecEnv([lambda: IdentityEnv(4)] * 2)
    model = algorithm(
        "MlpPolicy", envs, learning_rate=5e-3, gamma=0.4, learning_starts=0, train_freq=1, target_update_interval=100,
        exploration_fraction=0.5, policy_kwargs={"net_arch": [32]}, seed=0, device="cpu", buffer_size=1000, **kwargs,
    )  # fmt: skip
    assert evaluate_policy(model, envs, n_eval_episodes=2)[0] < 60
    model.learn(1200)
    assert evaluate_policy(model, envs, n_eval_episodes=2)[0] > 90  # of 100
    if algorithm is PrioritizedDQN:
        assert model.replay_buffer.beta == pytest.approx(1.0, abs=0.01)  # it began with 0.4
        assert len(np.unique(model.replay_buffer.replay.sample(200).priority)) > 20
    replay, buffer = model.replay_buffer.replay, model.replay_buffer
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.replay is not replay
    assert len(model.replay_buffer.replay) == len(replay) > 900
    model.learn(20, reset_num_timesteps=False)
    model.replay_buffer.close()
    buffer.close()


def test_three_steps_with_actions_that_are_vectors():
    """SAC, whose ``n_steps`` go to the buffer's arguments."""
    kwargs = {"n_steps": 3, "gamma": 0.95}
    model = SAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=kwargs, gamma=0.95,
        learning_starts=20, policy_kwargs={"net_arch": [8]}, buffer_size=100, device="cpu",
    )  # fmt: skip
    model.learn(40)
    sample = model.replay_buffer.sample(16)
    assert sample.actions.dtype == torch.float32
    assert torch.allclose(sample.discounts, torch.tensor(0.95**3))
    model.replay_buffer.close()


def test_weights_and_priorities():
    """Items with large errors come more often, and count less."""
    space = spaces.Box(-9, 999, (1,), np.float32)
    mine = PrioritizedReplayBuffer(100, space, spaces.Discrete(2), "cpu", alpha=1.0)
    mine.beta = 1.0
    for t in range(50):
        mine.add(np.full((1, 1), t), np.full((1, 1), t + 1), np.zeros(1), np.zeros(1), np.array([t == 49]), [{}])
    for _ in range(20):
        sample = mine.sample(64)
        mine.update_priorities(sample.keys, torch.where(sample.observations == 7, -98.0, 2.0))
    sample = mine.sample(4000)
    often = (sample.observations == 7).flatten()
    assert often.float().mean() == pytest.approx(98 / (98 + 49 * 2), abs=0.05)
    assert sample.weights.shape == (4000, 1)
    assert torch.allclose(sample.weights[often] * 49, sample.weights[~often].mean(), rtol=0.01)
    with pytest.raises(ValueError, match=r"priorities\[0\]"):
        mine.update_priorities(sample.keys[:1], torch.tensor([float("nan")]))
    mine.close()


@pytest.mark.parametrize("done", [False, True])
def test_the_priority_is_the_td_error(done):
    """Of two steps whose values are discounted twice, or which end."""
    model = PrioritizedDQN(
        "MlpPolicy", make_vec_env("CartPole-v1"), n_steps=2, gamma=0.5, learning_rate=0.0, device="cpu", seed=0,
        buffer_size=50,
    )  # fmt: skip
    first, last = np.full((1, 4), 0.1, np.float32), np.full((1, 4), 0.3, np.float32)
    middle = np.full((1, 4), 0.2, np.float32)
    end = {"TimeLimit.truncated": not done}
    model.replay_buffer.add(first, middle, np.array([1]), np.array([1.0]), np.array([False]), [{}])
    model.replay_buffer.add(middle, last, np.array([0]), np.array([2.0]), np.array([True]), [end])
    model._setup_learn(1)
    model.train(1, 64)
    with torch.no_grad():
        best = model.q_net_target(torch.as_tensor(last)).max().item()
        value = model.q_net(torch.as_tensor(first))[0, 1].item()
    batch = model.replay_buffer.replay.sample(64)
    mine = batch.data["obs"][:, 0] == np.float32(0.1)
    assert batch.priority[mine] == pytest.approx(abs(1 + 0.5 * 2 + (not done) * 0.25 * best - value), rel=1e-4)
    model.replay_buffer.close()


@pytest.mark.parametrize("words", ["echo_shm.adapters.sb3 import", "echo_shm.adapters.sb3_dqn import"])
def test_the_blocks_of_readme_run(words):
    """As they stand there."""
    made = {}
    exec(readme_block(words), made)
    assert len(made["model"].replay_buffer.replay) > 1900
    made["model"].replay_buffer.close()
