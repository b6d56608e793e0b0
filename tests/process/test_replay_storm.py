"""A replay, its writers and its client are killed and stopped at random, for a short while."""

import os
import random

import pytest
from stress import replay_storm


@pytest.mark.watchdog(180)
def test_storm():
    """Every step that flush has confirmed is stored once and whole, and stopped writers hold up nobody."""
    seed = int(os.environ.get("STORM_SEED", random.SystemRandom().getrandbits(32)))
    print(f"STORM_SEED={seed}")
    storm = replay_storm.run(seed, kills=120)
    assert storm.figures["stored"] >= storm.figures["confirmed"] > 0
