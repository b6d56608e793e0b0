"""The common case of a send, and of a tree of views, compiled for one structure of samples.

A send of a few small arrays is mostly interpreter time: taking the tree apart,
testing each leaf, finding its address. Code written for the samples' structure
does the first, the extension module ``_send`` the others, in a quarter of the
time. Anything out of the ordinary is left to the general path.
"""

from collections.abc import Callable, Iterator
from typing import Any

from echo_shm._core import ffi, lib
from echo_shm._send import make_plan, send
from echo_shm.spec import Array, Spec

#: What comes of code for containers that are nested more deeply than Python's compiler goes.
_TOO_DEEP = (SyntaxError, RecursionError, MemoryError)

_TEMPLATE = """
def send_at_once(tree):
    try:
{unpacking}
    except (ValueError, TypeError, KeyError):
        return False
    return send(plan, {leaves})
"""


def compile_fast_path(spec: Spec, ring: Any) -> Callable[[Any], bool]:
    """A function that sends a tree whose leaves are all arrays that can be copied as they are.

    It returns True when the sample was sent. Otherwise, be the ring full, the
    tree wrong or a leaf in need of care, nothing was sent: the caller finds out why.
    """
    count = len(spec.leaves)
    try:
        unpacking = list(_unpack(spec.treespec, "tree", iter(range(count)), iter(range(1 << 30))))
    except (_NoPlainContainerError, *_TOO_DEEP):
        unpacking = ["".join(f"a{i}, " for i in range(count)) + "= flatten(tree)"]
    source = _TEMPLATE.format(
        unpacking="\n".join(" " * 8 + line for line in unpacking),
        leaves=", ".join(f"a{i}" for i in range(count)),
    )
    plan = make_plan(
        int(ffi.cast("uintptr_t", ffi.addressof(lib, "es_send"))),
        int(ffi.cast("uintptr_t", ring)),
        spec.sample_bytes,
        tuple((leaf.dtype, leaf.shape) for leaf in spec.leaves),
    )
    # The plan holds the ring's bare address: "ring" keeps what is there.
    scope: dict[str, Any] = {
        "flatten": spec.treespec.flatten_up_to,
        "send": send,
        "plan": plan,
        "ring": ring,
    }
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


def compile_tree(spec: Spec, arrays: list[Array]) -> Callable[[Any], Any]:
    """A function of an index that gives the samples' tree, with ``arrays[i][index]`` for leaf i."""
    unflatten = spec.treespec.unflatten
    # As defaults, the arrays are local variables, which are the fastest.
    scope: dict[str, Any] = {f"b{i}": array for i, array in enumerate(arrays)}
    defaults = ", ".join(f"{name}={name}" for name in scope)
    try:
        tree = _tree_source(unflatten(range(len(arrays))))
        function: Callable[[Any], Any] = eval(f"lambda index, {defaults}: {tree}", scope)
    except (_NoPlainContainerError, *_TOO_DEEP):
        return lambda index: unflatten([array[index] for array in arrays])
    return function


def _tree_source(tree: Any) -> str:
    """An expression that builds the tree, whose leaves are the arrays' numbers."""
    if type(tree) is int:
        return f"b{tree}[index]"
    if tree is None:
        return "None"
    # As above: of the keys, only plain literals go into code.
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return "{" + ", ".join(f"{key!r}: {_tree_source(child)}" for key, child in tree.items()) + "}"
    if type(tree) is list:
        return "[" + ", ".join(map(_tree_source, tree)) + "]"
    if type(tree) is tuple:
        return "(" + "".join(f"{_tree_source(child)}, " for child in tree) + ")"
    raise _NoPlainContainerError
