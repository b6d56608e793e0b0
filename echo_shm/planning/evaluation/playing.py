"""An agent that draws its actions uniformly."""

import contextlib
import math
import time

import numpy as np

from echo_shm.planning.evaluation.measures import Measures
from echo_shm.planning.evaluation.tasks import Task
from echo_shm.planning.training.environments import make, sizes


def play_random(task: Task, seed: int, episodes: int) -> Measures:
    """Plays episodes. Whether one is a success, the environment says, or its return as in training."""
    rng = np.random.default_rng(seed)
    least = sizes(task.env_name, task.env_kwargs).success_return
    least = math.nextafter(0.0, 1.0) if least is None else least
    returns, successes, steps, began = [], [], 0, time.monotonic()
    with contextlib.closing(make(task.env_name, task.env_kwargs)) as env:
        for episode in range(episodes):
            env.reset(seed=seed * 1_000_003 % 2**29 + episode)
            total, over = 0.0, False
            while not over:
                commands = getattr(env, "commands", None)
                count = getattr(env.action_space, "n", 0) if commands is None else len(commands)
                _, reward, terminated, truncated, info = env.step(int(rng.integers(count)))
                total += float(reward)
                over = terminated or truncated
                steps += 1
            returns.append(total)
            said = info.get("is_success", info.get("success"))
            successes.append(total >= least if said is None else bool(said))
    rate, mean = float(np.mean(successes)), float(np.mean(returns))
    return Measures(rate, mean, episodes, steps, time.monotonic() - began)
