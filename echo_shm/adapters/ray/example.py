"""An example of a sample, on its way to the processes of a cluster."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

from echo_shm.spec import Array, Tree


class _Look(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Example:
    """It pickles as dtypes and shapes: what Ray is handed may be as large as it likes, but then it goes by the object
    store, and an actor cannot be started again without it.

    Args:
        tree: Pytree of numpy arrays.

    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __reduce__(self) -> tuple[Callable[..., "Example"], tuple[Any, ...]]:
        leaves, treespec = optree.tree_flatten(self.tree)
        return _example, (treespec.unflatten(range(len(leaves))), [_Look(leaf.dtype, leaf.shape) for leaf in leaves])


def _example(places: Tree, looks: list[_Look]) -> Example:
    def zeros(place: int) -> Array:
        look = looks[place]
        return np.zeros(look.shape, look.dtype)

    return Example(optree.tree_map(zeros, places))
