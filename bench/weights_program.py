"""What the programs that publish weights share: the parameters, readers in processes of their own, and what is timed.

As :mod:`bench.replay_program`, this needs numpy alone: each library is measured with an interpreter of its own.
"""

import contextlib
import ctypes
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.replay_program import Leaves, Measurement, Sizes

#: Layers of the network, and units of each.
_LAYERS, _WIDTH = 10, 64

#: Between two versions: readers go to sleep (seconds). And the least number of versions.
_PAUSE, _LEAST = 0.02, 3

#: Versions that are not counted, at most: as many as a segment of ours has slots, so that every page is mapped.
_WARMUP = 10

#: A reader that has not got a version by then has failed (seconds).
_DEADLINE = 60.0

#: How often a publisher looks whether all readers have a version (seconds).
_LOOK = 0.0005

#: Runs in each reader: takes its number, a function that it calls when it has a version, and more. It never returns.
Reader = Callable[..., None]

#: What publishes a version.
Publish = Callable[[], Any]


def parameters(nbytes: int) -> Leaves:
    """About so many bytes of float32 in 20 arrays, a matrix and a vector for each layer. Few layers have most of it."""
    random = np.random.default_rng(0)
    shares = 0.6 ** np.arange(_LAYERS)
    leaves = {}
    for layer, share in enumerate(shares / shares.sum()):
        rows = max(1, round(nbytes * float(share) / 4 / _WIDTH) - 1)
        leaves[f"layer{layer}_weight"] = random.standard_normal((rows, _WIDTH), np.float32)
        leaves[f"layer{layer}_bias"] = random.standard_normal(_WIDTH, np.float32)
    return leaves


def size_of(leaves: Leaves) -> int:
    """Bytes."""
    return sum(leaf.nbytes for leaf in leaves.values())


def context(*modules: str) -> Any:
    """For readers: a forkserver that has imported these modules already, and so what the program imports."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(modules))
    return made


def _run(reader: Reader, number: int, stamps: Any, arguments: Sequence[Any]) -> None:
    def stamp() -> None:
        stamps[number] = time.monotonic_ns()

    reader(number, stamp, *arguments)


@contextlib.contextmanager
def readers(make: Any, reader: Reader, arguments: Sequence[Sequence[Any]]) -> Iterator["Readers"]:
    """A process for each item of ``arguments``. They are killed at the end of the block."""
    count = len(arguments)
    stamps = make.RawArray(ctypes.c_int64, count)
    processes = [
        make.Process(target=_run, args=(reader, number, stamps, mine), daemon=True)
        for number, mine in enumerate(arguments)
    ]
    try:
        for process in processes:
            process.start()
        yield Readers(processes, stamps)
    finally:
        for process in processes:
            process.kill()
            process.join()


class Readers:
    """Processes that say when each has a version."""

    def __init__(self, processes: Sequence[Any], stamps: Any) -> None:
        self._processes, self._stamps = processes, stamps

    def await_all(self, since: int = 0) -> int:
        """Waits until all have stamped later than that moment (ns): the last stamp.

        Raises:
            RuntimeError: A reader ended, or does not get it.

        """
        deadline = time.monotonic() + _DEADLINE
        while min(self._stamps) <= since:
            if any(process.exitcode is not None for process in self._processes):
                raise RuntimeError("a reader ended; its traceback is on stderr")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all readers had a version within {_DEADLINE:.0f} s")
            time.sleep(_LOOK)
        return int(max(self._stamps))

    def milliseconds(self, publish: Publish, seconds: float) -> float:
        """From the call of ``publish`` to the moment when the last reader has its copy, the median over versions."""
        self._times(publish, seconds, 1, _WARMUP)
        return statistics.median(self._times(publish, seconds, _LEAST)) / 1e6

    def _times(self, publish: Publish, seconds: float, least: int, most: float = math.inf) -> list[int]:
        """Of the versions of so many seconds, but at least and at most so many (ns)."""
        times: list[int] = []
        until = time.monotonic() + seconds
        while len(times) < least or (len(times) < most and time.monotonic() < until):
            time.sleep(_PAUSE)
            start = time.monotonic_ns()
            publish()
            times.append(self.await_all(start) - start)
        return times


#: For parameters and a number of readers: the readers, all ready, and the ways to publish, of which the fastest counts.
Setting = Callable[[Leaves, int], contextlib.AbstractContextManager[tuple[Readers, Sequence[Publish]]]]


def receive(setting: Setting) -> Callable[[Sizes], Measurement]:
    """A row: for each size of weights the time until one reader has a version; then until many have the smallest."""

    def prepare(sizes: Sizes) -> Measurement:
        cases = [*((n, 1) for n in sizes.weights), (min(sizes.weights), sizes.workers)]
        made = {n: parameters(n) for n in sizes.weights}

        def measure() -> list[float]:
            values = []
            for nbytes, count in cases:
                with setting(made[nbytes], count) as (running, ways):
                    seconds = sizes.seconds / 4 / len(ways)
                    values.append(min(running.milliseconds(publish, seconds) for publish in ways))
            return values

        return measure

    return prepare
