"""echo_shm's replay buffer, as its users write it."""

import contextlib
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from bench import items_own, weights_own
from bench import replay_program as program
from bench.items_own import resident_bytes
from bench.replay_program import Leaves, Measurement, Sizes
from echo_shm import Replay, ReplayClient, Table
from echo_shm.replay import Prioritized


def _example(make: Callable[[int], Leaves]) -> Leaves:
    return program.steps(make(1))[0]


def _filled(n: int, make: Callable[[int], Leaves]) -> Any:
    replay = Replay(_example(make), n)
    for block in program.filling(n, make):
        replay.extend(block)
    return replay


def _uniform_table(n: int) -> Any:
    return Table("default", max_size=n)


def _prioritized_table(n: int) -> Any:
    return Table("default", sampler=Prioritized(alpha=program.ALPHA, beta=program.BETA), max_size=n)


def _filled_prioritized(n: int, make: Callable[[int], Leaves] = program.cartpole, **how: Any) -> Any:
    replay, given, first = Replay(_example(make), n, [_prioritized_table(n)], **how), program.priorities(n), 0
    for block in program.filling(n, make):
        size = len(block["done"])
        replay.extend(block, priorities=given[first : first + size])
        first += size
    return replay


def _add(replay: Any, leaves: Leaves, seconds: float) -> Measurement:
    steps, add = program.steps(leaves), replay.add

    def work() -> None:
        for step in steps:
            add(step)

    return lambda: program.rate(work, len(steps), seconds)


def _extend_atari(sizes: Sizes) -> Measurement:
    replay, leaves = _filled(sizes.atari, program.atari), program.atari(program.EXTENDED)
    return lambda: program.rate(lambda: replay.extend(leaves), program.EXTENDED, sizes.seconds)


def _sample(replay: Any, seconds: float) -> Measurement:
    return lambda: program.rate(lambda: program.read(replay.sample(program.BATCH_SIZE).data.values()), 1, seconds)


def _cycle(replay: Any) -> Iterator[None]:
    """Samples and updates, for ever."""
    errors = program.td_errors()
    while True:
        for error in errors:
            batch = replay.sample(program.BATCH_SIZE)
            program.read(batch.data.values())
            replay.update(batch.key, error)
            yield


def _prioritized(sizes: Sizes) -> Measurement:
    cycle = _cycle(_filled_prioritized(sizes.cartpole))
    return lambda: program.rate(lambda: next(cycle), 1, sizes.seconds)


def _rfc(sizes: Sizes) -> Measurement:
    replay: Any = Replay(np.zeros(program.RFC_SHAPE, np.float32), program.RFC_STORED)
    replay.extend(program.rfc())
    return lambda: program.rate(lambda: replay.sample(program.RFC_BATCH_SIZE).data.item(0), 1, sizes.seconds)


def _bytes(sizes: Sizes, table: Callable[[int], Any]) -> Measurement:
    """Bytes of memory a stored CartPole step beyond its data; for one measurement."""
    example, block = _example(program.cartpole), program.cartpole(min(sizes.cartpole, 10_000))
    data = sum(leaf.nbytes for leaf in example.values())

    def filled(n: int) -> Any:
        replay = Replay(example, n, [table(n)])
        for part in program.blocks(block, n):
            replay.extend(part)
        replay.sample(program.BATCH_SIZE)
        return replay

    def measure() -> list[float]:
        filled(len(block["done"]))  # what is there once, however much is stored
        before = resident_bytes()
        replay = filled(sizes.cartpole)
        beyond = (resident_bytes() - before) / sizes.cartpole - data
        del replay
        return [beyond]

    return measure


def _add_for_ever(writer: Any, seed: int) -> None:
    steps = program.steps(program.cartpole(1000))
    while True:
        for step in steps:
            writer.add(step)


def _add_at_a_pace(writer: Any, seed: int) -> None:
    steps, start, added = program.steps(program.cartpole(1000)), time.perf_counter(), 0
    while True:
        for step in steps:
            time.sleep(max(0, start + added / program.PACE - time.perf_counter()))
            writer.add(step)
            added += 1


def _inserted(replay: Any) -> int:
    return int(replay.info().inserted)


def _await_steps(replay: Any, workers: Any, target: int) -> None:
    """Returns when so many are inserted; raises what a worker raised."""
    while _inserted(replay) < target:
        workers.check()
        time.sleep(0.001)


def _with_workers(sizes: Sizes, add: Callable[[Any, int], None], first: int) -> Measurement:
    """Steps and batches a second, after the first steps."""

    def measure() -> list[float]:
        with (
            _filled_prioritized(sizes.cartpole) as replay,
            replay.spawn(add, program.WORKERS, list(range(program.WORKERS))) as workers,
        ):
            _await_steps(replay, workers, _inserted(replay) + first)
            cycle = _cycle(replay)
            next(cycle)
            before, batches, start = _inserted(replay), 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < sizes.seconds:
                next(cycle)
                batches += 1
            return [(_inserted(replay) - before) / elapsed, batches / elapsed]

    return measure


def _hold(connection: Any, n: int) -> None:
    """A process that has a replay, and draws batches for others."""
    replay = _filled_prioritized(n, thread=True)
    connection.send(replay.handle)
    with contextlib.suppress(EOFError):
        connection.recv()


def _elsewhere(sizes: Sizes) -> Measurement:
    """Batches a second in another process than the replay's, which draws them ahead."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(theirs, sizes.cartpole))
    holder.start()
    theirs.close()
    batches = ReplayClient(mine.recv()).dataset_iter(program.BATCH_SIZE)

    def measure() -> list[float]:
        assert not mine.poll(), "the replay's process has ended"  # it ends with this end of the pipe
        return program.rate(lambda: program.read(next(batches).data.values()), 1, sizes.seconds)

    weakref.finalize(measure, _end, mine, holder)
    return measure


def _end(connection: Any, holder: Any) -> None:
    connection.close()
    holder.join()


def _recovery(sizes: Sizes) -> Measurement:
    """Seconds until a replay goes on with the store of one that was killed."""
    context, name = multiprocessing.get_context("spawn"), f"bench-{os.getpid()}"
    first = context.Process(target=_fill_and_die, args=(name, sizes.cartpole))
    first.start()
    first.join()

    def measure() -> list[float]:
        mine, theirs = context.Pipe()
        then = context.Process(target=_go_on_and_die, args=(theirs, name))
        then.start()
        theirs.close()
        took = mine.recv()
        then.join()
        return [took]

    weakref.finalize(measure, lambda: Replay.attach(name).close())
    return measure


def _fill_and_die(name: str, n: int) -> None:
    replay = _filled_prioritized(n, store="shm", name=name)
    assert len(replay) == n
    os.kill(os.getpid(), signal.SIGKILL)


def _go_on_and_die(connection: Any, name: str) -> None:
    start = time.perf_counter()
    replay = Replay.attach(name)
    connection.send(time.perf_counter() - start)
    assert len(replay) > 0
    os.kill(os.getpid(), signal.SIGKILL)


def _owner_cpu(sizes: Sizes) -> Measurement:
    """Microseconds of the owner's CPU time a step, while a thread of it takes steps in."""

    def measure() -> list[float]:
        with (
            Replay(_example(program.cartpole), sizes.cartpole, thread=True) as replay,
            replay.spawn(_add_for_ever, sizes.workers, list(range(sizes.workers)), context="forkserver") as workers,
        ):
            _await_steps(replay, workers, 10_000 * sizes.workers)
            before, cpu = _inserted(replay), time.process_time()
            time.sleep(sizes.seconds)
            _await_steps(replay, workers, before + 1)
            return [1e6 * (time.process_time() - cpu) / (_inserted(replay) - before)]

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "add cartpole": lambda sizes: _add(
        _filled(sizes.cartpole, program.cartpole), program.cartpole(1000), sizes.seconds
    ),
    "add prioritized": lambda sizes: _add(_filled_prioritized(sizes.cartpole), program.cartpole(1000), sizes.seconds),
    "add atari": lambda sizes: _add(_filled(sizes.atari, program.atari), program.atari(64), sizes.seconds),
    "extend atari": _extend_atari,
    "sample cartpole": lambda sizes: _sample(_filled(sizes.cartpole, program.cartpole), sizes.seconds),
    "sample atari": lambda sizes: _sample(_filled(sizes.atari, program.atari), sizes.seconds),
    "prioritized": _prioritized,
    "sample prioritized": lambda sizes: _sample(_filled_prioritized(sizes.cartpole), sizes.seconds),
    "rfc": _rfc,
    "bytes": lambda sizes: _bytes(sizes, _uniform_table),
    "bytes prioritized": lambda sizes: _bytes(sizes, _prioritized_table),
    "workers": lambda sizes: _with_workers(sizes, _add_for_ever, 10_000),
    "paced workers": lambda sizes: _with_workers(sizes, _add_at_a_pace, 10),
    "owner's cpu": _owner_cpu,
    "elsewhere": _elsewhere,
    "recovery": _recovery,
    **items_own.ROWS,
    **weights_own.ROWS,
}

if __name__ == "__main__":
    program.serve(f"echo-shm {version('echo-shm')}", ROWS)
