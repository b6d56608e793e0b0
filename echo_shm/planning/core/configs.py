"""EchoRL's configurations: ours, and one that has a field more. They need no PyTorch."""

from dataclasses import dataclass

from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig
from echo_shm.planning.rollouts.config import RolloutConfig
from echo_shm.replay.validation import integer

__all__ = ["ExecutionConfig", "PPOConfig", "PlanningConfig", "ReplayConfig"]


@dataclass(frozen=True)
class ExecutionConfig(RolloutConfig):
    """:class:`echo_shm.planning.RolloutConfig`, with the size of the cache."""

    #: Of a :class:`KVCacheManager`: states. Of an engine's transformer: blocks of 16 tokens. There, sequences.
    max_cache_size: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("max_cache_size", self.max_cache_size, 1)
