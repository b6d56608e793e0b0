"""A replay in shared memory is killed at random moments, and so are its writers; every step is accounted for.

By hand, in ``tests/``: ``python -m stress.replay_storm [seconds [seed]]``.

This process never attaches to the replay: it forks one life of it after the other, each of which attaches, and kills
it, often while it attaches. The next life is forked before that, and waits. From time to time a life that is not killed
says what the tables hold.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from harness.processes import fork, is_gone, kill_all, stop
from harness.programs import free_port
from harness.waiting import LONG, poll, until

from stress import replay_actors as actors
from stress.replay_account import Ledger

#: Lives of the replay between two looks, unless the writers have used up their allowance before.
_LIVES = 40

#: A stopped writer goes on once the others have had so many steps confirmed; that takes not more lives than this.
_STEPS_MEANWHILE, _LIVES_MEANWHILE = 200, 4000

#: Writers that are stopped at the same time, at most.
_MOST_STOPPED = 2

#: Mean times until a life is killed (seconds): from the moment at which it begins to attach, or has attached.
_FROM_ATTACHING, _FROM_ATTACHED = 0.004, 0.002

#: How often a life is looked at that has something to do first (seconds).
_PAUSE = 0.0004

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
        #: For each writer that is stopped, how many confirmed steps of the others end that; in how many lives at most.
        self._stopped: dict[int, tuple[int, int]] = {}
        actors.warm_up()
        gc.collect()
        gc.freeze()
        mine, other = mp.Pipe()
        creator = self._fork("the creator", actors.create, other, self.name, seed)
        assert mine.poll(LONG), "the creator says nothing"
        self._handle = mine.recv()
        self._port = free_port()
        kill_all([creator])
        mine.close()
        other.close()
        self._notes.quota[:] = actors.ALLOWANCE
        self._writers = [self._fork_writer(i) for i in range(actors.WRITERS)]
        #: Processes that write no steps, by their kind: how one is forked.
        self._kinds = {"the client": self._fork_client}
        self._kinds |= {"the bridge": self._fork_bridge}
        self._kinds |= {f"learner {i}": self._fork_learner for i in range(actors.LEARNERS)}
        self._kinds |= {"the remote learner": self._fork_remote_learner}
        self._others = {kind: fork_one() for kind, fork_one in self._kinds.items()}
        self._next = self._fork_life()

    def run(self, seconds: float, kills: float) -> None:
        """Kills until one of both is reached. Then it stores what was sent, and settles the account."""
        self._all_get_on()
        began = time.monotonic()
        end = began + seconds
        while time.monotonic() < end and self.events["kills of the replay"] < kills:
            self._one_life()
            self._disturb()
            self._go_on()
            if self._since_look >= _LIVES or self._have_sent_all():
                self._look()
        self.figures["kills of the replay a second"] = round(
            self.events["kills of the replay"] / (time.monotonic() - began)
        )
        self._end()

    def _all_get_on(self) -> None:
        """Lives that are not killed, until the remote learner has had a batch: then everybody has connected."""
        end = time.monotonic() + LONG
        while self._notes.from_afar[0] == 0:
            assert time.monotonic() < end, "the remote learner gets no batch"
            pid, _ = self._begin_life()
            self._until(pid, lambda: self._notes.from_afar[0] > 0 or self._have_sent_all())
            kill_all([pid])
            self._ledger.bury()
            self._look()
        self.footprints.clear()  # rings come as those who use them connect

    def _have_sent_all(self) -> bool:
        """Whether the writers have used up their allowance."""
        return bool((self._notes.of_writer >= self._notes.quota).all())

    # -- processes

    def _fork(self, who: str, fn: Any, *args: Any) -> int:
        pid = fork(who, fn, *args)
        self._children.add(pid)
        return pid

    def _fork_writer(self, writer: int) -> int:
        incarnation, self._incarnations = self._incarnations, self._incarnations + 1
        assert incarnation < actors.INCARNATIONS
        fn, to = (actors.write_from_afar, self._port) if writer == actors.REMOTE else (actors.write_here, self._handle)
        return self._fork(f"writer {incarnation}", fn, to, self._notes, writer, incarnation)

    def _fork_client(self) -> int:
        return self._fork("the client", actors.change, self._handle, self._notes, self._rng.getrandbits(32))

    def _fork_bridge(self) -> int:
        return self._fork("the bridge", actors.bridge, self._handle, self._port)

    def _fork_learner(self) -> int:
        return self._fork("a learner", actors.learn, self._handle, self._notes)

    def _fork_remote_learner(self) -> int:
        return self._fork("the remote learner", actors.learn_from_afar, self._port, self._notes)

    def _fork_life(self) -> tuple[int, int, int]:
        """A life that waits for its turn: its PID, its number, and the pipe that it reads from."""
        life, seed = self.events["lives"] + 1, self._rng.getrandbits(32)
        self.events["lives"] = life
        turn, give_turn = os.pipe()
        pid = self._fork(f"life {life}", actors.live, self.name, self._notes, life, seed, turn)
        os.close(turn)
        return pid, life, give_turn

    def _begin_life(self) -> tuple[int, int]:
        """Gives the life that waits its turn, and forks the next one."""
        pid, life, give_turn = self._next
        os.write(give_turn, b"1")
        os.close(give_turn)
        self._next = self._fork_life()
        self._since_look += 1
        return pid, life

    def _one_life(self) -> None:
        pid, life = self._begin_life()
        notes = self._notes
        if self._rng.random() < 0.5:
            self._until(pid, lambda: notes.attaching[0] == life)
            time.sleep(self._rng.expovariate(1 / _FROM_ATTACHING))
        else:
            self._until(pid, lambda: notes.attached[0] == life)
            time.sleep(self._rng.expovariate(1 / _FROM_ATTACHED))
        kill_all([pid])
        self.events["kills of the replay"] += 1
        self.events["of them while it attached and recovered"] += notes.attached[0] != life
        self._ledger.bury()

    def _until(self, pid: int, condition: Callable[[], bool]) -> None:
        """Waits until a life has got so far, or has ended, which it never should."""
        until(lambda: poll(condition, 50 * _PAUSE, _PAUSE) or is_gone(pid), "the replay attaches")

    def _disturb(self) -> None:
        chance = self._rng.random()
        # Writer 0 is never killed: what it has open and how much memory it uses may not grow.
        if chance < 0.1:
            self._kill_writer(self._rng.randrange(actors.REMOTE + 1, actors.WRITERS))
        elif chance < 0.14:
            self._kill_other(self._rng.choice(list(self._kinds)))
        elif chance < 0.25 and len(self._stopped) < _MOST_STOPPED:
            self._stop_writer(self._rng.randrange(actors.WRITERS))

    def _stop_writer(self, writer: int) -> None:
        if writer in self._stopped:
            return
        stop(self._writers[writer])
        self.events["stops of writers"] += 1
        self._stopped[writer] = (0, 0)
        # Those that run must get on, beside all that are stopped.
        goal, last = self._confirmed_by_others() + _STEPS_MEANWHILE, self.events["lives"] + _LIVES_MEANWHILE
        self._stopped = dict.fromkeys(self._stopped, (goal, last))

    def _kill_writer(self, writer: int) -> None:
        kill_all([self._writers[writer]])
        self.events["kills of writers"] += 1
        self.events["of them stopped"] += self._stopped.pop(writer, None) is not None
        self._writers[writer] = self._fork_writer(writer)

    def _kill_other(self, kind: str) -> None:
        kill_all([self._others[kind]])
        self.events[f"kills of {kind}"] += 1
        self._others[kind] = self._kinds[kind]()

    def _confirmed_by_others(self) -> int:
        """Confirmed steps of all writers. Those that are stopped add none."""
        return int(self._notes.of_writer_confirmed.sum())

    def _go_on(self) -> None:
        """A stopped writer goes on once the others have been seen to get on without it."""
        for writer, (goal, last) in list(self._stopped.items()):
            if self._confirmed_by_others() >= goal:
                os.kill(self._writers[writer], signal.SIGCONT)
                del self._stopped[writer]
            else:
                assert self.events["lives"] < last, f"stopped writers hold up the others, {goal} were to be confirmed"

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
        assert len(tables["all"][0]) <= steps <= actors.CAPACITY
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
        pid, _ = self._begin_life()
        until(lambda: self._notes.ended.all() or is_gone(pid), "the writers end", 2 * LONG)
        kill_all([pid, self._next[0], *self._writers, *self._others.values()])
        self._ledger.bury()
        infos = self._look(last=True)
        sent = dict(enumerate(self._notes.sent[: self._incarnations].tolist()))
        self.figures |= {
            "sent": sum(sent.values()),
            "confirmed": int(self._notes.confirmed.sum()),
            "stored": self._ledger.account.samples,
            **self._ledger.settle(sent, infos, self._batches_twice()),
            "batches from afar": int(self._notes.from_afar[0]),
            "read whole": int(self._notes.whole[0]),
            **{f"evicted by the remover of {table!r}": infos[table].evicted for table in ("all", "some", "drawn")},
            "evicted for want of room": infos["rest"].evicted,
        }
        left = files_of(self.name)
        assert not left, f"left behind: {sorted(left)}"

    def _batches_twice(self) -> int:
        """How many batches may have come twice: what a learner had in hand when it was killed.

        When the bridge is killed, what the remote learner has in hand, or has just acknowledged, may go to another one.
        """
        kinds = [f"learner {i}" for i in range(actors.LEARNERS)] + ["the remote learner"] + 2 * ["the bridge"]
        return sum(self.events[f"kills of {kind}"] for kind in kinds)

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
        os.close(self._next[2])
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
