"""cpprb, set up as its documentation shows. Runs in an environment that has cpprb and numpy alone."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import cpprb
import numpy as np

from bench import replay_program as program
from bench.replay_program import Leaves, Measurement, Sizes


def _fields(leaves: Leaves) -> dict[str, Any]:
    return {name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in leaves.items()}


def _filled(n: int, make: Callable[[int], Leaves]) -> Any:
    buffer = cpprb.ReplayBuffer(n, _fields(make(1)))
    for block in program.filling(n, make):
        buffer.add(**block)
    return buffer


def _fill_prioritized(buffer: Any, n: int) -> None:
    given = program.priorities(n)
    for i, block in enumerate(program.filling(n, program.cartpole)):
        first = i * 100_000
        buffer.add(priorities=given[first : first + len(block["done"])], **block)


def _add(buffer: Any, leaves: Leaves, seconds: float) -> Measurement:
    steps, add = program.steps(leaves), buffer.add

    def work() -> None:
        for step in steps:
            add(**step)

    return lambda: program.rate(work, len(steps), seconds)


def _sample(buffer: Any, batch_size: int, seconds: float) -> Measurement:
    return lambda: program.rate(lambda: program.read(buffer.sample(batch_size).values()), 1, seconds)


def _extend_atari(sizes: Sizes) -> Measurement:
    buffer, leaves = _filled(sizes.atari, program.atari), program.atari(program.EXTENDED)
    return lambda: program.rate(lambda: buffer.add(**leaves), program.EXTENDED, sizes.seconds)


def _cycle(buffer: Any) -> Iterator[None]:
    """Samples and updates, for ever."""
    errors = program.td_errors()
    while True:
        for error in errors:
            batch = buffer.sample(program.BATCH_SIZE, program.BETA)
            program.read(batch.values())
            buffer.update_priorities(batch["indexes"], error)
            yield


def _prioritized(sizes: Sizes) -> Measurement:
    fields = _fields(program.cartpole(1))
    buffer = cpprb.PrioritizedReplayBuffer(sizes.cartpole, fields, alpha=program.ALPHA)
    _fill_prioritized(buffer, sizes.cartpole)
    cycle = _cycle(buffer)
    return lambda: program.rate(lambda: next(cycle), 1, sizes.seconds)


def _n_step(sizes: Sizes) -> Measurement:
    how = {"size": program.NSTEP, "gamma": program.GAMMA, "rew": "reward", "next": "next_obs"}
    buffer = cpprb.ReplayBuffer(sizes.cartpole, _fields(program.cartpole(1)), Nstep=how)
    for block in program.filling(sizes.cartpole, program.cartpole):
        buffer.add(**block)
    return _sample(buffer, program.BATCH_SIZE, sizes.seconds)


def _rfc(sizes: Sizes) -> Measurement:
    buffer = cpprb.ReplayBuffer(program.RFC_STORED, {"a": {"shape": program.RFC_SHAPE, "dtype": np.float32}})
    buffer.add(a=program.rfc())
    return _sample(buffer, program.RFC_BATCH_SIZE, sizes.seconds)


def _add_for_ever(buffer: Any, count: Any) -> None:
    steps = program.steps(program.cartpole(1000))
    while True:
        for step in steps:
            buffer.add(**step)
            count.value += 1


@contextlib.contextmanager
def _workers(context: Any, buffer: Any) -> Iterator[list[Any]]:
    """Processes that add for ever, for the length of the block; the value is what each has added."""
    counts = [context.RawValue("Q", 0) for _ in range(program.WORKERS)]
    processes = [context.Process(target=_add_for_ever, args=(buffer, count), daemon=True) for count in counts]
    try:
        for process in processes:
            process.start()
        while not all(count.value for count in counts):
            time.sleep(0.01)
        yield counts
    finally:
        for process in processes:
            process.kill()
            process.join()


def _with_workers(sizes: Sizes) -> Measurement:
    context = multiprocessing.get_context("fork")

    def measure() -> list[float]:
        # A new one each time: a process that is killed may hold its locks.
        buffer = cpprb.MPPrioritizedReplayBuffer(
            sizes.cartpole, _fields(program.cartpole(1)), alpha=program.ALPHA, ctx=context
        )
        _fill_prioritized(buffer, sizes.cartpole)
        with _workers(context, buffer) as counts:
            cycle = _cycle(buffer)
            next(cycle)
            before, batches, start = sum(count.value for count in counts), 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < sizes.seconds:
                next(cycle)
                batches += 1
            return [(sum(count.value for count in counts) - before) / elapsed, batches / elapsed]

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "add cartpole": lambda sizes: _add(
        _filled(sizes.cartpole, program.cartpole), program.cartpole(1000), sizes.seconds
    ),
    "add atari": lambda sizes: _add(_filled(sizes.atari, program.atari), program.atari(64), sizes.seconds),
    "extend atari": _extend_atari,
    "sample cartpole": lambda sizes: _sample(
        _filled(sizes.cartpole, program.cartpole), program.BATCH_SIZE, sizes.seconds
    ),
    "sample atari": lambda sizes: _sample(_filled(sizes.atari, program.atari), program.BATCH_SIZE, sizes.seconds),
    "prioritized": _prioritized,
    "n_step": _n_step,
    "rfc": _rfc,
    "workers": _with_workers,
}

if __name__ == "__main__":
    program.serve(f"cpprb {version('cpprb')}", ROWS)
