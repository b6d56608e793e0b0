"""A replay in a slow and obvious way: what each call of an embedded replay must do, by plain dictionaries and lists.

The model has no generator. Who plays it beside a replay tells it what the replay drew or removed, and the model raises
:class:`Impossible` if a replay could not have done so. Items are known by the number of their step, from 0 in order
of insertion: a table has at most one item of each step.
"""

import contextlib
import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from echo_shm import Table
from echo_shm.replay import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Softmax, Uniform


class Impossible(AssertionError):
    """No replay can do that."""


class Refused(Exception):
    """A step enters nowhere. ``table``: the name of the one whose limiter forbids it, or None without room."""

    def __init__(self, table: str | None) -> None:
        super().__init__(table)
        self.table = table


@dataclass
class Item:
    """An item of a table."""

    step: int
    priority: float
    inserted: int  # how many items were inserted before it
    touched: int  # the clock when it was inserted or updated last
    times_sampled: int = 0
    drawn: bool = False  # in the round under way


class Values(NamedTuple):
    """What a batch says of one of its items."""

    step: int
    priority: float
    times_sampled: int
    table_size: int
    age: int
    probability: float
    ratio: float  # its weight by the least positive weight in the table

    def weight(self, beta: float) -> float:
        """The importance weight."""
        return self.ratio**-beta if beta > 0 else 1.0


#: Tells which item the remover chose, of those that it may have chosen with their probabilities.
Choose = Callable[["TableModel", dict[int, float]], int]


def weights(rule, items):
    """The weight of each item, by step, for rules that draw by chance; up to a common factor."""
    if isinstance(rule, Uniform):
        return {item.step: 1.0 for item in items}
    if isinstance(rule, Prioritized):
        return {item.step: item.priority**rule.alpha if item.priority > 0 else 0.0 for item in items}
    top = max((item.priority for item in items), default=0.0)
    return {item.step: math.exp((item.priority - top) / rule.temperature) for item in items}


def log_weight(rule, item):
    """The natural logarithm of an item's weight."""
    if isinstance(rule, Softmax):
        return item.priority / rule.temperature
    return math.log(weight) if (weight := weights(rule, [item])[item.step]) > 0 else -math.inf


def chances(rule, items):
    """The probability of each item to be chosen, by step, without those that cannot be chosen."""
    items, rule = list(items), getattr(rule, "like", rule)  # one of python_selectors.py
    if isinstance(rule, Uniform | Prioritized | Softmax):
        by_step = weights(rule, items)
        if not any(by_step.values()):
            by_step = dict.fromkeys(by_step, 1.0)
        total = math.fsum(by_step.values())
        return {step: weight / total for step, weight in by_step.items() if weight > 0}
    head = {
        Fifo: lambda item: item.inserted,
        Lifo: lambda item: -item.inserted,
        MinHeap: lambda item: (item.priority, item.touched),
        MaxHeap: lambda item: (-item.priority, item.touched),
    }[type(rule)]
    return {min(items, key=head).step: 1.0} if items else {}


class TableModel:
    """One table."""

    def __init__(self, config: Table, capacity: int) -> None:
        self.config = config
        self.max_size = capacity if config.max_size is None else config.max_size
        self.limits = config.rate_limiter.min_diff, config.rate_limiter.max_diff
        self.reset()

    def reset(self) -> None:
        """Removes all items, and counts from 0."""
        self.items: dict[int, Item] = {}
        self.inserted = self.sampled = self.deleted = self.evicted = self.clock = 0
        self.highest = 1.0
        self.pending: list[Pending] = []

    # --- when

    def can_sample(self, n: int) -> bool:
        """Whether the limiter allows n samples."""
        limiter = self.config.rate_limiter
        enough = self.inserted - self.deleted >= limiter.min_size
        return enough and self.inserted * limiter.ratio - self.sampled - n >= self.limits[0]

    def can_insert(self, n: int) -> bool:
        """Whether the limiter allows n insertions."""
        limiter = self.config.rate_limiter
        filling = self.inserted + n - self.deleted <= limiter.min_size
        return filling or (self.inserted + n) * limiter.ratio - self.sampled <= self.limits[1]

    def halts(self, low: float, high: float) -> bool:
        """Whether with these limits there is an ``inserted * ratio - sampled`` that allows neither of the two."""
        ratio = self.config.rate_limiter.ratio
        if ratio.is_integer():  # then it is always whole
            return any(diff + ratio > high and diff - 1 < low for diff in range(-100, 101))
        return high - low < 1 + ratio

    # --- changes

    def insert(self, step: int, priority: float | None) -> None:
        """A new item."""
        if priority is None:
            priority = self.highest
        self.highest = max(self.highest, priority)
        self.items[step] = Item(step, priority, self.inserted, self.clock)
        self.inserted += 1
        self.clock += 1

    def shrink(self, choose: Choose) -> None:
        """If the table is too full, its remover takes an item away: ``choose`` says which."""
        while len(self.items) > self.max_size:
            possible = chances(self.config.remover, self.items.values())
            gone = choose(self, possible) if len(possible) > 1 else next(iter(possible))
            if gone not in possible:
                raise Impossible(f"{self.config.remover} removed {gone}, of {possible}")
            self.evict(gone)

    def remove(self, step: int) -> None:
        """Removes an item."""
        del self.items[step]
        self.deleted += 1

    def evict(self, step: int) -> None:
        """Removes an item for want of room."""
        self.remove(step)
        self.evicted += 1

    def update(self, pairs: list[tuple[int, float]]) -> int:
        """Gives items new priorities, one after the other. How many different items there were."""
        living = [(step, priority) for step, priority in pairs if step in self.items]
        for step, priority in living:
            self.items[step].priority = priority
            self.items[step].touched = self.clock
            self.clock += 1
        self.highest = max([self.highest, *dict(living).values()])
        return len(dict(living))

    def delete(self, steps: list[int]) -> int:
        """Removes items. How many there were."""
        living = set(steps) & set(self.items)
        for step in living:
            self.remove(step)
        return len(living)

    # --- samples

    def draws(self) -> dict[int, float]:
        """The probability of each item to be drawn in the round under way, by step, without those that cannot be."""
        left = [item for item in self.items.values() if self.config.replacement or not item.drawn]
        return chances(self.config.sampler, left)

    def masses(self) -> dict[str, float]:
        """The sum of the weights of those items, and the least positive one of all; only of samplers that say so."""
        sampler = getattr(self.config.sampler, "like", self.config.sampler)
        if self.config.sampler is not sampler or not isinstance(sampler, Uniform | Prioritized | Softmax):
            return {}
        left = [item for item in self.items.values() if self.config.replacement or not item.drawn]
        logs = [log_weight(sampler, item) for item in self.items.values()]
        least = 0.0 if isinstance(sampler, Uniform) else min((log for log in logs if log > -math.inf), default=math.inf)
        log_mass = float(np.logaddexp.reduce([log_weight(sampler, item) for item in left]))
        said = {"log_mass": log_mass, "least_log_weight": least}
        if isinstance(sampler, Softmax):
            return said
        return said | {"mass": math.exp(log_mass), "least_weight": math.exp(least) if least < math.inf else 0.0}

    def values(self, step: int) -> Values:
        """What a batch says of an item that is drawn now, or what ``get`` says of it."""
        item, sampler = self.items[step], self.config.sampler
        ratio = 1.0
        if isinstance(sampler, Prioritized):
            by_step = weights(sampler, self.items.values())
            if by_step[step] > 0:
                ratio = by_step[step] / min(weight for weight in by_step.values() if weight > 0)
        elif isinstance(sampler, Softmax):
            least = min(other.priority for other in self.items.values())
            ratio = _exp((item.priority - least) / sampler.temperature)
        return Values(
            step,
            item.priority,
            item.times_sampled,
            len(self.items),
            self.inserted - item.inserted - 1,
            self.draws().get(step, 0.0),
            ratio,
        )

    def draw(self, step: int) -> Values:
        """Draws one item: it was this one."""
        if not self.can_sample(1):
            raise Impossible(f"{self.config.name} was sampled against its limiter")
        if all(other.drawn for other in self.items.values()):  # only now a new round begins: newcomers join the old one
            for other in self.items.values():
                other.drawn = False
        possible = self.draws()
        if step not in possible:
            raise Impossible(f"{self.config.sampler} drew {step}, of {possible}")
        item = self.items[step]
        item.times_sampled += 1
        found = self.values(step)._replace(probability=possible[step])
        item.drawn = True
        self.sampled += 1
        if item.times_sampled == self.config.max_times_sampled:
            self.remove(step)
        return found

    def cut_short(self, counts: Counter) -> None:
        """Items were drawn for a call that got less than it asked for: so often each, nobody knows in which order."""
        before = copy.deepcopy(self)
        before.pending = []
        if not self._draw_in_some_order(counts):
            raise Impossible(f"{self.config.name} cannot have drawn {dict(counts)} and be stuck then")
        if +counts:
            self.pending.append(Pending(before, +counts))

    def _draw_in_some_order(self, counts: Counter) -> bool:
        """Draws as often as counts say in an order in which that is possible, to the point at which it must stop."""
        if not +counts:
            return not self.can_sample(1)
        if not self.can_sample(1):
            return False
        for step in +counts:
            trial = copy.copy(self)
            trial.items = {step: copy.copy(item) for step, item in self.items.items()}
            with contextlib.suppress(Impossible):
                trial.draw(step)
                if trial._draw_in_some_order(counts - Counter([step])):
                    self.__dict__.update(trial.__dict__)
                    return True
        return False

    @property
    def num_pending(self) -> int:
        """How many items were drawn for calls that were cut short, and come first in the next one."""
        return sum(part.counts.total() for part in self.pending)

    def serve(self, steps: list[int]) -> list[Values]:
        """A batch: first what was drawn before, then new draws."""
        found = []
        for step in steps:
            if not self.pending:
                found.append(self.draw(step))
                continue
            part = self.pending[0]
            if not part.counts[step]:
                raise Impossible(f"{step} comes where one of {dict(part.counts)} must: they were drawn before")
            found.append(part.table.draw(step))
            part.counts -= Counter([step])
            if not part.counts:
                del self.pending[0]
        return found

    @property
    def effective_sample_size(self) -> float:
        """One by the sum of the squared probabilities; 0 if nobody is left to be drawn in this round."""
        squares = math.fsum(p * p for p in self.draws().values())
        return 1 / squares if squares else 0.0


@dataclass
class Pending:
    """What was drawn for a call that was cut short."""

    table: TableModel  # as it was before the first of these draws
    counts: Counter[int]  # how often each is still to come


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


@dataclass
class Model:
    """A replay of one writer: steps, and the tables that refer to them."""

    capacity: int
    max_items: int
    tables: dict[str, TableModel]
    next_step: int = 0
    episode: int = 0
    episode_of: dict[int, int] = field(default_factory=dict)
    last: int | None = None  # the writer's last step that is stored: nothing else is kept without items

    @classmethod
    def of(cls, capacity: int, tables: list[Table], max_items: int | None = None) -> "Model":
        """A new one, empty. Without ``max_items`` as many as the tables can hold."""
        made = {table.name: TableModel(table, capacity) for table in tables}
        largest = sum(min(table.max_size, capacity) for table in made.values())
        return cls(capacity, largest if max_items is None else max_items, made)

    def _num_items(self) -> int:
        return sum(len(table.items) for table in self.tables.values())

    def stored(self) -> list[int]:
        """The steps that are stored, by age."""
        steps = {step for table in self.tables.values() for step in table.items}
        return sorted(steps | ({self.last} - {None}))

    def add(self, priorities: dict[str, float | None], choose: Choose, *, ends: bool = False) -> None:
        """One step with an item in each of these tables. ``ends``: it is the last one of its episode.

        Raises:
            Refused: It enters nowhere, and nothing has changed.

        """
        for name, table in self.tables.items():
            if name in priorities and not table.can_insert(1):
                raise Refused(name)
        if not self._has_room(priorities):
            raise Refused(None)
        step, self.next_step = self.next_step, self.next_step + 1
        self.episode_of[step], self.last = self.episode, step
        self.episode += ends
        for name in priorities:
            self.tables[name].insert(step, priorities[name])
        for table in self.tables.values():
            table.shrink(choose)
        self.settle()

    def _open(self) -> list[TableModel]:
        return [table for table in self.tables.values() if not table.config.protected]

    def _has_room(self, priorities: dict[str, float | None]) -> bool:
        """Whether enough goes for one more step and its items: by removers, by capacity, or a step that is kept."""
        full = [name for name in priorities if len(self.tables[name].items) >= self.tables[name].max_size]
        more = [name for name in priorities if name not in full]
        fixed = [name for name, table in self.tables.items() if table.config.protected]
        if len(self.stored()) > self.capacity:
            return False
        if sum(len(self.tables[name].items) for name in fixed) + len(set(more) & set(fixed)) > self.max_items:
            return False
        fits = len(self.stored()) < self.capacity or bool(full) or self._keeps()
        too_many = self._num_items() + len(more) - self.max_items
        return (fits and too_many <= 0) or sum(len(table.items) for table in self._open()) >= max(too_many, 1)

    def _keeps(self) -> bool:
        """Whether a step is stored for its writer alone."""
        return self.last is not None and not any(self.last in table.items for table in self.tables.values())

    def settle(self) -> None:
        """What does not fit goes: also after others went, for removers that differ may leave one step too many.

        First the items of the oldest steps go, one at a time, and then the step that the writer keeps.
        """
        while (len(self.stored()) > self.capacity or self._num_items() > self.max_items) and any(
            table.items for table in self._open()
        ):
            step = min(step for table in self._open() for step in table.items)
            [table for table in self._open() if step in table.items][-1].evict(step)
        if len(self.stored()) > self.capacity and self._keeps():
            self.last = max((step for table in self.tables.values() for step in table.items), default=None)

    def reset(self, name: str) -> None:
        """Empties a table."""
        self.tables[name].reset()

    def info(self, name: str) -> dict:
        """The fields of ``info`` that do not depend on the machine."""
        table = self.tables[name]
        return {
            "size": len(table.items),
            "inserted": table.inserted,
            "sampled": table.sampled,
            "deleted": table.deleted,
            "evicted": table.evicted,
            "parked": 0,
            "episodes": len({self.episode_of[step] for step in table.items}),
            "effective_sample_size": table.effective_sample_size,
            **table.masses(),
        }
