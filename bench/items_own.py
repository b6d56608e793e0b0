"""echo_shm's items of several steps, as its users write them: rows of :mod:`bench.replay_own`."""

import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from bench import replay_program as program
from bench.replay_program import Leaves, Measurement, Sizes
from echo_shm import Replay, ReplayClient, Table
from echo_shm.replay import Column, NStep, Sequence, Trajectory

#: How many steps later the next sequence begins: half of its length, as R2D2 has it.
PERIOD = program.LENGTH // 2


def _filled(n: int, make: Callable[[int], Leaves], item: Any) -> Any:
    replay = Replay(program.steps(make(1))[0], n, [Table("default", item=item, max_size=n)])
    for block in program.filling(n, make):
        replay.extend(block, terminated=block["done"])
    return replay


def _sample(replay: Any, batch_size: int, seconds: float) -> Measurement:
    def work() -> float:
        return program.read(optree.tree_leaves(replay.sample(batch_size).data))

    return lambda: program.rate(work, 1, seconds)


def _stacks(n: int, make: Callable[[int], Leaves] = program.frames) -> Any:
    return _filled(n, make, NStep(1, program.GAMMA, "obs", stack={"obs": program.STACK}))


def _n_step(sizes: Sizes) -> Measurement:
    def make(n: int) -> Leaves:
        leaves = program.cartpole(n)
        del leaves["next_obs"]  # the store finds it in the next step
        return leaves

    replay = _filled(sizes.cartpole, make, NStep(program.NSTEP, program.GAMMA, "obs"))

    def work() -> float:
        data = replay.sample(program.BATCH_SIZE).data
        following = data.pop("next")
        return program.read([*data.values(), following["obs"]])

    return lambda: program.rate(work, 1, sizes.seconds)


def _sequences(sizes: Sizes) -> Measurement:
    replay = _filled(sizes.cartpole, program.episodes, Sequence(program.LENGTH, PERIOD, pad=None))
    return _sample(replay, program.SEQUENCES, sizes.seconds)


# --- items that a worker describes -----------------------------------------------------------------------------------


def _hold(connection: Any, n: int) -> None:
    """A process that has a replay of explicit items, until the other end of the pipe is closed."""
    signature = {"obs": Column("obs", program.STACK), "action": Column("action")}
    example = program.steps(program.pairs(1))[0]
    table = Table("default", item=Trajectory(signature), max_size=n)
    with Replay(example, n, [table], thread=True) as replay:
        connection.send(replay.handle)
        try:
            connection.recv()
        except EOFError:
            return


def _pairs(sizes: Sizes) -> Measurement:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(theirs, sizes.cartpole))
    holder.start()
    theirs.close()
    writer = ReplayClient(mine.recv()).writer()
    steps = program.steps(program.pairs(program.PAIRS))
    for step in steps[: program.STACK]:
        writer.append(step)

    def work() -> None:
        history = writer.history
        for step in steps:
            writer.append(step)
            item = {"obs": history["obs"][-program.STACK :], "action": history["action"][-1]}
            writer.create_item("default", 1.0, item)
        writer.flush()

    def end() -> None:
        writer.close()
        mine.close()
        holder.join()

    def measure() -> list[float]:
        return program.rate(work, len(steps), sizes.seconds)

    weakref.finalize(measure, end)
    return measure


# --- memory ----------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Memory of this process; of what it shares, its share."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))


def _pixels(n: int) -> Leaves:
    return {**program.frames(n), "obs": np.ones((n, 1, 1), np.uint8)}


def _gigabytes(n: int, make: Callable[[int], Leaves]) -> Measurement:
    """What a process grows by when it has a store of such steps; for one measurement."""

    def measure() -> list[float]:
        _stacks(min(n, 1000), make)  # what is there once, however much is stored
        before = resident_bytes()
        replay = _stacks(n, make)
        assert len(replay) >= n - program.STACK, "steps of the store are in no item"
        return [(resident_bytes() - before) / 1e9]

    return measure


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "stacks": lambda sizes: _sample(_stacks(program.STACK * sizes.atari), program.BATCH_SIZE, sizes.seconds),
    "n_step": _n_step,
    "sequences": _sequences,
    "pairs": _pairs,
    "gigabytes of frames": lambda sizes: _gigabytes(sizes.atari, program.frames),
    "gigabytes of pixels": lambda sizes: _gigabytes(sizes.atari, _pixels),
}
