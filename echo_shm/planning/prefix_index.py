"""Which prefix of a token sequence has its cache already: a radix tree over blocks of tokens."""

import array
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from echo_shm._core import ffi, lib
from echo_shm.planning.arguments import integer_array
from echo_shm.replay.validation import flag, integer

Tokens: TypeAlias = Sequence[int] | npt.NDArray[Any]
Blocks: TypeAlias = npt.NDArray[np.int64]


class Match(NamedTuple):
    """The longest cached prefix of a sequence."""

    #: In tokens: a multiple of ``block_size``; 0 if nothing is cached.
    length: int
    #: int64 ``(length // block_size,)``: the numbers of its blocks, in the sequence's order. The array is the caller's.
    blocks: Blocks


class Lease:
    """Keeps a prefix in the index until it is released. Leave its ``with`` block, or call :meth:`release`.

    One that is forgotten keeps its prefix for as long as there is the index.

    Attributes:
        length: The length of the prefix, in tokens. May be 0: such a lease keeps nothing.
        blocks: int64 ``(length // block_size,)``: the numbers of its blocks; read-only.

    """

    def __init__(self, index: "PrefixIndex", end: int, blocks: Blocks) -> None:
        self.length = len(blocks) * index.block_size
        self.blocks = blocks
        self.blocks.flags.writeable = False
        self._index, self._end, self._released = index, end, False

    def release(self) -> None:
        """Gives the lease back, which counts as a use of the prefix. A second call does nothing."""
        with self._index._lock:
            if not self._released:
                lib.es_prefix_index_release(self._index._nodes, self._end)
            self._released = True

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease(length={self.length}{', released' if self._released else ''})"


class Insertion(NamedTuple):
    """What became of the blocks of an :meth:`PrefixIndex.insert`."""

    #: How many blocks at the front were cached before. The index keeps the numbers that it has.
    known: int
    #: How many after those it has taken: it refers to ``blocks[known : known + taken]`` now. Fewer than there
    #: were if the rest finds no room, as everything else is leased.
    taken: int
    #: int64 ``(e,)``: blocks that had to go. The index does not refer to them any more.
    evicted: Blocks
    #: On ``blocks[: known + taken]``, if one was asked for.
    lease: Lease | None


class PrefixIndex:
    """Finds the longest cached prefix of a token sequence.

    A sequence is cut into blocks of ``block_size`` tokens; a rest at its end is left alone. For each cached block the
    index has a number of the caller's: of a block of a paged KV cache, say. Sequences with a common prefix share its
    blocks. A lookup costs as much as the sequence is long, however many are cached.

    **Eviction.** The index holds at most ``capacity // block_bytes`` blocks. What was used longest ago goes first,
    block by block from the end of a sequence: a block never goes before the blocks that continue it, and never while
    it, or one that continues it, is leased. Matching, leasing, releasing and inserting a prefix use each of its blocks.

    **Who owns a block.** The index owns no memory. Where blocks have reference counts, it holds one reference to each
    block that it has: count up ``blocks[known : known + taken]`` after an :meth:`insert`, and count down what
    ``evicted`` and :meth:`evict` name. The caller's own references are its own matter.

    Calls of several threads follow each other.

    Args:
        capacity: Bytes that all cached blocks together may hold.
        block_size: Tokens of a block. With 1, the prefix is found to the token.
        block_bytes: Bytes that the cache of one block holds. With 1, the capacity is a number of blocks.

    Raises:
        ValueError: A number is out of range, or there is no room for one block.
        MemoryError: There is no memory for the index.

    """

    def __init__(self, capacity: int, *, block_size: int = 1, block_bytes: int = 1) -> None:
        self._capacity = integer("capacity", capacity, 1)
        self._block_size = integer("block_size", block_size, 1)
        self._block_bytes = integer("block_bytes", block_bytes, 1)
        most = self._capacity // self._block_bytes
        if most == 0:
            raise ValueError(f"capacity={capacity} is less than one block of block_bytes={block_bytes}: use more")
        self._lock = threading.Lock()  # calls of the core let other threads run
        self._nodes = ffi.gc(lib.es_prefix_index_new(self._block_size, most), lib.es_prefix_index_free)
        if self._nodes == ffi.NULL:
            raise MemoryError("no memory for a PrefixIndex")
        self._end, self._done = ffi.new("uint32_t *"), ffi.new("es_prefix_insertion *")

    def match(self, tokens: Tokens) -> Match:
        """The longest cached proper prefix: at least the last token is not in it, since a model has to compute it.

        What it names may be evicted by the next insert or evict. Use :meth:`lease` to keep it.

        Args:
            tokens: int ``(t,)``: a list, a tuple, or an array of integers.

        Raises:
            ValueError: ``tokens`` is something else.

        """
        given = _integers("tokens", tokens)
        with self._lock:
            blocks = self._find(given)
        return Match(len(blocks) * self._block_size, blocks)

    def lease(self, tokens: Tokens) -> Lease:
        """As :meth:`match`, and keeps what it finds until the lease is released. The same may be leased many times.

        Args:
            tokens: int ``(t,)``.

        Raises:
            ValueError: ``tokens`` is something else.

        """
        given = _integers("tokens", tokens)
        with self._lock:
            blocks = self._find(given)
            end = self._end[0]
            lib.es_prefix_index_lease(self._nodes, end)
        return Lease(self, end, blocks)

    def insert(self, tokens: Tokens, blocks: Tokens, *, lease: bool = False) -> Insertion:
        """Caches a sequence.

        Of blocks that are cached already, the index keeps its own numbers. To make room it evicts others; if that is
        not enough, it takes the first of the new blocks only.

        Args:
            tokens: int ``(t,)``.
            blocks: int ``(t // block_size,)``: the number of each full block, 0 or more.
            lease: Whether to lease what is cached of the sequence then. An earlier lease stays: release it afterwards.

        Raises:
            ValueError: There are more or fewer blocks than ``t // block_size``, or one below 0.
            MemoryError: There is no memory for it. Nothing is cached or evicted.

        """
        given, numbers = _integers("tokens", tokens), _integers("blocks", blocks).copy()
        flag("lease", lease)
        full = len(given) // self._block_size
        if len(numbers) != full:
            raise ValueError(
                f"got {len(numbers)} blocks for {len(given)} tokens: use {full}, one for each {self._block_size} tokens"
            )
        if full and numbers.min() < 0:
            raise ValueError(f"a block has number {numbers.min()}: use 0 or more")
        gone, done = np.empty(full, np.int64), self._done
        arrays = [ffi.from_buffer("int64_t[]", one) for one in (given, numbers, gone)]
        with self._lock:
            _check(lib.es_prefix_index_insert(self._nodes, arrays[0], full, arrays[1], done, arrays[2]))
            known, taken, evicted, end = done.known, done.taken, done.evicted, done.end
            if lease:
                lib.es_prefix_index_lease(self._nodes, end)
        held = Lease(self, end, numbers[: known + taken]) if lease else None
        return Insertion(known, taken, gone[:evicted].copy(), held)

    def evict(self, size: int) -> Blocks:
        """Evicts blocks of at least so many bytes, or all that can go.

        Returns:
            int64 ``(e,)``: the blocks that went: ``ceil(size / block_bytes)`` or fewer.

        """
        wanted = -(-integer("size", size, 0) // self._block_bytes)
        with self._lock:
            wanted = min(wanted, lib.es_prefix_index_blocks(self._nodes))
            gone = np.empty(wanted, np.int64)
            evicted = lib.es_prefix_index_evict(self._nodes, wanted, ffi.from_buffer("int64_t[]", gone))
        went: Blocks = gone[:evicted].copy()
        return went

    @property
    def capacity(self) -> int:
        """Bytes that all cached blocks together may hold."""
        return self._capacity

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def block_bytes(self) -> int:
        """Bytes of the cache of one block."""
        return self._block_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all cached blocks."""
        return len(self) * self._block_bytes

    def __len__(self) -> int:
        """The number of cached blocks."""
        return lib.es_prefix_index_blocks(self._nodes)

    def _find(self, tokens: Blocks) -> Blocks:
        """The numbers of the blocks of the longest cached proper prefix, which ends at ``self._end``."""
        full = max(len(tokens) - 1, 0) // self._block_size
        numbers = np.empty(full, np.int64)
        data = ffi.from_buffer("int64_t[]", tokens), ffi.from_buffer("int64_t[]", numbers)
        found = _check(lib.es_prefix_index_match(self._nodes, data[0], full, data[1], self._end))
        blocks: Blocks = numbers[:found]
        return blocks


def _check(code: int) -> int:
    if code < 0:
        raise MemoryError("no memory for a node of a PrefixIndex")
    return code


def _integers(label: str, value: Tokens) -> Blocks:
    """A C-contiguous int64 array of one dimension. A list takes a third of the time that numpy needs for it."""
    if isinstance(value, np.ndarray) and value.dtype == np.int64 and value.ndim == 1 and value.flags.c_contiguous:
        return value
    if isinstance(value, list | tuple):
        try:
            return np.asarray(array.array("q", value))
        except (TypeError, OverflowError):
            pass
    numbers = integer_array(label, value)
    if numbers.ndim != 1:
        raise ValueError(f"{label} has shape {numbers.shape}: use one dimension")
    return numbers
