"""What the inbox of a replay brings: each sample is a head and a step. Its schema says which tables the replay has.

Writers on this machine and on others make such samples. The C core reads the heads, see csrc/replay/es_inbox.h.
"""

import json
import math
import secrets
import struct
import threading
from typing import Any, TypeAlias

import numpy as np

from echo_shm.errors import SegmentError
from echo_shm.spec import Array, Spec, canonical

#: For each table its name, and the exponents of its priorities, as its selectors have them.
Tables: TypeAlias = tuple[tuple[str, tuple[float, ...]], ...]

#: An ``es_inbox_head``: stream, number, version, environment, episode, flags, zero. The tables' priorities follow.
_HEAD = struct.Struct("<QQQIIII")

#: Where the schema has the tables.
_KEY = "replay"


def inbox_spec(step: Spec, tables: Tables) -> Spec:
    """The inbox's samples, of a replay with such steps and tables."""
    example = step.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in step.leaves])
    about = {_KEY: [[name, list(map(float, exponents))] for name, exponents in tables]}
    return Spec.from_example((np.zeros(_head_bytes(len(tables)), np.uint8), example), about)


def tables_of(spec: Spec) -> Tables | None:
    """The tables of the replay whose inbox has such samples; None if it is no inbox. The spec is not trusted."""
    try:
        ((key, said),) = spec.about.items()
        tables = tuple((name, tuple(exponents)) for name, exponents in said)
    except (AttributeError, TypeError, ValueError):
        return None
    heads = [(leaf.dtype.str, leaf.shape) for leaf in spec.leaves[:1]] == [("|u1", (_head_bytes(len(tables)),))]
    names = all(type(name) is str for name, _ in tables) and len({name for name, _ in tables}) == len(tables)
    numbers = all(type(one) is float and math.isfinite(one) for _, exponents in tables for one in exponents)
    return tables if key == _KEY and tables and heads and names and numbers else None


def step_spec(spec: Spec) -> Spec | None:
    """What a step looks like that an inbox with such samples brings; None if it is no inbox."""
    if tables_of(spec) is None:
        return None
    try:
        data = json.loads(spec.schema)
        _, tree = data["tree"]["tuple"]
        leaves = [{**leaf, "path": leaf["path"].removeprefix("[1]")} for leaf in data["leaves"][1:]]
        step = Spec.from_schema(canonical({"tree": tree, "leaves": leaves}), "its schema")
    except (SegmentError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    if spec.treespec is not None:
        step.treespec = spec.treespec.child(1)
    return step


def inbox_that_takes(step: Spec, schema: bytes) -> Spec | None:
    """The samples of an inbox with that schema, if it is one that brings such steps."""
    try:
        tables = tables_of(Spec.from_schema(schema, "its schema"))
    except SegmentError:
        return None
    spec = None if tables is None else inbox_spec(step, tables)
    return spec if spec is not None and spec.schema == schema else None


def _head_bytes(tables: int) -> int:
    """The size of the first leaf."""
    return _HEAD.size + 8 * tables


class Heads:
    """The heads of one stream of steps: a random number that names it, the steps' numbers in it, and their episodes.

    Attributes:
        lock: To hold from the making of a head until :meth:`sent`.

    """

    def __init__(self, num_tables: int) -> None:
        self.lock = threading.Lock()
        self._stream, self._number, self._episode, self._inside = secrets.randbits(64), 0, 0, False
        self._pack = struct.Struct(_HEAD.format + f"{num_tables}d").pack_into
        self._head = np.zeros(_head_bytes(num_tables), np.uint8)

    def one(self, ends: int, priorities: tuple[float, ...]) -> Array:
        """The head of the next step. The next call writes into the same array.

        Args:
            ends: How it ends its episode: ES_STEP_TERMINATED, ES_STEP_TRUNCATED, both, or 0.
            priorities: What each table gives the step's item.

        """
        self._pack(self._head.data, 0, self._stream, self._number, 0, 0, self._episode, ends, 0, *priorities)
        return self._head

    def many(self, n: int, ends: Array | None, priorities: Any) -> Array:
        """The heads of the next n steps.

        Args:
            n: How many.
            ends: How each ends its episode, of shape (n,); None: none does.
            priorities: What each table gives each step's item, of shape ``(n, tables)``, or one number for all.

        """
        heads = np.zeros((n, len(self._head)), np.uint8)
        words = heads.view("<u8")
        words[:, 0] = self._stream
        words[:, 1] = self._number + np.arange(n, dtype=np.uint64)
        halves = heads[:, 24 : _HEAD.size].view("<u4")
        before = np.zeros(n, np.uint32)
        if ends is not None:
            halves[:, 2] = ends
            before[1:] = np.cumsum(ends[:-1] != 0)
        halves[:, 1] = self._episode + before
        heads[:, _HEAD.size :].view("<f8")[:] = priorities
        return heads

    def sent(self, n: int, ends: Array | int | None) -> None:
        """Notes that the next n steps were sent. ``ends`` is as it was given for their heads."""
        if not n:
            return
        if ends is None or isinstance(ends, int):
            count, last = (n, True) if ends else (0, False)
        else:
            count, last = int(np.count_nonzero(ends[:n])), bool(ends[n - 1])
        self._number += n
        self._episode += count
        self._inside = not last

    def end_episode(self) -> None:
        """The next step begins an episode."""
        with self.lock:
            self._episode += self._inside
            self._inside = False
