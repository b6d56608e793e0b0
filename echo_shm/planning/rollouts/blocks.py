"""Who has which block of a paged KV cache.

A sequence has a frozen prefix, whose blocks it shares with others and never writes to, and a rolling part of its own.
Only whole blocks are shared, so no block is ever copied: a rest of less than a block is computed again.

Each block counts its references: one of each sequence that has it, and one of the index of prefixes. A sequence leases
what it shares, so the index evicts only blocks that nobody else has: these are free at once.

All of this is bookkeeping of one thread. The backbone's calls follow each other, and each writes to a block before it
or a later call reads it. So a block may be given to another sequence while a call still runs that writes to it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from echo_shm.planning.backbones.protocol import Part
from echo_shm.planning.prefix_index import Lease, PrefixIndex
from echo_shm.replay.validation import integer
from echo_shm.spec import Array


class BlockPool:
    """Numbers of blocks, with reference counts.

    Args:
        num_blocks: Blocks are 0 to ``num_blocks - 1``.

    """

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * integer("num_blocks", num_blocks, 1)
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks to which nobody refers."""
        return len(self._free)

    def take(self, n: int) -> list[int]:
        """N free blocks, each with one reference. There must be so many."""
        if n > len(self._free):
            raise ValueError(f"{n} blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        taken = [self._free.pop() for _ in range(n)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these blocks, which have one already."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free: nobody can share it")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less to each of these blocks."""
        for block in blocks:
            if not self._references[block]:
                raise ValueError(f"block {block} is free: nobody refers to it")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)


class Blocks:
    """The blocks of one backbone, its sequences, and the prefixes that they can share.

    Args:
        num_blocks: Of the backbone.
        block_size: Of the backbone, in tokens.
        share: Whether what a sequence has published is used by others.

    """

    def __init__(self, num_blocks: int, block_size: int, share: bool = True) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = integer("block_size", block_size, 1)
        self.index = PrefixIndex(num_blocks, block_size=block_size) if share else None
        #: What is published is of weights that are not used any more when this has changed.
        self.version = 0

    def count(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_size)

    def make_room(self, n: int) -> bool:
        """Whether n blocks are free, if need be after the prefixes had to go that were used longest ago."""
        if n > self.pool.num_free and self.index is not None:
            self.pool.release(self.index.evict(n - self.pool.num_free).tolist())
        return n <= self.pool.num_free

    def forget(self) -> None:
        """Forgets all prefixes, as the backbone's weights have changed. Sequences must be dropped first."""
        self.version += 1
        if self.index is not None:
            self.pool.release(self.index.evict(self.index.capacity).tolist())


class CachedSequence:
    """The tokens of one rollout, and the blocks of those that are computed.

    It grows by :meth:`append`. What is not computed yet is computed by :meth:`find`, :meth:`reserve`, the backbone with
    :meth:`part`, and :meth:`advance`, in this order.

    Args:
        blocks: Where its blocks come from.
        prefix: A soft prefix ``(p, width)``. The names of its embeddings are the first p tokens, so its blocks are
            shared by sequences with an equal prefix alone.

    """

    def __init__(self, blocks: Blocks, prefix: Array | None = None) -> None:
        self._of, self._prefix = blocks, prefix
        self.tokens: list[int] = [] if prefix is None else prefix_names(prefix)
        #: Blocks of the tokens, the shared ones first.
        self.blocks: list[int] = []
        #: How many tokens have their keys and values in the blocks.
        self.computed = 0
        self._lease: Lease | None = None

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens to be computed."""
        self.tokens.extend(tokens)

    def find(self) -> None:
        """Shares the longest prefix that is published, if that saves more than what is computed."""
        index = self._of.index
        if index is None or len(self.tokens) - self.computed <= self._of.block_size:  # no whole block to save
            return
        if index.match(self.tokens).length <= self.computed:
            return
        lease = index.lease(self.tokens)
        self._adopt(lease)
        self.computed = lease.length

    def next_prefix(self) -> bytes | None:
        """The tokens up to the end of the next block to be computed, if others could share that block."""
        end = (self.computed // self._of.block_size + 1) * self._of.block_size
        if self._of.index is None or len(self.tokens) <= end:
            return None
        return np.array(self.tokens[:end], np.int64).tobytes()

    def reserve(self) -> bool:
        """Takes blocks for all tokens. Returns False if there are too few: nothing is taken then."""
        missing = self._of.count(len(self.tokens)) - len(self.blocks)
        if missing > 0:
            if not self._of.make_room(missing):
                return False
            self.blocks += self._of.pool.take(missing)
        return True

    def part(self) -> Part:
        """What the backbone is to compute."""
        tokens = np.array(self.tokens[self.computed :], np.int64)
        return Part(tokens, self.computed, np.array(self.blocks, np.int64), self._prefix)

    def advance(self, computed: int) -> None:
        """So many tokens have their keys and values now."""
        self.computed = computed

    def publish(self) -> None:
        """Lets others share the full blocks that are computed.

        Where others have published the same tokens, this sequence gives its own blocks back and shares theirs.
        """
        index = self._of.index
        if index is None:
            return
        full = self.computed // self._of.block_size
        if full <= (self._lease.length // self._of.block_size if self._lease else 0):
            return
        made = index.insert(self.tokens[: full * self._of.block_size], self.blocks[:full], lease=True)
        self._of.pool.share(self.blocks[made.known : made.known + made.taken])
        assert made.lease is not None
        assert not len(made.evicted)  # the index has room for every block there is
        self._adopt(made.lease)

    def _adopt(self, lease: Lease) -> None:
        """Has the lease's blocks for its first ones."""
        theirs = lease.blocks.tolist()
        self._of.pool.share(theirs)
        self._of.pool.release(self.blocks[: len(theirs)])
        self.blocks[: len(theirs)] = theirs
        if self._lease is not None:
            self._lease.release()
        self._lease = lease

    def drop(self) -> None:
        """Gives all blocks back. The tokens stay, and are to be computed again. Idempotent."""
        self._of.pool.release(self.blocks)
        self.blocks, self.computed = [], 0
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def prefix_names(prefix: Array) -> list[int]:
    """Numbers below 0, as no token is, for the embeddings of a soft prefix ``(p, width)``.

    They follow from all of its bytes, by SHA-256. So different prefixes do not share a name.
    """
    whole = hashlib.sha256(prefix.tobytes()).digest()
    names = (hashlib.sha256(whole + number.to_bytes(8, "little")).digest() for number in range(len(prefix)))
    return [-1 - int.from_bytes(name[:8], "little") // 2 for name in names]


def as_prefix(label: str, prefix: Array, backbone: object) -> Array:
    """A checked soft prefix of a user, as a copy: float32 ``(p, width)``.

    Raises:
        TypeError: The backbone takes none.
        ValueError: It has another shape, or is not finite.

    """
    width = getattr(backbone, "width", None)
    if width is None:
        raise TypeError(f"{label}: {type(backbone).__name__} takes no soft prefix: use a TransformerBackbone")
    given: Any = prefix
    if hasattr(given, "detach"):  # a tensor: perhaps with a gradient, elsewhere, or of a dtype that numpy has not
        given = given.detach().float().cpu().numpy()
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        array = np.array(given, np.float32)
    if array.ndim != 2 or not len(array) or array.shape[1] != width:
        raise ValueError(f"{label} has shape {array.shape}: use (p, {width}), p at least 1, as this backbone is wide")
    if not np.isfinite(array).all():
        raise ValueError(f"{label} has numbers that are not finite")
    return array


def as_tokens(label: str, tokens: Sequence[int] | Array, vocab_size: int) -> list[int]:
    """Checked tokens of a user.

    Raises:
        ValueError: They are no whole numbers of 0 to ``vocab_size - 1``, or there are none.

    """
    array = np.asarray(tokens)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise ValueError(f"{label} has dtype {array.dtype} and shape {array.shape}: use whole numbers, at least one")
    if array.min() < 0 or array.max() >= vocab_size:
        raise ValueError(f"{label} has tokens from {array.min()} to {array.max()}: use 0 to {vocab_size - 1}")
    result: list[int] = array.tolist()
    return result
