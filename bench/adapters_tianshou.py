"""Tianshou's buffers of vectorized environments, and echo_shm's in their place: the program of both.

Run by :mod:`bench.adapters` with the interpreter of an environment that has Tianshou.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import tianshou.data
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from bench import replay_program as program
from bench.items_own import resident_bytes
from bench.replay_program import Measurement, Sizes
from echo_shm.adapters import tianshou as ours

_ENVS = 8
_PRIORITIES = {"alpha": 0.6, "beta": 0.4}


def _adding(buffer: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[], None]:
    """Adds a step of all environments with each call."""
    random, frames = np.random.default_rng(0), 32
    seen = [random.integers(0, 255, (_ENVS, *shape)).astype(dtype) for _ in range(frames)]
    never, always, t = np.zeros(_ENVS, bool), np.ones(_ENVS, bool), 0
    rest = {"act": np.zeros(_ENVS, np.int64), "rew": np.ones(_ENVS), "truncated": never, "info": Batch()}
    going, ending = Batch(**rest, terminated=never), Batch(**rest, terminated=always)

    def add() -> None:
        nonlocal t
        batch = ending if t % 500 == 499 else going
        batch.obs, batch.obs_next = seen[t % frames], seen[(t + 1) % frames]
        buffer.add(batch)
        t += 1

    return add


def _filled(make: Any, size: int, shape: tuple[int, ...] = (4,), dtype: Any = np.float32) -> tuple[Any, Any]:
    buffer = make(size, _ENVS)
    add = _adding(buffer, shape, dtype)
    for _ in range(size // _ENVS):
        add()
    return buffer, add


def _add(make: Any, sizes: Sizes) -> Measurement:
    _, add = _filled(make, sizes.cartpole)
    return lambda: program.rate(add, _ENVS, sizes.seconds)


def _sample(make: Any, sizes: Sizes) -> Measurement:
    buffer, _ = _filled(make, sizes.cartpole)

    def work() -> float:
        batch, _ = buffer.sample(program.BATCH_SIZE)
        return float(batch.obs[0, 0] + batch.obs_next[0, 0] + batch.rew[0])

    return lambda: program.rate(work, 1, sizes.seconds)


def _update(make: Any, sizes: Sizes) -> Measurement:
    buffer, _ = _filled(make, sizes.cartpole)
    errors = np.random.default_rng(0).random(program.BATCH_SIZE)

    def work() -> None:
        _, indices = buffer.sample(program.BATCH_SIZE)
        buffer.update_weight(indices, errors)

    return lambda: program.rate(work, 1, sizes.seconds)


def _memory(make: Any, sizes: Sizes) -> Measurement:
    def measure() -> list[float]:
        _filled(make, 80, (84, 84), np.uint8)[0].sample(2)
        before = resident_bytes()
        buffer, _ = _filled(make, sizes.atari, (84, 84), np.uint8)
        grown = resident_bytes() - before
        assert len(buffer) == sizes.atari
        return [grown / 1e9]

    return measure


def _train(make: Any, sizes: Sizes) -> Measurement:
    """Seconds of a whole training."""
    torch.set_num_threads(1)
    steps = 4000 if sizes.seconds >= 1 else 400

    def measure() -> list[float]:
        envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * _ENVS)
        network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64])
        space = envs.get_env_attr("action_space", 0)[0]
        policy = DiscreteQLearningPolicy(model=network, action_space=space, eps_training=0.1)
        algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=100)
        collector: Any = Collector(algorithm, envs, make(10_000, _ENVS), exploration_noise=True)
        collector.reset()
        collector.collect(n_step=200, random=True)
        start = time.perf_counter()
        algorithm.run_training(
            OffPolicyTrainerParams(
                training_collector=collector,
                test_collector=None,
                max_epochs=1,
                epoch_num_steps=steps,
                collection_step_num_env_steps=_ENVS,
                update_step_num_gradient_steps_per_sample=0.125,
                batch_size=64,
                test_in_training=False,
                show_progress=False,
            )
        )
        return [time.perf_counter() - start]

    return measure


def _rows(plain: Any, prioritized: Any) -> dict[str, Callable[[Sizes], Measurement]]:
    with_priorities = partial(prioritized, **_PRIORITIES)
    return {
        "add": partial(_add, plain),
        "sample": partial(_sample, plain),
        "update": partial(_update, with_priorities),
        "memory": partial(_memory, plain),
        "train": partial(_train, with_priorities),
    }


_OURS = _rows(ours.VectorReplayBuffer, ours.PrioritizedVectorReplayBuffer)
_THEIRS = _rows(tianshou.data.VectorReplayBuffer, tianshou.data.PrioritizedVectorReplayBuffer)

ROWS = {
    **{f"ours {name}": make for name, make in _OURS.items()},
    **{f"theirs {name}": make for name, make in _THEIRS.items()},
}

if __name__ == "__main__":
    mine = sys.argv[1].startswith("ours ")
    program.serve("echo_shm" if mine else f"Tianshou {version('tianshou')}", ROWS)
