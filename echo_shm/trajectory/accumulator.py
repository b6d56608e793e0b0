"""Fills a trajectory of fixed size step by step, to send it as one sample."""

from typing import NamedTuple

import numpy as np
import optree

from echo_shm.spec import Array, Tree


class _Timescale(NamedTuple):
    """One part of the tree: its structure, its arrays and their paths, and how many adds it takes."""

    treespec: optree.PyTreeSpec
    arrays: list[Array]
    paths: list[str]
    rows: int
    single: bool


class TrajectoryAccumulator:
    """A preallocated pytree. :meth:`add` fills it, :meth:`build` returns it.

    The example's top-level keys are timescales: parts of a sample that are filled at different rates, for example one
    entry a step and one entry an episode.

    A timescale has rows if all its leaves have the same leading dimension N > 1: each ``add`` fills the next of the N
    rows. It is a single item if a leaf has shape () or every leaf has a leading dimension of 1: ``add`` replaces all
    of it, once a trajectory.

    Args:
        example: ``{timescale: pytree of arrays}``. Only shapes and dtypes matter.

    Raises:
        TypeError: ``example`` is not a dict of pytrees of arrays.
        ValueError: A timescale has no leaves, or its leaves have different leading dimensions.

    """

    def __init__(self, example: dict[str, Tree]) -> None:
        if not isinstance(example, dict):
            raise TypeError(f"the example must be a dict of timescales, got {type(example).__name__}")
        self._added: dict[str, int] = dict.fromkeys(example, 0)
        self._tree: dict[str, Tree] = {}
        self._timescales: dict[str, _Timescale] = {}
        for name, part in example.items():
            leaves, treespec = optree.tree_flatten(part)
            paths = [accessor.codify(f"[{name!r}]") for accessor in treespec.accessors()]
            for path, leaf in zip(paths, leaves, strict=True):
                if not isinstance(leaf, np.ndarray | np.generic):
                    raise TypeError(f"example{path} must be a numpy array, got {type(leaf).__name__}")
            arrays: list[Array] = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            self._timescales[name] = _Timescale(treespec, arrays, paths, *_rows(name, leaves))
            self._tree[name] = treespec.unflatten(arrays)

    def add(self, name: str, data: Tree) -> None:
        """Writes one item into the timescale's next row. A single item is replaced as a whole.

        Values are cast to the example's dtypes, as numpy assignment casts.

        Raises:
            KeyError: There is no such timescale.
            IndexError: All its rows are filled; call :meth:`build` or :meth:`reset`.
            ValueError: The structure or a leaf's shape is not the timescale's. The row does not count as added.

        """
        if name not in self._timescales:
            raise KeyError(f"no timescale is called {name!r}; there are {list(self._timescales)}")
        scale, row = self._timescales[name], self._added[name]
        if row == scale.rows:
            raise IndexError(
                f"Timescale {name!r} has {scale.rows} slots, but you tried to add at index {row}: build() or reset() "
                "first"
            )
        for path, array, value in zip(scale.paths, scale.arrays, scale.treespec.flatten_up_to(data), strict=True):
            place = array if scale.single else array[row : row + 1]
            try:
                place[...] = value
            except ValueError as error:
                raise ValueError(
                    f"{path}: got shape {list(np.shape(value))}, expected {list(place.shape)}: {error}"
                ) from None
        self._added[name] = row + 1

    def build(self) -> dict[str, Tree]:
        """Returns the tree and starts over.

        The tree is the accumulator's own memory: send it before the next :meth:`add`. Rows that were not added since
        the last start hold older data.
        """
        self.reset()
        return self._tree

    def reset(self) -> None:
        """Starts over, for example when an episode is abandoned."""
        self._added = dict.fromkeys(self._added, 0)


def _rows(name: str, leaves: list[Array]) -> tuple[int, bool]:
    """How many adds a timescale takes, and whether it is a single item."""
    if not leaves:
        raise ValueError(f"timescale {name!r} has no arrays in it")
    if any(leaf.ndim == 0 for leaf in leaves):
        return 1, True
    leading = {leaf.shape[0] for leaf in leaves}
    if len(leading) > 1:
        raise ValueError(
            f"timescale {name!r}: its leaves must have the same leading dimension, got {sorted(leading)}. For a single "
            "item make one of them 0-d or all of them shape (1, ...)"
        )
    rows = leading.pop()
    return rows, rows == 1
