"""A publisher and its subscriber in one process."""

from collections import defaultdict

import numpy as np
import pytest

from echo_shm import Publisher, Subscriber


def params(fill=0.0):
    """Weights of four leaves, one of them without elements, all of the same value."""
    return {
        "layers": [np.full((3, 5), fill, np.float32), np.full(5, fill, np.float64)],
        "steps": np.full((), fill, np.int64),
        "nothing": np.zeros((0, 4), np.float32),
    }


def unusual(fill=0.0):
    """Weights whose structure no schema can rebuild."""
    return defaultdict(None, b=np.full(2, fill, np.float64), a=np.full(3, fill, np.float64))


@pytest.fixture
def publisher():
    """Of :func:`params`; nothing is published."""
    with Publisher(params(), max_leases=2, max_subscribers=4) as publisher:
        yield publisher


@pytest.fixture
def subscriber(publisher):
    """Its subscriber, by name."""
    with Subscriber(publisher.name) as subscriber:
        yield subscriber
