"""The plans of an agent: how they move along an episode, before and after training.

    python -m echo_shm.planning.examples.latent_planning_demo --plot

A ``LatentPlanner`` learns CartPole by PPO in this process. Then it plays an episode. Its plans, one for each window of
states, are drawn in the plane of their two largest principal components; and their temporal divergence, how far each
plan is from the one before it, along the episode. An agent that has learned nothing plays one, too.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.ppo import PPO
from echo_shm.planning.agents.segments import Segments, row_example
from echo_shm.planning.examples.common import arguments, picture, run
from echo_shm.planning.plans import temporal_kl
from echo_shm.planning.training.actor import Actor, rollout_example
from echo_shm.planning.training.environments import make_vector
from echo_shm.spec import Array

with needs("planning.examples", "PyTorch", "torch", extra="planning-examples"):
    import torch

ENV, STATE_DIM, ACTIONS, ENVS, LENGTH = "CartPole-v1", 4, 2, 16, 32

PLANNING = PlanningConfig(embedding_dim=32, state_window_size=8, learning_rate=2e-3)
LEARNING = PPOConfig(learning_rate=2e-3, gamma=0.98, gae_lambda=0.9, reward_scale=0.05)


@dataclass
class Episode:
    """What an agent saw and planned, a row a step."""

    states: Array
    plans: Array

    @property
    def divergence(self) -> Array:
        """Of each plan but the first from the one before it: ``(steps - 1,)``."""
        return np.asarray(temporal_kl(self.plans[1:], self.plans[:-1], PLANNING.sigma))


def train(planner: LatentPlanner, steps: int, seed: int) -> list[tuple[int, float]]:
    """Trains for so many steps. Returns how many there were at the end of each episode, and its return."""
    ppo, window = PPO(planner, LEARNING, seed=seed), PLANNING.state_window_size
    rollout = rollout_example(ENVS, window, LENGTH, STATE_DIM)
    played, returns = 0, []
    with contextlib.closing(make_vector(ENV, ENVS)) as envs:
        actor = Actor(envs, planner, seed)
        while played < steps:
            played += actor.rollout(LENGTH, rollout)
            actor.updates += 1
            segments = Segments.of({name: rollout[name] for name in row_example(0)}, window)
            _, estimates = ppo.update(segments)
            planner.ema.update(planner.mean_plans(segments, estimates.plans))
            ended = rollout["episode_return"][~np.isnan(rollout["episode_return"])]
            returns += [(played, float(one)) for one in ended]
    return returns


def play(planner: LatentPlanner, seed: int) -> Episode:
    """One episode."""
    states, plans = [], []
    with contextlib.closing(make_vector(ENV, 1)) as envs:
        actor = Actor(envs, planner, seed)
        while True:
            seen = actor.step()
            assert seen.plans is not None
            states.append(seen.row["obs"][0])
            plans.append(seen.plans[0].copy())
            if not np.isnan(seen.episode_return[0]):
                return Episode(np.array(states), np.array(plans))


def principal(plans: Array) -> tuple[Array, Array]:
    """Where plans lie in the plane of the two largest principal components, and what share of the variance each has."""
    centred = plans.astype(np.float64) - plans.mean(0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    shares = singular**2 / max(float((singular**2).sum()), 1e-300)
    return centred @ axes[:2].T, shares[:2]


def demo(args: argparse.Namespace) -> int:
    """Trains, plays, and says what the plans did."""
    steps = 300 if args.quick else 40_000
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    planner = LatentPlanner(STATE_DIM, ACTIONS, PLANNING)
    before = play(planner, args.seed + 1)
    returns = train(planner, steps, args.seed)
    after = play(planner, args.seed + 1)
    last = [one for _, one in returns[-20:]]
    print(f"{ENV}: {steps:,} steps; return {np.mean([one for _, one in returns[:20]]):.0f} at first, ", end="")
    print(f"{np.mean(last):.0f} in the last {len(last)} episodes")
    places, shares = principal(after.plans)
    for name, episode in (("before", before), ("after", after)):
        middle, most = np.median(episode.divergence), episode.divergence.max()
        share = principal(episode.plans)[1].sum()
        print(
            f"{name:>7} training: an episode of {len(episode.plans)} steps; two components have {share:.0%} of the "
            f"variance of its plans; temporal KL {middle:.4f} in the median, {most:.4f} at most"
        )
    angle = np.corrcoef(places[:, 0], after.states[:, 2])[0, 1] if len(places) > 2 else float("nan")
    print(f"correlation of the first component with the angle of the pole: {abs(angle):.2f}")
    if args.plot:
        with picture(args.plot, f"Plans of an agent that has learned {ENV} for {steps:,} steps") as (left, right):
            left.plot(*places.T, color="#d0d7de", linewidth=0.8, zorder=1)
            dots = left.scatter(*places.T, c=after.states[:, 2], s=12, cmap="coolwarm", zorder=2)
            left.figure.colorbar(dots, ax=left, label="angle of the pole, rad")
            left.set(xlabel=f"first component ({shares[0]:.0%})", ylabel=f"second component ({shares[-1]:.0%})")
            right.plot(before.divergence, label="before training", color="#8c959f")
            right.plot(after.divergence, label="after", color="#0b6bcb", linewidth=0.9)
            right.set(xlabel="step of the episode", ylabel="temporal KL", yscale="log")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    return run(demo, arguments("latent_planning_demo", __doc__), argv)


if __name__ == "__main__":
    sys.exit(main())
