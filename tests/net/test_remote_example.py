"""The example whose workers are on another host learns, also through a link that is cut."""

import importlib.util
import os
import re
import sys

import pytest
from harness.hosts import why_not
from harness.programs import run


@pytest.mark.watchdog(180)
def test_it_learns():
    """It reaches a low target, and the link is cut on the way, where there can be another host."""
    for module in ("torch", "gymnasium"):
        if importlib.util.find_spec(module) is None:
            assert "ECHO_SHM_NEED_TORCH" not in os.environ, f"{module} is not installed"
            pytest.skip(f"{module} is not installed")
    words = ["--steps", "100000", "--target", "60", "--cut", "1", "--cut-at", "0.02"]
    words += ["--loopback"] if why_not() else []
    done = run(sys.executable, "-m", "echo_shm.examples.remote", *words)
    assert re.search(r"^solved in .* steps and .* versions old$", done.stdout, re.MULTILINE)
    assert ("the link is cut for 1 s" in done.stdout) == ("--loopback" not in words)
