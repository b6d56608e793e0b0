"""How good an agent is: episodes that nobody learns from."""

import asyncio
import contextlib
from dataclasses import dataclass

import numpy as np

from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.training.actor import Actor
from echo_shm.planning.training.settings import Settings

#: Most environments that are played at the same time.
_MOST = 16


@dataclass(frozen=True)
class Result:
    """What came of some episodes. Actions are drawn from the policy, as in training."""

    episodes: int
    avg_reward: float
    success_rate: float

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {"success_rate": self.success_rate, "avg_reward": self.avg_reward, "episodes": float(self.episodes)}


async def evaluate(planner: LatentPlanner, settings: Settings, episodes: int, seed: int) -> Result:
    """Plays episodes in this process. The event loop has its turn after each step.

    Each environment plays as many, and the first ones count: whoever took the first that end would prefer short ones.

    Args:
        planner: On a processor.
        settings: Of the run.
        episodes: At least so many.
        seed: The same seed and weights play the same episodes.

    """
    n = min(episodes, _MOST)
    each = -(-episodes // n)
    count, returns, successes = np.zeros(n, int), [], []
    with contextlib.closing(settings.make_envs(n)) as envs:
        actor = Actor(envs, planner, seed, settings.success_return)
        while count.min() < each:
            played = actor.step()
            ended = ~np.isnan(played.episode_return) & (count < each)
            returns += played.episode_return[ended].tolist()
            successes += played.success[ended].tolist()
            count += ended
            await asyncio.sleep(0)
    return Result(len(returns), float(np.mean(returns)), float(np.mean(successes)))
