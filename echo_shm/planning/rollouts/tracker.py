"""What rollouts cost, and what came of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from echo_shm.planning.costs import attention_cost, bandwidth_efficiency, effective_cost
from echo_shm.replay.validation import above_zero, integer, number


@dataclass(frozen=True)
class Efficiency:
    """What was counted until now. A cost is in entries of a KV cache that attention reads, times the tracker's scale.

    Costs are those of the formula, not measured: ``t * (t + 1) / 2`` for t tokens.
    """

    #: Steps of environments (of a rollout without one: its answer), episodes that ended, and those that succeeded.
    steps: int
    episodes: int
    successes: int
    reward: float
    #: The cost of all steps with what was reused, and without.
    bandwidth_spent: float
    bandwidth_total: float
    learner_cost: float
    learner_updates: int
    #: Tokens that the policy has read before a step, all together, and those of them that were computed before.
    context_tokens: int
    reused_tokens: int
    #: Tokens of observations and of actions.
    environment_tokens: int
    #: Since the tracker began.
    seconds: float

    @property
    def bandwidth_saved(self) -> float:
        """The cost that reuse has saved."""
        return self.bandwidth_total - self.bandwidth_spent

    @property
    def eta(self) -> float:
        """Reward for each unit of cost, of rollouts and of the learner. 0 before there was any.

        Not a number once a reward, or the learner's cost, was infinite.
        """
        if not math.isfinite(self.reward + self.learner_cost):
            return math.nan
        return bandwidth_efficiency(self.reward, self.bandwidth_spent, self.learner_cost)

    @property
    def reuse_rate(self) -> float:
        """The share of the tokens of contexts that was computed before. 0 before there were any."""
        return self.reused_tokens / self.context_tokens if self.context_tokens else 0.0

    @property
    def etps(self) -> float:
        """Environment tokens a second."""
        return self.environment_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def cost_per_success(self) -> float | None:
        """The cost of rollouts and of the learner for each success. None before there was one."""
        return (self.bandwidth_spent + self.learner_cost) / self.successes if self.successes else None


class EfficiencyTracker:
    """Counts what rollouts and the learner cost.

    Args:
        attention_scale: The cost of one entry of the KV cache.
        clock: Seconds.

    """

    def __init__(self, attention_scale: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        self._scale = above_zero("attention_scale", attention_scale)
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self._began = self._clock()
        self._steps = self._episodes = self._successes = self._updates = 0
        self._context = self._reused = self._environment = 0
        self._reward = self._spent = self._total = self._learner = 0.0

    def record_rollout_step(self, reward: float, seq_len: int, reuse_len: int = 0, new_tokens: int = 0) -> float:
        """Counts one step.

        Args:
            reward: What it has earned.
            seq_len: Tokens of the context when the policy began to answer.
            reuse_len: Those of them that were computed before.
            new_tokens: Tokens of the observation before the step and of the action.

        Returns:
            The step's effective cost.

        """
        reward = number("reward", reward)
        seq_len, reuse_len = integer("seq_len", seq_len, 0), integer("reuse_len", reuse_len, 0)
        new_tokens = integer("new_tokens", new_tokens, 0)
        if reuse_len > seq_len:
            raise ValueError(f"reuse_len={reuse_len} of seq_len={seq_len}: use at most as many")
        cost = float(effective_cost(seq_len, reuse_len, self._scale))
        self._steps += 1
        self._reward += reward
        self._spent += cost
        self._total += float(attention_cost(seq_len, self._scale))
        self._context += seq_len
        self._reused += reuse_len
        self._environment += new_tokens
        return cost

    def record_learner_update(self, weighted_pg_loss: float) -> None:
        """Counts the cost of one update of the learner: the absolute value of its weighted loss."""
        self._learner += abs(number("weighted_pg_loss", weighted_pg_loss))
        self._updates += 1

    def record_episode(self, success: bool) -> None:
        """Counts an episode that has ended."""
        self._episodes += 1
        self._successes += bool(success)

    def snapshot(self) -> Efficiency:
        """All figures now."""
        return Efficiency(
            steps=self._steps,
            episodes=self._episodes,
            successes=self._successes,
            reward=self._reward,
            bandwidth_spent=self._spent,
            bandwidth_total=self._total,
            learner_cost=self._learner,
            learner_updates=self._updates,
            context_tokens=self._context,
            reused_tokens=self._reused,
            environment_tokens=self._environment,
            seconds=self._clock() - self._began,
        )
