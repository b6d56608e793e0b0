"""An agent that plans learns CartPole, and a text world, with fixed seeds and in this process."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from harness.packages import need

need("torch", "gymnasium")

import torch  # noqa: E402

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, TrainingConfig  # noqa: E402
from echo_shm.planning.agents.ppo import PPO  # noqa: E402
from echo_shm.planning.agents.segments import Segments, row_example  # noqa: E402
from echo_shm.planning.examples.train_echo_rl import TASKS  # noqa: E402
from echo_shm.planning.training.actor import Actor, rollout_example  # noqa: E402
from echo_shm.planning.training.settings import Settings  # noqa: E402


def learn(config: TrainingConfig, enough: Callable[[list[float]], bool]) -> tuple[int, list[float]]:
    """Trains until the returns are enough, or the configuration ends it. Returns the steps, and all returns."""
    torch.manual_seed(config.seed)
    settings = Settings.of(config)
    planner = settings.planner()
    ppo = PPO(planner, config.ppo, seed=config.seed)
    rollout = rollout_example(settings.envs, settings.window, config.rollout_length, settings.state_dim)
    steps, returns = 0, []
    with contextlib.closing(settings.make_envs(settings.envs)) as envs:
        actor = Actor(envs, planner, seed=config.seed)
        while steps < config.total_timesteps and not enough(returns):
            steps += actor.rollout(config.rollout_length, rollout)
            rows = {name: rollout[name] for name in row_example(0)}
            ppo.update(Segments.of(rows, settings.window), batch_size=config.batch_size)
            ended = rollout["episode_return"]
            returns += ended[~np.isnan(ended)].tolist()
    return steps, returns


def test_it_learns_cartpole():
    """From 20 steps an episode to more than 150, in fewer than 20,000 steps."""
    config = TrainingConfig(
        env_name="CartPole-v1",
        total_timesteps=20_000,
        num_actors=16,
        num_workers=1,
        planning=PlanningConfig(embedding_dim=16, state_window_size=4, learning_rate=1e-3, hidden_dim=32),
        ppo=PPOConfig(learning_rate=2e-3, gamma=0.98, gae_lambda=0.9, reward_scale=0.05, entropy_coef=0.0, epochs=6),
    )
    steps, returns = learn(config, lambda returns: np.mean(returns[-20:] or [0]) >= 150.0)
    assert np.mean(returns[:20]) < 40
    assert np.mean(returns[-20:]) >= 150.0, f"{np.mean(returns[-20:])} after {steps} steps"


def test_it_learns_a_text_world():
    """To take a key, unlock a door, open it and go, in worlds with ever other names, of which the goal has one.

    The return is 1 of who gets there within 12 commands. Who chooses at random does so in one episode of six.
    """
    config = replace(TASKS["textworld"], total_timesteps=2_500, num_actors=16, num_workers=1, batch_size=64)
    steps, returns = learn(config, lambda returns: len(returns) > 60 and np.mean(returns[-60:]) >= 0.8)
    assert np.mean(returns[:60]) < 0.5
    assert np.mean(returns[-60:]) >= 0.8, f"{np.mean(returns[-60:])} after {steps} steps"
