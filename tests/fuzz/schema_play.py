"""Schemas that lie, and what happens to a process that attaches to a segment with one.

All choices come from ``below(n)``, a number from 0 to n - 1. It takes them from
a fuzzer's bytes, from Hypothesis or from a random generator.
"""

import contextlib
import json
import math
import os
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
from fuzz.choices import Below

from echo_shm import EchoShmError, Server, ShmClient
from echo_shm.ring import segment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.inbox import step_spec
from echo_shm.ring.segment import Geometry
from echo_shm.spec import Leaf, Spec

_DTYPES = ["<f4", "<i8", "|u1", "|b1", ">f8", "<M8[ns]", "<U3", "|S5", "|V7", "<c8", "<f2", "|V0", "|S0"]
_BAD_DTYPES = [
    "|O",
    "O",
    "|T16",
    "<f77",
    "f4",
    "i4,f8",
    "",
    "<V-1",
    "|V2147483647",
    "|S99999999999",
    "(2,)f4",
    "<M8[x]",
]
_BAD = [
    None,
    True,
    -1,
    1.5,
    1e308,
    2**31,
    2**62,
    2**63,
    2**70,
    10**40,
    "",
    "x",
    "\ud800",
    "é" * 40,
    [],
    {},
    [[]],
    "leaf",
]
_DIMENSIONS = [0, 1, 2, 3, 5, 1, 0, 64, 2**20, 2**31, 2**61, 2**62, 2**62 + 1, -1]
_KEYS = [
    "a",
    "b",
    "",
    "é",
    "\ud800",
    "'); raise SystemExit #",
    "\n",
    "{}",
    "__class__",
    0,
    1,
    -5,
    10**30,
    None,
    True,
    0.5,
]
_KINDS = ["dict", "list", "tuple", "node", "set", "children", "leaf"]

#: What no schema may cause a process to do.
_FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.", "socket.")

#: Memory that one attempt may take (bytes): far more than schemas of this size need.
_MOST_MEMORY = 64 << 20

#: The largest samples for which a segment is made (bytes); schemas of larger ones are only parsed.
_MOST_SAMPLE = 1 << 16

_watching = False


def _audit(event: str, arguments: Any) -> None:
    if _watching and event.startswith(_FORBIDDEN):
        raise SystemExit(f"a schema caused {event}{arguments!r}")


sys.addaudithook(_audit)


# --- making schemas -----------------------------------------------------------


def _one_of(below: Below, things: list[Any]) -> Any:
    return things[below(len(things))]


def _rarely(below: Below, good: Any, bad: list[Any] = _BAD) -> Any:
    return _one_of(below, bad) if below(24) == 0 else good


def _draw_dtype(below: Below, depth: int = 0) -> Any:
    kind = below(16)
    if kind >= 5 or depth > 3:
        return _rarely(below, _one_of(below, _DTYPES), _BAD_DTYPES + _BAD)
    if kind == 0:
        return {"base": _draw_dtype(below, depth + 1), "shape": _rarely(below, _draw_shape(below))}
    if kind == 1:
        return {
            "extension": _rarely(below, _one_of(below, ["bfloat16", "float8_e5m2", "finfo", "os", "__name__", "int4"]))
        }
    count = below(4)
    fields = {
        "names": [_rarely(below, f"f{i}") for i in range(count)],
        "formats": [_draw_dtype(below, depth + 1) for _ in range(count)],
        "offsets": [_rarely(below, 8 * i) for i in range(count)],
        "itemsize": _rarely(below, 8 * count + below(9)),
        "titles": [_rarely(below, None, ["t", *_BAD]) for _ in range(count)],
    }
    if below(16) == 0:
        fields.pop(_one_of(below, list(fields)))
    return fields


def _draw_shape(below: Below) -> list[Any]:
    if below(40) == 0:
        return [1] * below(80)
    return [_rarely(below, below(4), _DIMENSIONS + _BAD) for _ in range(below(4))]


def _draw_tree(below: Below, leaves: list[Any], depth: int = 0) -> Any:
    """A tree. For each leaf of it an entry is added to ``leaves``."""
    if depth == 0 and below(32) == 0:
        return _draw_chain(below, leaves)
    kind = below(8) if depth < 5 else 7
    if kind == 0:
        return _rarely(below, None)
    if kind >= 4:
        leaves.append(_draw_leaf(below, len(leaves)))
        return _rarely(below, "leaf")
    children = [_draw_tree(below, leaves, depth + 1) for _ in range(below(4))]
    if kind == 1:
        keys = [_rarely(below, f"k{i}", _KEYS + _BAD) for i in range(len(children))]
        node: Any = {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    else:
        node = {("list", "tuple")[kind - 2]: children}
    if below(24) == 0:
        node = {_one_of(below, _KINDS): _rarely(below, children), **({"children": children} if below(2) else {})}
    return node


def _draw_chain(below: Below, leaves: list[Any]) -> Any:
    """One leaf inside very many containers."""
    leaves.append(_draw_leaf(below, 0))
    tree: Any = "leaf"
    for _ in range(_one_of(below, [90, 150, 199, 201, 240, 500, 900, 1500])):
        tree = {"list": [tree]} if below(2) else {"dict": [["a", tree]]}
    return tree


def _draw_leaf(below: Below, number: int) -> Any:
    leaf = {
        "path": _rarely(below, f"[{number}]"),
        "dtype": _draw_dtype(below),
        "shape": _rarely(below, _draw_shape(below)),
    }
    if below(40) == 0:
        leaf.pop(_one_of(below, list(leaf)))
    return _rarely(below, leaf) if below(8) == 0 else leaf


def _draw_inbox(below: Below, step: Any) -> Any:
    """The schema of a replay's inbox that brings such steps."""
    tables = [_rarely(below, [_rarely(below, f"t{i}"), _rarely(below, [_rarely(below, 0.5)])]) for i in range(below(3))]
    head = {"path": "[0]", "dtype": "|u1", "shape": [40 + 8 * _rarely(below, len(tables), [0, 1, 2, 3])]}
    return {
        "about": _rarely(below, {_rarely(below, "replay", ["", "x"]): _rarely(below, tables)}),
        "tree": _rarely(below, {"tuple": ["leaf", step["tree"]]}),
        "leaves": [head, *step["leaves"]],
    }


def draw_schema(below: Below) -> bytes:
    """A schema as bytes, often with faults."""
    leaves: list[Any] = []
    data: Any = {"tree": _draw_tree(below, leaves), "leaves": leaves}
    change = below(24)
    if change == 0:
        leaves.append(_draw_leaf(below, len(leaves)))
    elif change == 1 and leaves:
        leaves.pop(below(len(leaves)))
    elif change == 2:
        data = _rarely(below, data) if below(2) else {**data, "more": _one_of(below, _BAD)}
    elif change == 3:
        data.pop(_one_of(below, ["tree", "leaves"]))
    elif change == 4:
        data = _draw_inbox(below, data)
    with contextlib.suppress(RecursionError):
        schema = json.dumps(data).encode()
        for _ in range(max(0, below(12) - 9)):
            at = below(len(schema))
            schema = schema[:at] + bytes([below(256)]) + schema[at + below(2) :]
        return schema
    return b""


# --- reading and attaching ------------------------------------------------------


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Fails when something forbidden is done, or too much memory is taken."""
    global _watching
    tracemalloc.start()
    _watching = True
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY, "a schema took too much memory"
    finally:
        _watching = False
        tracemalloc.stop()


def parse(schema: bytes) -> Spec | None:
    """Reads a schema; returns None when it is refused as it should be."""
    with _watched():
        try:
            spec = Spec.from_schema(schema, "segment 'fuzzed'")
            step = step_spec(spec)  # of a replay's inbox
            assert step is None or len(step.leaves) == len(spec.leaves) - 1
            return spec
        except EchoShmError as error:
            str(error)
            return None


def attach(schema: bytes, below: Below) -> bool:
    """Attaches to a segment with that schema, in each way, and uses it; returns whether it could attach.

    The segment's own leaves fit the schema's, most of the time. At any point an error of the project's own may be
    raised, but no other. Nothing may be left behind.
    """
    spec = parse(schema)
    leaves = list(spec.leaves) if spec is not None else [Leaf("", np.dtype("<f4"), (3,))]
    lie = below(12)
    if lie == 0:
        leaves.append(Leaf("more", np.dtype("<i8"), ()))
    elif lie == 1 and len(leaves) > 1:
        leaves.pop()
    if not leaves or sum(leaf.nbytes for leaf in leaves) > _MOST_SAMPLE:
        return False
    name = f"fuzzed-{os.getpid()}"
    try:
        made = create_segment(name, Spec(None, tuple(leaves), schema), Geometry(2, 2, 2, "fifo", False, 0.1))
    except EchoShmError:
        return False
    try:
        with _watched():
            return _use(name)
    finally:
        made.unlink()


def _use(name: str) -> bool:
    attached = False
    with contextlib.suppress(EchoShmError), Server.attach(name) as server:
        sample = _zeros(server._segment.spec)
        with contextlib.suppress(EchoShmError), ShmClient(name) as client:
            attached = True
            client.send(sample, timeout=0)
            with client.reserve(timeout=0):
                pass
        with contextlib.suppress(TimeoutError):
            server.sample(timeout=0)
        repr(server)
    segment.listing(name)
    return attached


def _zeros(spec: Spec) -> Any:
    # in arrays of its own numpy gives an item of no bytes one byte
    leaves = [np.zeros(leaf.shape if math.prod(leaf.shape) <= _MOST_SAMPLE else 0, leaf.dtype) for leaf in spec.leaves]
    return spec.treespec.unflatten(leaves)
