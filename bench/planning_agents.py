"""How many steps an agent needs until it succeeds: with and without a plan, from rollouts and from a replay.

    python -m bench.planning_agents --seeds 3 --json doorkey.json
    python -m bench.planning_agents --world text --seeds 3 --steps 20000 --json text.json

For each variant and seed it trains until 90 % of an evaluation's episodes succeed, and says after how many steps of the
environments that was, to the steps between two evaluations: 32 episodes each 2,048 steps, of text worlds 64 each 512. A
run that does not get there counts as the most steps that it may take, so its median is a lower bound.

Worlds: MiniGrid's DoorKey; text worlds in which a thing is to be put into a container, perhaps behind a locked door;
and the same, of which an observation says only what the last command has led to, as in TextWorld.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TextConfig, TrainingConfig
from echo_shm.planning.training.trainer import EchoRLTrainer

TARGET = 0.9

PLAN = PlanningConfig(embedding_dim=32, state_window_size=8, learning_rate=1e-3)
PPO = PPOConfig(learning_rate=1e-3, reward_scale=5.0)
REPLAY = ReplayConfig(hot_buffer_size=8_192, cold_buffer_size=16_384, age_threshold=200, target_effective=0.5)

BASE = TrainingConfig(
    env_name="MiniGrid-DoorKey-5x5-v0",
    num_actors=16,
    num_workers=1,
    num_learners=1,
    rollout_length=64,
    evaluation_frequency=2048,
    evaluation_episodes=32,
    stop_at=TARGET,
    progress=False,
    planning=PLAN,
    ppo=PPO,
)

#: Episodes are short, and are learned within some thousand steps: shorter rollouts and horizons, and a smaller replay.
TEXT = replace(
    BASE,
    env_name="TextWorld",
    env_kwargs={"rooms": 2, "containers": 1, "locked_containers": 0, "max_objects": 2, "max_steps": 20},
    rollout_length=16,
    batch_size=128,
    evaluation_frequency=512,
    evaluation_episodes=64,
    text=TextConfig(max_tokens=112, max_commands=16),
    planning=PlanningConfig(
        embedding_dim=16,
        state_window_size=4,
        learning_rate=1e-3,
        hidden_dim=32,
        heads=2,
        layers=1,
        prefix_length=2,
    ),
    ppo=PPOConfig(learning_rate=2e-3, reward_scale=5.0, gamma=0.97),
)

PARTIAL = replace(
    TEXT,
    env_kwargs={**TEXT.env_kwargs, "full_observations": False},
    planning=replace(TEXT.planning, state_window_size=8),
)

SMALL_REPLAY = replace(REPLAY, hot_buffer_size=512, cold_buffer_size=512, age_threshold=16)

WORLDS = {"doorkey": (BASE, REPLAY), "text": (TEXT, SMALL_REPLAY), "text-partial": (PARTIAL, SMALL_REPLAY)}


def variants(base: TrainingConfig, replay: ReplayConfig) -> dict[str, TrainingConfig]:
    """All of them have the same coefficients. With a replay, as many minibatches for each step as without one."""
    frequency = base.batch_size // base.ppo.epochs
    from_replay = replace(base, learning_starts=replay.hot_buffer_size // 8, train_frequency=frequency)
    no_plan = replace(base.planning, conditioned=False)
    uniform = replace(replay, sampling="uniform")
    return {
        "plan": base,
        "no plan": replace(base, planning=no_plan),
        "plan, replay by surprise": replace(from_replay, replay=replay),
        "plan, replay uniform": replace(from_replay, replay=uniform),
        "no plan, replay uniform": replace(from_replay, replay=uniform, planning=no_plan),
    }


def run(world: str, name: str, seed: int, most: int) -> dict[str, object]:
    """One run. Its steps are those of its first evaluation that reached the target."""
    config = replace(variants(*WORLDS[world])[name], seed=seed, total_timesteps=most)
    began = time.monotonic()
    metrics = asyncio.run(EchoRLTrainer(config).train())
    solved = metrics.evaluation_results["success_rate"] >= TARGET
    return {
        "variant": name,
        "seed": seed,
        "world": world,
        "solved": solved,
        "steps": metrics.timesteps if solved else most,
        "updates": metrics.updates,
        "seconds": round(time.monotonic() - began, 1),
        "history": metrics.history,
    }


def main() -> None:
    """Runs what is asked for, and prints medians."""
    names = list(variants(BASE, REPLAY))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="doorkey", choices=list(WORLDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000, help="most steps of a run (%(default)s)")
    parser.add_argument("--variants", nargs="+", default=names, choices=names)
    parser.add_argument("--json", metavar="FILE", help="write all runs into this file")
    args = parser.parse_args()
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in args.variants:
            runs.append(one := run(args.world, name, seed, args.steps))
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
