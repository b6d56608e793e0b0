"""Stable-Baselines3's replay buffers, and echo_shm's in their place: the program of both.

Run by :mod:`bench.adapters` with the interpreter of an environment that has Stable-Baselines3.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common import buffers

from bench import replay_program as program
from bench.items_own import resident_bytes
from bench.replay_program import Measurement, Sizes
from echo_shm.adapters.sb3 import ReplayBuffer

_Make = Callable[[int, int], Any]

CARTPOLE = spaces.Box(-10, 10, (4,), np.float32)
ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def _adding(buffer: Any, space: Any, n: int) -> Callable[[], None]:
    """Adds a step of n environments with each call. What is after a step is before the next one."""
    random, frames = np.random.default_rng(0), 64
    if space is ATARI:
        single = random.integers(0, 256, (frames, n, 84, 84), np.uint8)
        seen = [np.stack([single[(i + k) % frames] for k in range(4)], axis=1) for i in range(frames)]
    else:
        seen = list(random.standard_normal((frames, n, 4), np.float32))
    action, reward, done = np.zeros((n, 1), np.int64), np.ones(n, np.float32), np.zeros(n, bool)
    infos: list[dict[str, Any]] = [{} for _ in range(n)]
    t = 0

    def add() -> None:
        nonlocal t
        ends = t % 500 == 499
        buffer.add(seen[t % frames], seen[(t + 1) % frames], action, reward, ~done if ends else done, infos)
        t += 1

    return add


def _filled(make: _Make, space: Any, size: int, n: int = 1) -> tuple[Any, Callable[[], None]]:
    buffer = make(size, n)
    add = _adding(buffer, space, n)
    for _ in range(size // n):
        add()
    return buffer, add


def _add(kind: Any, space: Any, n: int, sizes: Sizes) -> Measurement:
    size = sizes.cartpole if space is CARTPOLE else min(sizes.atari, 20_000)
    _, add = _filled(lambda size, n: kind(size, space, spaces.Discrete(2), "cpu", n), space, size, n)
    return lambda: program.rate(add, n, sizes.seconds)


def _sample(kind: Any, space: Any, sizes: Sizes, **options: Any) -> Measurement:
    size = sizes.cartpole if space is CARTPOLE else min(sizes.atari, 20_000)
    buffer, _ = _filled(lambda size, n: kind(size, space, spaces.Discrete(2), "cpu", n, **options), space, size)

    def work() -> float:
        batch = buffer.sample(program.BATCH_SIZE)
        return float(batch.observations.flatten()[0] + batch.next_observations.flatten()[0] + batch.rewards[0])

    return lambda: program.rate(work, 1, sizes.seconds)


def _memory(kind: Any, sizes: Sizes, **options: Any) -> Measurement:
    """Gigabytes that a process grows by; for one measurement."""

    def filled(size: int) -> Any:
        return _filled(lambda size, n: kind(size, ATARI, spaces.Discrete(2), "cpu", n, **options), ATARI, size)[0]

    def measure() -> list[float]:
        filled(100).sample(2)  # what is there once, however much is stored
        before = resident_bytes()
        buffer = filled(sizes.atari)
        grown = resident_bytes() - before
        assert buffer.size() == sizes.atari
        return [grown / 1e9]

    return measure


def _train(kind: Any, sizes: Sizes) -> Measurement:
    """Seconds of a whole training."""
    torch.set_num_threads(1)
    steps = 5000 if sizes.seconds >= 1 else 300

    def measure() -> list[float]:
        model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=kind, learning_starts=100, seed=0, device="cpu")
        start = time.perf_counter()
        model.learn(steps)
        return [time.perf_counter() - start]

    return measure


def _rows(kind: Any, n_step: Any, options: dict[str, Any]) -> dict[str, Callable[[Sizes], Measurement]]:
    return {
        **{f"add cartpole {n}": partial(_add, kind, CARTPOLE, n) for n in (1, 8)},
        **{f"add atari {n}": partial(_add, kind, ATARI, n) for n in (1, 8)},
        "sample cartpole": partial(_sample, kind, CARTPOLE),
        "sample n_step": partial(_sample, n_step, CARTPOLE, n_steps=3, gamma=0.99),
        "sample atari": partial(_sample, kind, ATARI),
        "train": partial(_train, kind),
        "memory": partial(_memory, kind),
        "memory stack": partial(_memory, kind, **options),
    }


_OURS = _rows(ReplayBuffer, ReplayBuffer, {"stack": 4})
_THEIRS = _rows(buffers.ReplayBuffer, buffers.NStepReplayBuffer, {})

ROWS = {
    **{f"ours {name}": make for name, make in _OURS.items()},
    **{f"theirs {name}": make for name, make in _THEIRS.items()},
}

if __name__ == "__main__":
    mine = sys.argv[1].startswith("ours ")
    program.serve("echo_shm" if mine else f"stable-baselines3 {version('stable-baselines3')}", ROWS)
