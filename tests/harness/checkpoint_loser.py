"""A program that writes checkpoints on a simulated disk. The machine goes down after each call that changes it.

``python -m harness.checkpoint_loser FOLDER LINKS``, with ``es_fault.c`` preloaded. LINKS: 0 if the disk has no hard
links, so that files of earlier checkpoints are copied; else 1. Whatever the disk holds, the newest checkpoint is whole
that was complete before, or the one that was being written is. It prints how often each was found, and how often there
was none yet.
"""

import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm import Replay, SegmentError
from echo_shm.replay import checkpoint
from harness.checkpoint_writer import STEPS, add, make
from harness.lost_power import Disk

State = list[Any]


def state(replay: Replay) -> State:
    """What a replay has, and what it draws."""
    found: State = [replay.num_steps]
    for name in replay.tables:
        batch = replay.sample(20, name)
        info = replay.info(name)
        arrays = [batch.data["n"], batch.key, batch.priority, batch.age]
        found.append([info.size, info.inserted, info.evicted, *(np.asarray(each).tolist() for each in arrays)])
    return found


def expected() -> list[State]:
    """What each checkpoint has."""
    found = []
    for steps in STEPS:
        with make() as replay:
            done = 0
            for before in STEPS[: STEPS.index(steps)]:
                add(replay, done, before + 2)
                done = before + 2
            add(replay, done, steps)
            found.append(state(replay))
    return found


class Machine:
    """The machine, which goes down again and again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.copy = folder / "copy"
        self.path = folder / "disk" / "new" / "checkpoints"
        (folder / "disk").mkdir()
        self.disk = Disk(folder / "disk")
        self.random = random.Random(seed)
        self.states = expected()
        self.complete = 0  # so many checkpoints were written, and the call has returned
        self.found = {"none": 0, "before": 0, "this": 0}
        self.faults: list[str] = []

    def goes_down(self, flushed: int) -> None:
        """After a call. flushed: the descriptor that was flushed, or -1."""
        self.disk.look()
        if flushed >= 0:
            self.disk.flush(os.fstat(flushed).st_ino)
        for choose in (lambda n: 0, lambda n: n - 1, self.random.randrange, self.random.randrange):
            try:
                self.found[self.check(choose)] += 1
            except Exception as error:  # it would be lost in the caller, which is in C
                self.faults.append(f"checkpoint {self.complete + 1}: {error!r}")

    def check(self, choose: Callable[[int], int]) -> str:
        """What is found after a crash."""
        self.disk.crash(self.copy, choose)
        try:
            at = self.copy / self.path.relative_to(self.disk.path)
            got = self.restored(at)
            allowed = [self.states[n - 1] for n in (self.complete, self.complete + 1) if 1 <= n <= len(self.states)]
            if got is None:
                assert self.complete == 0, "a checkpoint that was complete is lost"
                return "none"
            assert got in allowed, "it has another state than that of the newest checkpoint"
            self.check_older(at)
            return "before" if self.complete and got == self.states[self.complete - 1] else "this"
        finally:
            shutil.rmtree(self.copy)

    def restored(self, path: Path) -> State | None:
        """The state of what is restored; None: there is no complete checkpoint."""
        try:
            with Replay.restore(path) as replay:
                return state(replay)
        except SegmentError as error:
            if "there is no complete checkpoint" in str(error) or not path.exists():
                return None
            raise

    def check_older(self, at: Path) -> None:
        """A checkpoint that is being removed is whole, or it is refused."""
        for one in at.iterdir():
            if one.name.isdigit() and (one / "DONE").exists():
                with contextlib.suppress(SegmentError):
                    got = self.restored(one)
                    assert got == self.states[int(one.name) - 1], f"{one.name} is restored, and has another state"


def no_links(*_: Any, **__: Any) -> None:
    """In place of ``os.link``."""
    raise OSError(errno.EPERM, "no links")


def main(folder: Path, links: int) -> None:
    """Writes three checkpoints, of which two are kept."""
    checkpoint.CHUNK_BYTES = 70
    if not links:
        os.link = no_links
    machine = Machine(folder, seed=1)
    watch = ctypes.CDLL(None).es_fault_watch
    tell = ctypes.CFUNCTYPE(None, ctypes.c_int)(machine.goes_down)
    with make() as replay:
        done = 0
        for steps in STEPS:
            add(replay, done, steps)
            done = steps

            def meanwhile(so_far: int, total: int) -> None:
                nonlocal done
                if done == steps:  # noqa: B023 (it is called in this round only)
                    add(replay, done, done + 2)
                    done += 2

            watch(tell)
            replay.checkpoint(machine.path, progress=meanwhile)
            watch(None)
            machine.complete += 1
            machine.goes_down(-1)
    machine.disk.close()
    print(json.dumps([machine.found, machine.faults]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
