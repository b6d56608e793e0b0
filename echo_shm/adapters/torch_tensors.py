"""Batches as tensors over the same memory. ``echo_shm.adapters.torch`` has what users call."""

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import torch

from echo_shm import Sample
from echo_shm.spec import Array, Tree


def as_tensors(batch: Tree) -> Tree:
    """The same tree with a tensor over the memory of each array. A tensor holds its batch, as an array does.

    Tensors of a read-only batch must not be written to: PyTorch does not know of that. Leaves of ``bfloat16`` and the
    ``float8`` types of ml_dtypes become tensors of these types. What is no array stays as it is.

    Args:
        batch: A :class:`Sample`, a :class:`~echo_shm.replay.Batch`, or any tree of arrays.

    Raises:
        TypeError: PyTorch has no such dtype. The message names the leaf.

    """
    try:
        return map_leaves(_tensor, batch)
    except (TypeError, ValueError) as error:
        for accessor, leaf in zip(optree.tree_accessors(batch), optree.tree_leaves(batch), strict=True):
            try:
                _tensor(leaf)
            except (TypeError, ValueError):
                raise TypeError(
                    f"leaf {accessor.codify('')} has dtype {leaf.dtype}, of which PyTorch makes no tensor: leave it "
                    "out of the example, or send it as another dtype, such as the integers of .view()"
                ) from error
        raise


def map_leaves(function: Callable[[Any], Any], batch: Tree) -> Tree:
    """The tree with ``function(leaf)`` for each leaf. A sample stays one, with its versions."""
    if not isinstance(batch, Sample):
        return optree.tree_map(function, batch)
    made = Sample(optree.tree_map(function, batch.batch), batch.info)
    made._versions = np.array(batch.versions)
    return made


def _tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype.type.__module__ != "ml_dtypes":
        return _over(leaf)
    same = getattr(torch, leaf.dtype.name, None) if leaf.dtype.name.startswith(("bfloat", "float8")) else None
    if same is None:
        raise TypeError(f"no dtype {leaf.dtype}")
    return _over(leaf.view(f"u{leaf.dtype.itemsize}")).view(same)


def _over(array: Array) -> "torch.Tensor":
    try:
        return torch.from_dlpack(array)  # it does not warn of a read-only array
    except (BufferError, TypeError, RuntimeError):  # an older numpy cannot export one
        return torch.as_tensor(array)
