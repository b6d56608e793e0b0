"""IMPALA: the program of the examples, run with the task's settings. Interrupted, it begins anew.

Of PPO's settings it has the learning rate (constant, too), the discount, lambda, what the entropy counts and the scale
of rewards. Its own are: two layers of 64, the value's loss counts 0.5, gradients are scaled to a norm of 0.5 for each
network, a rollout is 8 environments x 16 steps and is learned from once, and two workers play. There is no plan and no
clipping.

``python -m echo_shm.planning.evaluation.impala PARENT WORDS`` is that program, and dies with the process ``PARENT``.
"""

import asyncio
import contextlib
import json
import math
import os
import runpy
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from echo_shm.errors import WorkerError
from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.measures import Measures, reached_at
from echo_shm.planning.evaluation.tasks import Task
from echo_shm.planning.training.environments import sizes
from echo_shm.workers.parent_death import die_with_parent

#: How long it may take to end when it is told to (seconds).
_GRACE = 10.0


def _words(config: EvaluationConfig, task: Task, seed: int, file: Path) -> list[str]:
    """What the program is told: see above."""
    base = task.training()
    ppo = base.ppo if config.ppo is None else config.ppo
    every = config.evaluation_frequency
    least = sizes(task.env_name, task.env_kwargs).success_return
    given: dict[str, Any] = {
        "env": task.env_name,
        "seed": seed,
        "steps": config.steps,
        "target": math.inf,
        "stop": config.threshold,
        "every": base.evaluation_frequency if every is None else every,
        "episodes": config.episodes,
        "success": math.nextafter(0.0, 1.0) if least is None else least,
        "gamma": ppo.gamma,
        "trace": ppo.gae_lambda,
        "entropy": ppo.entropy_coef,
        "learning-rate": ppo.learning_rate,
        "scale": ppo.reward_scale,
        "json": file,
    }
    return ["--no-anneal", *(f"--{name}={value}" for name, value in given.items())]


async def learn_impala(config: EvaluationConfig, task: Task, seed: int, directory: Path) -> Measures:
    """Trains until the threshold is reached, or all steps are made.

    Args:
        config: The evaluation's.
        task: What is learned: numbers.
        seed: Of the first weights and the environments. The order in which workers play is the scheduler's.
        directory: For what the program writes.

    Raises:
        WorkerError: The program failed.

    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"impala-{secrets.token_hex(8)}.json"  # that of an earlier start is not taken for this one's
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "echo_shm.planning.evaluation.impala"),
        *(str(os.getpid()), *_words(config, task, seed, file)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C comes here alone, and the program is interrupted by us, once
    )
    try:
        _, said = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError, asyncio.TimeoutError):
            process.send_signal(signal.SIGINT)  # it stops its workers, and leaves nothing in shared memory
            await asyncio.wait_for(process.communicate(), _GRACE)
        if process.returncode is None:
            process.kill()
        raise
    if not file.exists():  # its status is 1 when the target was not reached, which has none here
        why = said.decode(errors="replace").strip()[-2000:]
        raise WorkerError(f"the example impala ended with status {process.returncode}: {why}")
    return _measures(json.loads(file.read_text(encoding="utf-8")), config.threshold)


def _measures(found: dict[str, Any], threshold: float) -> Measures:
    steps, successes, last = found["timesteps"], found["successes"], found["last"]
    return Measures(
        success_rate=last["success_rate"],
        avg_reward=last["avg_reward"],
        episodes=int(last["episodes"]),
        steps=steps,
        seconds=found["seconds"],
        **reached_at(found["history"], threshold, steps),
        learner_passes=steps,  # each step goes through it once
        passes_per_success=steps / successes if successes else None,
        history=found["history"],
    )


if __name__ == "__main__":
    die_with_parent(int(sys.argv.pop(1)))
    runpy.run_module("echo_shm.examples.impala", run_name="__main__", alter_sys=True)
