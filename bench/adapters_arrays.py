"""What PyTorch, JAX and Gymnasium do alone, and what they do with echo_shm: the program of both.

Run by :mod:`bench.adapters` with the interpreter of an environment that has all three.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import jax
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.utils.data import DataLoader, TensorDataset

from bench import replay_program as program
from bench.replay_program import Measurement, Sizes
from echo_shm import Replay
from echo_shm.adapters.gymnasium import example_of, run_vector
from echo_shm.adapters.jax import as_arrays
from echo_shm.adapters.torch import ReplayDataset

_ENVS, _CALLS = 8, 200


def _steps(n: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "obs": random.standard_normal((n, 4), np.float32),
        "action": np.zeros(n, np.int64),
        "reward": np.ones(n, np.float32),
    }


def _loaded(loader: Any, first: Callable[[Any], Any], sizes: Sizes) -> Measurement:
    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = forever()
    return lambda: program.rate(lambda: float(first(next(batches))), 1, sizes.seconds)


def _our_loader(sizes: Sizes) -> Measurement:
    steps = _steps(sizes.cartpole)
    replay = Replay({name: leaf[0] for name, leaf in steps.items()}, sizes.cartpole)
    replay.extend(steps)
    loader = DataLoader(ReplayDataset(replay, program.BATCH_SIZE), batch_size=None)
    return _loaded(loader, lambda batch: batch.data["obs"][0, 0], sizes)


def _their_loader(sizes: Sizes) -> Measurement:
    tensors = [torch.from_numpy(leaf) for leaf in _steps(sizes.cartpole).values()]
    loader = DataLoader(TensorDataset(*tensors), program.BATCH_SIZE, shuffle=True, drop_last=True)
    return _loaded(loader, lambda batch: batch[0][0, 0], sizes)


def _converted(convert: Callable[[Any], Any], sizes: Sizes) -> Measurement:
    """Batches of Atari that a replay has drawn, as arrays of JAX."""
    frames = min(sizes.atari, 2_000)
    replay = Replay({"obs": np.zeros((84, 84), np.uint8)}, frames)
    replay.extend({"obs": np.zeros((frames, 84, 84), np.uint8)})
    return lambda: program.rate(
        lambda: jax.block_until_ready(convert(replay.sample(program.BATCH_SIZE).data)), 1, sizes.seconds
    )


def _envs() -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * _ENVS, autoreset_mode=AutoresetMode.NEXT_STEP)


def _our_play(sizes: Sizes) -> Measurement:
    envs, actions = _envs(), np.zeros(_ENVS, np.int64)
    replay = Replay(example_of(envs), sizes.cartpole)
    work = partial(run_vector, replay, envs, lambda _: actions, steps=_CALLS)
    return lambda: program.rate(work, _ENVS * _CALLS, sizes.seconds)


def _their_play(sizes: Sizes) -> Measurement:
    """The same steps, which nobody stores."""
    envs, actions = _envs(), np.zeros(_ENVS, np.int64)

    def work() -> None:
        envs.reset()
        for _ in range(_CALLS):
            envs.step(actions)

    return lambda: program.rate(work, _ENVS * _CALLS, sizes.seconds)


ROWS = {
    "ours loader": _our_loader,
    "theirs loader": _their_loader,
    "ours jax": partial(_converted, as_arrays),
    "theirs jax": partial(_converted, partial(jax.tree.map, jax.numpy.asarray)),
    "ours play": _our_play,
    "theirs play": _their_play,
}

#: What a row is compared with.
_PEERS = {"loader": "torch", "jax": "jax", "play": "gymnasium"}

if __name__ == "__main__":
    whose, row = sys.argv[1].split(" ", 1)
    program.serve("echo_shm" if whose == "ours" else f"{_PEERS[row]} {version(_PEERS[row])}", ROWS)
