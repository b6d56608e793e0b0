"""How many steps an agent needs until it succeeds: with and without a plan, from rollouts and from a replay.

    python -m bench.planning_agents --seeds 3 --json doorkey.json

For each variant and seed it trains until 90 % of 32 episodes of an evaluation succeed, and says after how many steps of
the environments that was, to the 2,048 steps between two evaluations. A run that does not get there counts as the most
steps that it may take, so its median is a lower bound.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TrainingConfig
from echo_shm.planning.training.trainer import EchoRLTrainer

TARGET, EVERY, EPISODES = 0.9, 2048, 32

PLAN = PlanningConfig(embedding_dim=32, state_window_size=8, learning_rate=1e-3)
PPO = PPOConfig(learning_rate=1e-3, reward_scale=5.0)
REPLAY = ReplayConfig(hot_buffer_size=8_192, cold_buffer_size=16_384, age_threshold=200, target_effective=0.5)

BASE = TrainingConfig(
    env_name="MiniGrid-DoorKey-5x5-v0",
    num_actors=16,
    num_workers=1,
    num_learners=1,
    rollout_length=64,
    evaluation_frequency=EVERY,
    evaluation_episodes=EPISODES,
    stop_at=TARGET,
    progress=False,
    planning=PLAN,
    ppo=PPO,
)

#: With a replay: a minibatch of 256 steps for each 64 that are played, as often as without one.
FROM_REPLAY = replace(BASE, learning_starts=1_024, train_frequency=64)

VARIANTS = {
    "plan": BASE,
    "no plan": replace(BASE, planning=replace(PLAN, conditioned=False)),
    "plan, replay by surprise": replace(FROM_REPLAY, replay=REPLAY),
    "plan, replay uniform": replace(FROM_REPLAY, replay=replace(REPLAY, sampling="uniform")),
}


def run(name: str, seed: int, env: str, most: int) -> dict[str, object]:
    """One run. Its steps are those of its first evaluation that reached the target."""
    config = replace(VARIANTS[name], env_name=env, seed=seed, total_timesteps=most)
    began = time.monotonic()
    metrics = asyncio.run(EchoRLTrainer(config).train())
    solved = metrics.evaluation_results["success_rate"] >= TARGET
    return {
        "variant": name,
        "seed": seed,
        "env": env,
        "solved": solved,
        "steps": metrics.timesteps if solved else most,
        "updates": metrics.updates,
        "seconds": round(time.monotonic() - began, 1),
        "history": metrics.history,
    }


def main() -> None:
    """Runs what is asked for, and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=BASE.env_name)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000, help="most steps of a run (%(default)s)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--json", metavar="FILE", help="write all runs into this file")
    args = parser.parse_args()
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in args.variants:
            runs.append(one := run(name, seed, args.env, args.steps))
            print(
                f"{name:26} seed {seed}: {one['steps']:>7,} steps, solved {one['solved']}, {one['seconds']} s",
                flush=True,
            )
            if args.json:
                Path(args.json).write_text(json.dumps(runs, indent=1))
    for name in args.variants:
        steps = [int(str(one["steps"])) for one in runs if one["variant"] == name]
        print(f"{name:26} median {statistics.median(steps):>9,.0f} steps ({min(steps):,} to {max(steps):,})")


if __name__ == "__main__":
    main()
