"""What a batch of a table's items looks like: its tree, and for each array in it what the C core puts there."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import optree

from echo_shm._core import lib
from echo_shm.replay.item import Column, Episode, Item, Name, NStep, Path, Sequence, Trajectory, path_of
from echo_shm.spec import Spec, Tree

#: Most names that a message lists.
_MAX_NAMES = 20

_MASK, _LENGTH = np.dtype(bool), np.dtype(np.int64)


class Layout(NamedTuple):
    """What a table's items are, for the C core and for whoever builds a batch's tree.

    Attributes:
        config: The fields of an ``es_item_config``.
        outputs: Those of an ``es_output`` for each array of a batch's data, in the order of its leaves.
        data: What one item looks like in a batch's data.
        finals: The leaves of a step that an episode's last observations must have, by their numbers.
        span: The most steps that one item refers to.

    """

    config: dict[str, Any]
    outputs: tuple[dict[str, int], ...]
    data: Spec
    finals: tuple[int, ...]
    span: int


@dataclasses.dataclass(frozen=True)
class _Output:
    """One array of a batch's data: the fields of its ``es_output``, and what one item has in it."""

    fields: dict[str, int]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def lay_out(item: Item, step: Spec) -> Layout:
    """The layout of such items of such steps.

    Raises:
        ValueError: A name is unknown, or it or an entry of the data clashes with another one.
        TypeError: The reward is no leaf of floats.

    """
    config, tree, finals = (
        _n_step(item, step)
        if isinstance(item, NStep)
        else _sequence(item, step)
        if isinstance(item, Sequence)
        else _episode(item, step)
        if isinstance(item, Episode)
        else _trajectory(item, step)
        if isinstance(item, Trajectory)
        else _step(step)
    )
    outputs = optree.tree_leaves(tree)
    # Of that dtype and shape, but without memory for it.
    data = Spec.from_example(optree.tree_map(lambda one: np.broadcast_to(np.zeros((), one.dtype), one.shape), tree))
    span = config["before"] + config["length"] + (config["kind"] == lib.ES_ITEM_N_STEP)
    config = {"period": 1, "padded": 0, "gamma": 0.0, **config, "num_outputs": len(outputs)}
    return Layout(config, tuple(one.fields for one in outputs), data, finals, span)


def data_structure(item: Item, treespec: optree.PyTreeSpec) -> optree.PyTreeSpec:
    """The structure of a batch's data, of items of steps of that structure.

    Raises:
        ValueError: As :func:`lay_out`.

    """
    floats = Spec.from_example(treespec.unflatten([np.zeros(())] * treespec.num_leaves))
    return lay_out(item, floats).data.structure


# --- the four kinds ----------------------------------------------------------


def _step(step: Spec) -> tuple[dict[str, Any], Tree, tuple[int, ...]]:
    leaves = [_steps(step, i) for i in range(len(step.leaves))]
    return {"kind": lib.ES_ITEM_STEP, "length": 1, "before": 0}, step.structure.unflatten(leaves), ()


def _n_step(item: NStep, step: Spec) -> tuple[dict[str, Any], Tree, tuple[int, ...]]:
    stacks = _stacks(item.stack, step)
    reward = _reward(item.reward, step)
    if reward in stacks:
        raise ValueError(f"{step.leaves[reward].name} is the reward, which is summed: it cannot be stacked")
    observed = _found("observation", item.observation, step)
    repeat = int(item.pad == "first")

    def frames(i: int, kind: int) -> _Output:
        count = stacks.get(i, 0)
        return _steps(step, i, count, kind, back=max(count - 1, 0), repeat=repeat)

    leaves = [frames(i, lib.ES_OUTPUT_STEPS) for i in range(len(step.leaves))]
    summed, width = step.leaves[reward], step.leaves[reward].dtype.itemsize
    leaves[reward] = _output(lib.ES_OUTPUT_RETURN, summed.dtype, summed.shape, leaf=reward, width=width)
    tree = _with(
        step,
        leaves,
        {
            "next": _part(step.structure, {i: frames(i, lib.ES_OUTPUT_NEXT) for i in observed}),
            "discount": _output(lib.ES_OUTPUT_DISCOUNT, summed.dtype, (), leaf=reward, width=width),
            "n": _output(lib.ES_OUTPUT_LENGTH, _LENGTH, ()),
        },
    )
    before = max(stacks.values(), default=1) - 1
    config = {"kind": lib.ES_ITEM_N_STEP, "length": item.n, "before": before, "gamma": item.gamma}
    return config, tree, tuple(observed)


def _sequence(item: Sequence, step: Spec) -> tuple[dict[str, Any], Tree, tuple[int, ...]]:
    first = set(_found("state", item.state, step))
    leaves = [_steps(step, i, 0 if i in first else item.length) for i in range(len(step.leaves))]
    mask = _output(lib.ES_OUTPUT_MASK, _MASK, (item.length,), count=item.length)
    config = {
        "kind": lib.ES_ITEM_SEQUENCE,
        "length": item.length,
        "before": 0,
        "period": item.period,
        "padded": int(item.pad is not None),
    }
    return config, _with(step, leaves, {"mask": mask}), ()


def _episode(item: Episode, step: Spec) -> tuple[dict[str, Any], Tree, tuple[int, ...]]:
    config, tree, finals = _sequence(Sequence(item.max_length), step)
    if "length" in tree:
        raise _clash("length")
    return config, {**tree, "length": _output(lib.ES_OUTPUT_LENGTH, _LENGTH, ())}, finals


def _trajectory(item: Trajectory, step: Spec) -> tuple[dict[str, Any], Tree, tuple[int, ...]]:
    def output(column: Column) -> _Output:
        leaf = column_leaf(column, step)
        return _steps(step, leaf, column.length or 0, lib.ES_OUTPUT_COLUMN)

    tree = optree.tree_map(output, item.signature)
    return {"kind": lib.ES_ITEM_EXPLICIT, "length": item.keep, "before": 0}, tree, ()


def column_leaf(column: Column, step: Spec) -> int:
    """The number of a column's leaf.

    Raises:
        ValueError: The steps have no such leaf, or it is a subtree.

    """
    found = _find("signature", column.name, step)
    if len(found) > 1:
        raise ValueError(f"signature: {column.name!r} has {len(found)} leaves: a column is of one")
    return found[0]


def _output(kind: int, dtype: np.dtype[Any], shape: tuple[int, ...], **fields: int) -> _Output:
    every = {"kind": kind, "leaf": 0, "count": 1, "width": 0, "from": 0, "repeat": 0}
    return _Output({**every, **fields}, dtype, shape)


def _steps(
    step: Spec, leaf: int, count: int = 0, kind: int = lib.ES_OUTPUT_STEPS, back: int = 0, repeat: int = 0
) -> _Output:
    """Count steps of a leaf, the first of them ``back`` steps earlier. 0: one step, without a dimension for it."""
    one = step.leaves[leaf]
    shape = (count, *one.shape) if count else one.shape
    return _output(
        kind,
        one.dtype,
        shape,
        leaf=leaf,
        count=max(count, 1),
        **{"from": -back},
        repeat=repeat,
    )


def _with(step: Spec, leaves: list[_Output], more: dict[str, Any]) -> dict[Any, Any]:
    """The entries of a step that is a dict, or the whole step as one entry; and more."""
    tree = step.structure.unflatten(leaves)
    entries = tree if step.structure.type is dict else {"step": tree}
    for key in more:
        if key in entries:
            raise _clash(key)
    return {**entries, **more}


def _clash(key: str) -> ValueError:
    return ValueError(f"the steps have a key {key!r}, which batches of such items use: rename it")


# --- names -------------------------------------------------------------------


def _stacks(stack: Mapping[Name, int], step: Spec) -> dict[int, int]:
    """How many steps are stacked of a leaf, by the leaf's number."""
    found: dict[int, int] = {}
    for name, count in stack.items():
        for leaf in _find("stack", name, step):
            if leaf in found:
                raise ValueError(f"stack: {step.leaves[leaf].name} is named twice")
            found[leaf] = count
    return found


def _reward(name: Name, step: Spec) -> int:
    found = _find("reward", name, step)
    if len(found) > 1:
        raise ValueError(f"reward={name!r}: it has {len(found)} leaves: name one")
    leaf = step.leaves[found[0]]
    if leaf.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(
            f"reward={name!r}: {leaf.name} has dtype {leaf.dtype}: use float32 or float64 for what is summed"
        )
    return found[0]


def _found(label: str, names: Iterable[Name], step: Spec) -> list[int]:
    """The leaves with these names, by number."""
    return sorted({leaf for name in names for leaf in _find(label, name, step)})


def _find(label: str, name: Name, step: Spec) -> list[int]:
    path, paths = path_of(name), leaf_paths(step.structure)
    found = [i for i, one in enumerate(paths) if one[: len(path)] == path]
    if not found:
        there = list(dict.fromkeys(one[0] if len(one) == 1 or len(path) == 1 else one for one in paths if one))
        more = f" and {len(there) - _MAX_NAMES} more" if len(there) > _MAX_NAMES else ""
        listed = ", ".join(map(repr, there[:_MAX_NAMES])) + more
        raise ValueError(
            f"{label}: the steps have no {name!r}: there {_are(there)} {listed or 'one leaf without a name'}"
        )
    return found


def named_leaf(label: str, name: Name, step: Spec) -> int:
    """The leaf with that name, by number.

    Raises:
        ValueError: There is none, or several begin with it. The message begins with the label.

    """
    found = _find(label, name, step)
    if len(found) > 1:
        raise ValueError(f"{label}: {name!r} is {len(found)} leaves: name one of them, by a tuple of keys")
    return found[0]


def _are(names: Collection[object]) -> str:
    return "is" if len(names) <= 1 else "are"


def leaf_paths(treespec: optree.PyTreeSpec) -> list[Path]:
    """The keys that lead to each leaf: those of dicts, fields of named tuples, and places in other containers."""
    return [tuple(_key(entry) for entry in accessor) for accessor in treespec.accessors()]


def _key(entry: optree.PyTreeEntry) -> Any:
    return entry.field if isinstance(entry, optree.NamedTupleEntry) else entry.entry


def _part(treespec: optree.PyTreeSpec, chosen: Mapping[int, Any]) -> Tree:
    """A tree of some leaves, by number: the containers as they are where all is chosen, otherwise dicts of what is."""
    if len(chosen) == treespec.num_leaves:
        return treespec.unflatten([chosen[i] for i in range(treespec.num_leaves)])
    part = {}
    for key, first, child in children(treespec):
        mine = {i - first: value for i, value in chosen.items() if first <= i < first + child.num_leaves}
        if mine:
            part[key] = _part(child, mine)
    return part


def children(treespec: optree.PyTreeSpec) -> list[tuple[Any, int, optree.PyTreeSpec]]:
    """The children of a node: for each its key as in :func:`leaf_paths`, its first leaf's number, and its structure."""
    found, first = [], 0
    keys: Iterable[Any] = treespec.entries()
    if treespec.type is not None and optree.is_namedtuple_class(treespec.type):
        keys = optree.namedtuple_fields(treespec.type)
    for key, child in zip(keys, treespec.children(), strict=True):
        found.append((key, first, child))
        first += child.num_leaves
    return found
