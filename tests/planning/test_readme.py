"""README's blocks of planning run as printed, two of them for a shorter time."""

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.packages import need, readme_block


def _run(folder, script):
    """What the script prints; asserts that it ends well."""
    path = folder / "example.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, os.fspath(path)], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_replay_prints_what_readme_shows(tmp_path):
    """The figures depend on the seed alone."""
    block = readme_block("HotColdReplay(example")
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    shown = readme.split(block)[1].split("```")[2]
    assert _run(tmp_path, block) == shown.removeprefix("\n")


def test_the_agent_trains(tmp_path):
    """For so short that it does not learn much."""
    need("torch", "gymnasium")
    block = readme_block("EchoRLTrainer(config)")
    assert block.count("60_000") == 1
    assert re.match(
        r"success rate [01]\.\d\d after [12],\d{3} steps$", _run(tmp_path, block.replace("60_000", "1_000"))
    )


def test_rollouts_share_their_caches(tmp_path):
    """Most of what four of them read is there already."""
    need("torch", "gymnasium")
    block = readme_block("RolloutEngine(backbone")
    assert block.count("range(16)") == 1
    found = re.match(r"4 episodes; (\d+)% of what", _run(tmp_path, block.replace("range(16)", "range(4)")))
    assert found
    assert int(found[1]) > 70
