"""A storm: producers are killed at random moments and replaced at once, and every sample is accounted for.

A master process forks the producers and kills them. After each send has
returned, a producer writes how many samples it has sent to a file that all map.
Each killed producer's successor is a new incarnation. At least the noted samples
of an incarnation must come, once each and without a gap. At most the samples of
one send may come beyond them: the send that the kill interrupted.
"""

import gc
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import stamped
from harness.account import Account
from harness.actors import Actor
from harness.processes import fork, kill_all

from echo_shm import Handle, SampleInfo, ShmClient

#: Samples that a send_many() of the storm sends.
MANY = 7

#: How incarnation i sends, MODES[i % 4], and how many sent samples a kill may keep out of its note.
MODES = (("send", 1), ("many", MANY), ("reserve", 1), ("bind", 1))


#: After every so many samples a producer stays inside reserve() for so many seconds: many are killed there.
LINGER_EVERY = 16
LINGER = 0.002


@dataclass(frozen=True)
class Plan:
    """What the master does. Pauses are seconds, drawn again for each kill."""

    seed: int
    notes: Path
    kills: int = 100
    producers: int = 4
    pause: float = 0.004
    at_once: int = 2


def open_notes(path: Path, incarnations: int) -> Any:
    """The file of notes, with one number for each incarnation."""
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


def fork_producer(handle: Handle, incarnation: int, notes: Any) -> int:
    """Forks a producer that sends without end; returns its PID."""
    return fork(f"producer {incarnation}", _produce, handle, incarnation, notes)


def master(conn: Any, handle: Handle, plan: Plan) -> None:
    """Runs the storm, then kills all producers; says how many incarnations there were and how long it took."""
    rng = random.Random(plan.seed)
    notes = open_notes(plan.notes, plan.kills + plan.producers)
    gc.collect()
    gc.freeze()
    started = time.monotonic()
    alive = [fork_producer(handle, i, notes) for i in range(plan.producers)]
    incarnations = plan.producers
    while incarnations < plan.kills:
        time.sleep(rng.uniform(0, 2 * plan.pause))  # when the kill comes
        victims = rng.sample(alive, min(rng.randint(1, plan.at_once), plan.kills - incarnations))
        kill_all(victims)
        for pid in victims:
            alive[alive.index(pid)] = fork_producer(handle, incarnations, notes)
            incarnations += 1
    kill_all(alive)
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
        alive = self.actor.process.is_alive()  # first: it may report and end in between
        assert self.finished or alive, "the master died"


class Ledger(Account):
    """The account of a storm, and what its learner saw."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_gap = 0.0
        self.memory: list[int] = []
        self.info: SampleInfo | None = None
        self._before: float | None = None

    def record(self, batch: dict[str, Any], info: SampleInfo) -> None:
        """Enters a batch. Notes the time since the last one and, from time to time, the learner's memory."""
        if self._before is not None:
            self.longest_gap = max(self.longest_gap, time.monotonic() - self._before)
        self.enter(batch)
        self.info = info
        if info.dead_producers >= 50 * (len(self.memory) + 1):
            self.memory.append(psutil.Process().memory_info().rss)
        self._before = time.monotonic()

    def settle_notes(self, notes: Any, incarnations: int) -> None:
        """Compares with the producers' notes: nothing is lost, and what came beyond a note one kill explains."""
        self.settle(dict(enumerate(notes[:incarnations].tolist())), lambda incarnation: MODES[incarnation % 4][1])
