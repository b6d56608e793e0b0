"""The common case of items that a writer describes, as ``csrc/python/historymodule.c`` has it."""

from typing import Any

import numpy as np
import numpy.typing as npt

class Numbers:
    """The numbers of one stream's next step: the base of ``Heads``, which says what they mean."""

    stream: int
    number: int
    index: int
    episode: int

    def write_head(self, array: npt.NDArray[np.uint8], /) -> None:
        """Writes the next step's head into an array of bytes: all of an ``es_inbox_head``, without flags."""
    def count_one(self) -> None:
        """Notes that a step was sent that ends no episode."""

class Reach:
    """Which steps a history has: the base of ``History``, which says what the attributes mean."""

    first: int
    is_partial: bool
    has_gaps: bool

class Steps:
    """Steps of one leaf, for an item: ``history["obs"][-4:]``."""

    @property
    def leaf(self) -> int:
        """The leaf's number."""
    @property
    def last(self) -> int:
        """The number of the last of these steps in the writer's stream."""
    @property
    def length(self) -> int | None:
        """How many steps. None: one, without a dimension for it."""
    @property
    def stride(self) -> int:
        """How far they are apart."""
    def __repr__(self) -> str: ...

class Appended:
    """What a writer has appended of one leaf: a sequence of steps, the latest last.

    An index gives one step of it, a slice several: what :meth:`Writer.create_item` takes. A slice may have a stride.
    """

    def __new__(cls, history: Reach, heads: Numbers, leaf: int, /) -> Appended: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int | slice, /) -> Steps:
        """The history's ``refuse(leaf, key)`` raises what is wrong with a key."""
    def __repr__(self) -> str: ...

class Columns:
    """What the items of a table refer to."""

    def __new__(
        cls, table: int, num_tables: int, keep: int, most: float, form: Any, columns: tuple[tuple[int, int], ...], /
    ) -> Columns:
        """Makes them.

        Args:
            table: The table's number.
            num_tables: How many there are.
            keep: An item may refer to so many of the last steps.
            most: The largest priority that is surely possible. -1: none is.
            form: The signature's tree, with the columns' numbers at its leaves.
            columns: Of each column the leaf, and how many steps; -1 for one without a dimension for it.

        """
    def write(
        self, history: Reach, heads: Numbers, tree: Any, priority: float | None, head: npt.NDArray[np.uint8], /
    ) -> bool:
        """Writes an item's head, if it is a common one.

        Returns:
            Whether it did. If not, something may be wrong, or the item has to wait for the rest of a step.

        """
