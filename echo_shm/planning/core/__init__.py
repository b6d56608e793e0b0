"""EchoRL's names of planning's parts: thin aliases, so that code written for it runs after a change of imports.

A module is loaded when one of its names is used.
"""

from typing import TYPE_CHECKING

from echo_shm import lazy

if TYPE_CHECKING:
    from echo_shm.planning.core.async_execution import AsyncExecutionEngine, KVCacheManager
    from echo_shm.planning.core.bandwidth import (
        BandwidthAwareScheduler,
        BandwidthConfig,
        BandwidthEfficiencyTracker,
        BandwidthMetrics,
    )
    from echo_shm.planning.core.configs import ExecutionConfig, PlanningConfig, PPOConfig, ReplayConfig
    from echo_shm.planning.core.latent_planning import LatentPlanningOptimizer, PolicyNetwork, TrajectoryEncoder
    from echo_shm.planning.core.prioritized_replay import HotColdBuffer, PrioritizedReplayBuffer

#: For each module, its public names.
_NAMES = {
    "async_execution": ("AsyncExecutionEngine", "KVCacheManager"),
    "bandwidth": (
        "BandwidthAwareScheduler",
        "BandwidthConfig",
        "BandwidthEfficiencyTracker",
        "BandwidthMetrics",
    ),
    "configs": ("ExecutionConfig", "PPOConfig", "PlanningConfig", "ReplayConfig"),
    "latent_planning": ("LatentPlanningOptimizer", "PolicyNetwork", "TrajectoryEncoder"),
    "prioritized_replay": ("HotColdBuffer", "PrioritizedReplayBuffer"),
}

__all__ = [
    "AsyncExecutionEngine",
    "BandwidthAwareScheduler",
    "BandwidthConfig",
    "BandwidthEfficiencyTracker",
    "BandwidthMetrics",
    "ExecutionConfig",
    "HotColdBuffer",
    "KVCacheManager",
    "LatentPlanningOptimizer",
    "PPOConfig",
    "PlanningConfig",
    "PolicyNetwork",
    "PrioritizedReplayBuffer",
    "ReplayConfig",
    "TrajectoryEncoder",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.names(__name__, _NAMES)
