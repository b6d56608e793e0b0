"""What callers give a replay: steps, keys, priorities and flags. An error says what was got and what to use."""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm._core import lib
from echo_shm.errors import SpecMismatchError
from echo_shm.spec import Array, Spec, Tree

#: What the C core takes for "the table's highest so far", and for "no item".
HIGHEST, NO_ITEM = -1.0, math.nan

#: Says whether a table can give an item that priority.
Accepts = Callable[[int, float], bool]


def leaves_of(spec: Spec, tree: Tree, what: str, whose: str = "the replay's steps") -> list[Any]:
    """The leaves of a step's tree, or of ``whose`` else.

    Raises:
        SpecMismatchError: The tree has another structure. ``what`` names the tree.

    """
    try:
        return list(spec.structure.flatten_up_to(tree))
    except (ValueError, TypeError):
        different = spec.structure_difference(tree)
        raise SpecMismatchError(f"the structure of {what} is not that of {whose}: {different}") from None


def exact_leaves(spec: Spec, step: Tree) -> list[Array]:
    """An exact array for each leaf of a step.

    Raises:
        SpecMismatchError: The step has another structure, or a leaf another dtype or shape.

    """
    return [spec.exact(i, leaf) for i, leaf in enumerate(leaves_of(spec, step, "the step"))]


def stacked(spec: Spec, tree: Tree) -> tuple[int, tuple[Array, ...]]:
    """How many steps ``extend()`` got, and an exact array of shape ``(n, *leaf.shape)`` for each leaf."""
    if isinstance(tree, list | tuple) and not isinstance(spec.structure.unflatten(range(len(spec.leaves))), type(tree)):
        raise SpecMismatchError(
            "extend takes one tree whose leaves have a leading n, not a sequence of steps: "
            "optree.tree_map(lambda *x: np.stack(x), *steps) makes one"
        )
    arrays: list[Array] = []
    for index, value in enumerate(leaves_of(spec, tree, "the steps")):
        leaf = spec.leaves[index]
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            raise SpecMismatchError(
                f"{leaf.name}: got {type(value).__name__} without a leading dimension, "
                f"expected an array of {leaf.dtype}[n{''.join(f', {n}' for n in leaf.shape)}]"
            )
        if arrays and len(value) != len(arrays[0]) and value.shape[1:] == leaf.shape:
            raise SpecMismatchError(
                f"{leaf.name} has {len(value)} steps, and {spec.leaves[0].name} has {len(arrays[0])}: "
                "every leaf needs the same leading n"
            )
        arrays.append(spec.exact(index, value, (len(arrays[0]) if arrays else len(value), *leaf.shape)))
    return len(arrays[0]), tuple(arrays)


def output(spec: Spec, tree: Tree, n: int) -> tuple[Array, ...]:
    """The arrays that ``sample(out=)`` writes into. ``spec``: of the table's data."""
    arrays = []
    for leaf, value in zip(spec.leaves, leaves_of(spec, tree, "out", "the table's batches"), strict=True):
        want = (n, *leaf.shape)
        if type(value) is not np.ndarray or value.dtype != leaf.dtype or value.shape != want:
            got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            raise SpecMismatchError(f"out, {leaf.name}: got {got}, expected an array of {leaf.dtype}{list(want)}")
        if not (value.flags.c_contiguous and value.flags.writeable):
            raise ValueError(f"out, {leaf.name}: the array must be C-contiguous and writable")
        arrays.append(value)
    return tuple(arrays)


def flags(name: str, value: object, n: int) -> npt.NDArray[np.bool_] | None:
    """n flags of ``extend()``; None stays None."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype != np.bool_ or array.shape != (n,):
        hint = ": use .astype(bool)" if array.shape == (n,) else ""
        raise ValueError(f"{name}: got {array.dtype}{list(array.shape)}, expected bool[{n}], one for each step{hint}")
    return array


def end_flags(terminated: object, truncated: object, n: int) -> npt.NDArray[np.uint8] | None:
    """How n steps end their episodes, for the C core."""
    both = flags("terminated", terminated, n), flags("truncated", truncated, n)
    if terminated is None and truncated is None:
        return None
    ends = np.zeros(n, np.uint8)
    for array, flag in zip(both, (lib.ES_STEP_TERMINATED, lib.ES_STEP_TRUNCATED), strict=True):
        if array is not None:
            ends |= array.astype(np.uint8) * np.uint8(flag)
    return ends


def environments(value: object, n: int | None) -> npt.NDArray[np.int64] | None:
    """Different environments, one for each of n rows. n=None: any number of them. None stays None: the first n."""
    most = lib.ES_MAX_ENVIRONMENTS
    if value is None:
        if n is not None and n > most:
            raise ValueError(
                f"got steps of {n:,} environments, and a replay can have {most:,}: use extend() or writers"
            )
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != 1 or n not in (None, len(array)):
        want = "int64[n]" if n is None else f"int64[{n}]: a different number for each row"
        raise ValueError(f"environments: got {array.dtype}{list(array.shape)}, expected {want}")
    if (wrong := np.flatnonzero((array < 0) | (array >= most))).size:
        raise ValueError(f"environments[{wrong[0]}] is {array[wrong[0]]}: use numbers from 0 to {most - 1:,}")
    values, first = np.unique(array, return_index=True)
    if len(values) < len(array):
        again = int(np.setdiff1d(np.arange(len(array)), first)[0])
        raise ValueError(f"environments[{again}] is {array[again]}, which is there before: each one takes one step")
    return np.ascontiguousarray(array, np.int64)


def keys(value: object) -> npt.NDArray[np.uint64]:
    """Items' keys as they are in a batch: C-contiguous, shape (n,)."""
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.uint64)
    if array.dtype.kind not in "ui" or array.ndim != 1 or (array.dtype.kind == "i" and bool((array < 0).any())):
        raise ValueError(
            f"keys: got {array.dtype}{list(array.shape)}, expected uint64[n]: pass batch.key, or part of it"
        )
    return np.ascontiguousarray(array, np.uint64)


def _numbers(label: str, value: object, n: int) -> npt.NDArray[np.float64]:
    """n priorities: finite, and not negative."""
    array = np.asarray(value)
    if array.shape != (n,) or array.dtype.kind not in "fiu":
        raise ValueError(f"{label}: got {array.dtype}{list(array.shape)}, expected float64[{n}], one for each item")
    array = np.ascontiguousarray(array, np.float64)
    wrong = ~((array >= 0) & (array < math.inf))
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(bad_priority(f"{label}[{index}]", float(array[index])))
    return array


def new_priorities(value: object, n: int) -> npt.NDArray[np.float64]:
    """What ``update()`` gives n items."""
    return _numbers("priorities", value, n)


def bad_priority(label: str, value: float, table: str | None = None) -> str:
    """What is wrong with a priority."""
    if not 0 <= value < math.inf:
        return f"{label}={value!r}: use a finite priority, 0 or more"
    return f"{label}={value!r} is too large for table {table!r}: its weight is not finite"


def one_priority(value: object, names: Sequence[str], accepts: Accepts) -> bytes:
    """What each table gives a step's item, as float64s.

    Args:
        value: A number, a mapping of tables to numbers, or None.
        names: The tables.
        accepts: Tells which priorities are too large.

    Raises:
        ValueError: A number is negative, not finite or too large for its table; or a table is unknown.

    """
    given = value if isinstance(value, Mapping) else dict.fromkeys(names, value)
    check_tables(given, names)
    priorities = []
    for index, name in enumerate(names):
        label = f"priority[{name!r}]" if isinstance(value, Mapping) else "priority"
        priorities.append(_one(label, given[name], index, name, accepts) if name in given else NO_ITEM)
    return np.array(priorities, np.float64).tobytes()


def _one(label: str, value: object, index: int, name: str, accepts: Accepts) -> float:
    if value is None:
        return HIGHEST
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{label}={value!r}: use a finite priority, 0 or more, None, or {{table: priority}}")
    priority = float(value)
    if not 0 <= priority < math.inf or not accepts(index, priority):
        raise ValueError(bad_priority(label, priority, name))
    return priority


def many_priorities(value: object, n: int, names: Sequence[str], accepts: Accepts) -> npt.NDArray[np.float64] | None:
    """The same for n steps of ``extend()``: shape ``(n, tables)``; None stays None."""
    if value is None:
        return None
    given = value if isinstance(value, Mapping) else dict.fromkeys(names, value)
    check_tables(given, names)
    priorities = np.full((n, len(names)), NO_ITEM)
    for index, name in enumerate(names):
        if name not in given:
            continue
        if given[name] is None:
            priorities[:, index] = HIGHEST
            continue
        label = f"priorities[{name!r}]" if isinstance(value, Mapping) else "priorities"
        column = priorities[:, index] = _numbers(label, given[name], n)
        # The weight grows with the priority, so the largest one tells of all.
        if n and not accepts(index, float(column.max())):
            worst = next(i for i in range(n) if not accepts(index, float(column[i])))
            raise ValueError(bad_priority(f"{label}[{worst}]", float(column[worst]), name))
    return priorities


def check_tables(given: Mapping[Any, Any], names: Sequence[str]) -> None:
    """Raises ValueError if a mapping has a table that the replay has not."""
    for name in given:
        if name not in names:
            raise ValueError(unknown_table(name, names))


def unknown_table(name: object, names: Sequence[str]) -> str:
    """That there is no such table, and which ones there are."""
    return f"there is no table {name!r}: this replay has {listed(names)}"


def no_ages(name: str) -> str:
    """That items of a table do not grow old."""
    return f"table {name!r}: items age only where the sampler is HotCold(...)"


def no_limits(name: str) -> str:
    """That the limits of a table without records do not change."""
    return (
        f"table {name!r} has no records of its items, so its limiter never forbids to insert, and its limits stay: "
        "make it with records, for example Table(..., max_times_sampled=10**9)"
    )


def listed(names: Sequence[str]) -> str:
    """The tables of a replay, in words."""
    return ("the tables " if len(names) > 1 else "the table ") + ", ".join(map(repr, names))


def count(value: object) -> int:
    """How many items to sample."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 1 <= int(value) < 2**31:
        raise ValueError(f"n={value!r}: use an integer of at least 1")
    return int(value)


def exponent(value: object) -> float | None:
    """beta of a call; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"beta={value!r}: use a finite number, 0 or more, or None for the sampler's own")
    return float(value)
