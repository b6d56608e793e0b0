"""A storm: producers that are killed at random moments and replaced at once, and the account of what they sent.

A master process forks the producers and kills them. Each incarnation of a
producer notes, in a file that all map, how many samples it has sent, after each
send has returned. So of every incarnation at least the noted samples must come,
each once, from 0 on without a gap, and beyond them at most what one send was at
when the kill came.
"""

import gc
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import stamped
from actors import Actor, die_with_parent

from echo_shm import Handle, SampleInfo, ShmClient

#: Samples that a send_many() of the storm sends.
MANY = 7

#: How incarnation i sends: MODES[i % 4], and how many samples of it a kill may leave unnoted.
MODES = (("send", 1), ("many", MANY), ("reserve", 1), ("bind", 1))


#: Every so many samples, a producer dwells inside reserve() for so many seconds, so that many are killed there.
LINGER_EVERY = 16
LINGER = 0.002


@dataclass(frozen=True)
class Plan:
    """What the master does. Pauses are seconds, drawn anew for each kill."""

    seed: int
    notes: Path
    kills: int = 100
    producers: int = 4
    pause: float = 0.004
    at_once: int = 2


def open_notes(path: Path, incarnations: int) -> Any:
    """The file of notes, one number an incarnation."""
    mode = "r+" if path.exists() else "w+"
    return np.memmap(path, np.int64, mode, shape=(incarnations,))


def _produce(handle: Handle, incarnation: int, notes: Any) -> None:
    client = ShmClient(handle)
    mode = MODES[incarnation % len(MODES)][0]
    sample, many, sent = stamped.example(), stamped.examples(MANY), 0
    bound = client.bind(sample)
    while True:
        if mode == "send":
            client.send(stamped.stamp(sample, incarnation, sent))
        elif mode == "bind":
            stamped.stamp(sample, incarnation, sent)
            bound.send()
        elif mode == "many":
            client.send_many(stamped.stamp_many(many, incarnation, sent))
            sent += MANY - 1
        else:
            with client.reserve() as slot:
                if sent % LINGER_EVERY == 0:
                    slot["payload"][stamped.WORDS // 2 :] = 0
                    time.sleep(LINGER)
                stamped.stamp(slot, incarnation, sent)
        sent += 1
        notes[incarnation] = sent


def _fork_producer(handle: Handle, incarnation: int, notes: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            _produce(handle, incarnation, notes)
        except BaseException as error:
            os.write(2, f"producer {incarnation}: {error!r}\n".encode())
        os._exit(1)
    return pid


def _kill(pids: list[int]) -> None:
    """Kills all, then collects all: their deaths overlap."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status), f"a producer ended by itself, with status {status:#x}"


def master(conn: Any, handle: Handle, plan: Plan) -> None:
    """Runs the storm, then kills everybody and says how many incarnations there were and how long it took."""
    rng = random.Random(plan.seed)
    notes = open_notes(plan.notes, plan.kills + plan.producers)
    gc.collect()
    gc.freeze()
    started = time.monotonic()
    alive = [_fork_producer(handle, i, notes) for i in range(plan.producers)]
    incarnations = plan.producers
    while incarnations < plan.kills:
        time.sleep(rng.uniform(0, 2 * plan.pause))  # the kill's moment
        victims = rng.sample(alive, min(rng.randint(1, plan.at_once), plan.kills - incarnations))
        _kill(victims)
        for pid in victims:
            alive[alive.index(pid)] = _fork_producer(handle, incarnations, notes)
            incarnations += 1
    _kill(alive)
    conn.send((incarnations, time.monotonic() - started))


@dataclass
class Storm:
    """The master as the learner sees it; ``dataset_iter(until=storm)`` ends with it."""

    actor: Actor
    incarnations: int = 0
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether every producer is dead for good."""
        if not self.incarnations and not self.actor.is_silent():
            self.incarnations, self.seconds = self.actor.hear()
        return self.incarnations > 0

    def check(self) -> None:
        """Raises if the master failed."""
        alive = self.actor.process.is_alive()  # first: it may report, and end, in between
        assert self.finished or alive, "the master died"


@dataclass
class Ledger:
    """What came out of the ring, entered batch by batch; does not grow with it."""

    next: dict[int, int] = field(default_factory=dict)
    early: dict[int, set[int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    samples: int = 0
    descents: int = 0
    longest_gap: float = 0.0
    memory: list[int] = field(default_factory=list)
    info: SampleInfo | None = None
    _before: float | None = None

    def enter(self, batch: dict[str, Any], info: SampleInfo) -> None:
        """Enters a batch: whole samples, none of which came before."""
        now = time.monotonic()
        if self._before is not None:
            self.longest_gap = max(self.longest_gap, now - self._before)
        wrong = stamped.torn(batch)
        assert not wrong.size, f"torn: {[{k: v[i] for k, v in batch.items()} for i in wrong[:3]]}"
        incarnations = batch["incarnation"]
        for incarnation in np.unique(incarnations).tolist():
            self._enter(incarnation, batch["sequence"][incarnations == incarnation])
        self.samples += len(incarnations)
        self.info = info
        if info.dead_producers >= 50 * (len(self.memory) + 1):
            self.memory.append(psutil.Process().memory_info().rss)
        self._before = time.monotonic()

    def _enter(self, incarnation: int, sequences: Any) -> None:
        ordered = np.concatenate(([self.last.get(incarnation, -1)], sequences))
        self.descents += int((np.diff(ordered) < 0).sum())
        self.last[incarnation] = int(sequences[-1])
        expected, early = self.next.get(incarnation, 0), self.early.get(incarnation)
        if early is None and sequences[0] == expected and (np.diff(sequences) == 1).all():
            self.next[incarnation] = expected + len(sequences)
            return
        early = self.early.pop(incarnation, set())
        for sequence in sequences.tolist():
            assert sequence >= expected, f"{incarnation}:{sequence} was delivered twice"
            assert sequence not in early, f"{incarnation}:{sequence} was delivered twice"
            early.add(sequence)
        while expected in early:
            early.remove(expected)
            expected += 1
        self.next[incarnation] = expected
        if early:
            self.early[incarnation] = early

    def settle(self, notes: Any, incarnations: int) -> None:
        """Compares with the producers' notes: nothing lost, and nothing that one kill does not explain."""
        assert not self.early, f"gaps (incarnation: what came after the gap): {self.early}"
        for incarnation in range(incarnations):
            noted, came = int(notes[incarnation]), self.next.get(incarnation, 0)
            most = noted + MODES[incarnation % len(MODES)][1]
            assert noted <= came <= most, f"{MODES[incarnation % 4]} {incarnation}: {noted} sent, {came} came"
        assert self.samples == sum(self.next.values())
