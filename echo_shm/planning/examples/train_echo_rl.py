"""Trains an agent that plans: EchoRL's options, over ``EchoRLTrainer``.

    python -m echo_shm.planning.examples.train_echo_rl --task cartpole --timesteps 60000 --num-actors 16 --plot

It prints evaluations as they come, at the end the last one, and what the machine did meanwhile. All settings there are:
``python -m echo_shm.planning.training --help``.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TextConfig, TrainingConfig
from echo_shm.planning.evaluation.tasks import find
from echo_shm.planning.examples.common import arguments, picture, run
from echo_shm.planning.training.trainer import EchoRLTrainer
from echo_shm.planning.utils.monitoring import PerformanceMonitor

_CARTPOLE, _TEXT_WORLD = find("cartpole").training(), find("textworld").training()
_SMALL = PlanningConfig(embedding_dim=32, state_window_size=8, learning_rate=1e-3)

#: For each task what it is trained with: its environment, and settings with which it is learned, unless they say so.
TASKS = {
    "cartpole": TrainingConfig("CartPole-v1", planning=_CARTPOLE.planning, ppo=_CARTPOLE.ppo),
    "minigrid": TrainingConfig(
        "MiniGrid-DoorKey-5x5-v0",
        rollout_length=64,
        planning=_SMALL,
        ppo=PPOConfig(learning_rate=1e-3, reward_scale=5.0),
    ),
    # A small one: a room to be found, behind a locked door. A transformer reads it, and follows the plan as its prefix.
    "textworld": TrainingConfig(
        "TextWorld",
        env_kwargs={
            **{"task_type": "visit", "rooms": 2, "locked_doors": 1, "max_objects": 2, "max_steps": 12},
            **{"containers": 0, "locked_containers": 0},
        },
        rollout_length=8,
        text=TextConfig(max_tokens=64, max_commands=8),
        planning=_TEXT_WORLD.planning,
        ppo=dataclasses.replace(_TEXT_WORLD.ppo, learning_rate=4e-3, epochs=3),
    ),
    # For who has its data. With these settings it is untried.
    "alfworld": TrainingConfig(
        "Alfworld",
        rollout_length=16,
        text=TextConfig(max_tokens=512, max_commands=64),
        planning=_SMALL,
        ppo=PPOConfig(learning_rate=1e-3, reward_scale=5.0),
    ),
}

#: With a replay: steps for each minibatch, and how many are kept.
_TRAIN_EVERY, _REPLAY = 64, ReplayConfig(8_192, 16_384, age_threshold=200, target_effective=0.5)


def configured(args: argparse.Namespace) -> TrainingConfig:
    """The configuration that the options ask for.

    Raises:
        ValueError: The backbone is one whose weights are not here.

    """
    if args.backbone != "own":
        raise ValueError(
            f"--backbone {args.backbone}: only 'own' learns here, a small network; a server's model is evaluated by "
            "python -m echo_shm.planning.examples.benchmark_echo_rl"
        )
    quick: dict[str, Any] = {
        "total_timesteps": 200,
        "num_actors": 2,
        "num_workers": 1,
        "batch_size": 32,
        "evaluation_episodes": 1,
    }
    replay: dict[str, Any] = {"replay": _REPLAY, "train_frequency": _TRAIN_EVERY, "learning_starts": 1_024}
    config = dataclasses.replace(
        TASKS[args.task],
        total_timesteps=args.timesteps,
        num_actors=args.num_actors,
        num_learners=args.num_learners,
        batch_size=args.batch_size,
        device=args.device,
        seed=args.seed,
        evaluation_frequency=max(1, args.timesteps // 10),
        checkpoint=args.checkpoint,
        stop_at=args.stop_at,
        **(replay if args.replay else {}),
    )
    return dataclasses.replace(config, **quick) if args.quick else config


async def train(config: TrainingConfig) -> tuple[EchoRLTrainer, PerformanceMonitor]:
    """Trains, and prints the evaluations as they come."""
    trainer, monitor = EchoRLTrainer(config), PerformanceMonitor()
    said = 0
    with monitor:
        training = asyncio.create_task(trainer.train())
        while not training.done():
            await asyncio.wait({training}, timeout=0.2)
            for seen in trainer.metrics.history[said:]:
                said += 1
                rate, reward = seen["success_rate"], seen["avg_reward"]
                print(
                    f"{seen['timesteps']:>9,.0f} steps: success rate {rate:.2f}, average reward {reward:.2f}",
                    flush=True,
                )
        await training
    monitor.metrics_collector.collect_metrics(trainer.metrics)
    return trainer, monitor


def demo(args: argparse.Namespace) -> int:
    """Trains, and says what came of it."""
    config = configured(args)
    trainer, monitor = asyncio.run(train(config))
    metrics, report = trainer.metrics, monitor.get_performance_report()
    results = metrics.evaluation_results
    print(
        f"{args.task}: success rate {results['success_rate']:.3f}, average reward {results['avg_reward']:.3f} after "
        f"{metrics.timesteps:,} steps, {metrics.updates:,} updates and {metrics.seconds:.1f} s"
    )
    if "cpu_usage" in report["training_metrics"]:
        busy = report["training_metrics"]["cpu_usage"]
        memory = report["system_metrics"]["process_memory"]
        print(f"processors {busy['mean']:.0f} % busy, learner's memory {memory / 1e6:.0f} MB")
    if args.plot:
        with picture(args.plot, f"{config.env_name}: {config.num_actors} actors, seed {config.seed}") as (left, right):
            steps = [seen["timesteps"] for seen in metrics.history]
            for axes, name in ((left, "success_rate"), (right, "avg_reward")):
                axes.plot(steps, [seen[name] for seen in metrics.history], "o-", markersize=4)
                axes.set(xlabel="steps", ylabel=name.replace("_", " "))
            left.set(ylim=(-0.02, 1.02))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = arguments("train_echo_rl", __doc__)
    parser.add_argument("--task", choices=list(TASKS), default="cartpole", help="what is learned (%(default)s)")
    parser.add_argument("--backbone", default="own", help="what learns: own, a small network of this project")
    parser.add_argument("--timesteps", type=int, default=50_000, help="steps of all environments (%(default)s)")
    parser.add_argument("--num-actors", type=int, default=16, help="environments at the same time (%(default)s)")
    parser.add_argument("--num-learners", type=int, default=1, help="threads of the learner (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="steps of a minibatch (%(default)s)")
    parser.add_argument("--device", default="auto", help="where the learner computes: auto, cpu, cuda (%(default)s)")
    parser.add_argument("--replay", action="store_true", help="learn from a HotColdReplay, by surprise")
    parser.add_argument("--stop-at", type=float, default=0.95, help="the success rate at which it ends (%(default)s)")
    parser.add_argument("--checkpoint", metavar="DIRECTORY", help="where checkpoints go; none without it")
    return run(demo, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
