"""What the inbox of a replay brings: each sample is a head and a step. Its schema says which tables the replay has.

Writers on this machine and on others make such samples. The C core reads the heads, see csrc/replay/es_inbox.h.
"""

import functools
import json
import math
import secrets
import struct
import threading
from typing import Any, TypeAlias

import numpy as np

from echo_shm._core import lib
from echo_shm.errors import SegmentError
from echo_shm.spec import Array, Spec, canonical

#: For each table its name, the exponents of its priorities, as its selectors have them, and the steps' leaves that an
#: episode's last observations must have for its items, by number.
Tables: TypeAlias = tuple[tuple[str, tuple[float, ...], tuple[int, ...]], ...]

#: An ``es_inbox_head``, whose last field is zero. The tables' priorities follow.
_HEAD = struct.Struct("<QQIIIIII")
_FIELDS = ("stream", "number", "version", "index", "environment", "episode", "flags")
_OFFSETS = (0, 8, 16, 20, 24, 28, 32)

#: The C core's flag of a step that has only what an episode ends with.
ES_STEP_FINAL: int = lib.ES_STEP_FINAL

#: Where the schema has the tables.
_KEY = "replay"


def inbox_spec(step: Spec, tables: Tables) -> Spec:
    """The inbox's samples, of a replay with such steps and tables."""
    example = step.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in step.leaves])
    about = {_KEY: [[name, list(map(float, exponents)), list(finals)] for name, exponents, finals in tables]}
    return Spec.from_example((np.zeros(_head_bytes(len(tables)), np.uint8), example), about)


def tables_of(spec: Spec) -> Tables | None:
    """The tables of the replay whose inbox has such samples; None if it is no inbox. The spec is not trusted."""
    try:
        ((key, said),) = spec.about.items()
        tables = tuple((name, tuple(exponents), tuple(finals)) for name, exponents, finals in said)
    except (AttributeError, TypeError, ValueError):
        return None
    heads = [(leaf.dtype.str, leaf.shape) for leaf in spec.leaves[:1]] == [("|u1", (_head_bytes(len(tables)),))]
    names = all(type(name) is str for name, _, _ in tables) and len({name for name, _, _ in tables}) == len(tables)
    numbers = all(type(one) is float and math.isfinite(one) for _, exponents, _ in tables for one in exponents)
    leaves = all(type(one) is int and 0 <= one < len(spec.leaves) - 1 for _, _, finals in tables for one in finals)
    return tables if key == _KEY and tables and heads and names and numbers and leaves else None


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
        self._stream, self._number, self._episode, self._index = secrets.randbits(64), 0, 0, 0
        self._pack = struct.Struct(_HEAD.format + f"{num_tables}d").pack_into
        self._head = np.zeros(_head_bytes(num_tables), np.uint8)

    def one(self, flags: int, priorities: tuple[float, ...]) -> Array:
        """The head of the next step. The next call writes into the same array.

        Args:
            flags: How it ends its episode: ES_STEP_TERMINATED, ES_STEP_TRUNCATED, both, or 0.
            priorities: What each table gives the items that the step completes.

        """
        self._pack(
            self._head.data, 0, self._stream, self._number, 0, self._index, 0, self._episode, flags, 0, *priorities
        )
        return self._head

    def many(self, n: int, flags: Array | None, priorities: Any) -> Array:
        """The heads of the next n steps.

        Args:
            n: How many.
            flags: How each ends its episode, of shape (n,); None: none does.
            priorities: What each table gives the items that each step completes, of shape ``(n, tables)`` or what can
                be broadcast to it.

        """
        rows = np.arange(n, dtype=np.int64)
        ended = np.zeros(n, bool)  # whether the step before did
        if flags is not None:
            ended[1:] = flags[:-1] != 0
        first = np.maximum.accumulate(np.where(ended, rows, -self._index)) if n else rows
        heads = _rows(n, len(self._head), priorities)
        heads["stream"], heads["number"], heads["flags"] = (
            self._stream,
            self._number + rows,
            0 if flags is None else flags,
        )
        heads["index"], heads["episode"] = rows - first, self._episode + np.cumsum(ended)
        return heads.view(np.uint8).reshape(n, len(self._head))

    def last(self, flags: int, priorities: tuple[float, ...]) -> Array:
        """The heads of the last step of an episode, and of the observations that the episode ends with."""
        heads = self.many(2, None, priorities)
        _view(heads)["flags"][1] = flags | ES_STEP_FINAL
        return heads

    def sent(self, n: int, flags: Array | int | None) -> None:
        """Notes that the next n steps were sent. ``flags`` is as it was given for their heads; a number is that of the
        last of them, and the others have none."""
        if not n:
            return
        self._number += n
        if isinstance(flags, np.ndarray):
            ends = np.flatnonzero(flags[:n])
            self._episode += len(ends)
            self._index = n - 1 - int(ends[-1]) if len(ends) else self._index + n
        else:
            self._episode += bool(flags)
            self._index = 0 if flags else self._index + n

    def end_episode(self) -> None:
        """The next step begins an episode."""
        with self.lock:
            self._episode += self._index > 0
            self._index = 0


class VectorHeads:
    """The heads of several environments' steps, which are sent together: a stream for each environment.

    Attributes:
        n: How many environments.

    """

    def __init__(self, num_tables: int, n: int) -> None:
        self.n = n
        self._stream = secrets.randbits(64)
        self._size = _head_bytes(num_tables)
        self._numbers, self._episodes, self._indexes = (np.zeros(n, np.int64) for _ in range(3))

    def make(self, rows: Array, flags: Array, ended: Array, priorities: Array) -> Array:
        """The heads of one step of some environments, and then of what some of their episodes end with.

        Args:
            rows: The environments, of shape (k,).
            flags: How each of these steps ends its episode, of shape (k,).
            ended: Which of them are followed by observations that the episode ends with, of shape (k,). These have the
                flags then, and the step has none.
            priorities: As for :class:`Heads`, of shape ``(k, tables)``.

        Returns:
            Of shape ``(k + m, bytes)``, where m is how many have ended so.

        """
        k, both = len(rows), np.concatenate([rows, rows[ended]])
        heads = _rows(len(both), self._size, np.concatenate([priorities, priorities[ended]]))
        heads["stream"], heads["environment"], heads["episode"] = self._stream, both, self._episodes[both]
        last = np.arange(len(both)) >= k
        heads["number"], heads["index"] = self._numbers[both] + last, self._indexes[both] + last
        heads["flags"][:k], heads["flags"][k:] = np.where(ended, 0, flags), flags[ended] | ES_STEP_FINAL
        return heads.view(np.uint8).reshape(len(both), self._size)

    def sent(self, rows: Array, flags: Array, ended: Array) -> None:
        """Notes that all of these were sent."""
        over = rows[flags != 0]
        self._numbers[rows] += 1 + ended.astype(np.int64)
        self._indexes[rows] += 1
        self._indexes[over] = 0
        self._episodes[over] += 1

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode."""
        self._episodes += self._indexes > 0
        self._indexes[:] = 0


def _rows(n: int, size: int, priorities: Any) -> Array:
    """n heads as a structured array: with these priorities, and zeros."""
    heads = np.zeros((n, size), np.uint8)
    heads[:, _HEAD.size :].view("<f8")[:] = priorities
    return _view(heads)


def _view(heads: Array) -> Array:
    """Heads as a structured array over the same memory."""
    return heads.view(_dtype(heads.shape[1]))[:, 0]


@functools.lru_cache
def _dtype(size: int) -> np.dtype[Any]:
    return np.dtype({"names": _FIELDS, "formats": ["<u8"] * 2 + ["<u4"] * 5, "offsets": _OFFSETS, "itemsize": size})
