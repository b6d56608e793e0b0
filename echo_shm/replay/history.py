"""What a writer has appended, and the items that it makes of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import optree

from echo_shm.replay.item import Item, Trajectory, columns, item_from
from echo_shm.replay.layout import column_leaf
from echo_shm.ring.inbox import Explicit, Heads
from echo_shm.spec import Array, Spec, Tree


class Steps(NamedTuple):
    """Steps of one leaf, for an item: ``history["obs"][-4:]``.

    Attributes:
        leaf: The leaf's number.
        last: The number of the last of these steps in the writer's stream.
        length: How many steps. None: one, without a dimension for it.
        stride: How far they are apart.

    """

    leaf: int
    last: int
    length: int | None
    stride: int


#: Makes a named tuple without the call of its own __new__.
_new = tuple.__new__


class Appended:
    """What a writer has appended of one leaf: a sequence of steps, the latest last.

    An index gives one step of it, a slice several: what :meth:`Writer.create_item` takes. A slice may have a stride.
    """

    __slots__ = ("_history", "_leaf")

    def __init__(self, history: "History", leaf: int) -> None:
        self._history = history
        self._leaf = leaf

    def __len__(self) -> int:
        return self._history.count

    def __getitem__(self, key: int | slice) -> Steps:
        history = self._history
        count = history.count
        if isinstance(key, slice):
            start, stop, stride = key.indices(count)
            n = (stop - start + stride - 1) // stride if stride > 0 else 0
            if n < 1:
                raise IndexError(
                    f"{history.name(self._leaf)}: {key} of a history of {count} steps names no steps"
                    f"{', or names them backwards' if stride < 0 else ''}: name at least one, forwards"
                )
            return _new(Steps, (self._leaf, history.first + start + (n - 1) * stride, n, stride))
        index = key + count if key < 0 else key
        if not 0 <= index < count:
            raise IndexError(f"{history.name(self._leaf)}: step {key} of a history of {count} steps is not there")
        return _new(Steps, (self._leaf, history.first + index, None, 1))

    def __repr__(self) -> str:
        return f"<{len(self)} steps of {self._history.name(self._leaf)}>"


class History:
    """The steps of a writer that its next items may refer to.

    Args:
        heads: Numbers the writer's steps.
        spec: What a step looks like.

    Attributes:
        first: The number of the first step.
        partial: The leaves that are there of a step that was appended in part; None if there is none.
        absent: The leaves that were never appended, of the steps that have such.
        tree: The steps' tree, of :class:`Appended`.

    """

    def __init__(self, heads: Heads, spec: Spec) -> None:
        self._heads = heads
        self._spec = spec
        self.first = heads.number
        self.partial: dict[int, Array] | None = None
        self.absent: dict[int, frozenset[int]] = {}
        self.tree = spec.structure.unflatten([Appended(self, leaf) for leaf in range(len(spec.leaves))])

    @property
    def count(self) -> int:
        """How many steps."""
        return self._heads.number - self.first + (self.partial is not None)

    def clear(self) -> None:
        """Forgets the steps of the episodes before this one."""
        self.first = self._heads.number - self._heads.index
        self.absent.clear()

    def name(self, leaf: int) -> str:
        """A leaf, in a message."""
        return self._spec.leaves[leaf].name

    def missing(self, leaf: int, numbers: range) -> int | None:
        """The number of a step among these whose leaf was never appended; None if there is none."""
        for number in numbers:
            if number in self.absent and leaf in self.absent[number]:
                return number
            if self.partial is not None and number == self._heads.number and leaf not in self.partial:
                return number
        return None


class NewItem(NamedTuple):
    """An item to be sent: the arguments of :meth:`Heads.item`."""

    table: int
    last: int
    length: int
    priority: float
    columns: list[int]


class Signature:
    """What the items of a :class:`Trajectory` table look like, for a writer.

    Args:
        number: The table's.
        name: The table's.
        item: What its items are.
        steps: What a step looks like.

    """

    def __init__(self, number: int, name: str, item: Trajectory, steps: Spec) -> None:
        self._number = number
        self._name = name
        self._keep = item.keep
        self._spec = steps
        leaves, self._structure = optree.tree_flatten(item.signature)
        self._paths = self._structure.paths()
        self._columns = [(column_leaf(one, steps), one.length) for one in leaves]

    def item(self, history: History, trajectory: Tree, priority: float) -> NewItem:
        """The item of these steps.

        Raises:
            ValueError: The tree is not the signature's, or steps of it cannot be used. The message names column and
                step.
            TypeError: A leaf is no :class:`Steps`.

        """
        try:
            parts: list[Any] = self._structure.flatten_up_to(trajectory)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"table {self._name!r}: the item's tree is not that of its signature, {self._structure}: {error}"
            ) from None
        has_gaps = history.partial is not None or history.absent
        last, first = -1, history.first + history.count
        for i, (part, (leaf, length)) in enumerate(zip(parts, self._columns, strict=True)):
            if part.__class__ is not Steps or part.leaf != leaf or part.length != length:
                self._refuse(i, part)
            begin = part.last if length is None else part.last - (length - 1) * part.stride
            if has_gaps:
                self._check_appended(i, history, range(begin, part.last + 1, part.stride))
            if part.last > last:
                last = part.last
            if begin < first:
                first, oldest = begin, i
        if first < history.first or history.first + history.count - first > self._keep:
            raise ValueError(self._too_old(oldest, history, first))
        fields: list[int] = []
        for part in parts:
            fields += (last - part.last, part.stride)
        return _new(NewItem, (self._number, last, last - first + 1, priority, fields))

    def _check_appended(self, i: int, history: History, numbers: range) -> None:
        leaf = self._columns[i][0]
        number = history.missing(leaf, numbers)
        if number is not None:
            raise ValueError(
                f"{self._where(i)}: {history.name(leaf)} of step {number - history.first} of the history was not "
                "appended"
            )

    def _too_old(self, i: int, history: History, first: int) -> str:
        if first < history.first:
            return (
                f"{self._where(i)}: it refers to a step before the last end_episode(): take the steps from "
                "writer.history anew"
            )
        return (
            f"{self._where(i)}: step {first - history.first} of the history is not kept any more: of {history.count} "
            f"steps the table keeps the last {self._keep}. Use a larger Trajectory(keep=...)"
        )

    def _where(self, column: int) -> str:
        path = "".join(f"[{key!r}]" for key in self._paths[column])
        return f"table {self._name!r}, column {path or '(the only one)'}"

    def _refuse(self, i: int, part: object) -> None:
        """Raises what is wrong with a column."""
        leaf, length = self._columns[i]
        expected = self._say(leaf, length)
        if not isinstance(part, Steps):
            raise TypeError(f"{self._where(i)}: got {part!r:.100}, expected {expected}: take it from writer.history")
        raise ValueError(f"{self._where(i)}: got {self._say(part.leaf, part.length)}, expected {expected}")

    def _say(self, leaf: int, count: int | None) -> str:
        one = self._spec.leaves[leaf]
        steps = "one step" if count is None else f"{count} steps"
        return f"{steps} of {one.name} ({one.dtype}{list(one.shape)})"


@dataclass(frozen=True)
class Pattern:
    """Items that a writer makes by itself, after each step that it appends: ``writer.patterns = [Pattern(...)]``.

    Args:
        table: The items' table.
        trajectory: Makes an item's tree of the history: ``lambda h: {"obs": h["obs"][-4:]}``.
        priority: As for :meth:`Writer.create_item`.
        min_steps: How many steps the history has, at least.
        every: From then on, one item each so many steps.
        at_end: One item at the end of an episode, in place of those.

    Raises:
        ValueError: A number is below 1.

    """

    table: str
    trajectory: Callable[[Any], Tree]
    priority: float | None = None
    min_steps: int = 1
    every: int = 1
    at_end: bool = False

    def __post_init__(self) -> None:
        for label, value in (("min_steps", self.min_steps), ("every", self.every)):
            if value < 1:
                raise ValueError(f"{label}={value}: use 1 or more")

    def is_due(self, steps: int, at_end: bool) -> bool:
        """Whether the writer makes an item now, with a history of so many steps."""
        if self.at_end or at_end:
            return self.at_end and at_end and steps >= self.min_steps
        return steps >= self.min_steps and (steps - self.min_steps) % self.every == 0


def explicit(item: Item) -> Explicit | None:
    """What writers must know of a table's items, if they describe them themselves."""
    return (json.dumps(item.describe()), len(columns(item.signature))) if isinstance(item, Trajectory) else None


def signatures(tables: Any, steps: Spec) -> dict[str, Signature]:
    """The signatures of the tables whose items writers describe, by name. The tables are not trusted.

    Raises:
        ValueError: A description cannot be one.

    """
    found = {}
    for number, (name, _, _, said) in enumerate(tables):
        if said is None:
            continue
        try:
            item = item_from(json.loads(said[0]))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"table {name!r}: {error}") from None
        if not isinstance(item, Trajectory) or len(columns(item.signature)) != said[1]:
            raise ValueError(f"table {name!r}: {said[0]:.200} describes no trajectory of {said[1]} columns")
        found[name] = Signature(number, name, item, steps)
    return found
