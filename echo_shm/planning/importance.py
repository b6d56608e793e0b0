"""Weights that undo the bias of drawing some items more often than others."""

import math

import numpy as np

from echo_shm.planning.arguments import Doubles, Numbers, broadcast, place, real_array
from echo_shm.replay.validation import at_least_zero, integer


def importance_weights(probability: Numbers, size: int, beta: float, *, share: Numbers = 1.0) -> float | Doubles:
    """Importance-sampling weights ``(N * P) ** -beta``.

    ``P`` is the probability of the whole draw: that of the part which the item was drawn from times that of the item
    in it. The weights are not divided by their largest. The formula is that of prioritized experience replay
    (Schaul et al. 2016, section 3.4).

    Args:
        probability: Of each item in its part, as ``Batch.probability``; any shape, above 0, at most 1.
        size: ``N``: items of all parts together; at least 1.
        beta: How much of the bias is undone: 0 none, 1 all. At least 0.
        share: Of each item's part in the batch, as 0.7; of a shape that fits, above 0, at most 1.

    Returns:
        float64 of the common shape; a float for numbers.

    Raises:
        ValueError: A number is NaN or out of range, or the shapes do not fit; or a weight overflows.

    """
    size, beta = integer("size", size, 1), at_least_zero("beta", beta)
    given = {"probability": real_array("probability", probability, np.float64)}
    given["share"] = real_array("share", share, np.float64)
    for label, array in given.items():
        if bad := np.flatnonzero(~((array > 0) & (array <= 1))).tolist():
            raise ValueError(
                f"{label}{place(array.shape, bad[0])} is {array.flat[bad[0]]}: use probabilities above 0, at most 1"
            )
    whole, shares = broadcast(**given)
    with np.errstate(over="ignore", divide="ignore"):
        weights = np.asarray((size * (whole * shares)) ** -beta)
    if weights.size and not weights.max() < math.inf:
        at = int(np.argmax(weights))
        raise ValueError(f"the weight of element {at} overflows: N * P is {size * whole.flat[at] * shares.flat[at]}")
    return weights if weights.ndim else float(weights)
