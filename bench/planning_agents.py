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

from echo_shm.planning.agents.configs import ReplayConfig, TrainingConfig
from echo_shm.planning.evaluation.tasks import find
from echo_shm.planning.training.trainer import EchoRLTrainer

TARGET = 0.9

#: For each world: the evaluation's task, after how many steps an episode of it is truncated (None: the task's own), and
#: how many episodes an evaluation has.
WORLDS = {
    "doorkey": ("minigrid-doorkey-5x5", None, 32),
    "text": ("textworld-2x2", 20, 64),
    "text-partial": ("textworld-2x2", 20, 64),
}


def settings(world: str) -> tuple[TrainingConfig, ReplayConfig]:
    """What all variants share in a world, and the replay of those that have one: those of the evaluation's task."""
    name, max_steps, episodes = WORLDS[world]
    task = find(name, max_steps)
    base = replace(task.training(), evaluation_episodes=episodes, stop_at=TARGET, device="auto")
    if world == "text-partial":
        base = replace(
            base,
            env_kwargs={**base.env_kwargs, "full_observations": False},
            planning=replace(base.planning, state_window_size=8),
        )
    return base, task.replay


def variants(base: TrainingConfig, replay: ReplayConfig) -> dict[str, TrainingConfig]:
    """All of them have the same coefficients. With a replay, as many minibatches for each step as without one."""
    no_plan = replace(base.planning, conditioned=False)
    uniform = replace(replay, sampling="uniform")
    return {
        "plan": base,
        "no plan": replace(base, planning=no_plan),
        "plan, replay by surprise": replace(base, replay=replay),
        "plan, replay uniform": replace(base, replay=uniform),
        "no plan, replay uniform": replace(base, replay=uniform, planning=no_plan),
    }


def run(world: str, name: str, seed: int, most: int) -> dict[str, object]:
    """One run. Its steps are those of its first evaluation that reached the target."""
    config = replace(variants(*settings(world))[name], seed=seed, total_timesteps=most)
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
    names = list(variants(*settings("text")))
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
