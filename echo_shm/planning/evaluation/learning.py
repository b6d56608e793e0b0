"""Agents that learn: each variant is a run of :class:`EchoRLTrainer` with the task's settings."""

import shutil
from dataclasses import replace
from pathlib import Path

from echo_shm.planning.agents.configs import TrainingConfig
from echo_shm.planning.evaluation.agents import Agent
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.measures import Measures, reached_at
from echo_shm.planning.evaluation.tasks import Task
from echo_shm.planning.training import checkpoints
from echo_shm.planning.training.evaluation import evaluate
from echo_shm.planning.training.trainer import EchoRLTrainer, apart

#: Seeds of the last evaluation, beyond those of the ones that decide when a run stops.
_LAST = 2**30 + 2**29

#: A checkpoint is made after so many steps: a replay's takes time.
_SAVE = 16_384


def training(config: EvaluationConfig, task: Task, agent: Agent, seed: int, directory: Path) -> TrainingConfig:
    """What this variant is trained with."""
    base = task.training()
    planning = base.planning if config.planning is None else config.planning
    every = config.evaluation_frequency
    starts, replay = base.learning_starts, None
    if config.replay is not None:
        starts = max(1, config.replay.hot_buffer_size // 8)
    if agent.learns_from != "rollouts":
        replay = replace(task.replay if config.replay is None else config.replay, sampling=agent.learns_from)
    ppo = base.ppo if config.ppo is None else config.ppo
    return replace(
        base,
        # A minibatch of a replay is learned from once: so often, each step is as often as those of a rollout.
        train_frequency=max(1, base.batch_size // ppo.epochs),
        total_timesteps=config.steps,
        learning_starts=min(starts, config.steps // 4),
        evaluation_frequency=base.evaluation_frequency if every is None else every,
        evaluation_episodes=config.episodes,
        stop_at=config.threshold,
        save_frequency=_SAVE,
        checkpoint=str(directory),
        seed=seed,
        planning=replace(planning, conditioned=agent.plans),
        ppo=ppo,
        replay=replay,
    )


async def learn(config: EvaluationConfig, task: Task, agent: Agent, seed: int, directory: Path) -> Measures:
    """Trains until the threshold is reached, or all steps are made.

    Args:
        config: The evaluation's.
        task: What is learned.
        agent: Which variant.
        seed: Of all.
        directory: Of checkpoints. If there is one, the run goes on from it; from one that is damaged it begins anew.

    """
    asked = training(config, task, agent, seed, directory)
    found = checkpoints.newest(directory)
    if found is not None:
        try:
            checkpoints.load(found, mmap=True)
        except ValueError:
            shutil.rmtree(directory)
            found = None
    trainer = EchoRLTrainer(asked, resume=found is not None)
    metrics = await trainer.train()
    last = await evaluate(trainer.planner, trainer.settings, config.episodes, _LAST + apart(seed))
    return Measures(
        success_rate=last.success_rate,
        avg_reward=last.avg_reward,
        episodes=last.episodes,
        steps=metrics.timesteps,
        seconds=metrics.seconds,
        **reached_at(metrics.history, config.threshold, config.steps),
        learner_passes=metrics.passes,
        passes_per_success=metrics.passes / metrics.successes if metrics.successes else None,
        learner_cost=metrics.learner_cost,
        cut_steps=metrics.cut_steps,
        history=metrics.history,
    )
