"""The example whose workers are on another host learns, also through a link that is cut."""

import importlib.util
import os
import re
import sys

import pytest
from harness.hosts import why_not
from harness.programs import run


@pytest.mark.watchdog(180)
@pytest.mark.parametrize("where", ["hosts", "loopback"])
def test_it_learns(where):
    """It reaches a low target, and the link is cut on the way. Nothing of the other host is left."""
    for module in ("torch", "gymnasium"):
        if importlib.util.find_spec(module) is None:
            assert "ECHO_SHM_NEED_TORCH" not in os.environ, f"{module} is not installed"
            pytest.skip(f"{module} is not installed")
    if where == "hosts" and why_not():
        pytest.skip(f"no hosts can be made here: {why_not()}")
    words = ["--steps", "100000", "--target", "60", "--cut", "1", "--cut-at", "0.02"]
    words += ["--loopback"] if where == "loopback" else []
    done = run(sys.executable, "-m", "echo_shm.examples.remote", *words)
    assert re.search(r"^solved in .* steps and .* versions old$", done.stdout, re.MULTILINE)
    assert ("the link is cut for 1 s" in done.stdout) == (where == "hosts")
