"""What attention over a sequence costs, and which rollout pays most for it.

A token attends to itself and to all tokens before it, so decoding ``t`` tokens reads ``1 + 2 + … + t`` entries of the
KV cache. What a reused prefix has read is saved.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm._core import ffi, lib
from echo_shm.planning.arguments import Doubles, Integers, Numbers, broadcast, integer_array, place, real_array
from echo_shm.replay.validation import above_zero, at_least_zero

#: The longest sequence that has a cost, in tokens.
LONGEST = 2**31

#: Below this, there is no efficiency to speak of.
_LEAST_SPENT = 1e-12

_LARGEST = float(np.finfo(np.float64).max)


def attention_cost(length: Integers, scale: float = 1.0) -> float | Doubles:
    """Entries of the KV cache that decoding a sequence reads: ``scale * t * (t + 1) / 2``.

    The result is exact up to one rounding for the sum and one for the product.

    Args:
        length: int, any shape: tokens, at most 2**31.
        scale: What one entry costs, in bytes for example. At least 0.

    Returns:
        float64 of the same shape; a float for one number.

    Raises:
        ValueError: A length is negative, above 2**31 or no integer; or ``scale`` is out of range.

    """
    return effective_cost(length, 0, scale)


def effective_cost(length: Integers, reused: Integers, scale: float = 1.0) -> float | Doubles:
    """What is left of :func:`attention_cost` if the cache of a prefix is reused: ``max(0, cost(t) - cost(reused))``.

    The difference is taken in integers, so nothing cancels. A prefix longer than the sequence leaves nothing to pay.

    Args:
        length: int, any shape: tokens, at most 2**31.
        reused: int, of a shape that fits: tokens of the reused prefix, at most 2**31.
        scale: What one entry costs. At least 0.

    Returns:
        float64 of the common shape; a float for numbers.

    Raises:
        ValueError: A length is negative, above 2**31 or no integer; the shapes do not fit; or ``scale`` is out of
            range, or makes a cost overflow.

    """
    scale = at_least_zero("scale", scale)
    lengths, kept = broadcast(length=integer_array("length", length), reused=integer_array("reused", reused))
    costs = np.empty(lengths.shape)
    if costs.size == 0:
        return costs
    tokens = ffi.from_buffer("int64_t[]", lengths), ffi.from_buffer("int64_t[]", kept)
    good = lib.es_costs_effective(*tokens, costs.size, scale, ffi.from_buffer("double[]", costs))
    if good < costs.size:
        at = place(costs.shape, good)
        found = f"length{at} is {lengths.flat[good]} and reused{at} is {kept.flat[good]}"
        raise ValueError(f"{found}: use lengths from 0 to 2**31")
    if not costs.max() < np.inf:
        raise ValueError(f"scale={scale!r} makes a cost infinite: use a smaller one")
    return _shaped(costs)


def rollout_priorities(
    reward: Numbers,
    cost: Numbers,
    queue_time: Numbers,
    bandwidth_weight: float = 1.0,
    queue_weight: float = 1.0,
    epsilon: float = 1e-6,
) -> float | npt.NDArray[Any]:
    """Which rollout to serve first, the greatest first: ``r / (wb * cost + wq * q + epsilon)``.

    A reward below 0 makes a priority below 0, which grows with the cost. A priority that overflows is infinite; none
    is NaN.

    Args:
        reward: Expected of the rollout; any shape, finite.
        cost: Of its next steps, as of :func:`effective_cost`; finite, at least 0.
        queue_time: How long it has waited, in any unit; finite, at least 0.
        bandwidth_weight: ``wb``, at least 0.
        queue_weight: ``wq``, at least 0. Note that waiting lowers a priority: what bounds the wait is the scheduler's.
        epsilon: Above 0: what a rollout without a cost is divided by.

    Returns:
        Of the common shape: float32 if ``reward`` is a float32 array, otherwise float64; a float for numbers. It is
        computed in float64.

    Raises:
        ValueError: A number is NaN, infinite or out of range, or the shapes do not fit.

    """
    weights = at_least_zero("bandwidth_weight", bandwidth_weight), at_least_zero("queue_weight", queue_weight)
    epsilon = above_zero("epsilon", epsilon)
    given = {"reward": reward, "cost": cost, "queue_time": queue_time}
    arrays = broadcast(**{label: real_array(label, value, np.float64) for label, value in given.items()})
    priorities = np.empty(arrays[0].shape)
    if priorities.size:
        rewards, costs, times, out = (ffi.from_buffer("double[]", array) for array in (*arrays, priorities))
        good = lib.es_costs_priorities(rewards, costs, times, priorities.size, *weights, epsilon, out)
        if good < priorities.size:
            at = place(priorities.shape, good)
            found = ", ".join(f"{label}{at} is {array.flat[good]}" for label, array in zip(given, arrays, strict=True))
            raise ValueError(f"{found}: use finite numbers, and costs and times of 0 or more")
    if isinstance(reward, np.ndarray) and reward.dtype == np.float32:
        with np.errstate(over="ignore"):
            return priorities.astype(np.float32)
    return _shaped(priorities)


def bandwidth_efficiency(rewards: Numbers, costs: Numbers, learner_costs: Numbers = 0.0) -> float:
    """Reward for what was spent: ``Σ rewards / (Σ costs + Σ |learner_costs|)``, 0 if at most 1e-12 was spent.

    Args:
        rewards: Of the rollouts; any shape, finite.
        costs: Their effective costs; any shape, finite, at least 0.
        learner_costs: Of the learner's updates; any shape, finite.

    Raises:
        ValueError: A number is NaN or infinite, or a cost is negative.

    """
    reward = _total("rewards", rewards)
    spent = _total("costs", costs, least=0.0) + _total("learner_costs", learner_costs, absolute=True)
    return reward / spent if spent > _LEAST_SPENT else 0.0


def _total(label: str, value: Numbers, least: float = -_LARGEST, absolute: bool = False) -> float:
    """The sum, or that of absolute values. Raises ValueError if a number is not finite, or below ``least``."""
    array, total = real_array(label, value, np.float64), np.zeros(1)
    numbers, out = (ffi.from_buffer("double[]", one) for one in (array, total))
    good = lib.es_costs_total(numbers, array.size, least, absolute, out)
    if good < array.size:
        use = "finite numbers, 0 or more" if least == 0 else "finite numbers"
        raise ValueError(f"{label}{place(array.shape, good)} is {array.flat[good]}: use {use}")
    return float(total[0])


def _shaped(array: Doubles) -> float | Doubles:
    """The array; a float if it has no dimension."""
    return array if array.ndim else array.item()
