"""The samples that are sent, the same arrays for every contender."""

from typing import Any

import numpy as np
import optree


def cartpole() -> dict[str, Any]:
    """20 bytes in 2 leaves."""
    return {"obs": np.arange(4, dtype=np.float32), "action": np.array(1, np.int32)}


def atari() -> dict[str, Any]:
    """Four stacked frames and three scalars: 28,233 bytes in 4 leaves."""
    frames = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)
    return {
        "obs": frames,
        "action": np.array(1, np.int32),
        "reward": np.array(1.0, np.float32),
        "done": np.array(False),
    }


def many_leaves() -> dict[str, Any]:
    """44 leaves of 16 bytes: the width of a large observation, as in id-echo's own benchmark."""
    return {f"feature_{i:02}": np.full(4, i, np.float32) for i in range(44)}


SAMPLES = {"cartpole": cartpole, "atari": atari, "44 leaves": many_leaves}


def flat(sample: Any) -> bytes:
    """One sample's bytes, leaf by leaf: real data, for untouched zeros would all be one page of the kernel's."""
    return b"".join(leaf.tobytes() for leaf in optree.tree_leaves(sample))


def stacked(sample: Any, n: int) -> Any:
    """n copies of a sample, stacked along a new first dimension of each leaf."""
    return optree.tree_map(lambda leaf: np.stack([leaf] * n), sample)
