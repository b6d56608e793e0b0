"""EchoRL's names of an evaluation."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig
from echo_shm.planning.evaluation import models
from echo_shm.planning.evaluation.agents import AGENTS
from echo_shm.planning.evaluation.configs import EvaluationConfig, names
from echo_shm.planning.evaluation.evaluation import Evaluation, Results
from echo_shm.planning.reading import Readable
from echo_shm.replay.validation import integer

__all__ = ["BenchmarkConfig", "BenchmarkResult", "EchoRLBenchmark", "TaskResult"]

#: EchoRL's names, and ours. A name that is not here is one of ours.
TASKS = {"alfworld": "textworld", "webshop": "shop", "cruxeval": "code", "minigrid": "minigrid-doorkey-8x8"}
BASELINES = {"react": "react", "tot": "tot", "ppo-rlhf": "ppo", "impala": "impala"}
BACKBONES = {"gpt-": "openai:", "claude-": "anthropic:", "gemini-": "gemini:"}

#: What of ``echo_rl_configs`` is a setting of an :class:`EvaluationConfig`, and what each task has of its own.
_SETTINGS = {"total_timesteps": "steps", "planning_config": "planning", "ppo_config": "ppo", "replay_config": "replay"}
_KINDS = {"planning_config": PlanningConfig, "ppo_config": PPOConfig, "replay_config": ReplayConfig}
_OF_THE_TASK = ("num_actors", "num_learners", "batch_size", "device")


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Readable):
    """EchoRL's name of an :class:`EvaluationConfig`, which :meth:`evaluation` makes of it.

    Lists may be given as one text with commas.

    Names of ours are taken beside EchoRL's, which mean: ``alfworld`` the text world of our own, since ALFWorld's games
    need its data; ``webshop`` the shop and ``cruxeval`` the questions about code of our own; ``ppo-rlhf`` PPO with the
    environment's own reward, as nobody's feedback is here. ``rlaif`` is not there at all.
    """

    tasks: Sequence[str] = ("alfworld", "minigrid")
    #: ``own``, ``hf:NAME``, ``openai:MODEL@URL``; ``gpt-...``, ``claude-...`` and ``gemini-...`` by those clients.
    backbones: Sequence[str] = ("own",)
    #: What is compared with ``echo_rl``, which always runs.
    baselines: Sequence[str] = ("react", "tot", "ppo-rlhf", "impala")
    num_seeds: int = 10
    num_episodes: int = 100
    #: ``total_timesteps``, ``planning_config``, ``ppo_config`` and ``replay_config``, for all that learn; each of the
    #: last three may be a mapping of its fields. How many actors and learners there are, batches and devices are the
    #: task's: those say nothing.
    echo_rl_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    output_dir: str = "./benchmark_results"
    #: Runs at the same time.
    jobs: int = 1

    def __post_init__(self) -> None:
        for name in ("tasks", "backbones", "baselines"):
            object.__setattr__(self, name, names(name, getattr(self, name)))
        for name in ("num_seeds", "num_episodes", "jobs"):
            integer(name, getattr(self, name), 1)
        if not isinstance(self.output_dir, str) or not self.output_dir:
            raise ValueError(f"output_dir={self.output_dir!r}: use the name of a directory")
        if not isinstance(self.echo_rl_configs, Mapping):
            raise TypeError(f"echo_rl_configs={self.echo_rl_configs!r:.80}: use a mapping of names to values")

    def evaluation(self) -> EvaluationConfig:
        """Our configuration.

        Raises:
            ValueError, TypeError: As :class:`EvaluationConfig`; ``echo_rl_configs`` has an unknown key; or a baseline
                or a backbone is unknown.

        """
        given = {name: value for name, value in self.echo_rl_configs.items() if name not in _OF_THE_TASK}
        for name in given:
            if name not in _SETTINGS:
                known = ", ".join((*_SETTINGS, *_OF_THE_TASK))
                raise ValueError(f"echo_rl_configs has {name!r}: use some of {known}")
            if name in _KINDS and isinstance(given[name], Mapping):
                given[name] = _KINDS[name](**given[name])
        agents = dict.fromkeys(["echo_rl", *(_agent(name) for name in self.baselines)])
        return EvaluationConfig(
            output=self.output_dir,
            tasks=tuple(TASKS.get(name, name) for name in self.tasks),
            agents=tuple(agents),
            backbones=tuple(_backbone(name) for name in self.backbones),
            seeds=self.num_seeds,
            episodes=self.num_episodes,
            jobs=self.jobs,
            **{_SETTINGS[name]: value for name, value in given.items()},
        )


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """One run. A measure that such a run cannot have is None; there, some were made up."""

    task_name: str
    backbone: str | None
    method: str
    seed: int
    success_rate: float | None
    avg_reward: float | None
    wall_clock_time: float | None
    kv_cache_hit_rate: float | None
    #: Environment tokens a second.
    tokens_per_second: float | None
    #: Of a language model entries of a KV cache that attention read, of an agent that learns steps that went through
    #: the learner; for each success.
    cost_per_success: float | None


#: For each task and method, the mean over seeds of the runs that have such a measure.
Means = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class BenchmarkResult:
    """What came of a benchmark, by our names of tasks and methods; of several backbones as ``"react, own"``."""

    task_results: list[TaskResult]
    success_rates: Means
    avg_rewards: Means
    tokens_per_second: Means
    cost_efficiency: Means
    #: Seconds of this call. Runs that were there already take none.
    total_evaluation_time: float
    #: The real ones, with intervals and tests.
    results: Results


class EchoRLBenchmark:
    """An :class:`Evaluation` by EchoRL's name. There, the figures of all baselines were random numbers.

    Args:
        config: What is evaluated.
        say: Takes a line for each run.

    Attributes:
        evaluation: The real one.

    Raises:
        ValueError: As :class:`Evaluation`.

    """

    def __init__(self, config: BenchmarkConfig, say: Any = None) -> None:
        self.config = config
        self.evaluation = Evaluation(config.evaluation(), **({} if say is None else {"say": say}))

    async def run_benchmark(self) -> BenchmarkResult:
        """Makes the runs that are not in ``output_dir`` yet. See :meth:`Evaluation.run`."""
        began = time.monotonic()
        results = await self.evaluation.run()
        runs = [_run(one) for one in results.runs]
        return BenchmarkResult(
            task_results=runs,
            success_rates=_means(runs, "success_rate"),
            avg_rewards=_means(runs, "avg_reward"),
            tokens_per_second=_means(runs, "tokens_per_second"),
            cost_efficiency=_means(runs, "cost_per_success"),
            total_evaluation_time=time.monotonic() - began,
            results=results,
        )


def _agent(name: str) -> str:
    if name not in BASELINES and name not in AGENTS:
        ours = ", ".join(one for one in AGENTS if one not in BASELINES)
        raise ValueError(f"baseline {name!r} is unknown: use {', '.join(BASELINES)}, or one of ours: {ours}")
    return BASELINES.get(name, name)


def _backbone(name: str) -> str:
    ours = next((prefix + name for start, prefix in BACKBONES.items() if name.startswith(start)), name)
    try:
        models.check(ours)
    except ValueError as error:
        theirs = ", ".join(f"{start}..." for start in BACKBONES)
        raise ValueError(f"{error}; or EchoRL's {theirs}") from None
    return ours


def _run(run: Mapping[str, Any]) -> TaskResult:
    return TaskResult(
        task_name=run["task"],
        backbone=run["backbone"],
        method=run["agent"],
        seed=run["seed"],
        success_rate=run["success_rate"],
        avg_reward=run["avg_reward"],
        wall_clock_time=run["seconds"],
        kv_cache_hit_rate=run["kv_reuse"],
        tokens_per_second=run["etps"],
        cost_per_success=run["passes_per_success" if run["bandwidth_per_success"] is None else "bandwidth_per_success"],
    )


def _means(runs: Sequence[TaskResult], name: str) -> Means:
    several = len({run.backbone for run in runs} - {None}) > 1
    values: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for run in runs:
        method = f"{run.method}, {run.backbone}" if several and run.backbone is not None else run.method
        if (value := getattr(run, name)) is not None:
            values[run.task_name, method].append(value)
    means: Means = {}
    for (task, method), found in values.items():
        means.setdefault(task, {})[method] = statistics.fmean(found)
    return means
