"""What a writer has appended, and the items that it makes of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import optree

from echo_shm._history import Appended, Columns, Reach, Steps
from echo_shm.replay.item import Item, Trajectory, columns, item_from
from echo_shm.replay.layout import column_leaf
from echo_shm.ring.inbox import Explicit, Heads
from echo_shm.spec import Array, Spec, Tree


class History(Reach):
    """The steps of a writer that its next items may refer to.

    Args:
        heads: Numbers the writer's steps.
        spec: What a step looks like.

    Attributes:
        first: The number of the first step.
        is_partial: Whether there is a step that was appended in part.
        has_gaps: Whether leaves of some steps were never appended.
        tree: The steps' tree, of :class:`Appended`.

    """

    def __init__(self, heads: Heads, spec: Spec) -> None:
        self._heads = heads
        self._spec = spec
        self._partial: dict[int, Array] | None = None
        self._absent: dict[int, frozenset[int]] = {}
        self.first = heads.number
        self.tree = spec.structure.unflatten([Appended(self, heads, leaf) for leaf in range(len(spec.leaves))])

    @property
    def count(self) -> int:
        """How many steps."""
        return self._heads.number - self.first + self.is_partial

    @property
    def partial(self) -> dict[int, Array] | None:
        """The leaves that are there of a step that was appended in part; None if there is none."""
        return self._partial

    @partial.setter
    def partial(self, leaves: dict[int, Array] | None) -> None:
        self._partial = leaves
        self.is_partial = leaves is not None

    def note_absent(self, number: int, leaves: frozenset[int]) -> None:
        """Notes that these leaves of a step are never appended."""
        self._absent[number] = leaves
        self.has_gaps = True

    def clear(self) -> None:
        """Forgets the steps of the episodes before this one."""
        self.first = self._heads.number - self._heads.index
        self._absent.clear()
        self.has_gaps = False

    def name(self, leaf: int) -> str:
        """A leaf, in a message."""
        return self._spec.leaves[leaf].name

    def missing(self, leaf: int, numbers: range) -> int | None:
        """The number of a step among these whose leaf was never appended; None if there is none."""
        for number in numbers:
            if number in self._absent and leaf in self._absent[number]:
                return number
            if self._partial is not None and number == self._heads.number and leaf not in self._partial:
                return number
        return None

    def refuse(self, leaf: int, key: Any) -> NoReturn:
        """Says why a key names no steps of a leaf. :class:`Appended` calls it.

        Raises:
            IndexError: Always.

        """
        if not isinstance(key, slice):
            raise IndexError(f"{self.name(leaf)}: step {key} of a history of {self.count} steps is not there")
        backwards = key.step is not None and key.step < 0
        raise IndexError(
            f"{self.name(leaf)}: {key} of a history of {self.count} steps names no steps"
            f"{', or names them backwards' if backwards else ''}: name at least one, forwards"
        )


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
        num_tables: How many tables there are.
        exponents: Of its priorities.

    """

    def __init__(
        self, number: int, name: str, item: Trajectory, steps: Spec, num_tables: int, exponents: tuple[float, ...]
    ) -> None:
        self._number = number
        self._name = name
        self._keep = item.keep
        self._spec = steps
        leaves, self._structure = optree.tree_flatten(item.signature)
        self._paths = self._structure.paths()
        self._columns = [(column_leaf(one, steps), one.length) for one in leaves]
        # Up to a million, no power within these bounds is too large for a weight.
        most = 1e6 if all(0 <= exponent <= 49 for exponent in exponents) else -1.0
        form = self._structure.unflatten(range(len(leaves)))
        plan = tuple((leaf, -1 if length is None else length) for leaf, length in self._columns)
        #: Writes the head of an item, in the common case. Otherwise see :meth:`item`.
        self.write = Columns(number, num_tables, item.keep, most, form, plan).write

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
        has_gaps = history.is_partial or history.has_gaps
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
        return NewItem(self._number, last, last - first + 1, priority, fields)

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
    for number, (name, exponents, _, said) in enumerate(tables):
        if said is None:
            continue
        try:
            item = item_from(json.loads(said[0]))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"table {name!r}: {error}") from None
        if not isinstance(item, Trajectory) or len(columns(item.signature)) != said[1]:
            raise ValueError(f"table {name!r}: {said[0]:.200} describes no trajectory of {said[1]} columns")
        found[name] = Signature(number, name, item, steps, len(tables), exponents)
    return found
