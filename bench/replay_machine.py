"""What the machine does at best: numpy's ``take`` into arrays that are kept, and memcpy."""

import sys
from collections.abc import Callable

import numpy as np

from bench import native
from bench import replay_program as program
from bench.replay_program import Leaves, Measurement, Sizes


def _take(n: int, make: Callable[[int], Leaves], seconds: float) -> Measurement:
    example = make(1)
    store = {name: np.empty((n, *leaf.shape[1:]), leaf.dtype) for name, leaf in example.items()}
    first = 0
    for block in program.filling(n, make):
        size = len(block["done"])
        for name, leaf in block.items():
            store[name][first : first + size] = leaf
        first += size
    kept = {name: np.empty((program.BATCH_SIZE, *leaf.shape[1:]), leaf.dtype) for name, leaf in example.items()}
    random = np.random.default_rng(0)

    def work() -> float:
        rows = random.integers(0, n, program.BATCH_SIZE)
        for name, leaf in store.items():
            np.take(leaf, rows, axis=0, out=kept[name], mode="clip")  # the default mode copies everything twice
        return program.read(kept.values())

    return lambda: program.rate(work, 1, seconds)


def _memcpy(sizes: Sizes) -> Measurement:
    """Copies what an ``extend`` is given into memory of the store's size."""
    block = b"".join(leaf.tobytes() for leaf in program.atari(program.EXTENDED).values())
    slots = max(1, sizes.atari // program.EXTENDED)

    def measure() -> list[float]:
        with native.built() as library:
            return [program.EXTENDED * native.memcpy_rate(native.load(library), block, slots, sizes.seconds)]

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "take cartpole": lambda sizes: _take(sizes.cartpole, program.cartpole, sizes.seconds),
    "take atari": lambda sizes: _take(sizes.atari, program.atari, sizes.seconds),
    "memcpy": _memcpy,
}

if __name__ == "__main__":
    program.serve("memcpy" if sys.argv[1] == "memcpy" else f"numpy {np.__version__}, `take(out=)`", ROWS)
