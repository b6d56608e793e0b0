"""Keys and values of all layers in blocks of one tensor."""

from collections.abc import Sequence

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.backbones.protocol import Part
from echo_shm.replay.validation import integer
from echo_shm.spec import Array

with needs("planning.backbones", "PyTorch", "torch", extra="planning"):
    import torch


class PagedCache:
    """One tensor ``(layers, num_blocks, 2, heads, block_size, head_dim)``: keys at 0, values at 1.

    A masked place is multiplied by 0, so what is there must be a number: a block is emptied when its first place is
    written (:meth:`empty`), whatever a sequence before has left in it.
    """

    def __init__(
        self,
        layers: int,
        num_blocks: int,
        heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        num_blocks, block_size = integer("num_blocks", num_blocks, 1), integer("block_size", block_size, 1)
        self.tensor = torch.zeros(layers, num_blocks, 2, heads, block_size, head_dim, dtype=dtype, device=device)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.block_bytes: int = self.tensor[:, 0].numel() * self.tensor.element_size()

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
