"""Replays full of episodes of every kind, and whether two have the same ones."""

import ml_dtypes
import numpy as np
import optree

from echo_shm import Replay, Table
from echo_shm.replay import NStep

#: A step with leaves of every kind of dtype, and names that are awkward somewhere.
EXAMPLE = {
    "obs": {"image": np.zeros((2, 3), np.uint8), "file": np.zeros(2, np.float32)},
    "action": (np.zeros((), np.int64), np.zeros(2, "<M8[s]")),
    "reward": np.zeros((), np.float32),
    "terminated": np.zeros((), bool),
    "final/x": np.zeros((1, 2), np.complex64),
    "half": np.zeros(2, np.float16),
    "brain": np.zeros(3, ml_dtypes.bfloat16),
    "big": np.zeros(2, ">i4"),
    "text": np.zeros((), "U3"),
    "raw": np.zeros(2, "S2"),
    "pair": np.zeros((), [("x", np.float64), ("y", np.int16)]),
    "empty": np.zeros((2, 0), np.float32),
}

#: How each episode ends: its steps, terminated, truncated, whether it is known with what.
ENDS = [
    (3, True, False, True),
    (1, False, True, True),
    (4, True, False, False),
    (2, False, True, False),
    (5, False, False, False),
]


def random_tree(example, rng):
    """A tree like the example, with random bytes that are valid values."""

    def leaf(array):
        if array.dtype.kind == "U":
            return np.array("".join(rng.choice(list("aéz"), 3)), array.dtype)
        if array.dtype.kind == "b":
            return np.asarray(rng.random(array.shape) < 0.5)
        small = rng.integers(1, 100, (*array.shape, array.dtype.itemsize), dtype=np.uint8)
        return small.view(array.dtype).reshape(array.shape)

    return optree.tree_map(leaf, example)


def filled(example=EXAMPLE, ends=ENDS, seed=0, capacity=100, observation=("obs",)):
    """A replay with these episodes."""
    rng = np.random.default_rng(seed)
    table = Table("t", item=NStep(2, 0.9, list(observation), "reward"))
    replay = Replay(example, capacity, [table])
    for n, terminated, truncated, final in ends:
        for i in range(n):
            over = i == n - 1
            last = random_tree(example, rng) if over and final else None
            step = random_tree(example, rng)
            replay.add(step, terminated=over and terminated, truncated=over and truncated, final=last)
        if not terminated and not truncated:
            replay.end_episode()
    return replay


def same_bytes(got, expected):
    """Whether two trees have the same arrays: dtypes, shapes and bytes."""
    assert optree.tree_structure(got) == optree.tree_structure(expected)
    for one, other in zip(optree.tree_leaves(got), optree.tree_leaves(expected), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return True


def same_episodes(got, expected):
    """Asserts that two replays have the same episodes, in the same order, with the same ends. Returns how many."""
    got, expected = list(got.episodes()), list(expected.episodes())
    assert [len(one) for one in got] == [len(one) for one in expected]
    for one, other in zip(got, expected, strict=True):
        assert same_bytes(one.steps, other.steps)
        assert (one.final is None) == (other.final is None)
        assert one.final is None or same_bytes(one.final, other.final)
        assert (one.terminated, one.truncated) == (other.terminated, other.truncated)
    return len(got)
