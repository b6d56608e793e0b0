"""Agents where PyTorch is not installed."""

import re

from harness.programs import run_python

SCRIPT = """
import sys
sys.modules["torch"] = None
import echo_shm.planning as planning
print(planning.TrainingConfig("CartPole-v1").batch_size)
import echo_shm.planning.core as core
assert core.ExecutionConfig().max_cache_size == 10_000
assert core.PrioritizedReplayBuffer(core.ReplayConfig()).sample_batch(3) == ([], [])
ours = ("TrajectoryEncoder", "LatentPlanner", "PolicyNetwork", "PPO", "Segments", "EchoRLTrainer")
names = [(planning, name) for name in ours]
for room, name in [*names, (core, "TrajectoryEncoder"), (core, "AsyncExecutionEngine")]:
    try:
        getattr(room, name)
    except ModuleNotFoundError as error:
        print(error.name, error, sep="|")
"""


def test_the_message_says_what_to_install():
    """Configurations are read without it; all else says which extra brings it."""
    size, *lines = run_python(SCRIPT).stdout.splitlines()
    assert size == "256"
    assert len(lines) == 8
    where = r"torch\|echo_shm\.planning\.(agents|training|core)"
    told = where + r" needs PyTorch: .* pip install 'echo-shm\[planning-agents\]'"
    assert all(re.fullmatch(told, line) for line in lines), lines
