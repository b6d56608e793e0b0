"""Selectors written in Python that choose as those of the C core do."""

import numpy as np

from echo_shm.replay import CustomSelector, Fifo, Prioritized, Uniform


class PythonFifo(CustomSelector):
    """As :class:`Fifo`. A dict keeps the order of insertion."""

    like = Fifo()

    def __init__(self):
        self.members = {}

    def __repr__(self):
        return f"{type(self).__name__}()"

    def insert(self, key, priority):
        """See CustomSelector."""
        assert key not in self.members
        self.members[key] = priority

    def update(self, key, priority):
        """See CustomSelector."""
        assert key in self.members
        self.members[key] = priority

    def remove(self, key):
        """See CustomSelector."""
        del self.members[key]

    def weights(self):
        """The members' keys in the order of C, and their weights."""
        keys = list(self.members)
        return keys, np.array([1.0] + [0.0] * (len(keys) - 1))

    def draw(self, numbers):
        """See CustomSelector."""
        keys, weights = self.weights()
        sums = np.cumsum(weights)
        chosen = np.searchsorted(sums, numbers * sums[-1], side="right")
        return np.array(keys, np.uint64)[chosen], (weights / sums[-1])[chosen]

    def probability(self, key):
        """See CustomSelector."""
        keys, weights = self.weights()
        return weights[keys.index(key)] / weights.sum()


class PythonUniform(PythonFifo):
    """As :class:`Uniform`."""

    like = Uniform()

    def weights(self):
        """As C has them: by the items' places."""
        keys = sorted(self.members, key=lambda key: key & 0xFFFF_FFFF)
        return keys, np.ones(len(keys))


class PythonPrioritized(PythonFifo):
    """As :class:`Prioritized` with alpha 1, but that the weights of a batch are 1."""

    like = Prioritized(1.0, 0.0)

    def weights(self):
        """As C has them: by the items' places."""
        keys = sorted(self.members, key=lambda key: key & 0xFFFF_FFFF)
        weights = np.array([self.members[key] for key in keys])
        return keys, weights if weights.any() else np.ones(len(keys))
