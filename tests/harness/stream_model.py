"""A replay whose items have several steps, in a slow and obvious way: steps, the streams that they are of, and items.

It knows nothing of limiters or draws: those are in ``replay_model.py``. Removers are Fifo and Lifo. A table that draws
all windows of a length uniformly, and loses the oldest, stores no priorities, and orders its items by their last steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo_shm import Table
from echo_shm.replay import Fifo, Lifo, NStep, Sequence, Step, Uniform
from harness import item_model
from harness.item_model import LEFT, OPEN


@dataclass(eq=False)
class Record:
    """A step, or what an episode ends with."""

    stream: "Stream"
    arrival: int
    number: int
    uses: int = 0
    lives: bool = True


@dataclass(eq=False)
class Item:
    """An item of a table."""

    table: "TableModel"
    records: list[Record]
    priority: float
    data: Any
    key: Any = None  # who plays the model beside a replay may know it

    @property
    def last(self) -> Record:
        """With which it was complete."""
        return self.records[-1]


@dataclass(eq=False)
class Stream:
    """What one environment of one writer sends."""

    records: list[Record] = field(default_factory=list)  # that live
    kept: int = 0  # of those with this number, and of later ones, none goes for want of items
    number: int = 0
    rows: list[dict] = field(default_factory=list)  # of the episode
    there: list[Record] = field(default_factory=list)  # their records, whether they live or not
    end: str = OPEN


@dataclass(eq=False)
class TableModel:
    """One table: its items in order of insertion."""

    config: Table
    max_size: int
    items: list[Item] = field(default_factory=list)
    highest: float = 1.0

    @property
    def has_windows(self) -> bool:
        """Whether it stores nothing of an item but that it is there."""
        item, config = self.config.item, self.config
        return (
            isinstance(item, Sequence)
            and item.period == 1
            and isinstance(config.sampler, Uniform)
            and isinstance(config.remover, Fifo)
            and config.replacement
        )

    def enter(self, item: Item) -> None:
        """An item comes."""
        self.items.append(item)
        self.order()

    def order(self) -> None:
        """Puts the items in order."""
        if self.has_windows:
            self.items.sort(key=lambda item: item.last.arrival)

    def change_priority(self, item: Item, priority: float) -> None:
        """The item gets another priority."""
        if not self.has_windows:
            item.priority = priority
            self.highest = max(self.highest, priority)


class StreamModel:
    """A replay.

    Args:
        capacity: Most steps.
        tables: The tables.
        is_gone: Whether an item is not in the replay any more that is played.

    """

    def __init__(self, capacity: int, tables: list[Table], is_gone: Callable[[Item], bool]) -> None:
        self.capacity = capacity
        self.is_gone = is_gone
        self.tables = {t.name: TableModel(t, capacity if t.max_size is None else t.max_size) for t in tables}
        self.keep = max(1 if isinstance(t.item, Step) else span(t.item) + 1 for t in tables)
        self.streams: list[Stream] = []
        self.arrivals = 0
        self.order: list[Item] = []  # all items, in the order in which they came

    def stream(self) -> Stream:
        """A new one."""
        self.streams.append(Stream())
        return self.streams[-1]

    def living(self) -> list[Record]:
        """What is stored."""
        return [record for stream in self.streams for record in stream.records]

    def add(self, stream: Stream, row: dict, priorities: dict, end: str, final: Any) -> None:
        """A step, and what its episode ends with if it does, and that is known."""
        finish = self.begin_last(stream, row, priorities, end, final)
        if final is not None:
            finish()

    def begin_last(self, stream: Stream, row: dict, priorities: dict, end: str, final: Any) -> Callable[[], None]:
        """The same in two parts: what is returned stores what the episode ends with."""
        left = []
        if stream.end != OPEN:
            if stream.end == LEFT and stream.there[-1].lives:
                left = self._new(stream, LEFT)
            stream.rows, stream.there, stream.end = [], [], OPEN
        record = self._enter(stream, row)
        self._insert(record, left + self._new(stream, OPEN if final is not None else end, 1), priorities)
        stream.end = OPEN if final is not None else end

        def finish() -> None:
            last = self._enter(stream, {**row, "obs": final})
            self._insert(last, self._new(stream, end), priorities)
            stream.end = end

        return finish

    def end_episode(self, stream: Stream) -> None:
        """The next step begins one."""
        if stream.end == OPEN and stream.rows:
            stream.end = LEFT

    def _enter(self, stream: Stream, row: dict) -> Record:
        record = Record(stream, self.arrivals, stream.number)
        self.arrivals, stream.number = self.arrivals + 1, stream.number + 1
        stream.kept = stream.kept if stream.records else record.number
        stream.records.append(record)
        stream.rows.append(row)
        stream.there.append(record)
        return record

    def _new(self, stream: Stream, end: str, added: int = 0) -> list:
        """The items of the episode that were not complete before: table, data, and the records that they refer to.

        ``added``: how many of its steps have just come.
        """
        found = []
        steps = len(stream.rows) - ("final" in end)
        rows = {name: np.stack([row[name] for row in stream.rows]) for name in stream.rows[0]}
        for table in self.tables.values():
            item = table.config.item
            before = item_model.parts(item, steps - added, OPEN)
            for part in item_model.parts(item, steps, end):
                refs = referred(item, part)
                if part not in before and all(stream.there[i].lives for i in refs):
                    found.append((table, item_model.data_of(item, [part], rows), [stream.there[i] for i in refs]))
        return found

    def _insert(self, record: Record, found: list, priorities: dict) -> None:
        stream = record.stream
        places = list(self.tables.values())
        found.sort(key=lambda one: (not isinstance(one[0].config.item, Step), places.index(one[0])))
        for table, data, refs in found:
            name = table.config.name
            if name not in priorities:
                continue
            item = Item(table, refs, 1.0, data)
            table.change_priority(item, table.highest if priorities[name] is None else priorities[name])
            for one in refs:
                one.uses += 1
            table.enter(item)
            self.order.append(item)
            if len(table.items) > table.max_size:
                self.remove(table.items[-1 if isinstance(table.config.remover, Lifo) else 0])
        kept = [one.number for one in stream.records if one.number >= stream.kept]
        last = stream.records[-1].number
        stream.kept = next(number for number in kept if last - number < self.keep)
        self._drop_unused(stream)
        self._settle()

    def _drop_unused(self, stream: Stream) -> None:
        for record in list(stream.records):
            if not record.uses and record.number < stream.kept:
                self._drop(record)

    def _drop(self, record: Record) -> None:
        stream = record.stream
        record.lives = False
        stream.records.remove(record)
        if stream.records and stream.records[-1].number < stream.kept:
            stream.kept = stream.records[-1].number

    def remove(self, item: Item) -> None:
        """An item goes."""
        item.table.items.remove(item)
        for record in item.records:
            record.uses -= 1
        for stream in {record.stream for record in item.records}:
            self._drop_unused(stream)

    def _settle(self) -> None:
        while len(self.living()) > self.capacity:
            items = [item for table in self.tables.values() for item in table.items]
            bare = [record for record in self.living() if not record.uses]
            oldest = min((item.last.arrival for item in items), default=self.arrivals)
            idle = min(bare, key=lambda record: record.arrival, default=None)
            if idle is not None and idle.arrival < oldest:
                self._drop(idle)
            else:
                self.remove(self._choose([one for one in self.order if one in items and one.last.arrival == oldest]))

    def _choose(self, of_a_step: list[Item]) -> Item:
        """Of several items of a step, that of the last table goes; there, that with the highest number in its key."""
        tables = list(self.tables.values())
        last = max(tables.index(item.table) for item in of_a_step)
        mine = [item for item in of_a_step if item.table is tables[last]]
        if all(item.key is not None for item in mine):
            return max(mine, key=lambda item: int(item.key) & 0xFFFFFFFF)
        # The numbers of new ones are not known. All that are gone went: first those that made the least room.
        gone = [item for item in mine if self.is_gone(item)]
        return min(gone, key=_steps_alone, default=mine[-1])

    def restore(self, tables: list[Table]) -> None:
        """A checkpoint became another replay, with other samplers for the same items."""
        for config in tables:
            table = self.tables[config.name]
            table.config = config
            for item in table.items:
                item.key = None
                item.priority = 1.0 if table.has_windows else item.priority
            table.order()
        self.order.sort(key=lambda item: item.last.arrival)
        self.reopen()

    def reopen(self) -> None:
        """What a stream keeps is found anew."""
        for stream in self.streams:
            if stream.records:
                stream.kept = next(
                    one.number for one in stream.records if stream.records[-1].number - one.number < self.keep
                )


def _steps_alone(item: Item) -> int:
    """How many steps only this item refers to."""
    return sum(record.uses == 1 for record in item.records)


def span(item):
    """The most steps that an item refers to."""
    if isinstance(item, Step):
        return 1
    if isinstance(item, NStep):
        return item.n + max(item.stack.values(), default=1)
    return item_model.shape_of(item)[0]


def referred(item, part):
    """The rows that an item refers to: those of its steps, of frames before them, and of what follows."""
    before = max(item.stack.values(), default=1) - 1 if isinstance(item, NStep) else 0
    last = part.first + part.steps - 1 if part.next is None else max(part.next, part.first + part.steps - 1)
    return list(range(max(0, part.first - before), last + 1))
