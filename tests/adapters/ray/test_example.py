"""What processes of a cluster are told of samples."""

import pickle
from typing import NamedTuple

import numpy as np
from harness.packages import need

need("ray")

from echo_shm.adapters.ray.example import Example  # noqa: E402
from echo_shm.spec import Spec  # noqa: E402


class Step(NamedTuple):
    """A node type of a user's."""

    frames: np.ndarray
    rest: object


def test_it_is_small_whatever_the_arrays_are():
    """Another process gets the same structure, dtypes and shapes."""
    record = np.dtype([("a", np.int8), ("b", np.float32, (2,))])
    step = Step(np.ones((1000, 1000)), [np.float32(1), {"x": np.zeros(0, record), "y": None}])
    sent = pickle.dumps(Example(step))
    assert len(sent) < 2000
    got = pickle.loads(sent).tree
    assert type(got) is Step
    assert Spec.from_example(got).schema == Spec.from_example(step).schema
    assert Spec.from_example(got).treespec == Spec.from_example(step).treespec
