"""Samples from workers to a learner over Ray's nodes: what they are, and how the rate of one contender is taken.

Workers and the learner run at once, as fast as they can. A worker makes steps in blocks and writes down when each was
taken from it; the learner counts what it draws, in batches. A buffer may store what is never drawn, or draw one step
often: what counts is the smaller of both rates. Ours has a rate limiter that draws as many as it stores, which is what
the others cannot be told.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optree
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bench import ray_copy, replay_program
from bench.ray_cost import busy_seconds, say_cost
from bench.replay_program import BATCH_SIZE, Leaves

#: From the first batch until the learner counts (seconds): then queues and buffers are as full as they get.
_WARM = 1.0

#: How far ours may store ahead of what it draws, and draw ahead of what it stores (samples).
_AHEAD = 16 * BATCH_SIZE

#: Steps that a buffer stores, by the samples' name: some hundred megabytes of Atari.
STORED = {"cartpole": 100_000, "atari": 8_192}


def block(name: str) -> Leaves:
    """256 transitions, stacked. CartPole: 41 bytes each in 5 leaves. Atari: 56,457 bytes, two stacks of four frames."""
    leaves = replay_program.cartpole(BATCH_SIZE)
    if name == "atari":
        frames = np.random.default_rng(0).integers(0, 256, (2, BATCH_SIZE, 4, 84, 84), np.uint8)
        leaves |= {"obs": frames[0], "next_obs": frames[1]}
    return leaves


def steps(name: str) -> list[Leaves]:
    """The same, one by one. Each has arrays of its own."""
    return [{key: leaf.copy() for key, leaf in step.items()} for step in replay_program.steps(block(name))]


def size_of(name: str) -> int:
    """Bytes of a sample."""
    return sum(leaf.nbytes for leaf in block(name).values()) // BATCH_SIZE


def on(node: str) -> dict[str, Any]:
    """Options of what runs on that node."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 0}


class Span:
    """From when to when the learner counts. It pickles: workers look whether it is over.

    It is a file: all nodes here have the same disk, and the same clock.
    """

    def __init__(self) -> None:
        handle, self._path = tempfile.mkstemp(prefix="span")
        os.close(handle)

    def is_over(self) -> bool:
        """Whether the learner has counted."""
        return os.stat(self._path).st_size > 0

    def set(self, start: float, end: float) -> None:
        """The learner's word."""
        Path(self._path + "+").write_text(f"{start} {end}")
        os.replace(self._path + "+", self._path)

    def rate(self, marks: list[tuple[float, int]]) -> float:
        """What one did in it a second, who wrote down when it had done how much."""
        start, end = map(float, Path(self._path).read_text().split())
        times, counts = zip(*marks, strict=True)
        done = np.interp([start, end], times, counts)
        return float(done[1] - done[0]) / (end - start)

    def close(self) -> None:
        """Removes it."""
        Path(self._path).unlink(missing_ok=True)


def work(span: Span, add: Callable[[], object]) -> float:
    """A worker: adds blocks until the learner has counted. Steps that were taken from it, a second of that time."""
    marks, done = [(time.monotonic(), 0)], 0
    while not span.is_over():
        add()
        done += BATCH_SIZE
        marks.append((time.monotonic(), done))
    return span.rate(marks)


def learn(span: Span, draw: Callable[[], Any], seconds: float) -> float:
    """The learner: items that it draws a second. It reads one element of each array."""
    draw()  # workers may take seconds to begin
    _draws(draw, _WARM)
    start, busy = time.monotonic(), busy_seconds()
    count = _draws(draw, seconds)
    end = time.monotonic()
    say_cost(busy, count)
    span.set(start, end)
    return count * BATCH_SIZE / (end - start)


def _draws(draw: Callable[[], Any], seconds: float) -> int:
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until or count == 0:
        replay_program.read(optree.tree_leaves(draw()))
        count += 1
    return count


@contextlib.contextmanager
def span() -> Iterator[Span]:
    """One measurement's."""
    made = Span()
    try:
        yield made
    finally:
        made.set(0.0, 1.0)  # whatever happened: workers end
        made.close()


class Tally:
    """An actor that workers tell their rates."""

    def __init__(self) -> None:
        self._rates: list[float] = []

    def add(self, rate: float) -> None:
        """One worker's."""
        self._rates.append(rate)

    def total(self) -> float:
        """Of all."""
        return sum(self._rates)


def _write(writer: Any, _: int, name: str, stacked: bool, span: Span, tally: Any) -> None:
    """A worker of ours."""
    many, each = block(name), steps(name)

    def add() -> None:
        for step in each:
            writer.add(step)

    rate = work(span, partial(writer.extend, many) if stacked else add)
    ray.get(tally.add.remote(rate))


def ours(name: str, worker_node: str, workers: int, seconds: float, stacked: bool = True) -> tuple[float, float]:
    """Samples a second through a RayReplay: stored, and drawn. The learner is this process.

    Args:
        name: Of the samples.
        worker_node: The id of the node that the workers, and so the samples, are on.
        workers: How many.
        seconds: How long the learner counts.
        stacked: By ``extend`` of 256, not by ``add``.

    """
    from echo_shm import Table
    from echo_shm.adapters.ray import RayReplay
    from echo_shm.replay import SampleToInsertRatio

    limiter = SampleToInsertRatio(1.0, BATCH_SIZE, error_buffer=(-_AHEAD, _AHEAD))
    (example,) = replay_program.steps({key: leaf[:1] for key, leaf in block(name).items()})
    tally = ray.remote(Tally).options(num_cpus=0).remote()
    with (
        RayReplay(example, STORED[name], [Table("train", rate_limiter=limiter)], shards=[worker_node]) as replay,
        span() as counted,
    ):
        each = [[one] * workers for one in (name, stacked, counted, tally)]
        group = replay.spawn(_write, workers, *each, **on(worker_node))
        batches = replay.dataset_iter(BATCH_SIZE)
        drawn = learn(counted, lambda: next(batches).data, seconds)
        batches.close()
        for _ in replay.dataset_iter(BATCH_SIZE, timeout=_WARM):
            pass  # a worker that waits for room goes on, and sees that it is over
        group.join(60)
        stored: float = ray.get(tally.total.remote())
    ray.kill(tally)
    return stored, drawn


def copied(name: str, times: int, seconds: float) -> float:
    """Samples a second that a process can copy so many times, 256 at a time, to and from more memory than caches have.

    Beside it another process copies each once, as a worker does.

    Args:
        name: Of the samples.
        times: How often each is copied.
        seconds: How long it is measured.

    """
    nbytes = BATCH_SIZE * size_of(name)
    with ray_copy.beside(nbytes, 1) as tell:
        copies = ray_copy.copies(nbytes)
        next(copies)
        start, busy, count = time.monotonic(), busy_seconds(), 0
        while (now := time.monotonic()) - start < seconds:
            tell()
            for _ in range(times):
                next(copies)
            count += 1
        say_cost(busy, count)
    return count * BATCH_SIZE / (now - start)


def _fill(writer: Any, _: int, name: str) -> None:
    """A worker that stores as much as there is room for, and ends."""
    many = block(name)
    for _ in range(STORED[name] // BATCH_SIZE):
        writer.extend(many)


def kept(name: str, worker_node: str, seconds: float) -> float:
    """Samples a second that a learner draws of what a worker has stored before, on another node or this one."""
    from echo_shm.adapters.ray import RayReplay

    (example,) = replay_program.steps({key: leaf[:1] for key, leaf in block(name).items()})
    with RayReplay(example, STORED[name], shards=[worker_node]) as replay, span() as counted:
        replay.spawn(_fill, 1, [name], **on(worker_node)).join()
        batches = replay.dataset_iter(BATCH_SIZE)
        drawn = learn(counted, lambda: next(batches).data, seconds)
        batches.close()
    return drawn
