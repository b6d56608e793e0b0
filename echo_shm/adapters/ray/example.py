"""An example of a sample, on its way to the processes of a cluster."""

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from echo_shm.spec import Array, Tree


class Example:
    """An example that pickles as structure, dtypes and shapes.

    Ray puts large arguments of an actor into its object store, and cannot start the actor again without them.

    Args:
        tree: Pytree of numpy arrays.

    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __reduce__(self) -> tuple[Callable[..., "Example"], tuple[Tree]]:
        return Example, (optree.tree_map(_blank, self.tree),)


class _Blank(np.ndarray[Any, np.dtype[Any]]):
    """It pickles without its values: zeros come in their place."""

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        return np.zeros, (self.shape, self.dtype)


def _blank(leaf: Array) -> Array:
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape).view(_Blank)
