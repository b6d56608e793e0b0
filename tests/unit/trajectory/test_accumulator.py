"""TrajectoryAccumulator: filling a sample step by step."""

import numpy as np
import pytest

from echo_shm import Server, TrajectoryAccumulator

EXAMPLE = {
    "steps": {"obs": np.zeros((3, 2), np.float32), "act": np.zeros(3, np.int64)},
    "final": {"obs": np.zeros((1, 2), np.float32)},
    "episode": {"return": np.zeros(()), "seed": np.zeros(4, np.int32)},
}


def step(i):
    """Step number i."""
    return {"obs": np.full(2, i, np.float32), "act": i}


def fill(accumulator, start=0):
    """Adds a whole trajectory."""
    for i in range(start, start + 3):
        accumulator.add("steps", step(i))
    accumulator.add("final", {"obs": [[start + 3, start + 3]]})
    accumulator.add("episode", {"return": 0.5, "seed": np.arange(4)})


def test_a_trajectory():
    """Rows land in order, single items whole, in the example's structure, shapes and dtypes."""
    accumulator = TrajectoryAccumulator(EXAMPLE)
    fill(accumulator)
    tree = accumulator.build()
    assert tree["steps"]["act"].tolist() == [0, 1, 2]
    assert tree["steps"]["obs"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert tree["final"]["obs"].tolist() == [[3, 3]]
    assert tree["episode"]["return"] == 0.5
    assert tree["episode"]["seed"].tolist() == [0, 1, 2, 3]
    for timescale, part in EXAMPLE.items():
        for name, leaf in part.items():
            assert (tree[timescale][name].dtype, tree[timescale][name].shape) == (leaf.dtype, leaf.shape)


def test_the_example_is_not_touched():
    """The accumulator writes into buffers of its own, zero to begin with."""
    example = {"steps": np.ones((2, 2))}
    accumulator = TrajectoryAccumulator(example)
    assert (accumulator.build()["steps"] == 0).all()
    accumulator.add("steps", np.full(2, 5))
    assert (example["steps"] == 1).all()


def test_too_many_rows():
    """Adding more rows than a timescale has is an IndexError that names the timescale and its size."""
    accumulator = TrajectoryAccumulator(EXAMPLE)
    fill(accumulator)
    with pytest.raises(IndexError, match=r"Timescale 'steps' has 3 slots, but you tried to add at index 3"):
        accumulator.add("steps", step(3))
    with pytest.raises(IndexError, match=r"Timescale 'final' has 1 slots, but you tried to add at index 1"):
        accumulator.add("final", {"obs": [[0, 0]]})


@pytest.mark.parametrize("again", [TrajectoryAccumulator.build, TrajectoryAccumulator.reset])
def test_build_and_reset_start_over(again):
    """After build() or reset() every timescale can be filled again from its first row."""
    accumulator = TrajectoryAccumulator(EXAMPLE)
    accumulator.add("steps", step(9))
    again(accumulator)
    fill(accumulator, 10)
    assert accumulator.build()["steps"]["act"].tolist() == [10, 11, 12]


def test_build_aliases_the_buffers():
    """build() copies nothing: the tree is the same each time, and later adds show in it."""
    accumulator = TrajectoryAccumulator(EXAMPLE)
    fill(accumulator)
    tree = accumulator.build()
    fill(accumulator, 20)
    assert tree["steps"]["act"].tolist() == [20, 21, 22]
    assert accumulator.build() is tree


def test_unknown_timescales():
    """A KeyError names what was asked for and what there is."""
    with pytest.raises(KeyError, match=r"no timescale is called 'step'.*'steps', 'final', 'episode'"):
        TrajectoryAccumulator(EXAMPLE).add("step", step(0))


def test_a_wrong_structure():
    """Data of another structure, or of a wrong shape, is an error, and takes no row."""
    accumulator = TrajectoryAccumulator(EXAMPLE)
    for wrong in ({"obs": np.zeros(2)}, {"obs": np.zeros(3), "act": 0}):
        with pytest.raises(ValueError):  # noqa: PT011
            accumulator.add("steps", wrong)
    fill(accumulator)


@pytest.mark.parametrize("example", [[np.zeros(3)], np.zeros(3), None, (("a", np.zeros(3)),)])
def test_the_example_is_a_dict(example):
    """Timescales are the keys of a dict, nothing else."""
    with pytest.raises(TypeError, match="must be a dict of timescales"):
        TrajectoryAccumulator(example)


@pytest.mark.parametrize(
    ("part", "message"),
    [({}, "'t' has no arrays"), ({"a": np.zeros(3), "b": np.zeros(4)}, r"same leading dimension, got \[3, 4\]")],
)
def test_timescales_are_checked(part, message):
    """A timescale needs leaves that agree on their number of rows."""
    with pytest.raises(ValueError, match=message):
        TrajectoryAccumulator({"t": part})


def test_single_items():
    """A leaf of shape () makes its whole timescale a single item, whatever the other shapes are."""
    accumulator = TrajectoryAccumulator({"t": {"a": np.zeros(()), "b": np.zeros((3, 2))}, "u": np.zeros((1, 5))})
    accumulator.add("t", {"a": 1, "b": np.ones((3, 2))})
    accumulator.add("u", np.arange(5))
    tree = accumulator.build()
    assert (tree["t"]["b"] == 1).all()
    assert tree["u"].tolist() == [[0, 1, 2, 3, 4]]


def test_a_built_tree_is_a_sample():
    """The tree that build() returns can be sent."""
    with Server(EXAMPLE, 1) as server:
        accumulator = TrajectoryAccumulator(EXAMPLE)
        fill(accumulator)
        server.submit(accumulator.build())
        assert server.sample(1).batch["steps"]["act"].tolist() == [[0, 1, 2]]


def test_leaves_are_arrays():
    """A leaf of the example that is no array is named."""
    with pytest.raises(TypeError, match=r"example\['t'\]\['a'\] must be a numpy array, got float"):
        TrajectoryAccumulator({"t": {"a": 1.0}})


def test_wrong_shapes_add_nothing():
    """A wrong shape is named with its timescale and leaf, and does not count as added."""
    accumulator = TrajectoryAccumulator({"t": {"a": np.zeros((2, 3))}})
    with pytest.raises(ValueError, match=r"\['t'\]\['a'\]: got shape \[4\], expected \[1, 3\]"):
        accumulator.add("t", {"a": np.ones(4)})
    accumulator.add("t", {"a": np.ones(3)})
    accumulator.add("t", {"a": np.full(3, 2.0)})
    assert accumulator.build()["t"]["a"].tolist() == [[1.0] * 3, [2.0] * 3]
