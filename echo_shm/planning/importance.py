"""Weights that undo the bias of drawing some items more often than others."""

from typing import NoReturn

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.planning.arguments import Doubles, Numbers, broadcast, place, real_array
from echo_shm.replay.validation import at_least_zero, integer


def importance_weights(probability: Numbers, size: int, beta: float, *, share: Numbers = 1.0) -> float | Doubles:
    """Importance-sampling weights ``(N * P) ** -beta``.

    ``P`` is the probability of the whole draw. ``Batch.probability`` is that, with :class:`HotCold`, too: leave
    ``share`` at 1. Where a batch is put together of several tables, and ``probability`` is that in an item's own table,
    ``share`` says how much of the batch comes from there, and ``P`` is their product. The weights are not divided by
    their largest. The formula is that of prioritized experience replay (Schaul et al. 2016, section 3.4).

    Args:
        probability: Of each item, as ``Batch.probability``; any shape, above 0, at most 1.
        size: ``N``: items of all parts or tables together; at least 1.
        beta: How much of the bias is undone: 0 none, 1 all. At least 0.
        share: Of the draws, that come from where the item has that probability; 1 where it is that of the whole draw
            already. Of a shape that fits, above 0, at most 1.

    Returns:
        float64 of the common shape; a float for numbers.

    Raises:
        ValueError: A number is NaN or out of range, or the shapes do not fit; or a weight overflows.

    """
    size, beta = integer("size", size, 1), at_least_zero("beta", beta)
    given = {"probability": real_array("probability", probability, np.float64)}
    given["share"] = real_array("share", share, np.float64)
    whole, shares = broadcast(**given)
    weights = np.empty(whole.shape)
    if weights.size:
        probabilities, parts, out = (ffi.from_buffer("double[]", array) for array in (whole, shares, weights))
        good = lib.es_costs_weights(probabilities, parts, weights.size, size, beta, out)
        if good < weights.size:
            _refuse(given, good, size * whole.flat[good] * shares.flat[good])
    return weights if weights.ndim else weights.item()


def _refuse(given: dict[str, Doubles], index: int, whole: float) -> NoReturn:
    """Says what is wrong with an argument; or else with the weight of that element."""
    for label, array in given.items():
        if bad := np.flatnonzero(~((array > 0) & (array <= 1))).tolist():
            at = place(array.shape, bad[0])
            raise ValueError(f"{label}{at} is {array.flat[bad[0]]}: use probabilities above 0, at most 1")
    raise ValueError(f"the weight of element {index} overflows: N * P is {whole}")
