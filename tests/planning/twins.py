"""What the kernels of planning compute, slowly, in numpy and plain Python."""

from fractions import Fraction

import numpy as np


def distances(plans, ema):
    """The squared distance of each plan, in float64."""
    return np.array([np.sum((plan.astype(np.float64) - ema.astype(np.float64)) ** 2) for plan in plans])


def surprise(plans, ema, rewards, plan_weight, reward_weight):
    """The formula; ``ema`` is None before the first plan."""
    apart = 0 if ema is None else distances(plans, ema)
    return plan_weight * apart + reward_weight * np.abs(np.asarray(rewards, np.float64))


def take(ema, plan, decay):
    """The next shared plan."""
    mixed = decay * ema.astype(np.float64) + (1 - decay) * plan.astype(np.float64)
    return mixed.astype(ema.dtype)


def attention_cost(length, scale):
    """In integers of Python, which have no limit."""
    return scale * float(length * (length + 1) // 2)


def effective_cost(length, reused, scale):
    """The same."""
    return scale * float(max(0, length * (length + 1) // 2 - reused * (reused + 1) // 2))


def bandwidth_efficiency(rewards, costs, learner_costs):
    """In fractions, which round nothing."""
    reward, *spent = (sum(map(Fraction, numbers)) for numbers in (rewards, costs, map(abs, learner_costs)))
    return float(reward / sum(spent)) if sum(spent) > 1e-12 else 0.0


def importance_weight(probability, share, size, beta):
    """In Python's numbers."""
    return (size * (probability * share)) ** -beta


class SlowPrefixIndex:
    """A dictionary of all cached prefixes, of which each ends in a block of its own."""

    def __init__(self, capacity, block_size):
        self.capacity, self.block_size = capacity, block_size
        self.numbers, self.used, self.leases = {}, {}, []
        self.time = 0

    def prefixes(self, tokens, blocks):
        """The first prefixes of whole blocks, shortest first."""
        return [tuple(tokens[: (i + 1) * self.block_size]) for i in range(blocks)]

    def use(self, prefix):
        """A use of a prefix is a use of each block of it."""
        self.time += 1
        for one in self.prefixes(prefix, len(prefix) // self.block_size):
            self.used[one] = self.time

    def find(self, tokens, blocks):
        """The longest cached prefix of so many blocks."""
        found = ()
        for one in self.prefixes(tokens, blocks):
            if one not in self.numbers:
                break
            found = one
        self.use(found)
        return found

    def match(self, tokens):
        """The longest proper one."""
        return self.find(tokens, max(len(tokens) - 1, 0) // self.block_size)

    def blocks(self, prefix):
        """The numbers of a prefix's blocks."""
        return [self.numbers[one] for one in self.prefixes(prefix, len(prefix) // self.block_size)]

    def lease(self, prefix):
        """Keeps it."""
        self.leases.append(prefix)

    def release(self, prefix):
        """Ends one lease."""
        self.leases.remove(prefix)
        self.use(prefix)

    def evict(self, blocks):
        """Block by block: of those that nothing continues and nobody leases, the one used longest ago."""
        gone = []
        while len(gone) < blocks:
            parents = {one[: -self.block_size] for one in self.numbers}
            ends = [one for one in self.numbers if one not in parents and one not in self.leases]
            if not ends:
                break
            oldest = min(ends, key=self.used.__getitem__)
            gone.append(self.numbers.pop(oldest))
        return gone

    def insert(self, tokens, blocks):
        """Caches what there is room for. Returns the prefix that is cached then, what was known, and what went."""
        found = self.find(tokens, len(blocks))
        known = len(found) // self.block_size
        self.lease(found)
        evicted = self.evict(len(blocks) - known - (self.capacity - len(self.numbers)))
        self.leases.remove(found)
        for one, block in zip(self.prefixes(tokens, len(blocks))[known:], blocks[known:], strict=True):
            if len(self.numbers) == self.capacity:
                break
            self.numbers[one] = block
            found = one
        self.use(found)
        return found, known, evicted
