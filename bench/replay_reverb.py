"""Reverb, set up as its documentation shows. Runs in an environment that has Reverb and TensorFlow alone.

The server has a process of its own, as the replay of echo_shm's row has.
"""

import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import reverb

from bench import replay_program as program
from bench.replay_program import Measurement, Sizes


def _silence() -> None:
    """Hides what Reverb's C++ code says: it warns of every ten items that wait. Python's own errors are shown."""
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _serve(connection: Any, n: int) -> None:
    """A process that has a table, until the other end of the pipe is closed."""
    table = reverb.Table(
        "default",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=n,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table])
    connection.send(server.port)
    try:
        connection.recv()
    except EOFError:
        server.stop()


def _pairs(sizes: Sizes) -> Measurement:
    _silence()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    holder = context.Process(target=_serve, args=(theirs, sizes.cartpole))
    holder.start()
    theirs.close()
    writer = reverb.Client(f"localhost:{mine.recv()}").trajectory_writer(num_keep_alive_refs=program.STACK)
    steps = program.steps(program.pairs(program.PAIRS))
    for step in steps[: program.STACK]:
        writer.append(step)

    def work() -> None:
        for step in steps:
            writer.append(step)
            item = {"obs": writer.history["obs"][-program.STACK :], "action": writer.history["action"][-1]}
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


ROWS: dict[str, Callable[[Sizes], Measurement]] = {"pairs": _pairs}

if __name__ == "__main__":
    program.serve(f"Reverb {version('dm-reverb')}", ROWS)
