"""Workers, shards, learners, raylets and nodes are killed at random, and links are cut, for a short while."""

import os
import random

import pytest
from harness.packages import need
from harness.ray_cluster import why_not

need("ray")
need("cryptography")

from stress import ray_storm  # noqa: E402


@pytest.mark.watchdog(600)
def test_storm():
    """Every step that a flush has confirmed comes once, unless it went with a node; and nothing is left."""
    if why := why_not():
        pytest.skip(why)
    seed = int(os.environ.get("STORM_SEED", random.SystemRandom().getrandbits(32)))
    print(f"STORM_SEED={seed}")
    storm = ray_storm.run(seed, float(os.environ.get("STORM_SECONDS", "20")))
    assert storm.figures["came"] >= storm.figures["confirmed"] - storm.figures["went with nodes"] > 0
