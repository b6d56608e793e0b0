"""CleanRL's buffer: its scripts run with one line changed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.packages import need, readme_block

need("torch", "gymnasium")

import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402

from echo_shm.adapters.cleanrl import ReplayBuffer  # noqa: E402

pytestmark = pytest.mark.watchdog(300)

SCRIPT = Path(__file__).with_name("cleanrl_dqn.py").read_text(encoding="utf-8")
THEIRS = "from stable_baselines3.common.buffers import ReplayBuffer\n"
OURS = "from echo_shm.adapters.cleanrl import ReplayBuffer\n"


def test_a_script_learns_with_one_line_changed():
    """It walks to the right, as it does with the buffer that it was written for."""
    assert SCRIPT.count(THEIRS) == 1
    assert readme_block("echo_shm.adapters.cleanrl").startswith(OURS.strip())
    made = {"__name__": "script"}
    exec(compile(SCRIPT.replace(THEIRS, OURS), "cleanrl_dqn.py", "exec"), made)
    assert isinstance(made["rb"], ReplayBuffer)
    # Four steps to the right are the best: 0.96. At random it takes about twenty.
    assert np.mean(made["returns"][:20]) < 0.9
    assert np.mean(made["returns"][-20:]) > 0.94
    made["rb"].close()


@pytest.mark.parametrize(
    "infos", [[{"TimeLimit.truncated": True}, {}], {"TimeLimit.truncated": np.array([True, False])}]
)
def test_a_time_limit_is_no_end(infos):
    """With ``handle_timeout_termination``, whether ``infos`` is a list or a dict of arrays."""
    rb = ReplayBuffer(20, spaces.Box(0, 9, (1,)), spaces.Box(-1, 1, (3,), np.float64), "cpu", n_envs=2)
    rb.add(np.zeros((2, 1)), np.ones((2, 1)), np.array([[1.0] * 3, [2.0] * 3]), np.zeros(2), [True, True], infos)
    data = rb.sample(100)
    assert {(a[0].item(), d.item()) for a, d in zip(data.actions, data.dones, strict=True)} == {(1, 0), (2, 1)}
    assert data.actions.dtype == torch.float32  # as theirs: never float64
    assert (data.actions.shape, data.dones.shape, data.rewards.shape) == ((100, 3), (100, 1), (100, 1))
    rb.reset()
    assert (rb.size(), rb.pos, rb.full) == (0, 0, False)
    rb.close()


def test_a_truncation_that_is_not_done():
    """Scripts pass the terminations alone: the next step begins elsewhere, and that is seen."""
    rb = ReplayBuffer(20, spaces.Box(0, 9, (1,)), spaces.Discrete(2), "cpu", handle_timeout_termination=False)
    for obs, after in ((0, 1), (1, 2), (5, 6), (6, 7)):
        rb.add(np.full((1, 1), obs), np.full((1, 1), after), np.zeros(1), np.zeros(1), [False], {})
    data = rb.sample(100)
    assert {(a.item(), b.item()) for a, b in zip(data.observations, data.next_observations, strict=True)} == {
        (0, 1), (1, 2), (5, 6),
    }  # fmt: skip
    rb.close()


def test_cleanrl_needs_no_framework_but_torch():
    """Neither Gymnasium nor Stable-Baselines3 is imported."""
    code = "import sys, echo_shm.adapters.cleanrl as m; print({'gymnasium', 'stable_baselines3'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
