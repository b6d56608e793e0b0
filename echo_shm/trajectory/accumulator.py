"""Fill a fixed-size trajectory step by step, then send it as one sample."""

from typing import Any

import numpy as np
import optree

from echo_shm.spec import Array


class TrajectoryAccumulator:
    """A preallocated pytree, filled by :meth:`add`, handed out whole by :meth:`build`.

    The example's top-level keys are timescales: parts of a sample that are filled
    at rates of their own, such as one entry a step and one an episode.

    A timescale has rows when all its leaves share a leading dimension N > 1: each
    ``add`` fills the next of the N. It is a single item when some leaf has shape ()
    or every leaf a leading dimension of 1: ``add`` replaces all of it, once a trajectory.

    Args:
        example: ``{timescale: pytree of arrays}``; shapes and dtypes count, values do not.

    Raises:
        TypeError: ``example`` is not a dict of pytrees of arrays.
        ValueError: A timescale has no leaves, or its leaves' leading dimensions differ.

    """

    def __init__(self, example: dict[str, Any]) -> None:
        if not isinstance(example, dict):
            raise TypeError(f"the example must be a dict of timescales, got {type(example).__name__}")
        self._counts: dict[str, int] = {}
        self._slot: dict[str, int] = dict.fromkeys(example, 0)
        self._tree: dict[str, Any] = {}
        self._parts: dict[str, tuple[Any, list[Array], list[str]]] = {}
        self._whole: set[str] = set()
        for name, part in example.items():
            leaves, treespec = optree.tree_flatten(part)
            paths = [accessor.codify(f"[{name!r}]") for accessor in treespec.accessors()]
            for path, leaf in zip(paths, leaves, strict=True):
                if not isinstance(leaf, np.ndarray | np.generic):
                    raise TypeError(f"example{path} must be a numpy array, got {type(leaf).__name__}")
            self._counts[name], whole = _rows(name, leaves)
            if whole:
                self._whole.add(name)
            stored = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            self._parts[name] = treespec, stored, paths
            self._tree[name] = treespec.unflatten(stored)

    def add(self, name: str, data: Any) -> None:
        """Writes one item into the timescale's next row (or, for a single item, over all of it).

        Values are cast to the example's dtypes as numpy assignment casts.

        Raises:
            KeyError: No such timescale.
            IndexError: All its rows are filled; call :meth:`build` or :meth:`reset`.
            ValueError: The structure or a leaf's shape is not the timescale's. Nothing counts as added.

        """
        if name not in self._counts:
            raise KeyError(f"no timescale is called {name!r}; there are {list(self._counts)}")
        row = self._slot[name]
        if row == self._counts[name]:
            raise IndexError(f"timescale {name!r} is full, with {row} added: build() or reset() first")
        treespec, stored, paths = self._parts[name]
        for path, array, value in zip(paths, stored, treespec.flatten_up_to(data), strict=True):
            place = array if name in self._whole else array[row : row + 1]
            try:
                place[...] = value
            except ValueError as error:
                raise ValueError(
                    f"{path}: got shape {list(np.shape(value))}, expected {list(place.shape)}: {error}"
                ) from None
        self._slot[name] = row + 1

    def build(self) -> dict[str, Any]:
        """Returns the tree and starts over.

        The tree is the accumulator's own memory: send it before the next :meth:`add`.
        Rows that were not added since the last start hold what they held before.
        """
        self.reset()
        return self._tree

    def reset(self) -> None:
        """Starts over, for instance when an episode is abandoned."""
        self._slot = dict.fromkeys(self._slot, 0)


def _rows(name: str, leaves: list[Array]) -> tuple[int, bool]:
    """How many adds a timescale takes, and whether it is a single item."""
    if not leaves:
        raise ValueError(f"timescale {name!r} has no arrays in it")
    if any(leaf.ndim == 0 for leaf in leaves):
        return 1, True
    leading = {leaf.shape[0] for leaf in leaves}
    if len(leading) > 1:
        raise ValueError(
            f"timescale {name!r}: its leaves have different numbers of rows, {sorted(leading)}. Give them the same, "
            "or for a single item make one of them 0-d or all of them shape (1, ...)"
        )
    rows = leading.pop()
    return rows, rows == 1
