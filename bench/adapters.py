"""The front doors for other frameworks against what the frameworks themselves have.

As in :mod:`bench.replay`: every contender has a process of its own, the buffers are full, and they take turns. A
framework's program has the rows of both, so that they are called in the same way from the same environment.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

from bench.replay import Contender, figures_of, take_turns
from bench.replay_peers import Library, installed
from bench.replay_program import BATCH_SIZE, Sizes
from bench.scale import Scale
from bench.table import Figure

#: What echo_shm itself needs, in the environment of a framework.
_OWN = ("optree>=0.13", "cffi>=1.17", "posix_ipc>=1.1", "psutil>=5.9")

SB3 = Library("bench.adapters_sb3", ("stable-baselines3==2.9.2", "torch==2.13.0", *_OWN))
TORCHRL = Library("bench.adapters_torchrl", ("torchrl==0.14.1", "torch==2.14.1", "gymnasium==1.2.2", *_OWN))
TIANSHOU = Library("bench.adapters_tianshou", ("tianshou==2.0.1", "torch==2.13.0", *_OWN))
ARRAYS = Library("bench.adapters_arrays", ("jax==0.10.2", "torch==2.13.0", "gymnasium==1.2.2", *_OWN))
RLLIB = Library("bench.adapters_rllib", ("ray[rllib]==2.60.0", "torch==2.13.0", *_OWN))


@dataclass(frozen=True)
class Row:
    """What is measured of an adapter, and of what it stands in for.

    Attributes:
        library: The program that has the rows ``"ours " + row`` and ``"theirs " + row``.
        row: The row's name there.
        path: What it is called.
        unit: Of a measurement.
        once: Measured once, for it does not vary; or it takes long.
        ours: The row of ours, where it has another name.

    """

    library: Library
    row: str
    path: str
    unit: str
    once: bool = False
    ours: str = ""


_SAMPLE = f"`sample({BATCH_SIZE})`"

#: All that is measured.
ROWS = (
    Row(SB3, "add cartpole 1", "SB3 `ReplayBuffer.add`, CartPole, 1 environment", "steps/s"),
    Row(SB3, "add cartpole 8", "SB3 `ReplayBuffer.add`, CartPole, 8 environments", "steps/s"),
    Row(SB3, "add atari 1", "SB3 `ReplayBuffer.add`, Atari, 1 environment", "steps/s"),
    Row(SB3, "add atari 8", "SB3 `ReplayBuffer.add`, Atari, 8 environments", "steps/s"),
    Row(SB3, "sample cartpole", f"SB3 `ReplayBuffer`, {_SAMPLE}, CartPole", "batches/s"),
    Row(SB3, "sample n_step", f"SB3 `NStepReplayBuffer`, 3 steps, {_SAMPLE}, CartPole", "batches/s"),
    Row(SB3, "sample atari", f"SB3 `ReplayBuffer`, {_SAMPLE}, Atari", "batches/s"),
    Row(SB3, "train", "SB3 `DQN.learn` of 5,000 steps of CartPole, one thread", "s"),
    Row(SB3, "memory", "SB3 `ReplayBuffer`, memory of {frames:,} Atari transitions", "GB", True),
    Row(
        SB3, "memory", "SB3 `ReplayBuffer(stack=4)`, memory of {frames:,} Atari transitions", "GB", True, "memory stack"
    ),
    Row(ARRAYS, "loader", f"torch `DataLoader` over `ReplayDataset`, {_SAMPLE}, CartPole", "batches/s"),
    Row(ARRAYS, "jax", f"JAX `as_arrays` of {_SAMPLE}, frames of Atari", "batches/s"),
    Row(ARRAYS, "play", "Gymnasium `run_vector` of 8 CartPoles into a replay; compared with `step` alone", "steps/s"),
    Row(TORCHRL, "add", "TorchRL `ReplayBuffer.add`, CartPole", "steps/s"),
    Row(TORCHRL, "extend", "TorchRL `ReplayBuffer.extend` of 32, CartPole", "steps/s"),
    Row(TORCHRL, "sample", f"TorchRL `ReplayBuffer`, {_SAMPLE}, CartPole", "batches/s"),
    Row(TORCHRL, "update", f"TorchRL, prioritized, {_SAMPLE} and `update_tensordict_priority`", "batches/s"),
    Row(TORCHRL, "train", "TorchRL, prioritized DQN of 3,000 steps of CartPole, one thread", "s"),
    Row(TORCHRL, "memory", "TorchRL `ReplayBuffer`, memory of {frames:,} frames of Atari", "GB", True),
    Row(TIANSHOU, "add", "Tianshou `VectorReplayBuffer.add`, CartPole, 8 environments", "steps/s"),
    Row(TIANSHOU, "sample", f"Tianshou `VectorReplayBuffer`, {_SAMPLE}, CartPole", "batches/s"),
    Row(TIANSHOU, "update", f"Tianshou, prioritized, {_SAMPLE} and `update_weight`", "batches/s"),
    Row(TIANSHOU, "train", "Tianshou, prioritized DQN of 4,000 steps of CartPole, one thread", "s"),
    Row(TIANSHOU, "memory", "Tianshou `VectorReplayBuffer`, memory of {frames:,} Atari transitions", "GB", True),
    Row(RLLIB, "add", "RLlib `PrioritizedEpisodeReplayBuffer.add` of 100 steps, CartPole", "steps/s"),
    Row(RLLIB, "sample", "RLlib `PrioritizedEpisodeReplayBuffer`, `sample(64)`, 3 steps, CartPole", "batches/s"),
    Row(RLLIB, "update", "RLlib, `sample(64)` and `update_priorities`", "batches/s"),
    Row(RLLIB, "train", "RLlib, prioritized DQN of 2,000 steps of CartPole, one thread", "s"),
    Row(RLLIB, "memory", "RLlib `PrioritizedEpisodeReplayBuffer`, memory of {frames:,} frames of Atari", "GB", True),
)


def _measured(scale: Scale) -> Iterator[list[Figure]]:
    there: dict[Library, bool] = {}
    for row in ROWS:
        if row.library not in there:
            there[row.library] = installed(row.library)
        if not there[row.library]:
            continue
        sizes = Sizes(scale.seconds, scale.adapter_steps, scale.adapter_frames)
        names = f"ours {row.ours or row.row}", f"theirs {row.row}"
        contenders = [(Contender(row.library, name), sizes) for name in names]
        measured = take_turns(contenders, 1 if row.once else scale.repetitions, alone=row.once)
        if len(measured) == 2:  # otherwise a line said why not
            yield figures_of(row.path.format(frames=scale.adapter_frames), row.unit, measured)


def adapters(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows."""
    return [figure for figures in _measured(scale) for figure in figures]
