"""The time of ``sample()`` when a batch is ready.

The ring is filled, then emptied by calls of ``sample()`` that are timed one by
one; a repetition's value is the median call. A call releases the batch of the
previous one, and drops its arrays, so the first after a filling is left out.
All in one process: nothing else runs, and nothing is waited for.
"""

import contextlib
import ctypes
import statistics
import time
from typing import Any

import echo_shm
from bench import peers
from bench.samples import SAMPLES, stacked
from bench.scale import Scale
from bench.table import Figure, Floor
from bench.throughput import Measure, in_turns

_BATCH_SIZE = 8
_NUM_BUFFERS = 32

#: Samples that fill the ring while one batch is still held.
_FILLING = _BATCH_SIZE * (_NUM_BUFFERS - 1)

#: id-echo's submit() may return before the batch is ready: time for its threads to get there (seconds).
_SETTLE = 0.01


def _timed_calls(server: Any) -> list[int]:
    """Nanoseconds of each call that takes a batch out of a full ring."""
    times, now = [], time.perf_counter_ns
    sample = server.sample()
    for _ in range(_NUM_BUFFERS - 2):
        start = now()
        sample = server.sample()
        times.append(now() - start)
    del sample
    return times


def _shm(name: str, scale: Scale) -> Measure:
    def measure() -> float:
        times: list[int] = []
        with (
            echo_shm.Server(SAMPLES[name](), _BATCH_SIZE, num_buffers=_NUM_BUFFERS) as server,
            echo_shm.ShmClient(server.handle) as client,
        ):
            filling = stacked(SAMPLES[name](), _FILLING)
            for _ in range(scale.latency_rounds):
                client.send_many(filling)
                times += _timed_calls(server)
        return statistics.median(times) / 1e3

    return measure


def _id_echo(name: str, scale: Scale) -> Measure:
    def measure() -> float:
        times: list[int] = []
        sample = SAMPLES[name]()
        with contextlib.closing(peers.in_process(name, _BATCH_SIZE, _NUM_BUFFERS)) as server:
            for _ in range(scale.latency_rounds):
                for _ in range(_FILLING):
                    server.submit(sample)
                time.sleep(_SETTLE)
                times += _timed_calls(server)
        return statistics.median(times) / 1e3

    return measure


def sample(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """``sample()`` with few and with many leaves."""
    figures = []
    for name, leaves, bound in (("cartpole", 2, 3.0), ("44 leaves", 44, 15.0)):
        contenders = {"sample": _shm(name, scale)}
        if peers.available:
            contenders["id-echo"] = _id_echo(name, scale)
        values = in_turns(contenders, scale.repetitions)
        path = f"`sample()` of a ready batch, {leaves} leaves"
        floor = Floor(bound, of="value")
        figures.append(Figure(path, "µs", values["sample"], "id-echo", values.get("id-echo", ()), floor))
    return figures
