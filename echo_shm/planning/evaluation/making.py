"""Makes one run."""

import asyncio
from pathlib import Path
from typing import Any

from echo_shm.planning.evaluation import agents, tasks
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.directory import Directory
from echo_shm.planning.evaluation.measures import Measures
from echo_shm.planning.evaluation.report import where_and_when
from echo_shm.planning.evaluation.runs import Run


def line_of(error: Exception) -> str:
    """What is said of an error in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


async def make(config: EvaluationConfig, directory: Directory, run: Run) -> dict[str, Any]:
    """Makes a run, and writes its file.

    What an agent needs, as PyTorch, is imported when one of its kind runs.

    Returns:
        What is in the file.

    """
    measures = await _measures(config, directory, run)
    result = {**run.as_dict(), **measures.as_dict(), "made": where_and_when()}
    directory.finish(run, result)
    return result


async def _measures(config: EvaluationConfig, directory: Directory, run: Run) -> Measures:
    task, agent = tasks.find(run.task, config.max_steps), agents.find(run.agent)
    at: Path = directory.at(run)
    if agent.kind == "random":
        from echo_shm.planning.evaluation.playing import play_random

        return await asyncio.to_thread(play_random, task, run.seed, config.episodes)
    if agent.kind == "learning":
        from echo_shm.planning.evaluation.learning import learn

        return await learn(config, task, agent, run.seed, at)
    if agent.kind == "impala":
        from echo_shm.planning.evaluation.impala import learn_impala

        return await learn_impala(config, task, run.seed, at)
    from echo_shm.planning.evaluation.prompting import prompt

    assert run.backbone is not None
    return await prompt(config, task, agent, run.backbone, run.seed, directory.own)
