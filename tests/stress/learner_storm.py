"""Learners are killed at random moments and replaced at once; the account says who got which sample.

All learners write to one log: what each took, what it is about to release, and
what it has released once the release has returned. The log tells of a batch that
a killed learner held whether it must be delivered again, must not, or may be. A
line is one system call on a file opened for appending, so the lines are in the
order of the events. Another learner gets a batch only after its holder's death.
"""

import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from harness import stamped
from harness.processes import fork, kill_all

from echo_shm import ConnectionClosedError, Handle, Server, ShmClient

_TAKEN, _RELEASED, _RELEASING = 1, 2, 3

#: After every so many batches a learner keeps one for so many seconds: many are killed while they hold one.
LINGER_EVERY = 4
LINGER = 0.004


def feed(conn: Any, handle: Handle, incarnation: int) -> None:
    """Sends until it hears something; says how many samples were sent."""
    with ShmClient(handle) as client:
        sample, sent = stamped.example(), 0
        while not conn.poll(0):
            client.send(stamped.stamp(sample, incarnation, sent))
            sent += 1
        conn.send(sent)


def _line(kind: int, learner: int, batch: dict[str, Any]) -> bytes:
    head = np.array([kind, learner], np.int64)
    line = head.tobytes() + batch["incarnation"].tobytes() + batch["sequence"].tobytes()
    return line.ljust(8 * _words(len(batch["sequence"])), b"\0")


def _words(batch_size: int) -> int:
    """Words of a line: a power of two, so that no line crosses a page. A kill may cut a line that does."""
    return 1 << (1 + 2 * batch_size).bit_length()


def learn(handle: Handle, learner: int, path: Path) -> None:
    """Takes and releases batches without end, and writes it to the log."""
    with Server.attach(handle) as server:
        taken = 0
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        while True:
            sample = server.sample()
            if sample is None:
                raise ConnectionClosedError
            assert not stamped.torn(sample.batch).size
            os.write(log, _line(_TAKEN, learner, sample.batch))
            taken += 1
            if taken % LINGER_EVERY == 0:
                time.sleep(LINGER)
            released = _line(_RELEASED, learner, sample.batch)
            os.write(log, _line(_RELEASING, learner, sample.batch))
            sample.release()
            os.write(log, released)


def _fork_learner(handle: Handle, learner: int, path: Path) -> int:
    return fork(f"learner {learner}", learn, handle, learner, path)


def master(conn: Any, handle: Handle, path: Path, seed: int, kills: int, at_a_time: int, pause: float) -> None:
    """Starts and kills learners, then kills those that are left; says how many there were."""
    rng = random.Random(seed)
    alive = [_fork_learner(handle, i, path) for i in range(at_a_time)]
    learners = at_a_time
    while alive:
        time.sleep(rng.uniform(0, 2 * pause))  # when the kill comes
        at = rng.randrange(len(alive))
        kill_all([alive[at]])
        if learners < kills:
            alive[at] = _fork_learner(handle, learners, path)
            learners += 1
        else:
            del alive[at]
    conn.send(learners)


def settle(path: Path, batch_size: int, rest: list[tuple[int, int]], sent: dict[int, int]) -> dict[str, int]:
    """Checks the log, and what was taken at the end, against what was sent; returns figures."""
    log = np.fromfile(path, np.int64).reshape(-1, _words(batch_size))[:, : 2 + 2 * batch_size]
    takers: dict[tuple[int, int], list[int]] = defaultdict(list)
    released: dict[tuple[int, int], int] = {}
    held: set[tuple[int, int]] = set()  # by learners that have not begun to release it
    for line in log.tolist():
        kind, learner = line[:2]
        for stamp in zip(line[2 : 2 + batch_size], line[2 + batch_size :], strict=True):
            assert stamp not in released, f"{stamp} came to {learner} after {released.get(stamp)} had released it"
            if kind == _TAKEN:
                takers[stamp].append(learner)
                held.add(stamp)
            elif kind == _RELEASING:
                held.discard(stamp)
            else:
                assert takers[stamp][-1] == learner, f"{stamp} released by {learner}, last taken by {takers[stamp]}"
                released[stamp] = learner
    assert all(len(set(all_)) == len(all_) for all_ in takers.values())
    for stamp in rest:
        assert stamp not in released, f"{stamp} came at the end and was released by {released.get(stamp)}"
    assert len(set(rest)) == len(rest)
    assert held <= set(rest), f"died with their learners: {sorted(held - set(rest))[:5]}"
    wanted = {(incarnation, i) for incarnation, n in sent.items() for i in range(n)}
    came = set(takers) | set(rest)
    assert came == wanted, f"lost {sorted(wanted - came)[:5]}, from nowhere {sorted(came - wanted)[:5]}"
    again = sum(len(all_) - 1 for all_ in takers.values()) + sum(stamp in takers for stamp in rest)
    return {"samples": len(wanted), "released": len(released), "delivered again": again}
