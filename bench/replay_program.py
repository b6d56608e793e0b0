"""What the programs that hold a replay buffer share: the contents, the loop that is timed, and how they are asked.

Each library is measured in a process of its own, with an interpreter of its own, so this module needs numpy alone. A
program is started for one row. It fills its buffer and says that it is ready; then each line on its input asks for one
measurement. Programs that are not asked sleep, so that several can take turns.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A step's leaves, or those of many, stacked.
Leaves = dict[str, np.ndarray[Any, Any]]

#: One measurement: its values. Most rows have one.
Measurement = Callable[[], list[float]]

#: Items a sample() of each row but RFC's.
BATCH_SIZE = 256

#: Steps an extend() of the Atari row.
EXTENDED = 32

#: TorchRL's own table: items stored, items a sample, and their shape.
RFC_STORED, RFC_BATCH_SIZE, RFC_SHAPE = 100_000, 128, (3, 4)

#: Prioritized replay's usual settings.
ALPHA, BETA = 0.6, 0.4

#: Items of several steps: frames of a stack, steps of a transition and their discount, steps of a sequence, sequences a
#: sample, and steps of an episode of which sequences are parts.
STACK, NSTEP, GAMMA, LENGTH, SEQUENCES, EPISODE = 4, 3, 0.99, 80, 32, 200

#: Steps that a worker appends, with an item after each, before it waits until all are stored.
PAIRS = 5000

#: Processes that add while the learner samples.
WORKERS = 2

#: Steps a second of each of them, in the row where they do not add as fast as they can.
PACE = 500


@dataclass(frozen=True)
class Sizes:
    """How much a program stores and measures.

    Attributes:
        seconds: Length of one measurement.
        cartpole: CartPole steps stored.
        atari: Atari steps stored.
        workers: Processes that add, in the row of the owner's CPU time; that read weights, in the row of many.
        weights: Bytes of the weights.

    """

    seconds: float
    cartpole: int
    atari: int
    workers: int = 0
    weights: tuple[int, ...] = ()


def cartpole(n: int) -> Leaves:
    """Transitions of 41 bytes in 5 leaves."""
    random = np.random.default_rng(0)
    return {
        "obs": random.standard_normal((n, 4), np.float32),
        "action": random.integers(0, 2, n, np.int32),
        "reward": random.random(n, np.float32),
        "next_obs": random.standard_normal((n, 4), np.float32),
        "done": random.random(n) < 0.05,
    }


def atari(n: int) -> Leaves:
    """Four stacked frames and three scalars: 28,233 bytes in 4 leaves."""
    random = np.random.default_rng(0)
    return {
        "obs": random.integers(0, 256, (n, 4, 84, 84), np.uint8),
        "action": random.integers(0, 18, n, np.int32),
        "reward": random.random(n, np.float32),
        "done": random.random(n) < 0.05,
    }


def frames(n: int) -> Leaves:
    """One frame and three scalars: 7,065 bytes in 4 leaves. No episode ends."""
    random = np.random.default_rng(0)
    return {
        "obs": random.integers(0, 256, (n, 84, 84), np.uint8),
        "action": random.integers(0, 18, n, np.int32),
        "reward": random.random(n, np.float32),
        "done": np.zeros(n, bool),
    }


def pairs(n: int) -> Leaves:
    """Steps of 24 bytes in 3 leaves."""
    leaves = cartpole(n)
    return {name: leaves[name] for name in ("obs", "action", "reward")}


def episodes(n: int) -> Leaves:
    """Steps of 25 bytes in 4 leaves, in episodes of equal length."""
    return {**pairs(n), "done": np.arange(1, n + 1) % EPISODE == 0}


def rfc() -> np.ndarray[Any, Any]:
    """What TorchRL's table stores."""
    return np.random.default_rng(0).standard_normal((RFC_STORED, *RFC_SHAPE), np.float32)


def priorities(n: int) -> np.ndarray[Any, Any]:
    """Positive, in no order."""
    return np.random.default_rng(1).random(n) + 1e-3


def td_errors() -> list[np.ndarray[Any, Any]]:
    """The new priorities of several batches, used in turn."""
    return list(priorities(16 * BATCH_SIZE).reshape(16, BATCH_SIZE))


def steps(leaves: Leaves) -> list[Leaves]:
    """Each step by itself. Scalars are arrays of shape ()."""
    n = len(next(iter(leaves.values())))
    return [{name: np.asarray(leaf[i]) for name, leaf in leaves.items()} for i in range(n)]


def blocks(leaves: Leaves, n: int) -> list[Leaves]:
    """What stores n steps: the given ones, over and over."""
    size = len(next(iter(leaves.values())))
    return [{name: leaf[: n - start] for name, leaf in leaves.items()} for start in range(0, n, size)]


def filling(n: int, make: Callable[[int], Leaves]) -> list[Leaves]:
    """Blocks that fill a buffer of n steps. They are views of one block."""
    return blocks(make(min(n, 1000 if make(1)["obs"].nbytes > 1000 else 100_000)), n)


def rate(work: Callable[[], Any], units: int, seconds: float) -> list[float]:
    """Units a second, where a call of ``work`` does some. The first call is not counted."""
    work()
    calls, start = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return [calls * units / elapsed]


def read(leaves: Iterable[Any]) -> float:
    """Reads one element of each array."""
    return float(sum(leaf.item(0) for leaf in leaves))


def serve(version: str, rows: dict[str, Callable[[Sizes], Measurement]]) -> None:
    """A program's main function: ``ROW SIZES`` are its arguments, measurements go to standard output as JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    measure = rows[sys.argv[1]](Sizes(**json.loads(sys.argv[2])))
    print(json.dumps(version), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)
