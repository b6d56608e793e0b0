"""Keys and values of all layers in blocks of one tensor."""

from collections.abc import Sequence

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.backbones.protocol import Part
from echo_shm.replay.validation import integer
from echo_shm.spec import Array

with needs("planning.backbones", "PyTorch", "torch", extra="planning"):
    import torch


#: How many blocks a cache has unless its user says so. See there.
_SEQUENCES, _FEW, _MOST_BYTES = 128, 512, 1 << 28


class PagedCache:
    """One tensor ``(layers, num_blocks, 2, heads, block_size, head_dim)``: keys at 0, values at 1.

    A masked place is multiplied by 0, so what is there must be a number: a block is emptied when its first place is
    written (:meth:`empty`), whatever a sequence before has left in it.

    Without ``num_blocks`` it has what 128 sequences of ``max_length`` take, as many rollouts as an engine runs unless
    it is told otherwise; but no more than fit into 256 MiB, or 512 if these are more, or what one such sequence takes.
    """

    def __init__(
        self,
        layers: int,
        num_blocks: int | None,
        max_length: int,
        heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        block_size = integer("block_size", block_size, 1)
        #: Of a block, all layers together.
        self.block_bytes: int = layers * 2 * heads * block_size * head_dim * torch.empty(0, dtype=dtype).element_size()
        if num_blocks is None:
            num_blocks = enough(-(-max_length // block_size), self.block_bytes)
        num_blocks = integer("num_blocks", num_blocks, 1)
        self.tensor = torch.zeros(layers, num_blocks, 2, heads, block_size, head_dim, dtype=dtype, device=device)
        self.num_blocks, self.block_size = num_blocks, block_size

    @property
    def device(self) -> torch.device:
        """Where the tensor is."""
        return self.tensor.device

    def empty(self, blocks: torch.Tensor) -> None:
        """Fills these blocks with zeros."""
        self.tensor[:, blocks] = 0

    def write(self, layer: int, blocks: torch.Tensor, places: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keeps keys and values ``(tokens, heads, head_dim)``; token i goes to ``places[i]`` of ``blocks[i]``."""
        of_layer = self.tensor[layer]
        of_layer[blocks, 0, :, places] = k
        of_layer[blocks, 1, :, places] = v

    def read(self, layer: int, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of sequences.

        Args:
            layer: Its number.
            tables: int64 ``(n, b)``: the blocks of n sequences, filled up with any.

        Returns:
            Both ``(n, heads, b * block_size, head_dim)``, copies. A caller masks what is not of the sequence.

        """
        both = self.tensor[layer][tables].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
        return both[0], both[1]

    def table(self, parts: Sequence[Part]) -> torch.Tensor:
        """The blocks of the parts, as far as their tokens go: int64 ``(n, b)``, filled up with each one's first."""
        counts = [-(-(part.start + len(part.tokens)) // self.block_size) for part in parts]
        table = np.empty((len(parts), max(counts)), np.int64)
        for row, part, count in zip(table, parts, counts, strict=True):
            row[:count] = part.blocks[:count]
            row[count:] = part.blocks[0]
        return torch.from_numpy(table).to(self.device)


def enough(of_one: int, block_bytes: int) -> int:
    """How many blocks, if one sequence may take so many, and each has so many bytes."""
    return max(of_one, min(_SEQUENCES * of_one, max(_FEW, _MOST_BYTES // block_bytes)))


class PagedBackbone:
    """What local backbones with a :class:`PagedCache` have in common."""

    def __init__(self, vocab_size: int, max_length: int, cache: PagedCache) -> None:
        self._vocab_size, self._max_length, self.cache = vocab_size, max_length, cache

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 to ``vocab_size - 1``."""
        return self._vocab_size

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""
        return self._max_length

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.cache.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self.cache.num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, all layers together."""
        return self.cache.block_bytes


class Flat:
    """The new tokens of several parts, one after the other: nothing is padded."""

    def __init__(self, parts: Sequence[Part], cache: PagedCache) -> None:
        def tensor(array: Array) -> torch.Tensor:
            return torch.from_numpy(array).to(cache.device)

        lengths = np.array([len(part.tokens) for part in parts])
        positions = np.concatenate([np.arange(part.start, part.start + len(part.tokens)) for part in parts])
        blocks = np.concatenate(
            [part.blocks[np.arange(part.start, part.start + len(part.tokens)) // cache.block_size] for part in parts]
        )
        self.tokens = tensor(np.concatenate([part.tokens for part in parts]).astype(np.int64))
        self.positions = tensor(positions)
        #: Where the keys and values of each token lie.
        self.blocks, self.places = tensor(blocks), tensor(positions % cache.block_size)
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        #: Blocks of which the first place is written.
        self.fresh = self.blocks[self.places == 0]
        #: Where the last token of each part is.
        self.last = tensor(self.ends - 1)
