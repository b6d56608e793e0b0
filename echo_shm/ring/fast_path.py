"""The common case of a send and of similar calls, and of building a sample's tree, compiled for one structure.

A send of a few small arrays spends most of its time in the interpreter: it takes the tree apart, checks each leaf and
finds its address. Code that is generated for the samples' structure takes the tree apart, and the extension module
``_send`` does the rest, in a quarter of the time. The general path handles everything that is not common.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import optree

from echo_shm._core import ffi, lib
from echo_shm._send import call, make_plan, make_vector_plan, send
from echo_shm.spec import Array, Spec, Tree

if TYPE_CHECKING:
    from echo_shm._batch import Leaf
    from echo_shm._core import Ring
    from echo_shm._send import Plan, VectorPlan

#: What the compiler raises for containers that are nested too deeply for it.
_TOO_DEEP = (SyntaxError, RecursionError, MemoryError)

#: Flags of arrays whose rows have them, too: numpy's NPY_ARRAY_C_CONTIGUOUS, _ALIGNED and _WRITEABLE.
_ROW_FLAGS = 0x1 | 0x100 | 0x400

_TEMPLATE = """
def at_once(tree):
    try:
{unpacking}
    except (ValueError, TypeError, KeyError):
        return nothing
    return function(plan, {leaves})
"""


def compile_fast_path(spec: Spec, ring: "Ring") -> Callable[[Tree], bool]:
    """Returns a function that sends a tree if all its leaves are arrays that can be copied as they are.

    The function returns True if it sent the sample. It returns False if it sent nothing: the ring is full, the tree
    is wrong, or a leaf needs a conversion. The caller then finds out why.
    """
    send_at_once: Callable[[Tree], bool] = _compile(spec, send, _plan(spec, ring, "es_api_send"), ring, False)
    return send_at_once


def compile_call(
    spec: Spec, ring: "Ring", function: Literal["es_weights_publish", "es_weights_copy"]
) -> tuple[Callable[[Tree], int | None], Callable[..., int | None]]:
    """Returns two functions that call a function of the core: one takes a tree, the other one array for each leaf.

    They return None, and have called nothing, if a leaf is not an array that can be used as it is.
    """
    plan = _plan(spec, ring, function, writes=function == "es_weights_copy")
    return _compile(spec, call, plan, ring, None), functools.partial(call, plan)


def _plan(spec: Spec, ring: "Ring", function: str, *, writes: bool = False) -> "Plan":
    """It holds only the ring's address."""
    return make_plan(
        int(ffi.cast("uintptr_t", ffi.addressof(lib, function))),
        int(ffi.cast("uintptr_t", ring)),
        spec.sample_bytes,
        tuple((leaf.dtype, leaf.shape) for leaf in spec.leaves),
        writes,
    )


def plan_vector(
    steps: Spec, ring: "Ring", needed: Sequence[int], stream: int, environments: Array, num_tables: int, head_bytes: int
) -> "VectorPlan":
    """For ``_send.send_vector``, which says what the arguments are."""
    return make_vector_plan(
        int(ffi.cast("uintptr_t", ffi.addressof(lib, "es_api_send_many"))),
        int(ffi.cast("uintptr_t", ring)),
        ring,
        tuple((leaf.dtype, (0, *leaf.shape), 0, leaf.nbytes, 0) for leaf in steps.leaves),
        plain_form(steps),
        tuple(needed),
        stream,
        environments,
        num_tables,
        head_bytes,
    )


def _compile(spec: Spec, function: Callable[..., Any], plan: "Plan", ring: "Ring", nothing: object) -> Any:
    """A function that takes a tree apart and passes the plan and the leaves on. ``nothing``: the tree is wrong."""
    count = len(spec.leaves)
    try:
        unpacking = list(_unpack(spec.structure, "tree", iter(range(count)), iter(range(1 << 30))))
    except (_NoPlainContainerError, *_TOO_DEEP):
        unpacking = ["".join(f"a{i}, " for i in range(count)) + "= flatten(tree)"]
    source = _TEMPLATE.format(
        unpacking="\n".join(" " * 8 + line for line in unpacking),
        leaves=", ".join(f"a{i}" for i in range(count)),
    )
    scope: dict[str, Any] = {
        "flatten": spec.structure.flatten_up_to,
        "function": function,
        "plan": plan,
        "ring": ring,  # which is kept alive
        "nothing": nothing,
    }
    exec(source, scope)
    return scope["at_once"]


class _NoPlainContainerError(Exception):
    """The tree has nodes that only optree can take apart or build."""


def _unpack(treespec: optree.PyTreeSpec, value: str, leaves: Iterator[int], nodes: Iterator[int]) -> Iterator[str]:
    """Statements that assign the leaves of the tree ``value``, an expression, to a0, a1, ..."""
    if treespec.is_leaf():
        yield f"a{next(leaves)} = {value}"
        return
    kind, entries = treespec.type, treespec.entries()
    if kind is type(None):
        yield f"if {value} is not None: return nothing"
        return
    # Keys come from the segment's schema, which is not trusted: only keys whose repr() is a plain literal go into code.
    if kind not in (dict, list, tuple) or any(type(key) not in (str, int) for key in entries):
        raise _NoPlainContainerError
    node = f"n{next(nodes)}"
    yield f"{node} = {value}"
    yield f"if type({node}) is not {kind.__name__} or len({node}) != {len(entries)}: return nothing"
    for key, child in zip(entries, treespec.children(), strict=True):
        yield from _unpack(child, f"{node}[{key!r}]", leaves, nodes)


def compile_tree(spec: Spec) -> Callable[..., Tree]:
    """Returns a function that takes one array for each leaf and builds the samples' tree of them."""
    unflatten, count = spec.structure.unflatten, len(spec.leaves)
    try:
        tree = _tree_source(unflatten(range(count)))
        function: Callable[..., Tree] = eval(f"lambda {', '.join(f'a{i}' for i in range(count))}: {tree}")
    except (_NoPlainContainerError, *_TOO_DEEP):
        return lambda *arrays: unflatten(arrays)
    return function


def _tree_source(tree: Tree) -> str:
    """An expression that builds the tree. The leaves of ``tree`` are the numbers of the arrays."""
    if type(tree) is int:
        return f"a{tree}"
    if tree is None:
        return "None"
    # As above, only keys that are plain literals go into code.
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return "{" + ", ".join(f"{key!r}: {_tree_source(child)}" for key, child in tree.items()) + "}"
    if type(tree) is list:
        return "[" + ", ".join(map(_tree_source, tree)) + "]"
    if type(tree) is tuple:
        return "(" + "".join(f"{_tree_source(child)}, " for child in tree) + ")"
    raise _NoPlainContainerError


def describe_rows(array: Array) -> "Leaf":
    """What ``_batch`` and ``_slot`` need to know to make an array over each row of one."""
    flags = array.flags.num & _ROW_FLAGS
    return array.dtype, array.shape[1:], array.__array_interface__["data"][0], array.strides[0], flags


def plain_form(spec: Spec) -> Tree:
    """The samples' tree with the leaves' numbers at its leaves.

    None if it has containers other than dict (with str and int keys), list, tuple, named tuple and None.
    """
    try:
        form = spec.structure.unflatten(range(len(spec.leaves)))
        return form if _is_plain(form) else None
    except _TOO_DEEP:
        return None


def _is_plain(form: Tree) -> bool:
    if type(form) is int or form is None:
        return True
    if type(form) is dict:
        return all(type(key) in (str, int) and _is_plain(child) for key, child in form.items())
    return (type(form) in (list, tuple) or optree.is_namedtuple(form)) and all(map(_is_plain, form))
