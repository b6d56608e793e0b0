"""A program that is killed while it writes a checkpoint, at each call that changes files; or such a call fails.

``python -m harness.checkpoint_writer FOLDER ERROR``, with ``es_fault.c`` preloaded. For each call it forks. The child
writes two checkpoints to ``FOLDER/NUMBER``, and a third one that does not end well. ``ERROR``: what the call fails
with; 0: it is killed. It prints one line for each: how the child ended, and what it said.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from echo_shm import Replay, SegmentError, Table
from echo_shm.replay import Prioritized, Sequence, checkpoint

CAPACITY = 8
STEPS = (10, 14, 19)  # before each checkpoint; more while it is written


def make() -> Replay:
    """The replay."""
    tables = [Table("a", Prioritized(0.5, 0.5)), Table("b", item=Sequence(2, 1))]
    return Replay({"n": np.zeros(3, np.int64)}, CAPACITY, tables, seed=5)


def add(replay: Replay, first: int, last: int) -> None:
    """Steps with these numbers."""
    for number in range(first, last):
        replay.add({"n": np.full(3, number)}, priority=float(number % 5))


def write(path: Path, arm: Callable[[], None]) -> None:
    """Three checkpoints, the last one armed."""
    checkpoint.CHUNK_BYTES = 70
    replay = make()
    done = 0
    for i, steps in enumerate(STEPS):
        add(replay, done, steps)
        done = steps
        if i == 2:
            arm()

        def meanwhile(so_far: int, total: int) -> None:
            nonlocal done
            if done == steps:  # noqa: B023 (it is called in this round only)
                add(replay, done, done + 2)
                done += 2

        replay.checkpoint(path, progress=meanwhile)


def main(folder: Path, error: int) -> None:
    """Forks for each call, until there are no more."""
    fault = ctypes.CDLL(None)
    for at in range(1000):
        path = folder / str(at)
        path.mkdir()
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = ""
            try:
                write(path, lambda: fault.es_fault_arm(ctypes.c_long(at), error))  # noqa: B023
            except SegmentError as raised:
                said = str(raised)
            calls = fault.es_fault_disarm()
            os.write(writes, json.dumps([said, calls]).encode())
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            got = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        said, calls = json.loads(got) if got else ("", 0)
        print(json.dumps([at, killed, status, said]), flush=True)
        if not killed and calls <= at:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
