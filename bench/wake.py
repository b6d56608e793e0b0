"""The time from the last commit of a batch until the learner that slept for it runs.

The ring's way is timed from just before the ``send()`` that completes a batch
(``batch_size=1``: every one does) to the return of ``sample()`` in Python, so
it holds the commit, the system call, the scheduler, and the making of the
sample. The yardstick is a bare futex between the same two processes, timed in C
from just before the change of the word to the return of the wait.

How long a wake-up takes depends mostly on how deeply the sleeper's core sleeps,
hence on how long it has slept. So both are done at one pace: the producer waits
until the kernel shows the learner's thread asleep, waits a fixed time longer
without giving up its core, and only then wakes it; the answer, a futex as well,
puts the producer to sleep until the learner has run. The two alternate, wake-up
by wake-up. Both clocks are CLOCK_MONOTONIC, which is one for all processes.

Two pauses are reported. After 200 µs an idle core, a virtual one above all, may
still be polling for work: wake-ups are at their fastest, and whatever is not
scheduling weighs most; this ratio is judged. After 2 ms the core has halted for
real, or has run somebody else: wake-ups take many times longer, vary as much,
and the interpreter that runs on after one finds its caches cold.
"""

import ctypes
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np

import echo_shm
from bench import native
from bench.scale import Scale
from bench.table import Figure, Floor

_JUDGED_US = 200
_PAUSES_US = (_JUDGED_US, 2000)


class _Shared:
    """Two futex words and a table of times, in memory that both processes map."""

    def __init__(self, wakes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.words = context.RawArray(ctypes.c_uint32, 32)  # the two used are a cache line apart
        self.committed = context.RawArray(ctypes.c_int64, wakes)

    @property
    def ping(self) -> int:
        """The address of the word that wakes the learner."""
        return ctypes.addressof(self.words)

    @property
    def pong(self) -> int:
        """The address of the word that wakes the producer."""
        return ctypes.addressof(self.words) + 64


def _wait_asleep(stat: int) -> None:
    """Waits until the thread whose stat file is open as ``stat`` sleeps."""
    while os.pread(stat, 512, 0).rpartition(b")")[2][1:2] != b"S":
        pass


def _pause(nanoseconds: int) -> None:
    end = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() < end:
        pass


def _wake_learner(
    client: echo_shm.ShmClient, library: str, shared: _Shared, learner: int, wakes: int, pause_us: int
) -> None:
    """The producer: futex wake-ups and sends in turns, each answered by the learner."""
    lib, bound = native.load(library), client.bind({"x": np.zeros(1, np.float32)})
    ping, pong, committed = shared.ping, shared.pong, shared.committed
    stat = os.open(f"/proc/{learner}/task/{learner}/stat", os.O_RDONLY)
    for i in range(wakes):
        _wait_asleep(stat)
        _pause(pause_us * 1000)
        if i % 2 == 0:
            committed[i] = lib.bench_wake(ping)
        else:
            before = time.monotonic_ns()
            bound.send()
            committed[i] = before
        lib.bench_wait(pong, i)
    os.close(stat)


def _repetition(lib: ctypes.CDLL, library: str, wakes: int, pause_us: int) -> tuple[float, float]:
    """Median microseconds of the ring's wake-ups, and of the bare futex's."""
    shared, running = _Shared(wakes), []
    arguments: list[Any] = [library, shared, os.getpid(), wakes, pause_us]
    with (
        echo_shm.Server({"x": np.zeros(1, np.float32)}, 1) as server,
        server.spawn(_wake_learner, 1, *([argument] for argument in arguments)) as group,
    ):
        pings = 0
        for i in range(wakes):
            if i % 2 == 0:
                running.append(lib.bench_wait(shared.ping, pings))
                pings += 1
            else:
                server.sample()
                running.append(time.monotonic_ns())
            lib.bench_wake(shared.pong)
        group.join(timeout=30)
    times = [(after - before) / 1e3 for before, after in zip(shared.committed, running, strict=True)]
    return statistics.median(times[1::2]), statistics.median(times[::2])


def wake(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """A sleeping learner, woken by a commit and by a bare futex."""
    library: str = lib._name
    figures = []
    for pause_us in _PAUSES_US:
        pairs = [_repetition(lib, library, 2 * scale.wakes, pause_us) for _ in range(scale.repetitions)]
        ours, bare = [ring for ring, _ in pairs], [bare for _, bare in pairs]
        path = f"last commit → blocked learner running, asleep for {pause_us} µs"
        floor = Floor(1.5) if pause_us == _JUDGED_US else None
        figures.append(Figure(path, "µs", ours, "bare futex", bare, floor))
    return figures
