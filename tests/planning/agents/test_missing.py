"""Agents where PyTorch is not installed."""

import re

from harness.programs import run_python

SCRIPT = """
import sys
sys.modules["torch"] = None
import echo_shm.planning as planning
print(planning.TrainingConfig("CartPole-v1").batch_size)
for name in ("TrajectoryEncoder", "LatentPlanner", "PolicyNetwork", "PPO", "Segments", "EchoRLTrainer"):
    try:
        getattr(planning, name)
    except ModuleNotFoundError as error:
        print(error.name, error, sep="|")
"""


def test_the_message_says_what_to_install():
    """Configurations are read without it; all else says which extra brings it."""
    size, *lines = run_python(SCRIPT).stdout.splitlines()
    assert size == "256"
    assert len(lines) == 6
    told = r"torch\|echo_shm\.planning\.(agents|training) needs PyTorch: .* pip install 'echo-shm\[planning-agents\]'"
    assert all(re.fullmatch(told, line) for line in lines), lines
