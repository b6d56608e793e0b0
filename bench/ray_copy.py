"""Copies a block for each byte that comes, and says one once it is ready: ``python -m bench.ray_copy NBYTES``."""

import os
import sys
from collections.abc import Iterator

import numpy as np

#: Blocks: together they are more than caches hold.
_BLOCKS = 16


def copies(nbytes: int) -> Iterator[None]:
    """Copies a block of so many bytes to another one each time."""
    blocks, i = np.ones((_BLOCKS, nbytes), np.uint8), 0  # written to: its pages are there
    while True:
        np.copyto(blocks[i % _BLOCKS], blocks[(i + _BLOCKS // 2) % _BLOCKS])
        yield
        i += 1


if __name__ == "__main__":
    copying = copies(int(sys.argv[1]))
    next(copying)
    os.write(1, b"x")
    while os.read(0, 1):
        next(copying)
