"""The memory of batches that a learner receives. A block is used again once nothing refers to its arrays."""

import numpy as np

from echo_shm._batch import over
from echo_shm.spec import Array, Spec

_ALIGNMENT = 64


class _Block:
    """Memory for one batch: an array for each leaf, and where its bytes are."""

    def __init__(self, spec: Spec, n: int) -> None:
        sizes = [n * leaf.nbytes for leaf in spec.leaves]
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        memory = np.empty(end + _ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % _ALIGNMENT
        pieces = [memory[first + start :][:size] for start, size in zip(starts, sizes, strict=True)]
        self.spaces = [piece.data for piece in pieces]
        self.arrays: list[Array] = [
            piece.view(leaf.dtype).reshape(n, *leaf.shape) for piece, leaf in zip(pieces, spec.leaves, strict=True)
        ]


class _Use:
    """What the arrays of one batch refer to."""

    __slots__ = ("_block", "_free")

    def __init__(self, block: _Block, free: list[_Block]) -> None:
        self._block, self._free = block, free

    def __del__(self) -> None:
        self._free.append(self._block)


class Blocks:
    """Makes blocks, and uses them again.

    Args:
        spec: What an item of a batch looks like.
        n: Items of a batch.
        most: How many blocks to keep that nothing refers to.

    """

    def __init__(self, spec: Spec, n: int, most: int) -> None:
        self._spec, self._n, self._most = spec, n, most
        self._free: list[_Block] = []

    def take(self) -> tuple[list[memoryview], list[Array]]:
        """Where to write a batch, leaf after leaf, and the arrays over that memory. They are the caller's.

        Raises:
            MemoryError: There is not enough.

        """
        try:
            block = self._free.pop()
        except IndexError:
            try:
                block = _Block(self._spec, self._n)
            except ValueError as error:  # larger than any memory
                raise MemoryError(str(error)) from None
        del self._free[self._most :]
        use = _Use(block, self._free)
        return block.spaces, [over(array, (array, use), True) for array in block.arrays]
