"""What the inbox of a replay brings: each sample is a head and a step. Its schema says which tables the replay has.

Writers on this machine and on others make such samples. The C core reads the heads, see csrc/replay/es_inbox.h.
"""

import functools
import json
import math
import secrets
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from echo_shm._core import lib
from echo_shm._history import Numbers
from echo_shm.errors import SegmentError
from echo_shm.spec import Array, Spec, canonical

#: What writers must know of a table whose items they describe: the item in JSON, and how many columns it has.
Explicit: TypeAlias = tuple[str, int]

#: For each table its name, the exponents of its priorities, as its selectors have them, and the steps' leaves that an
#: episode's last observations must have for its items, by number. And if writers describe its items, what they are.
Tables: TypeAlias = tuple[tuple[str, tuple[float, ...], tuple[int, ...], Explicit | None], ...]

#: An ``es_inbox_head``. The tables' priorities follow, and then an item's columns.
_HEAD = struct.Struct("<QQIIII")
_FIELDS = ("stream", "number", "index", "environment", "episode", "flags")
_OFFSETS = (0, 8, 16, 20, 24, 28)

#: An ``es_environment``.
_ENVIRONMENT = np.dtype([("number", "<u8"), *((name, "<u4") for name in ("index", "episode", "resets", "named"))])

#: The C core's flag of a step that has only what an episode ends with.
ES_STEP_FINAL: int = lib.ES_STEP_FINAL
#: Its flag of an item, which is no step.
ES_HEAD_ITEM: int = lib.ES_HEAD_ITEM

#: The most columns that a schema is believed to have.
_MAX_COLUMNS = 2**17

#: Where the schema has the tables.
_KEY = "replay"


def inbox_spec(step: Spec, tables: Tables) -> Spec:
    """The inbox's samples, of a replay with such steps and tables."""
    example = step.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in step.leaves])
    about = {
        _KEY: [
            [name, list(map(float, exponents)), list(finals), None if explicit is None else list(explicit)]
            for name, exponents, finals, explicit in tables
        ]
    }
    return Spec.from_example((np.zeros(head_bytes(tables), np.uint8), example), about)


def tables_of(spec: Spec) -> Tables | None:
    """The tables of the replay whose inbox has such samples; None if it is no inbox. The spec is not trusted."""
    try:
        ((key, said),) = spec.about.items()
        tables = tuple(
            (name, tuple(exponents), tuple(finals), None if explicit is None else tuple(explicit))
            for name, exponents, finals, explicit in said
        )
        names = all(type(one[0]) is str for one in tables) and len({one[0] for one in tables}) == len(tables)
    except (AttributeError, TypeError, ValueError):
        return None
    numbers = all(type(one) is float and math.isfinite(one) for _, exponents, _, _ in tables for one in exponents)
    leaves = all(type(one) is int and 0 <= one < len(spec.leaves) - 1 for _, _, finals, _ in tables for one in finals)
    items = all(_is_explicit(explicit) for _, _, _, explicit in tables)
    if key != _KEY or not (tables and names and numbers and leaves and items):
        return None
    heads = [(leaf.dtype.str, leaf.shape) for leaf in spec.leaves[:1]] == [("|u1", (head_bytes(tables),))]
    return tables if heads else None


def _is_explicit(said: Any) -> bool:
    return said is None or (
        len(said) == 2 and type(said[0]) is str and type(said[1]) is int and 0 < said[1] <= _MAX_COLUMNS
    )


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


def head_bytes(tables: Tables) -> int:
    """The size of the first leaf."""
    return _HEAD.size + 8 * len(tables) + 8 * max((explicit[1] for *_, explicit in tables if explicit), default=0)


class Heads(Numbers):
    """The heads of one stream of steps: a random number that names it, the steps' numbers in it, and their episodes.

    Attributes:
        lock: To hold from the making of a head until :meth:`sent`.
        stream: The random number.
        number: The number of the next step.
        index: How many steps its episode has so far.
        episode: The number of that episode.
        item_head: The head of an item, in bytes: :meth:`item` writes it.

    """

    def __init__(self, tables: Tables) -> None:
        self.lock = threading.Lock()
        self.stream, self.number, self.episode, self.index = secrets.randbits(64), 0, 0, 0
        self._num_tables = len(tables)
        self._pack = struct.Struct(_HEAD.format + f"{len(tables)}d").pack_into
        self._head = np.zeros(head_bytes(tables), np.uint8)
        self.item_head = np.zeros_like(self._head)
        self._appended = np.zeros_like(self._head)
        self._appended[_HEAD.size : _HEAD.size + 8 * len(tables)].view("<f8")[:] = math.nan
        # By how many columns an item has.
        self._pack_item: dict[int, Callable[..., None]] = {}

    def item(self, table: int, last: int, length: int, priority: float, columns: Sequence[int]) -> None:
        """Writes the head of an item of the steps up to the one with the number ``last``: ``item_head``.

        Args:
            table: Its table's number.
            last: The number of its last step.
            length: To how many steps up to that one it refers.
            priority: What the table gives it.
            columns: The fields of its ``es_item_column``, one after the other.

        """
        pack = self._pack_item.get(len(columns))
        if pack is None:
            layout = f"{_HEAD.format}{self._num_tables}d{len(columns)}I"
            pack = self._pack_item[len(columns)] = struct.Struct(layout).pack_into
        priorities = (priority,) * self._num_tables
        pack(self.item_head.data, 0, self.stream, last, length, 0, table, ES_HEAD_ITEM, *priorities, *columns)

    def appended(self) -> Array:
        """The head of the next step, if it ends no episode and is no item of any table. The next call writes into the
        same array.
        """
        self.write_head(self._appended)
        return self._appended

    def one(self, flags: int, priorities: tuple[float, ...]) -> Array:
        """The head of the next step. The next call writes into the same array.

        Args:
            flags: How it ends its episode: ES_STEP_TERMINATED, ES_STEP_TRUNCATED, both, or 0.
            priorities: What each table gives the items that the step completes.

        """
        self._pack(self._head.data, 0, self.stream, self.number, self.index, 0, self.episode, flags, *priorities)
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
        first = np.maximum.accumulate(np.where(ended, rows, -self.index)) if n else rows
        heads = _rows(n, len(self._head), self._num_tables, priorities)
        heads["stream"], heads["number"], heads["flags"] = (
            self.stream,
            self.number + rows,
            0 if flags is None else flags,
        )
        heads["index"], heads["episode"] = rows - first, self.episode + np.cumsum(ended)
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
        self.number += n
        if isinstance(flags, np.ndarray):
            ends = np.flatnonzero(flags[:n])
            self.episode += len(ends)
            self.index = n - 1 - int(ends[-1]) if len(ends) else self.index + n
        else:
            self.episode += bool(flags)
            self.index = 0 if flags else self.index + n

    def end_episode(self) -> None:
        """The next step begins an episode."""
        with self.lock:
            self.episode += self.index > 0
            self.index = 0


class VectorHeads:
    """The heads of several environments' steps, which are sent together: a stream for each environment.

    Attributes:
        n: How many environments.
        stream: The random number of them all.
        environments: Their next steps: n times an ``es_environment``. The extension reads and changes it, too.
        num_tables: How many priorities a head has.
        size: Bytes of a head.

    """

    def __init__(self, tables: Tables, n: int) -> None:
        self.n = n
        self.num_tables = len(tables)
        self.stream = secrets.randbits(64)
        self.size = head_bytes(tables)
        self.environments = np.zeros(n, _ENVIRONMENT)

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
        heads = _rows(len(both), self.size, self.num_tables, np.concatenate([priorities, priorities[ended]]))
        now, last = self.environments[both], np.arange(len(both)) >= k
        heads["stream"], heads["environment"], heads["episode"] = self.stream, both, now["episode"]
        heads["number"], heads["index"] = now["number"] + last, now["index"] + last
        heads["flags"][:k], heads["flags"][k:] = np.where(ended, 0, flags), flags[ended] | ES_STEP_FINAL
        return heads.view(np.uint8).reshape(len(both), self.size)

    def sent(self, rows: Array, flags: Array, ended: Array, skips_resets: bool) -> None:
        """Notes that all of these were sent. ``skips_resets``: the next row of those that ended an episode is none."""
        each, over = self.environments, rows[flags != 0]
        each["number"][rows] += 1 + ended.astype(np.uint64)
        each["index"][rows] += 1
        each["index"][over] = 0
        each["episode"][over] += 1
        each["resets"] = 0
        each["resets"][over] = skips_resets

    def end_episodes(self) -> None:
        """The next step of each environment begins an episode."""
        self.environments["episode"] += self.environments["index"] > 0
        self.environments["index"] = self.environments["resets"] = 0


def _rows(n: int, size: int, num_tables: int, priorities: Any) -> Array:
    """n heads as a structured array: with these priorities, and zeros."""
    heads = np.zeros((n, size), np.uint8)
    heads[:, _HEAD.size : _HEAD.size + 8 * num_tables].view("<f8")[:] = priorities
    return _view(heads)


def _view(heads: Array) -> Array:
    """Heads as a structured array over the same memory."""
    return heads.view(_dtype(heads.shape[1]))[:, 0]


@functools.lru_cache
def _dtype(size: int) -> np.dtype[Any]:
    return np.dtype({"names": _FIELDS, "formats": ["<u8"] * 2 + ["<u4"] * 4, "offsets": _OFFSETS, "itemsize": size})
