"""A replay in shared memory is killed at random moments, and so are its writers; every step is accounted for.

By hand, in ``tests/``: ``python -m stress.replay_storm [seconds [seed]]``.

This process never attaches to the replay: it forks one life of it after the other, each of which attaches, and kills
it. From time to time a life that is not killed says what the tables hold.
"""

import contextlib
import gc
import math
import multiprocessing as mp
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from harness.processes import fork, is_gone, kill_all, stop
from harness.waiting import LONG, until

from stress import replay_actors as actors
from stress.replay_account import Ledger

#: Lives of the replay between two looks, unless the writers have used up their allowance before.
_LIVES = 40

#: A stopped writer goes on once the others have had so many steps confirmed; that takes not more lives than this.
_STEPS_MEANWHILE, _LIVES_MEANWHILE = 200, 4000

#: Mean times until a life is killed (seconds): counted from its fork, or once it has attached.
_FROM_FORK, _FROM_ATTACH = 0.01, 0.004

_SHM = Path("/dev/shm")


def files_of(name: str) -> dict[str, int]:
    """The files of a replay in shared memory, and their bytes."""
    return {path.name: path.stat().st_blocks * 512 for path in _SHM.glob(f"echo_shm*.{name}*")}


class Storm:
    """A replay, its processes, and what happened to them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._notes = actors.Notes(folder)
        self.name = f"{os.getpid()}-storm-{seed}"
        self.events: Counter[str] = Counter()
        self.footprints: list[dict[str, int]] = []
        self.figures: dict[str, int] = {}
        self._ledger = Ledger(self._notes)
        self._children: set[int] = set()
        self._incarnations = 0
        self._since_look = 0
        #: The writer that is stopped; how many confirmed steps of the others end that; in how many lives at most.
        self._stopped: tuple[int, int, int] | None = None
        gc.collect()
        gc.freeze()
        mine, other = mp.Pipe()
        creator = self._fork("the creator", actors.create, other, self.name, seed)
        assert mine.poll(LONG), "the creator says nothing"
        self._handle = mine.recv()
        kill_all([creator])
        mine.close()
        other.close()
        self._notes.quota[:] = actors.ALLOWANCE
        self._writers = [self._fork_writer(i) for i in range(actors.WRITERS)]
        self._client = self._fork_client()

    def run(self, seconds: float, kills: float) -> None:
        """Kills until one of both is reached. Then it stores what was sent, and settles the account."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.events["kills of the replay"] < kills:
            self._one_life()
            self._disturb()
            self._go_on()
            if self._since_look >= _LIVES or (self._notes.of_writer >= self._notes.quota).all():
                self._look()
        self._end()

    # -- processes

    def _fork(self, who: str, fn: Any, *args: Any) -> int:
        pid = fork(who, fn, *args)
        self._children.add(pid)
        return pid

    def _fork_writer(self, writer: int) -> int:
        incarnation, self._incarnations = self._incarnations, self._incarnations + 1
        assert incarnation < actors.INCARNATIONS
        return self._fork(f"writer {incarnation}", actors.write, self._handle, self._notes, writer, incarnation)

    def _fork_client(self) -> int:
        return self._fork("the client", actors.change, self._handle, self._notes, self._rng.getrandbits(32))

    def _fork_life(self) -> int:
        self.events["lives"] += 1
        self._since_look += 1
        life, seed = self.events["lives"], self._rng.getrandbits(32)
        return self._fork(f"life {life}", actors.live, self.name, self._notes, life, seed)

    def _one_life(self) -> None:
        pid, life = self._fork_life(), self.events["lives"]
        if self._rng.random() < 0.5:
            time.sleep(self._rng.expovariate(1 / _FROM_FORK))
        else:
            until(lambda: self._notes.attached[0] == life or is_gone(pid), "the replay attaches")
            time.sleep(self._rng.expovariate(1 / _FROM_ATTACH))
        kill_all([pid])
        self.events["kills of the replay"] += 1
        self.events["of them before it had attached"] += self._notes.attached[0] != life
        self._ledger.bury()

    def _disturb(self) -> None:
        chance = self._rng.random()
        # Writer 0 is never killed: what it has open and how much memory it uses may not grow.
        if chance < 0.15:
            self._kill_writer(self._rng.randrange(1, actors.WRITERS))
        elif chance < 0.2:
            kill_all([self._client])
            self.events["kills of the client"] += 1
            self._client = self._fork_client()
        elif chance < 0.3 and self._stopped is None:
            writer = self._rng.randrange(actors.WRITERS)
            stop(self._writers[writer])
            self.events["stops of writers"] += 1
            goal = self._confirmed_without(writer) + _STEPS_MEANWHILE
            self._stopped = (writer, goal, self.events["lives"] + _LIVES_MEANWHILE)

    def _kill_writer(self, writer: int) -> None:
        kill_all([self._writers[writer]])
        self.events["kills of writers"] += 1
        if self._stopped is not None and self._stopped[0] == writer:
            self._stopped = None
        self._writers[writer] = self._fork_writer(writer)

    def _confirmed_without(self, writer: int) -> int:
        """Steps of the other writers that have been confirmed."""
        return int(self._notes.of_writer_confirmed.sum() - self._notes.of_writer_confirmed[writer])

    def _go_on(self) -> None:
        """A stopped writer goes on once the others have been seen to get on without it."""
        if self._stopped is None:
            return
        writer, goal, last = self._stopped
        if self._confirmed_without(writer) >= goal:
            os.kill(self._writers[writer], signal.SIGCONT)
            self._stopped = None
        else:
            assert self.events["lives"] < last, f"a stopped writer holds up the others, {goal} were to be confirmed"

    # -- looking

    def _look(self, last: bool = False) -> Any:
        confirmed, quota = self._notes.confirmed.copy(), self._notes.of_writer + actors.ALLOWANCE
        mine, other = mp.Pipe()
        pid = self._fork("a look", actors.look, other, self.name, self._notes, last)
        other.close()
        until(lambda: mine.poll() or is_gone(pid), "the tables are read", 2 * LONG)
        tables, infos, steps, footprint = mine.recv()
        sent = self._notes.sent.copy()
        kill_all([pid])
        mine.close()
        self._ledger.bury()
        self._ledger.enter(tables, infos, confirmed, sent)
        assert len(tables["all"][0]) <= steps <= actors.SIZE + actors.SIZE // 2
        self.events["looks"] += 1
        self._since_look = 0
        self._notes.quota[:] = quota
        if not last:
            old = psutil.Process(self._writers[0])
            self.footprints.append(
                {
                    **{f"replay's {what}": size for what, size in footprint.items()},
                    "writer's memory": old.memory_info().rss,
                    "writer's descriptors": old.num_fds(),
                    "own descriptors": psutil.Process().num_fds(),
                    "files": len(files_of(self.name)),
                    "shared memory": sum(files_of(self.name).values()),
                }
            )
        return infos

    def _end(self) -> None:
        for pid in self._writers:
            os.kill(pid, signal.SIGCONT)
        self._notes.ending[0] = 1
        pid = self._fork_life()
        until(lambda: self._notes.ended.all() or is_gone(pid), "the writers end", 2 * LONG)
        kill_all([pid, *self._writers, self._client])
        self._ledger.bury()
        infos = self._look(last=True)
        sent = dict(enumerate(self._notes.sent[: self._incarnations].tolist()))
        self.figures = {
            "sent": sum(sent.values()),
            "confirmed": int(self._notes.confirmed.sum()),
            "stored": self._ledger.account.samples,
            **self._ledger.settle(sent, infos),
            "read whole": int(self._notes.whole[0]),
        }
        left = files_of(self.name)
        assert not left, f"left behind: {sorted(left)}"

    def check(self) -> None:
        """What is used at the end is no more than before. Memory is compared once the tables have long been full."""
        first, last = self.footprints[len(self.footprints) // 4], self.footprints[-1]
        for what in last:
            memory = what.endswith("'s memory")
            if memory and len(self.footprints) < 40:
                continue
            most = first[what] * 5 // 4 if memory else first[what]
            assert last[what] <= most, f"{what} grew from {first[what]:,} to {last[what]:,}"

    def close(self) -> None:
        """Gives back what this process has of it."""
        self._notes.close()
        gc.unfreeze()

    def clear(self) -> None:
        """After a failure: ends the processes, and removes the files."""
        for child in psutil.Process().children():
            if child.pid in self._children:
                child.kill()
                child.wait(LONG)
        for name in files_of(self.name):
            with contextlib.suppress(FileNotFoundError):
                (_SHM / name).unlink()

    def __str__(self) -> str:
        events = ", ".join(f"{what} {count:,}" for what, count in {**self.events, **self.figures}.items())
        used = ", ".join(f"{what} {size:,}" for what, size in (self.footprints[-1:] or [{}])[0].items())
        return f"{events}\nused at the end: {used}"


def run(seed: int, seconds: float = math.inf, kills: float = math.inf) -> Storm:
    """Runs a storm for so long, or so many kills of the replay. It fails if a step is lost, doubled or torn."""
    with tempfile.TemporaryDirectory() as folder:
        storm = Storm(seed, Path(folder))
        try:
            storm.run(seconds, kills)
            print(storm, flush=True)
            storm.check()
        finally:
            storm.clear()
            storm.close()
    return storm


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    run(seed, seconds)
