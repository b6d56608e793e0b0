"""TensorDicts as trees of arrays and back, without a copy on the CPU."""

from collections.abc import Mapping
from typing import Any

import optree
import torch
from tensordict import TensorDict, TensorDictBase


def form_of(treespec: optree.PyTreeSpec | None) -> Any:
    """A step's tree, with True at its leaves."""
    assert treespec is not None  # of dicts: a replay knows them
    return treespec.unflatten([True] * treespec.num_leaves)


def arrays(form: Any, data: TensorDictBase, path: str = "") -> dict[str, Any]:
    """A tree of arrays, which are views of tensors on the CPU.

    Args:
        form: A dict of dicts with its keys, or a TensorDict.
        data: A TensorDict with the same keys.
        path: Where it is, for messages.

    Raises:
        KeyError: A leaf is missing, or is no tensor, or there is one too many.
        TypeError: A tensor is of a dtype that numpy does not have.

    """
    if extra := set(data.keys()) - set(form.keys()):
        raise KeyError(
            f"{path}{min(extra)}: a step of the example does not have it: use data.exclude(), or another example"
        )
    found = {}
    for key in form.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        value, nested = data.get(key, None), isinstance(form.get(key), dict | TensorDictBase)
        if nested and isinstance(value, TensorDictBase):
            found[key] = arrays(form.get(key), value, f"{path}{key}.")
        elif not nested and isinstance(value, torch.Tensor):
            found[key] = _array(value, f"{path}{key}")
        else:
            got = "nothing" if value is None else f"a {type(value).__name__}"
            wanted = "a TensorDict" if nested else "a tensor"
            raise KeyError(f"{path}{key}: got {got}, expected {wanted}, as a step of the example has there")
    return found


def _array(tensor: torch.Tensor, path: str) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError as error:
        raise TypeError(
            f"leaf {path} has dtype {tensor.dtype}, of which numpy makes no array ({error}): send it as another dtype, "
            "such as .float(), or the integers of .view(torch.int16)"
        ) from None


def tensors(data: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The other way round, for a TensorDict of n rows."""
    return {
        key: TensorDict(tensors(value, n), [n]) if isinstance(value, dict) else torch.from_numpy(value)
        for key, value in data.items()
    }
