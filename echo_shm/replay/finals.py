"""What an episode ends with: observations without an action, stored as a step of its own.

It is given as a tree with a part of a step's leaves. A container is as in the step, or a dict with some of its keys.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import optree

from echo_shm.errors import SpecMismatchError
from echo_shm.replay.layout import children
from echo_shm.spec import Array, Spec, Tree

#: What is wrong with final observations in the middle of an episode.
NOT_THE_END = "final: the step ends no episode: pass terminated=True or truncated=True with it, or no final"


def leaves_of_final(spec: Spec, final: Tree, needed: Sequence[int]) -> list[Array]:
    """An exact array for each leaf of a step: those of the final observations, and zeros for all others.

    Args:
        spec: What a step looks like.
        final: The final observations.
        needed: The leaves that must be there, by number.

    Raises:
        SpecMismatchError: A leaf is missing, or is not as in a step.

    """
    given = _chosen(spec.structure, final, "final")
    _check_needed(spec, given, needed)
    return [
        spec.exact(i, given[i]) if i in given else np.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(spec.leaves)
    ]


def rows_of_final(spec: Spec, final: Tree, ended: npt.NDArray[np.bool_], needed: Sequence[int]) -> list[Array]:
    """The same of several environments: arrays with a row for each one whose episode has ended, in order.

    Args:
        spec: What a step looks like.
        final: A tree as above, but each leaf has a leading n. In place of any leaf or tree there may be an array of n
            objects, as Gymnasium makes them: of these, only those of environments whose episodes have ended count.
        ended: Whose episodes have, of the n; at least one.
        needed: As above.

    Raises:
        SpecMismatchError: As above.

    """
    given = _chosen(spec.structure, final, "final", ended)
    _check_needed(spec, given, needed)
    count = int(np.count_nonzero(ended))
    arrays = []
    for i, leaf in enumerate(spec.leaves):
        value = given.get(i)
        if isinstance(value, _Rows):
            arrays.append(np.stack([spec.exact(i, row) for row in value]))
        elif i in given:
            arrays.append(spec.exact(i, value, (len(ended), *leaf.shape))[ended])
        else:
            arrays.append(np.zeros((count, *leaf.shape), leaf.dtype))
    return arrays


class _Rows(list[Any]):
    """In place of an array with a leading n: the rows of those whose episodes have ended."""


def _chosen(
    treespec: optree.PyTreeSpec, tree: Tree, where: str, ended: npt.NDArray[np.bool_] | None = None
) -> dict[int, Any]:
    """The leaves of a part of a tree of that structure, by number."""
    if ended is not None and isinstance(tree, np.ndarray) and tree.dtype == np.object_ and tree.shape == ended.shape:
        rows = [_chosen(treespec, tree[i], f"{where}[{i}]") for i in np.flatnonzero(ended)]
        return {leaf: _Rows(_row(row, leaf, where) for row in rows) for leaf in {leaf for row in rows for leaf in row}}
    if treespec.is_leaf():
        return {0: tree}
    if not isinstance(tree, dict):
        try:
            return dict(enumerate(treespec.flatten_up_to(tree)))
        except (ValueError, TypeError):
            raise SpecMismatchError(
                f"{where}: got {type(tree).__name__}, expected a dict with some keys of {treespec!s:.400}"
            ) from None
    known = {key: (first, child) for key, first, child in children(treespec)}
    chosen: dict[int, Any] = {}
    for key, value in tree.items():
        if key not in known:
            raise SpecMismatchError(f"{where}: steps have no {key!r}: they have {', '.join(map(repr, known))}")
        first, child = known[key]
        below = _chosen(child, value, f"{where}[{key!r}]", ended)
        chosen |= {first + leaf: one for leaf, one in below.items()}
    return chosen


def _row(row: dict[int, Any], leaf: int, where: str) -> Any:
    if leaf not in row:
        raise SpecMismatchError(f"{where}: some rows have keys that others do not have")
    return row[leaf]


def _check_needed(spec: Spec, given: dict[int, Any], needed: Sequence[int]) -> None:
    missing = [spec.leaves[i].path or "the leaf" for i in needed if i not in given]
    if missing:
        raise SpecMismatchError(
            f"final: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: a table's NStep names "
            f"{'it' if len(missing) == 1 else 'them'} as observation"
        )
