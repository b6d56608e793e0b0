"""What follows from a configuration and its environment."""

import math
import os
from dataclasses import dataclass

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import TrainingConfig
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.training.environments import make_vector, sizes

with needs("planning.training", "PyTorch", "torch", extra="planning-agents"):
    import torch

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    from gymnasium.vector import SyncVectorEnv


@dataclass(frozen=True)
class Settings:
    """A configuration with what was found out. It pickles: workers get it."""

    config: TrainingConfig
    state_dim: int
    action_dim: int
    #: The return that is a success where the environment does not say so; None: anything above 0.
    success_return: float | None
    #: Processes that play, and environments of each.
    workers: int
    envs: int
    #: Of texts: tokens are below it. None: states are numbers.
    vocab_size: int | None = None

    @classmethod
    def of(cls, config: TrainingConfig) -> "Settings":
        """Looks at the environment.

        Raises:
            ValueError: The environment cannot be used; or ``num_workers`` does not divide ``num_actors``.
            gymnasium.error.Error: There is no such environment.

        """
        actors, workers = config.num_actors, config.num_workers
        if workers is None:
            most = min(len(os.sched_getaffinity(0)), actors)
            workers = max(n for n in range(1, most + 1) if actors % n == 0)
        elif actors % workers:
            raise ValueError(f"num_workers={workers}: use a number that divides num_actors={actors}")
        found = sizes(config.env_name, config.env_kwargs, config.text)
        success_return = found.success_return if config.success_return is None else config.success_return
        dims = found.state_dim, found.action_dim
        return cls(config, *dims, success_return, workers, actors // workers, found.vocab_size)

    def make_envs(self, n: int) -> SyncVectorEnv:
        """N environments, which are played together in this process. They are the caller's to close."""
        return make_vector(self.config.env_name, n, self.config.env_kwargs, self.config.text)

    def planner(self) -> LatentPlanner:
        """A planner whose first weights follow from the seed. It leaves PyTorch's own generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return LatentPlanner(self.state_dim, self.action_dim, self.config.planning, self.vocab_size)

    @property
    def window(self) -> int:
        """Rows of a window."""
        return self.config.planning.state_window_size

    @property
    def sequences(self) -> int:
        """Sequences of a minibatch."""
        return math.ceil(self.config.batch_size / self.config.rollout_length)
