"""What a table of a replay is like: how it chooses items, how many it holds, and when it may be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echo_shm.replay.item import Item, NStep, Step
from echo_shm.replay.item import Sequence as SequenceItem
from echo_shm.replay.layout import Layout, lay_out
from echo_shm.replay.rate_limiters import MinSize, Queue, RateLimiter, Stack
from echo_shm.replay.selectors import Fifo, HotCold, Lifo, Prioritized, Selector, Softmax, Uniform
from echo_shm.replay.validation import flag, integer
from echo_shm.spec import Spec

#: Most bytes of a name, and most tables of a replay: ES_TABLE_NAME without its end, and ES_MAX_TABLES.
_MAX_NAME = 63
#: Most items of a table that wait for its limiter, while other tables go on. Their steps cannot go meanwhile.
_MAX_PARKED = 256

_MAX_TABLES = 64


@dataclass(frozen=True, init=False)
class Table:
    """A table of a replay.

    An item has a record of 64 bytes, and what is derived from it. A table without records has one bit for each step
    instead: where ``item=Sequence(length, period=1)``, so that any step may end an item, is sampled uniformly with
    replacement and without a limit, the oldest goes first, the limiter never forbids to insert, and the table is not
    protected. So by default every window costs less than a byte. Then

    - ``priority`` is 1 for every item: :meth:`Replay.update` counts those that are there, and changes nothing;
    - ``times_sampled`` is -1, and ``age`` is in steps: see :class:`Batch`;
    - the oldest is the one whose last step was stored first;
    - a key says where the last step lies. So a table without records gives new keys to items of a checkpoint that had
      them; and with ``store="dir/"`` keys and draws depend on when the files were synced.

    Any setting that needs more brings the records back, for example ``max_times_sampled=10**9``.

    Args:
        name: Names the table in calls and messages: 1 to 63 bytes of UTF-8, without NUL.
        sampler: How items are chosen to be sampled: ``Uniform()`` by default; ``Fifo()`` with a ``Queue``, ``Lifo()``
            with a ``Stack``. A :class:`CustomSelector` is a rule of one's own.
        remover: How an item is chosen to go when the table holds more than ``max_size``. The new item is among them.
            ``Fifo()`` by default; ``Lifo()`` with a ``Stack``.
        max_size: Most items, 1 or more; None for as many as the replay holds steps.
        rate_limiter: When the table may be sampled and inserted into: ``MinSize(1)`` by default.
            :meth:`Replay.set_limits` changes its limits later.
        max_times_sampled: How often an item is sampled before it goes; 0 for no limit. By default 1 with a ``Queue``
            or a ``Stack``, and 0 otherwise.
        replacement: False: each item is sampled once before any is sampled again.
        protected: True: the table's items do not go when the replay needs room for a step.
        item: What an item is: ``Step()`` by default; an :class:`NStep`, a :class:`Sequence`, an :class:`Episode`. It
            enters the table with the step that completes it, and has the priority that was given with that step.

    Raises:
        ValueError: A name or a number is out of range, or the limiter waits for more items than ``max_size``.
        TypeError: A sampler, a remover, a limiter or an item is something else.

    """

    name: str
    sampler: Selector
    remover: Selector
    max_size: int | None
    rate_limiter: RateLimiter
    max_times_sampled: int
    replacement: bool
    protected: bool
    item: Item

    def __init__(
        self,
        name: str,
        sampler: Selector | None = None,
        remover: Selector | None = None,
        max_size: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int | None = None,
        *,
        replacement: bool = True,
        protected: bool = False,
        item: Item | None = None,
    ) -> None:
        limiter = MinSize(1) if rate_limiter is None else rate_limiter
        queue, stack = isinstance(limiter, Queue), isinstance(limiter, Stack)
        if sampler is None:
            sampler = Fifo() if queue else Lifo() if stack else Uniform()
        if remover is None:
            remover = Lifo() if stack else Fifo()
        if max_times_sampled is None:
            max_times_sampled = 1 if queue or stack else 0
        values = {
            "name": _name(name),
            "sampler": _instance("sampler", sampler, Selector, "Uniform()"),
            "remover": _instance("remover", remover, Selector, "Fifo()"),
            "max_size": None if max_size is None else integer("max_size", max_size, 1),
            "rate_limiter": _instance("rate_limiter", limiter, RateLimiter, "MinSize(1)"),
            "max_times_sampled": integer("max_times_sampled", max_times_sampled, 0),
            "replacement": flag("replacement", replacement),
            "protected": flag("protected", protected),
            "item": _instance("item", Step() if item is None else item, Item, "Step()"),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)
        _check_selectors(name, self.sampler, self.remover, self.replacement)
        if self.max_size is not None and limiter.min_size > self.max_size:
            raise ValueError(
                f"table {name!r}: {limiter!r} waits for {limiter.min_size} items, and the table holds at most "
                f"max_size={self.max_size}: use a smaller min_size, or a larger max_size"
            )


def _check_selectors(name: str, sampler: Selector, remover: Selector, replacement: bool) -> None:
    """Raises ValueError unless they can be together, and are where they can be."""
    if isinstance(remover, HotCold) or (isinstance(remover, Softmax) and remover.target_effective is not None):
        raise ValueError(f"table {name!r}: remover={remover!r}: only a sampler has parts, or chooses its temperature")
    if isinstance(sampler, HotCold) and not replacement:
        raise ValueError(f"table {name!r}: {sampler!r} draws with replacement: use replacement=True")


def check_tables(tables: Sequence[Table]) -> None:
    """Raises unless these are the tables of a replay.

    Raises:
        ValueError: There are no tables, too many, or two of the same name.
        TypeError: Something among them is no table.

    """
    if isinstance(tables, Table) or not isinstance(tables, Sequence) or not all(isinstance(t, Table) for t in tables):
        raise TypeError(f"tables={tables!r}: use a list of Table")
    if not 1 <= len(tables) <= _MAX_TABLES:
        raise ValueError(f"got {len(tables)} tables: use 1 to {_MAX_TABLES}")
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{names.count(name)} tables have the name {name!r}: use a name of its own for each")


def lay_out_table(table: Table, step: Spec) -> Layout:
    """What the table's batches look like, of such steps.

    Raises:
        ValueError, TypeError: As :func:`lay_out`. The message names the table.

    """
    try:
        return lay_out(table.item, step)
    except (ValueError, TypeError) as error:
        raise type(error)(f"table {table.name!r}: {error}") from None


def table_config(table: Table, layout: Layout, capacity: int, max_items: int | None = None) -> dict[str, Any]:
    """A table of a replay for the C core: the fields of ``es_table_config``.

    Args:
        table: The table.
        layout: That of its items.
        capacity: Most steps of the replay.
        max_items: Most items of all tables together; None for as many as they can hold.

    Raises:
        ValueError: One of its items refers to more steps than the replay holds, or its limiter waits for more items
            than there can be.

    """
    limiter = table.rate_limiter
    # While an item's steps are kept, the next step comes.
    if layout.span >= capacity and not isinstance(table.item, Step):
        raise ValueError(
            f"table {table.name!r}: an item of {table.item!r} refers to {layout.span} steps{_beside(table.item)}, and "
            f"there must be room for one more; the replay holds at most capacity={capacity}: use a larger capacity"
        )
    for label, most, unit in (("capacity", capacity, "steps"), ("max_items", max_items, "items")):
        if most is not None and limiter.min_size > most:
            raise ValueError(
                f"table {table.name!r}: {limiter!r} waits for {limiter.min_size} items, and the replay holds at most "
                f"{label}={most} {unit}: use a smaller min_size, or a larger {label}"
            )
    least = _least_steps(table.item, limiter.min_size)
    if least > capacity:
        raise ValueError(
            f"table {table.name!r}: {limiter!r} waits for {limiter.min_size} items of {table.item!r}, which have at "
            f"least {least} steps, and the replay holds at most capacity={capacity}: use a smaller min_size, or a "
            "larger capacity"
        )
    return {
        "name": table.name.encode(),
        "sampler": _selector_config(table.sampler),
        "remover": _selector_config(table.remover),
        "max_size": capacity if table.max_size is None else table.max_size,
        "max_times_sampled": table.max_times_sampled,
        "min_size": limiter.min_size,
        "ratio": limiter.ratio,
        "min_diff": limiter.min_diff,
        "max_diff": limiter.max_diff,
        "max_parked": min(_MAX_PARKED, capacity // 4),
        "replacement": int(table.replacement),
        "is_protected": int(table.protected),
        "item": layout.config,
    }


def _least_steps(item: Item, n: int) -> int:
    """How many steps n items of a table have at least. Where episodes may be short, an item may have one of its own."""
    if isinstance(item, SequenceItem) and item.pad is None:
        return item.length + (n - 1) * item.period
    return n


def _beside(item: Item) -> str:
    """Which steps an item refers to beside its own, in words."""
    if not isinstance(item, NStep):
        return ""
    stacked = max(item.stack.values(), default=1) > 1
    return ", with those that are stacked before it and the one after it" if stacked else ", with the one after it"


def _selector_config(selector: Selector) -> dict[str, Any]:
    config: dict[str, Any] = {"kind": selector.kind, "parameter": 0.0, "beta": 0.0}
    config |= {"target": 0.0, "share": 0.0, "hot_size": 0, "age": 0, "max_age": 0}
    if isinstance(selector, Prioritized):
        config |= {"parameter": selector.alpha, "beta": selector.beta}
    elif isinstance(selector, Softmax | HotCold):
        config |= {"parameter": selector.temperature, "beta": selector.beta, "target": selector.target_effective or 0.0}
    if isinstance(selector, HotCold):
        config |= {"share": selector.share, "hot_size": selector.hot_size, "age": selector.age}
        config["max_age"] = selector.max_age or 0
    return config


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"name={value!r}: use a string")
    if not value or "\0" in value:
        raise ValueError(f"name={value!r}: use a name of 1 to {_MAX_NAME} bytes without NUL")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"name={value!r}: use a name that UTF-8 can encode: {error.reason}") from None
    if size > _MAX_NAME:
        raise ValueError(f"name={value!r} has {size} bytes in UTF-8: use at most {_MAX_NAME}")
    return value


def _instance(label: str, value: object, kind: type, example: str) -> object:
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(f"{label}={value.__name__} is a class: use an instance, for example {example}")
    if not isinstance(value, kind):
        raise TypeError(f"{label}={value!r}: use a {kind.__name__}, for example {example}")
    return value
