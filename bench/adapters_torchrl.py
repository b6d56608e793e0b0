"""TorchRL's replay buffer, and echo_shm's in its place: the program of both.

Run by :mod:`bench.adapters` with the interpreter of an environment that has TorchRL.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

from bench import replay_program as program
from bench.items_own import resident_bytes
from bench.replay_program import Measurement, Sizes
from echo_shm.adapters.torchrl import ReplayBuffer
from echo_shm.replay import Prioritized

_BLOCK = 32


def _ours(size: int, priorities: bool = False) -> Any:
    return ReplayBuffer(size, sampler=Prioritized(0.6, 0.4) if priorities else None, batch_size=program.BATCH_SIZE)


def _theirs(size: int, priorities: bool = False) -> Any:
    storage = LazyTensorStorage(size)
    if priorities:
        return TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=program.BATCH_SIZE)
    return TensorDictReplayBuffer(storage=storage, batch_size=program.BATCH_SIZE)


def _steps(n: int, shape: tuple[int, ...], dtype: torch.dtype) -> TensorDict:
    obs = (torch.rand(n, *shape) * 200).to(dtype)
    following = {"observation": obs.roll(-1, 0), "reward": torch.ones(n, 1), "done": torch.zeros(n, 1, dtype=bool)}
    return TensorDict({"observation": obs, "action": torch.zeros(n, dtype=torch.long), "next": following}, [n])


def _filled(make: Any, size: int, shape: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float32) -> Any:
    buffer, block = make(size), _steps(500, shape, dtype)
    for _ in range(0, size, 500):
        buffer.extend(block)
    return buffer


def _add(make: Any, sizes: Sizes) -> Measurement:
    buffer, steps = _filled(make, sizes.cartpole), list(_steps(64, (4,), torch.float32).unbind(0))
    t = 0

    def work() -> None:
        nonlocal t
        buffer.add(steps[t % 64])
        t += 1

    return lambda: program.rate(work, 1, sizes.seconds)


def _extend(make: Any, sizes: Sizes) -> Measurement:
    buffer, block = _filled(make, sizes.cartpole), _steps(_BLOCK, (4,), torch.float32)
    return lambda: program.rate(lambda: buffer.extend(block), _BLOCK, sizes.seconds)


def _sample(make: Any, sizes: Sizes) -> Measurement:
    buffer = _filled(make, sizes.cartpole)
    return lambda: program.rate(lambda: float(buffer.sample()["observation"][0, 0]), 1, sizes.seconds)


def _update(make: Any, sizes: Sizes) -> Measurement:
    buffer, errors = _filled(partial(make, priorities=True), sizes.cartpole), torch.rand(program.BATCH_SIZE)

    def work() -> None:
        sample = buffer.sample()
        sample["td_error"] = errors
        buffer.update_tensordict_priority(sample)

    return lambda: program.rate(work, 1, sizes.seconds)


def _memory(make: Any, sizes: Sizes) -> Measurement:
    def measure() -> list[float]:
        _filled(make, 500, (84, 84), torch.uint8).sample()
        before = resident_bytes()
        buffer = _filled(make, sizes.atari, (84, 84), torch.uint8)
        grown = resident_bytes() - before
        assert len(buffer) == sizes.atari
        return [grown / 1e9]

    return measure


def _train(make: Any, sizes: Sizes) -> Measurement:
    """Seconds of a whole training."""
    torch.set_num_threads(1)
    frames = 3000 if sizes.seconds >= 1 else 400

    def measure() -> list[float]:
        env = GymEnv("CartPole-v1")
        network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
        actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
        greedy = EGreedyModule(env.action_spec, annealing_num_steps=2000, eps_init=1.0, eps_end=0.05)
        loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        loss.make_value_estimator(gamma=0.99)
        optimizer, frozen = (
            torch.optim.Adam(loss.parameters(), lr=2e-3),
            HardUpdate(loss, value_network_update_interval=50),
        )
        collector = Collector(env, TensorDictSequential(actor, greedy), frames_per_batch=100, total_frames=frames)
        buffer = make(10_000, priorities=True)
        start = time.perf_counter()
        for block in collector:
            buffer.extend(block)
            for _ in range(20):
                sample = buffer.sample()
                loss(sample)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
                frozen.step()
                buffer.update_tensordict_priority(sample)
        return [time.perf_counter() - start]

    return measure


def _rows(make: Any) -> dict[str, Callable[[Sizes], Measurement]]:
    return {
        "add": partial(_add, make),
        "extend": partial(_extend, make),
        "sample": partial(_sample, make),
        "update": partial(_update, make),
        "memory": partial(_memory, make),
        "train": partial(_train, make),
    }


ROWS = {
    **{f"ours {name}": make for name, make in _rows(_ours).items()},
    **{f"theirs {name}": make for name, make in _rows(_theirs).items()},
}

if __name__ == "__main__":
    mine = sys.argv[1].startswith("ours ")
    program.serve("echo_shm" if mine else f"TorchRL {version('torchrl')}", ROWS)
