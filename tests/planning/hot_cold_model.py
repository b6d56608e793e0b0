"""A HotColdReplay in a slow and obvious way, but for its draws: whoever plays it beside one says what was drawn."""

import math
from dataclasses import dataclass

import numpy as np

DIM = 3
EXAMPLE = {"n": np.zeros((), np.int64), "reward": np.zeros((), np.float64), "plan": np.zeros(DIM)}


def steps(first, n, seed=0):
    """Steps with plans and rewards of their own."""
    rngs = [np.random.default_rng((seed, number)) for number in range(first, first + n)]
    return {
        "n": np.arange(first, first + n),
        "reward": np.array([rng.integers(-3, 4) for rng in rngs], np.float64),
        "plan": np.array([rng.integers(-2, 3, DIM) for rng in rngs], np.float64).reshape(n, DIM),
    }


def step(number):
    """One of them."""
    return {name: rows[0] for name, rows in steps(number, 1).items()}


def close(got, right):
    """Sums may be added in another order."""
    np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-300)


@dataclass
class Item:
    """An item of the table."""

    number: int  # of its step
    priority: float
    came: int  # how often learned() was called before
    touched: int
    inserted: int
    key: int
    hot: bool = True
    times_sampled: int = 0


class Model:
    """What each call does, by plain lists."""

    def __init__(self, hot_size, cold_size, share, age, max_age, beta, decay, weights):
        self.hot_size, self.size, self.share = hot_size, hot_size + cold_size, share
        self.age, self.max_age, self.beta, self.decay, self.weights = age, max_age, beta, decay, weights
        self.items = {}  # by key, in order of insertion
        self.inserted = self.updates = self.clock = self.moved = self.aged = self.evicted = self.deleted = 0
        self.generations = {}  # the last one of each record
        self.plan, self.plans = None, 0

    def score(self, plan, reward):
        """By the shared plan as it is."""
        apart = 0.0 if self.plan is None else float(np.sum((plan - self.plan) ** 2))
        return self.weights[0] * apart + self.weights[1] * abs(float(reward))

    def observe(self, plan):
        """The shared plan takes one."""
        self.plan = plan.copy() if self.plan is None else self.decay * self.plan + (1 - self.decay) * plan
        self.plans += 1

    def add(self, number, plan, reward, priority=None):
        """One step."""
        score = self.score(plan, reward) if priority is None else priority
        self.observe(plan)
        if len(self.part(True)) >= self.hot_size:
            self._cool(self.part(True)[0])
        used = {key & 0xFFFFFFFF for key in self.items}
        record = next(i for i in range(len(used) + 1) if i not in used)
        generation = self.generations[record] = self.generations.get(record, 0) + 1
        key = generation << 32 | record
        self.items[key] = Item(number, score, self.updates, self.clock, self.inserted, key)
        self.inserted += 1
        self.clock += 1
        if len(self.items) > self.size:
            del self.items[min(self.items.values(), key=lambda item: (item.priority, item.touched)).key]
            self.evicted += 1

    def update(self, keys, priorities):
        """How many different items got a priority."""
        there = [(key, priority) for key, priority in zip(keys, priorities, strict=True) if key in self.items]
        for key, priority in there:
            self.items[key].priority, self.items[key].touched = priority, self.clock
            self.clock += 1
        return len(dict(there))

    def delete(self, keys):
        """How many items went."""
        gone = set(keys) & set(self.items)
        for key in gone:
            del self.items[key]
        self.deleted += len(gone)
        return len(gone)

    def learned(self):
        """One update of the learner."""
        self.updates += 1
        for item in list(self.items.values()):
            if item.hot and self.updates - item.came > self.age:
                self._cool(item)
            if self.max_age is not None and self.updates - item.came > self.max_age:
                del self.items[item.key]
                self.aged += 1

    def _cool(self, item):
        item.hot = False
        self.moved += 1

    def part(self, hot):
        """The items of one part, in order of insertion."""
        return [item for item in self.items.values() if item.hot == hot]

    def probabilities(self, temperatures):
        """That of the whole draw of each item, by key."""
        found = {}
        for hot, temperature in zip((True, False), temperatures, strict=True):
            part, other = self.part(hot), self.part(not hot)
            share = 1.0 if not other else self.share if hot else 1 - self.share
            top = max((item.priority for item in part), default=0.0)
            weights = {item.key: math.exp((item.priority - top) / temperature) for item in part}
            found |= {key: share * weight / math.fsum(weights.values()) for key, weight in weights.items()}
        return found

    def effective(self, hot, temperature):
        """The effective sample size of one part."""
        top = max((item.priority for item in self.part(hot)), default=0.0)
        weights = [math.exp((item.priority - top) / temperature) for item in self.part(hot)]
        return math.fsum(weights) ** 2 / math.fsum(w * w for w in weights) if weights else 0.0
