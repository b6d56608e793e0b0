"""Compares ``echo_rl`` with baselines: EchoRL's options, over ``python -m echo_shm.planning.evaluate``.

    python -m echo_shm.planning.examples.benchmark_echo_rl --tasks minigrid --baselines ppo-rlhf --num-seeds 3

A run for each task, method and seed; those that are in the output directory already are not made again. What does not
fit together, such as prompting on vectors of numbers, is left out and said. EchoRL's names of tasks and baselines are
taken beside ours: ``BenchmarkConfig`` says which is which.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from echo_shm.planning.evaluation.benchmark import BenchmarkConfig, BenchmarkResult, EchoRLBenchmark
from echo_shm.planning.examples.common import arguments, picture, run


def shown(value: float | None, digits: int) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def table(found: BenchmarkResult) -> list[str]:
    """A line for each task and method."""
    lines = [f"{'task':24} {'method':24} {'success':>8} {'reward':>10} {'tokens/s':>10} {'cost a success':>16}"]
    for task, methods in found.success_rates.items():
        for method, rate in methods.items():
            others = [
                shown(figures.get(task, {}).get(method), digits)
                for figures, digits in (
                    (found.avg_rewards, 3),
                    (found.tokens_per_second, 1),
                    (found.cost_efficiency, 0),
                )
            ]
            lines.append(f"{task:24} {method:24} {rate:8.3f} {others[0]:>10} {others[1]:>10} {others[2]:>16}")
    return lines


def demo(args: argparse.Namespace) -> int:
    """Runs the benchmark, and prints its table."""
    config = BenchmarkConfig(
        tasks=args.tasks,
        backbones=args.backbones,
        baselines=args.baselines,
        num_seeds=1 if args.quick else args.num_seeds,
        num_episodes=2 if args.quick else args.num_episodes,
        echo_rl_configs={"total_timesteps": 100 if args.quick else args.timesteps},
        output_dir=args.output_dir,
        jobs=args.jobs,
    )
    found = asyncio.run(EchoRLBenchmark(config, say=print).run_benchmark())
    for one in found.results.left_out:
        print(f"left out: {one['agent']} on {one['task']}: {one['why']}")
    print(*table(found), sep="\n")
    print(f"{len(found.task_results)} runs in {args.output_dir}, {found.total_evaluation_time:.1f} s")
    if args.plot:
        tasks = list(found.success_rates)
        with picture(args.plot, "Success rates, means over seeds", len(tasks)) as panels:
            for axes, task in zip(panels, tasks, strict=True):
                axes.barh(list(found.success_rates[task]), list(found.success_rates[task].values()), color="#0b6bcb")
                axes.set(title=task, xlabel="success rate", xlim=(0, 1))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = arguments("benchmark_echo_rl", __doc__)
    parser.add_argument("--tasks", nargs="+", default=["minigrid-doorkey-5x5"], help="(%(default)s)")
    parser.add_argument("--backbones", nargs="+", default=["own"], help="of react and tot (%(default)s)")
    parser.add_argument("--baselines", nargs="+", default=["random", "ppo-rlhf"], help="(%(default)s)")
    parser.add_argument("--num-seeds", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--num-episodes", type=int, default=20, help="of each evaluation (%(default)s)")
    parser.add_argument("--timesteps", type=int, default=8_192, help="most steps of what learns (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (%(default)s)")
    parser.add_argument("--output-dir", default="benchmark_results", help="(%(default)s)")
    return run(demo, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
