"""Which rollouts compute their next token first."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import numpy as np

from echo_shm.planning.costs import effective_cost, rollout_priorities
from echo_shm.planning.reading import Readable
from echo_shm.replay.validation import above_zero, at_least_zero, integer
from echo_shm.spec import Array


@dataclass(frozen=True)
class BandwidthConfig(Readable):
    """How rollouts are ordered. Names that EchoRL has, too, mean the same."""

    #: The cost of attention over t tokens is ``attention_scale * t * (t + 1) / 2``.
    attention_scale: float = 1.0
    schedule_epsilon: float = 1e-6
    bandwidth_weight: float = 1.0
    #: Of seconds of waiting. They count against a rollout, so that the fresh ones go on; ``max_wait`` bounds that.
    queue_weight: float = 1.0
    #: ``"bandwidth"``: by priority. ``"first_come"``: by arrival.
    dispatch: Literal["bandwidth", "first_come"] = "bandwidth"
    #: Who was passed over in so many dispatches goes first.
    max_wait: int = 32

    def __post_init__(self) -> None:
        above_zero("attention_scale", self.attention_scale)
        above_zero("schedule_epsilon", self.schedule_epsilon)
        at_least_zero("bandwidth_weight", self.bandwidth_weight)
        at_least_zero("queue_weight", self.queue_weight)
        integer("max_wait", self.max_wait, 0)
        if self.dispatch not in ("bandwidth", "first_come"):
            raise ValueError(f"dispatch={self.dispatch!r}: use 'bandwidth' or 'first_come'")


@dataclass
class _Waiting:
    reward: float
    cost: float
    since: float
    #: The dispatches before it came, and how many others waited then.
    dispatches: int
    others: int


class BandwidthAwareScheduler:
    """Orders those who wait for a dispatch.

    First come those who were passed over ``max_wait`` times, by arrival; then all others by priority, the highest
    first, and among equals by arrival. The priority is
    ``reward / (bandwidth_weight * effective cost + queue_weight * seconds of waiting + epsilon)``.

    **The bound on waiting.** Who finds ``m`` others waiting when it comes is passed over in at most
    ``max_wait + m // b`` dispatches, if each dispatch takes the first ``b`` in this order, or all. For after
    ``max_wait`` of them only those m can be before it, each once, b at a time. With ``dispatch="first_come"`` it is
    ``m // b``.

    Args:
        config: The weights.
        clock: Seconds.

    """

    def __init__(self, config: BandwidthConfig | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.config = config or BandwidthConfig()
        self._clock = clock
        self._waiting: dict[Hashable, _Waiting] = {}  # in the order of arrival
        self._dispatches = 0
        #: Of the dispatches that left somebody waiting: how many the smallest one has taken.
        self._fewest: int | None = None
        #: How often the one that waited longest was passed over, and how many others waited when it came.
        self._longest = (0, 0)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def compute_priority(self, reward: float, seq_len: int, queue_time: float, reuse_len: int = 0) -> float:
        """The priority of a rollout.

        Args:
            reward: What is expected of it.
            seq_len: Its tokens.
            queue_time: Seconds for which it has waited.
            reuse_len: Those of its tokens that are computed already.

        """
        return float(self.compute_priorities(reward, seq_len, queue_time, reuse_len))

    def compute_priorities(self, reward: object, seq_len: object, queue_time: object, reuse_len: object = 0) -> Array:
        """The same for arrays, each of them ``(n,)`` or a number: float64 ``(n,)``."""
        seq_len, reuse_len = np.asarray(seq_len, np.int64), np.asarray(reuse_len, np.int64)
        cost = effective_cost(seq_len, reuse_len, self.config.attention_scale)
        return self._priorities(np.asarray(reward, np.float64), np.asarray(cost), np.asarray(queue_time, np.float64))

    def _priorities(self, reward: Array, cost: Array, queue_time: Array) -> Array:
        config = self.config
        return np.asarray(
            rollout_priorities(
                reward,
                cost,
                queue_time,
                bandwidth_weight=config.bandwidth_weight,
                queue_weight=config.queue_weight,
                epsilon=config.schedule_epsilon,
            )
        )

    def add(self, who: Hashable, reward: float = 1.0, seq_len: int = 1, reuse_len: int = 0) -> None:
        """Who waits from now on.

        Raises:
            ValueError: It waits already.

        """
        if who in self._waiting:
            raise ValueError(f"{who!r} waits already")
        cost = float(effective_cost(seq_len, reuse_len, self.config.attention_scale))
        self._waiting[who] = _Waiting(reward, cost, self._clock(), self._dispatches, len(self._waiting))

    def remove(self, who: Hashable) -> None:
        """Who waits no longer. No effect if it does not wait."""
        if (one := self._waiting.pop(who, None)) is not None:
            self._longest = self._longer(one)

    def order(self) -> list[Hashable]:
        """All who wait, the next one first. Nothing changes."""
        if self.config.dispatch == "first_come" or len(self._waiting) < 2:
            return list(self._waiting)
        names, waiting = list(self._waiting), list(self._waiting.values())
        now = self._clock()
        priorities = self._priorities(
            np.array([one.reward for one in waiting]),
            np.array([one.cost for one in waiting]),
            np.array([max(0.0, now - one.since) for one in waiting]),
        )
        passed = self._dispatches - np.array([one.dispatches for one in waiting])
        aged = passed >= self.config.max_wait
        arrival = np.arange(len(waiting))
        ranks = np.lexsort((arrival, np.where(aged, 0.0, -priorities), ~aged))
        return [names[i] for i in ranks]

    def dispatched(self, who: list[Hashable]) -> None:
        """These wait no longer: a dispatch has taken them. All others were passed over once more."""
        for one in who:
            self._longest = self._longer(self._waiting.pop(one))
        if self._waiting:
            self._fewest = len(who) if self._fewest is None else min(self._fewest, len(who))
        self._dispatches += 1

    def _longer(self, one: _Waiting) -> tuple[int, int]:
        """The longest wait until now, or this one's. Of two the one with the lower bound."""
        longest, others = self._longest
        passed = self._dispatches - one.dispatches
        return (passed, one.others) if (passed, -one.others) > (longest, -others) else self._longest

    @property
    def longest_wait(self) -> tuple[int, int]:
        """In how many dispatches the one was passed over that waited longest, and what its bound is, as said above.

        Who waits now counts, too. ``b`` is taken to be what the smallest dispatch took that left somebody waiting.
        """
        for one in self._waiting.values():
            self._longest = self._longer(one)
        passed, others = self._longest
        aged = self.config.max_wait if self.config.dispatch == "bandwidth" else 0
        return passed, aged + others // (self._fewest or 1)
