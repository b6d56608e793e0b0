"""Fill a fixed-size trajectory step by step, then send it as one sample."""

from typing import Any

import numpy as np
import optree


class TrajectoryAccumulator:
    """A preallocated pytree, filled by :meth:`add`, handed out whole by :meth:`build`.

    The example's top-level keys are timescales: parts of a sample that are filled
    at rates of their own, such as one entry a step and one an episode.

    A timescale is *buffered* when all its leaves share a leading dimension N > 1:
    each ``add`` fills the next of its N rows. It is a *single item* when some leaf
    has shape () or every leaf a leading dimension of 1: ``add`` replaces all of it.

    Args:
        example: ``{timescale: pytree of arrays}``; shapes and dtypes count, values do not.

    Raises:
        TypeError: ``example`` is not a dict.
        ValueError: A timescale has no leaves, or its leaves' leading dimensions differ.

    """

    def __init__(self, example: dict[str, Any]) -> None:
        if not isinstance(example, dict):
            raise TypeError(
                f"example must be a dict with timescale names as top-level keys, got {type(example).__name__}"
            )
        self._counts: dict[str, int] = {}
        self._single_item: dict[str, bool] = {}
        for name, part in example.items():
            self._counts[name], self._single_item[name] = _capacity(name, optree.tree_leaves(part))
        self._tree = {name: optree.tree_map(np.zeros_like, part) for name, part in example.items()}
        self._slot = dict.fromkeys(example, 0)

    def add(self, name: str, data: Any) -> None:
        """Writes one item into the timescale's next row (or, for a single item, over all of it).

        Values are cast to the example's dtypes as numpy assignment casts.

        Raises:
            KeyError: No such timescale.
            IndexError: All its rows are filled; call :meth:`build` or :meth:`reset`.

        """
        if name not in self._counts:
            raise KeyError(f"Unknown timescale {name!r}. Known: {list(self._counts)}")
        row = self._slot[name]
        if row >= self._counts[name]:
            raise IndexError(f"Timescale {name!r} has {self._counts[name]} slots, but you tried to add at index {row}")
        where: Any = Ellipsis if self._single_item[name] else slice(row, row + 1)

        def write(stored: Any, value: Any) -> None:
            stored[where] = value

        optree.tree_map_(write, self._tree[name], data)
        self._slot[name] = row + 1

    def build(self) -> dict[str, Any]:
        """Returns the tree and starts over. It aliases the buffers: send it before the next :meth:`add`."""
        self.reset()
        return self._tree

    def reset(self) -> None:
        """Starts over, for instance when an episode is abandoned."""
        self._slot = dict.fromkeys(self._slot, 0)


def _capacity(name: str, leaves: list[Any]) -> tuple[int, bool]:
    """How many adds a timescale takes, and whether it is a single item."""
    if not leaves:
        raise ValueError(f"Timescale {name!r} has no array leaves")
    if any(leaf.ndim == 0 for leaf in leaves) or all(leaf.shape[0] == 1 for leaf in leaves):
        return 1, True
    leading = [leaf.shape[0] for leaf in leaves]
    if len(set(leading)) != 1:
        raise ValueError(
            f"All leaves in buffered timescale {name!r} must share the same leading dimension (got {leading}); "
            "make any leaf 0-d or all shape (1, ...) to mark the timescale single-item instead"
        )
    return leading[0], False
