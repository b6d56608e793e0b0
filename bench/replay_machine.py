"""What the machine does at best: numpy's ``take`` into arrays that are kept, memcpy, and bare accesses to memory.

And what Python has without any library: weights in a queue.
"""

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import native, weights_queue
from bench import replay_program as program
from bench.replay_program import Leaves, Measurement, Sizes


def _stored(n: int, make: Callable[[int], Leaves]) -> Leaves:
    """An array for each leaf."""
    store = {name: np.empty((n, *leaf.shape[1:]), leaf.dtype) for name, leaf in make(1).items()}
    first = 0
    for block in program.filling(n, make):
        size = len(block["done"])
        for name, leaf in block.items():
            store[name][first : first + size] = leaf
        first += size
    return store


def _take(n: int, make: Callable[[int], Leaves], seconds: float) -> Measurement:
    store = _stored(n, make)
    kept = {name: np.empty((program.BATCH_SIZE, *leaf.shape[1:]), leaf.dtype) for name, leaf in store.items()}
    random = np.random.default_rng(0)

    def work() -> float:
        rows = random.integers(0, n, program.BATCH_SIZE)
        for name, leaf in store.items():
            np.take(leaf, rows, axis=0, out=kept[name], mode="clip")  # the default mode copies everything twice
        return program.read(kept.values())

    return lambda: program.rate(work, 1, seconds)


def _take_parts(
    n: int, make: Callable[[int], Leaves], parts: int, length: int, twice: str, seconds: float
) -> Measurement:
    """Takes so many consecutive steps at a time; of the leaf ``twice``, those a step later as well."""
    store = _stored(n, make)
    kept = {name: np.empty((parts, length, *leaf.shape[1:]), leaf.dtype) for name, leaf in store.items()}
    if twice:
        kept["next"] = np.empty_like(kept[twice])
    random, within = np.random.default_rng(0), np.arange(length)

    def work() -> float:
        rows = random.integers(0, n - length, (parts, 1)) + within
        for name, leaf in store.items():
            np.take(leaf, rows, axis=0, out=kept[name], mode="clip")
        if twice:
            np.take(store[twice], rows + 1, axis=0, out=kept["next"], mode="clip")
        return program.read(kept.values())

    return lambda: program.rate(work, 1, seconds)


def _take_stacks(sizes: Sizes) -> Measurement:
    n = program.STACK * sizes.atari
    return _take_parts(n, program.frames, program.BATCH_SIZE, program.STACK, "obs", sizes.seconds)


def _take_sequences(sizes: Sizes) -> Measurement:
    return _take_parts(sizes.cartpole, program.episodes, program.SEQUENCES, program.LENGTH, "", sizes.seconds)


def _memcpy(sizes: Sizes) -> Measurement:
    """Copies what an ``extend`` is given into memory of the store's size."""
    block = b"".join(leaf.tobytes() for leaf in program.atari(program.EXTENDED).values())
    slots = max(1, sizes.atari // program.EXTENDED)

    def measure() -> list[float]:
        lib = native.load(native.built())
        return [program.EXTENDED * native.memcpy_rate(lib, block, slots, sizes.seconds)]

    return measure


#: What a node of the tree of weights has of each kind is of its 16 children: of items, 16 times 16.
_FANOUT_BITS = 4


def _memory(size: int) -> np.ndarray[Any, Any]:
    """Memory of the kind that a store in one process lies in, all pages there, from the start of a page on."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    return array


def _accesses(n: int, seconds: float, prioritized: bool = False, nstep: int = 0) -> Measurement:
    """The accesses to memory that a ``sample`` cannot do without, or it and an ``update`` of the same items.

    Items of ``nstep`` steps take the rows of these, and the one that follows; ``next_obs`` is not in a row then. Of the
    tree of weights these are the two lowest levels: those above are small, and stay in the nearest caches.
    """
    lib = native.load(native.built())
    record, node, kind = native.core_sizes(lib)
    row = sum(leaf.nbytes for name, leaf in program.cartpole(1).items() if not (nstep and name == "next_obs"))
    kept = []

    def array(distance: int, size: int, shift: int = 0) -> Callable[..., native.Part]:
        """An array with an element of ``size`` bytes for so many items."""
        memory = _memory(((n - 1 >> shift) + 1 + nstep) * distance)
        kept.append(memory)

        def part(writes: bool, first: int = 0, size: int = size) -> native.Part:
            return native.Part(memory.ctypes.data + first, distance, size, shift, writes)

        return part

    # Rows lie at multiples of 16 bytes, as of any step with a leaf of 16 bytes.
    distance = -(-row // 16) * 16
    items, rows = array(record, record), array(distance, nstep * distance + row)
    parts = [items(True), rows(False)]  # it counts how often an item was drawn
    if prioritized:
        weights, nodes = array(kind, kind, _FANOUT_BITS), array(node, kind, 2 * _FANOUT_BITS)
        begin, total, least = range(0, node, kind)
        down = [nodes(False, begin), weights(False)]
        up = [items(True), weights(True), nodes(True, begin), nodes(False, total)]
        parts = [*down, *parts, *up, nodes(False, least, kind // 2)]

    def measure() -> list[float]:
        assert kept  # the memory lives as long as this
        return [native.accesses_rate(lib, parts, n, program.BATCH_SIZE, seconds)]

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "take cartpole": lambda sizes: _take(sizes.cartpole, program.cartpole, sizes.seconds),
    "take atari": lambda sizes: _take(sizes.atari, program.atari, sizes.seconds),
    "take stacks": _take_stacks,
    "take sequences": _take_sequences,
    "memcpy": _memcpy,
    "accesses cartpole": lambda sizes: _accesses(sizes.cartpole, sizes.seconds),
    "accesses prioritized": lambda sizes: _accesses(sizes.cartpole, sizes.seconds, prioritized=True),
    "accesses n_step": lambda sizes: _accesses(sizes.cartpole, sizes.seconds, nstep=program.NSTEP),
    **weights_queue.ROWS,
}

_NAMES = {
    "memcpy": "memcpy",
    "accesses": "bare accesses to memory",
    "take": f"numpy {np.__version__}, `take(out=)`",
    "queue": "`multiprocessing.Queue`",
}

if __name__ == "__main__":
    program.serve(_NAMES[sys.argv[1].partition(" ")[0]], ROWS)
