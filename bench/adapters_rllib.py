"""RLlib's episode buffers, and echo_shm's in their place: the program of both.

Run by :mod:`bench.adapters` with the interpreter of an environment that has Ray.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import replay_buffers

from bench import replay_program as program
from bench.items_own import resident_bytes
from bench.replay_program import Measurement, Sizes
from echo_shm.adapters import rllib as ours

_LENGTH = 100
_ACTIONS = gymnasium.spaces.Discrete(2)


def _episodes(n: int, space: gymnasium.spaces.Box) -> list[SingleAgentEpisode]:
    random = np.random.default_rng(0)
    seen = list(random.integers(0, 200, (_LENGTH + 1, *space.shape)).astype(space.dtype))
    return [
        SingleAgentEpisode(
            observations=[obs.copy() for obs in seen],
            actions=[np.int64(0)] * _LENGTH,
            rewards=[1.0] * _LENGTH,
            terminated=True,
            len_lookback_buffer=0,
            observation_space=space,
            action_space=_ACTIONS,
        )
        for _ in range(n)
    ]


CARTPOLE = gymnasium.spaces.Box(-1e6, 1e6, (4,), np.float32)
ATARI = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)


def _filled(make: Any, size: int, space: Any) -> Any:
    buffer = make(capacity=size)
    for _ in range(size // _LENGTH):
        buffer.add(_episodes(1, space))
    return buffer


def _add(make: Any, sizes: Sizes) -> Measurement:
    buffer = _filled(make, min(sizes.cartpole, 20_000), CARTPOLE)

    def measure() -> list[float]:
        episodes = _episodes(50, CARTPOLE)  # RLlib keeps those that come, so that each comes once
        start = time.perf_counter()
        for episode in episodes:
            buffer.add([episode])
        return [len(episodes) * _LENGTH / (time.perf_counter() - start)]

    return measure


def _sample(make: Any, sizes: Sizes) -> Measurement:
    buffer = _filled(make, min(sizes.cartpole, 20_000), CARTPOLE)

    def work() -> None:
        assert len(buffer.sample(num_items=64, n_step=3, gamma=0.99, beta=0.4, sample_episodes=True)) == 64

    return lambda: program.rate(work, 1, sizes.seconds)


def _update(make: Any, sizes: Sizes) -> Measurement:
    buffer = _filled(make, min(sizes.cartpole, 20_000), CARTPOLE)
    errors = np.random.default_rng(0).random(64)

    def work() -> None:
        buffer.sample(num_items=64, n_step=3, gamma=0.99, beta=0.4, sample_episodes=True)
        buffer.update_priorities(errors)

    return lambda: program.rate(work, 1, sizes.seconds)


def _memory(make: Any, sizes: Sizes) -> Measurement:
    def measure() -> list[float]:
        _filled(make, 200, ATARI).sample(num_items=2, n_step=3, gamma=0.99, beta=0.4, sample_episodes=True)
        before = resident_bytes()
        buffer = _filled(make, sizes.atari, ATARI)
        grown = resident_bytes() - before
        stored = buffer.get_num_timesteps()  # whole episodes go when there is no room
        assert stored > 0.9 * sizes.atari
        return [grown / 1e9 * sizes.atari / stored]

    return measure


def _train(name: str, options: dict[str, Any], sizes: Sizes) -> Measurement:
    """Seconds of a whole training."""
    torch.set_num_threads(1)
    steps = 2000 if sizes.seconds >= 1 else 500
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .training(
            replay_buffer_config={"type": name, "capacity": 20_000, "alpha": 0.6, "beta": 0.4, **options},
            n_step=3,
            train_batch_size_per_learner=64,
            training_intensity=32.0,
            num_steps_sampled_before_learning_starts=200,
        )
        .reporting(min_sample_timesteps_per_iteration=500)
        .debugging(seed=0, log_level="ERROR")
    )

    def measure() -> list[float]:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        algorithm = config.build_algo()
        start, sampled = time.perf_counter(), 0
        while sampled < steps:
            sampled = algorithm.train()["num_env_steps_sampled_lifetime"]
        elapsed = time.perf_counter() - start
        algorithm.stop()
        return [elapsed]

    return measure


def _rows(kind: Any, name: str, **options: Any) -> dict[str, Callable[[Sizes], Measurement]]:
    return {
        "add": partial(_add, kind),
        "sample": partial(_sample, kind),
        "update": partial(_update, kind),
        "memory": partial(_memory, kind),
        "train": partial(_train, name, options),
    }


_OURS = _rows(
    partial(ours.PrioritizedEpisodeReplayBuffer, n_step=3, gamma=0.99),
    "echo_shm.adapters.rllib.PrioritizedEpisodeReplayBuffer",
    n_step=3,
)
_THEIRS = _rows(replay_buffers.PrioritizedEpisodeReplayBuffer, "PrioritizedEpisodeReplayBuffer")

ROWS = {
    **{f"ours {name}": make for name, make in _OURS.items()},
    **{f"theirs {name}": make for name, make in _THEIRS.items()},
}

if __name__ == "__main__":
    mine = sys.argv[1].startswith("ours ")
    program.serve("echo_shm" if mine else f"RLlib {version('ray')}", ROWS)
