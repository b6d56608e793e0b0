"""EchoRL's names of what orders rollouts and counts their cost."""

from dataclasses import dataclass

from echo_shm.planning.rollouts import scheduler
from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler
from echo_shm.planning.rollouts.tracker import Efficiency, EfficiencyTracker
from echo_shm.replay.validation import flag, integer

__all__ = ["BandwidthAwareScheduler", "BandwidthConfig", "BandwidthEfficiencyTracker", "BandwidthMetrics"]


@dataclass(frozen=True)
class BandwidthConfig(scheduler.BandwidthConfig):
    """:class:`echo_shm.planning.BandwidthConfig` with EchoRL's two further fields."""

    #: Has no effect: a tracker keeps sums, and no history.
    history_size: int = 1000
    #: False: costs count nothing, so ``bandwidth_weight`` becomes 0. There, ``compute_priority`` did not look at it.
    enable_bandwidth_scheduling: bool = True

    def __post_init__(self) -> None:
        integer("history_size", self.history_size, 1)
        flag("enable_bandwidth_scheduling", self.enable_bandwidth_scheduling)
        if not self.enable_bandwidth_scheduling:
            object.__setattr__(self, "bandwidth_weight", 0.0)
        super().__post_init__()


@dataclass(frozen=True)
class BandwidthMetrics:
    """EchoRL's names of the figures of an :class:`Efficiency`."""

    total_reward: float
    #: Without what reuse has saved, with it, and the difference.
    total_rollout_cost: float
    total_effective_rollout_cost: float
    total_bandwidth_saved: float
    total_learner_cost: float
    eta_bw: float
    kv_reuse_rate: float
    num_rollout_steps: int
    #: Of the learner. There, it counted snapshots.
    num_updates: int

    @classmethod
    def of(cls, seen: Efficiency) -> "BandwidthMetrics":
        """The same figures by these names."""
        return cls(
            total_reward=seen.reward,
            total_rollout_cost=seen.bandwidth_total,
            total_effective_rollout_cost=seen.bandwidth_spent,
            total_bandwidth_saved=seen.bandwidth_saved,
            total_learner_cost=seen.learner_cost,
            eta_bw=seen.eta,
            kv_reuse_rate=seen.reuse_rate,
            num_rollout_steps=seen.steps,
            num_updates=seen.learner_updates,
        )


class BandwidthEfficiencyTracker:
    """An :class:`EfficiencyTracker` with EchoRL's names.

    A prefix that is longer than its sequence is refused. There, it made a rate of reuse above 1.

    Args:
        config: Its ``attention_scale`` counts.
        history_size: Has no effect.
        attention_scale: In the place of the configuration's.

    Attributes:
        tracker: The real one.

    """

    def __init__(
        self,
        config: scheduler.BandwidthConfig | None = None,
        history_size: int | None = None,
        attention_scale: float | None = None,
    ) -> None:
        self.config = config or BandwidthConfig()
        self.tracker = EfficiencyTracker(self.config.attention_scale if attention_scale is None else attention_scale)

    def record_rollout_step(self, reward: float, seq_len: int, reuse_len: int = 0) -> float:
        """See :meth:`EfficiencyTracker.record_rollout_step`."""
        return self.tracker.record_rollout_step(reward, seq_len, reuse_len)

    def record_learner_update(self, weighted_pg_loss: float) -> None:
        """See :meth:`EfficiencyTracker.record_learner_update`."""
        self.tracker.record_learner_update(weighted_pg_loss)

    def snapshot(self) -> BandwidthMetrics:
        """All figures until now. It changes nothing."""
        return BandwidthMetrics.of(self.tracker.snapshot())
