"""EchoRL's names of the kernels: thin aliases of :mod:`~echo_shm.planning.plans`, ``costs`` and ``importance``.

Code for ``echo_rl.kernels`` runs with these after a change of imports. The originals take arrays of any length at once,
check what they are given, and keep float64; use them in new code. Nothing here needs PyTorch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm.planning import costs, plans
from echo_shm.planning.arguments import Doubles, Numbers, real_array
from echo_shm.planning.importance import importance_weights
from echo_shm.replay import Fifo, Replay, Softmax, Table
from echo_shm.replay.validation import integer

__all__ = [
    "EMAPlanTracker",
    "attention_bandwidth_cost",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "effective_bandwidth_cost",
    "kernels_available",
    "plan_surprise",
    "prefix_match",
    "priority_sample",
]


def kernels_available() -> bool:
    """True: the kernels in C are compiled with the package, which does not come without them."""
    return True


class EMAPlanTracker(plans.EmaPlan):
    """EchoRL's name of :class:`EmaPlan`, with its two readers.

    A plan of another length is refused. There, it was left out, or taken as it was, without a word.
    """

    @property
    def initialized(self) -> bool:
        """Whether it has taken a plan."""
        return self.updates > 0

    def get_ema(self) -> npt.NDArray[Any]:
        """A copy of the shared plan, ``(dim,)``; zeros before the first."""
        return self.state["plan"]


def plan_surprise(
    plan: plans.Plans,
    ema_plan: plans.EmaPlan | npt.ArrayLike,
    reward: Numbers,
    surprise_weight: float = 1.0,
    reward_weight: float = 1.0,
) -> float | Doubles:
    """:func:`~echo_shm.planning.plans.plan_surprise`, of one plan or of ``(n, dim)``."""
    return plans.plan_surprise(plan, ema_plan, reward, surprise_weight, reward_weight)


def attention_bandwidth_cost(seq_len: int, scale: float = 1.0) -> float:
    """:func:`~echo_shm.planning.costs.attention_cost`. A negative length is refused; there it cost nothing."""
    return float(costs.attention_cost(seq_len, scale))


def effective_bandwidth_cost(seq_len: int, reuse_len: int = 0, scale: float = 1.0) -> float:
    """:func:`~echo_shm.planning.costs.effective_cost`."""
    return float(costs.effective_cost(seq_len, reuse_len, scale))


def bandwidth_aware_priorities(
    rewards: Numbers, bandwidth_costs: Numbers, queue_times: Numbers, epsilon: float = 1e-6
) -> npt.NDArray[np.float32]:
    """:func:`~echo_shm.planning.costs.rollout_priorities` with weights of 1, as float32."""
    return np.asarray(costs.rollout_priorities(rewards, bandwidth_costs, queue_times, epsilon=epsilon), np.float32)


def bandwidth_efficiency(total_reward: float, rollout_cost: float, learner_cost: float) -> float:
    """:func:`~echo_shm.planning.costs.bandwidth_efficiency`. There, a negative learner's cost was taken for a gain."""
    return costs.bandwidth_efficiency(total_reward, rollout_cost, learner_cost)


def prefix_match(
    sequence_hashes: npt.ArrayLike, cache_entries: Sequence[tuple[int, int]], min_prefix_len: int = 1
) -> tuple[int, int]:
    """The longest proper prefix of a sequence whose hash is among those of the cached ones.

    Two prefixes with one hash are taken for the same. :class:`PrefixIndex` compares the tokens themselves, and its
    lookups do not depend on how many are cached: the rollouts use that.

    Args:
        sequence_hashes: uint64 ``(t,)``: the hash of each prefix, that of the whole sequence last.
        cache_entries: ``(hash, index)`` of each cached prefix. Of equal hashes the first one counts.
        min_prefix_len: The shortest prefix that counts.

    Returns:
        The index, and the prefix's length; ``(-1, 0)`` if there is none.

    """
    cached = dict(reversed(cache_entries))
    hashes = np.asarray(sequence_hashes, np.uint64).tolist()
    for length in range(len(hashes) - 1, integer("min_prefix_len", min_prefix_len, 1) - 1, -1):
        if hashes[length - 1] in cached:
            return int(cached[hashes[length - 1]]), length
    return -1, 0


def priority_sample(
    priorities: npt.ArrayLike,
    sample_size: int,
    temperature: float = 1.0,
    importance_beta: float = 0.4,
    seed: int = 0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Draws by softmax, with a table that is made for this call; a :class:`Replay` that stays has no such cost.

    Args:
        priorities: ``(n,)``, finite, at least one.
        sample_size: Draws, with replacement. As there, at most n.
        temperature: Above 0. There, 0 was taken for 1e-8.
        importance_beta: Of the weights ``(n * P) ** -beta``.
        seed: The same seed draws the same; not what EchoRL's generator draws.

    Returns:
        Indices and weights, ``(min(sample_size, n),)`` each.

    """
    scores = real_array("priorities", priorities, np.float64)
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"priorities has shape {scores.shape}: use (n,), at least one")
    n = len(scores)
    table = Table("priorities", Softmax(temperature), Fifo(), max_size=n)
    with Replay(np.zeros((), np.int64), n, [table], seed=seed) as replay:
        replay.extend(np.arange(n), scores - scores.min())  # a table's are 0 or more; softmax draws the same
        batch = replay.sample(min(integer("sample_size", sample_size, 1), n))
        assert batch is not None
        weights = importance_weights(batch.probability, n, importance_beta)
        return np.asarray(batch.data), np.asarray(weights, np.float32)
