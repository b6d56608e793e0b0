"""What each of several shards has of all draws.

A sampler draws an item by its weight ``w``. In one table with all items it would come with ``w / sum(mass)``, where a
shard's mass is the sum of its weights. That is the shard's share, ``mass / sum(mass)``, times the ``w / mass`` with
which the shard's own table draws it. Where all weights are 0, all items are alike, as they are in one table: then
shares go by sizes.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from echo_shm.replay import TableInfo


class Mass(NamedTuple):
    """What a shard's table says of itself.

    Attributes:
        size: Its items.
        log_mass: The logarithm of the sum of their weights; ``-inf`` if that is 0.
        log_least: The logarithm of the least positive weight; ``inf`` if there is none.

    """

    size: int
    log_mass: float
    log_least: float


def mass_of(info: TableInfo) -> Mass:
    """What a table's figures say."""
    if math.isnan(info.log_mass):  # the sampler goes by an order: sizes count
        return Mass(info.size, -math.inf, math.inf)
    return Mass(info.size, info.log_mass, info.least_log_weight)


class Shares:
    """What the masses of all shards at one time say of each.

    Args:
        masses: Of each shard, by its number.
        beta: The exponent of the importance weights.
        age: How old they were, in seconds.

    Attributes:
        share: With which probability a draw is of each shard; empty if there are no items.
        size: Items of all.
        age: As given.

    """

    def __init__(self, masses: Mapping[int, Mass], beta: float, age: float) -> None:
        self.size, self.age, self._beta = sum(one.size for one in masses.values()), age, beta
        greatest = max((one.log_mass for one in masses.values()), default=-math.inf)
        self._by_weight = greatest > -math.inf
        if self._by_weight:
            chosen = {number: math.exp(one.log_mass - greatest) for number, one in masses.items()}
        else:
            chosen = {number: float(one.size) for number, one in masses.items()}
        total = sum(chosen.values())
        self.share = {number: part / total for number, part in chosen.items() if part > 0}
        log_least = min((one.log_least for one in masses.values()), default=math.inf)
        #: The logarithm of the probability of the least likely item, which float64 itself may not hold.
        self._log_least = log_least - greatest - math.log(total) if self._by_weight else math.inf
        self._numbers, self._p = list(self.share), np.array(list(self.share.values()))

    def choose(self, random: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        """The shard of each of n draws. There must be items."""
        return np.array(self._numbers)[random.choice(len(self._p), n, p=self._p)]

    def weights(self, probability: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Importance weights of items by their probabilities among all: 1 for the least likely one, as in one table."""
        if math.isinf(self._log_least):
            return np.ones(len(probability))
        with np.errstate(divide="ignore"):  # one that has become 0 since is as likely as the least likely one
            return np.exp(-self._beta * np.maximum(np.log(probability) - self._log_least, 0.0))
