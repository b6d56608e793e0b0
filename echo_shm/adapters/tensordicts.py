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


def arrays(form: Any, data: TensorDictBase, ours: tuple[Any, ...] = (), path: str = "") -> dict[str, Any]:
    """A tree of arrays, which are views of tensors on the CPU.

    Args:
        form: A dict of dicts with its keys, or a TensorDict.
        data: A TensorDict with the same keys.
        ours: Keys that it may have beside them. They are left out.
        path: Where it is, for messages.

    Raises:
        KeyError: A leaf is missing, or is no tensor, or there is one too many.

    """
    if len(extra := set(data.keys()) - set(form.keys()) - set(ours)):
        raise KeyError(
            f"{path}{min(extra)}: a step of the example does not have it: use data.exclude(), or another example"
        )
    found = {}
    for key in form.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        value = data.get(key, None)
        if isinstance(value, TensorDictBase):
            found[key] = arrays(form.get(key), value, (), f"{path}{key}.")
        elif isinstance(value, torch.Tensor):
            found[key] = value.detach().cpu().numpy()
        else:
            got = "nothing" if value is None else type(value).__name__
            raise KeyError(f"{path}{key}: got {got}, expected a tensor, as a step of the example has there")
    return found


def tensors(data: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The other way round, for a TensorDict of n rows."""
    return {
        key: TensorDict(tensors(value, n), [n]) if isinstance(value, dict) else torch.from_numpy(value)
        for key, value in data.items()
    }
