"""The common case of a send, compiled for one structure of samples.

A send of a few small arrays is mostly interpreter time. Taking the tree apart
with code written for its structure, and testing each leaf without a loop,
halves that. Anything out of the ordinary is left to the general path.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.spec import Spec

_TEMPLATE = """
def send_at_once(tree):
    try:
{unpacking}
        return {checks} and es_send(ring, [{pointers}]) == 0
    except (ValueError, TypeError, KeyError, IndexError):
        return False
"""


def compile_fast_path(spec: Spec, ring: Any) -> Callable[[Any], bool]:
    """A function that sends a tree whose leaves are all arrays that can be copied as they are.

    It returns True when the sample was sent. Otherwise, be the ring full, the
    tree wrong or a leaf in need of care, nothing was sent: the caller finds out why.
    """
    count = len(spec.leaves)
    try:
        unpacking = list(_unpack(spec.treespec, "tree", iter(range(count)), iter(range(1 << 30))))
    except _NoPlainContainerError:
        unpacking = ["".join(f"a{i}, " for i in range(count)) + "= flatten(tree)"]
    source = _TEMPLATE.format(
        unpacking="\n".join(" " * 8 + line for line in unpacking),
        checks=" and ".join(
            f"type(a{i}) is ndarray and a{i}.dtype == d{i} and a{i}.shape == s{i}" for i in range(count)
        ),
        pointers=", ".join(f"from_buffer(a{i})" for i in range(count)),
    )
    scope: dict[str, Any] = {
        "ring": ring,
        "flatten": spec.treespec.flatten_up_to,
        "ndarray": np.ndarray,
        "from_buffer": ffi.from_buffer,
        "es_send": lib.es_send,
    }
    for i, leaf in enumerate(spec.leaves):
        scope[f"d{i}"], scope[f"s{i}"] = leaf.dtype, leaf.shape
    exec(source, scope)
    send_at_once: Callable[[Any], bool] = scope["send_at_once"]
    return send_at_once


class _NoPlainContainerError(Exception):
    """The tree has nodes that only optree can take apart."""


def _unpack(treespec: Any, value: str, leaves: Iterator[int], nodes: Iterator[int]) -> Iterator[str]:
    """Statements that bind a0, a1, ... to the leaves of the tree that the expression ``value`` gives."""
    if treespec.is_leaf():
        yield f"a{next(leaves)} = {value}"
        return
    kind, entries = treespec.type, treespec.entries()
    if kind is type(None):
        yield f"if {value} is not None: return False"
        return
    # Keys come from the segment's schema: only what repr() writes as a plain literal goes into code.
    if kind not in (dict, list, tuple) or any(type(key) not in (str, int) for key in entries):
        raise _NoPlainContainerError
    node = f"n{next(nodes)}"
    yield f"{node} = {value}"
    yield f"if type({node}) is not {kind.__name__} or len({node}) != {len(entries)}: return False"
    for key, child in zip(entries, treespec.children(), strict=True):
        yield from _unpack(child, f"{node}[{key!r}]", leaves, nodes)
