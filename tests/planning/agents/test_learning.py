"""An agent that plans learns CartPole, with fixed seeds and in this process."""

import contextlib

import numpy as np
from harness.packages import need

need("torch", "gymnasium")

import torch  # noqa: E402

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig  # noqa: E402
from echo_shm.planning.agents.planner import LatentPlanner  # noqa: E402
from echo_shm.planning.agents.ppo import PPO  # noqa: E402
from echo_shm.planning.agents.segments import Segments, row_example  # noqa: E402
from echo_shm.planning.training.actor import Actor, rollout_example  # noqa: E402
from echo_shm.planning.training.environments import make_vector  # noqa: E402

ENVS, LENGTH, WINDOW = 16, 32, 4
MOST_STEPS, TARGET = 20_000, 150.0


def test_it_learns_cartpole():
    """From 20 steps an episode to more than 150, in fewer than 20,000 steps."""
    torch.manual_seed(0)
    planning = PlanningConfig(embedding_dim=16, state_window_size=WINDOW, learning_rate=1e-3, hidden_dim=32)
    ppo_config = PPOConfig(
        learning_rate=2e-3, gamma=0.98, gae_lambda=0.9, reward_scale=0.05, entropy_coef=0.0, epochs=6
    )
    planner = LatentPlanner(4, 2, planning)
    ppo = PPO(planner, ppo_config)
    rollout = rollout_example(ENVS, WINDOW, LENGTH, 4)
    steps, returns = 0, []
    with contextlib.closing(make_vector("CartPole-v1", ENVS)) as envs:
        actor = Actor(envs, planner, seed=0)
        while steps < MOST_STEPS and np.mean(returns[-20:] or [0]) < TARGET:
            steps += actor.rollout(LENGTH, rollout)
            ppo.update(Segments.of({name: rollout[name] for name in row_example(0)}, WINDOW))
            ended = rollout["episode_return"]
            returns += ended[~np.isnan(ended)].tolist()
    assert np.mean(returns[:20]) < 40
    assert np.mean(returns[-20:]) >= TARGET, f"{np.mean(returns[-20:])} after {steps} steps"
    print(steps)
