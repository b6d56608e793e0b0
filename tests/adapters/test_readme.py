"""README's blocks for frameworks run as printed, but for those that test_sb3.py and test_cleanrl.py run."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from harness.packages import need, readme_block

#: A server with a batch of ones, and workers that have finished.
_ONES = """\
from types import SimpleNamespace
import numpy as np
from echo_shm import Server
example = {"obs": np.zeros(4, np.float32), "action": np.zeros((), np.int64)}
server, workers = Server(example, 16), SimpleNamespace(finished=True, check=lambda: None)
def fill(): server.submit_many({"obs": np.ones((16, 4), np.float32), "action": np.arange(16)})
fill()
"""


def _run(folder, script, **env):
    """What the script prints; asserts that it ends well."""
    path = folder / "example.py"
    path.write_text(script, encoding="utf-8")
    command = [sys.executable, os.fspath(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_torch_adapters_block_runs(tmp_path):
    """Both loops yield the batch, on the CPU in place of a GPU."""
    need("torch")
    block = readme_block("RingDataset").replace('"cuda"', '"cpu"').replace(", pin_host_memory=True", "")
    block = block.replace("for batch, info", "fill()\nfor batch, info")
    assert _run(tmp_path, _ONES + block) == "tensor(1.)\ntensor(1.)\n"


def test_the_jax_adapters_block_runs(tmp_path):
    """The update gets arrays of JAX."""
    need("jax")
    before = "import jax\nstate, update = 0.0, jax.jit(lambda state, batch: state + batch['obs'].sum())\n"
    block = readme_block("echo_shm.adapters.jax")
    assert _run(tmp_path, _ONES + before + block + "print(state)\n", JAX_PLATFORMS="cpu") == "64.0\n"


def test_the_gymnasium_block_runs(tmp_path):
    """Its assertion holds, and its workers stop."""
    need("gymnasium")
    _run(tmp_path, readme_block("run_vector"))


def test_the_torchrl_block_runs(tmp_path):
    """The priorities of the sample come from what the loss returns."""
    need("torchrl")
    script = "import torch\nfrom tensordict import TensorDict\n"
    script += "tensordict = TensorDict({'obs': torch.arange(100.0)}, [100])\nstep = tensordict[0]\n"
    script += "def loss(sample): return torch.where(sample['obs'] == 7, 1e15, 1e-9)\n"
    check = "assert len(buffer) == 100 and buffer.sample().shape == (256,)\n"
    check += "while (sample['obs'] != 7).all():\n    sample = buffer.sample()\n"
    check += "buffer.update_priority(sample['index'], loss(sample))\n"
    _run(tmp_path, script + readme_block("adapters.torchrl") + check + "assert (buffer.sample()['obs'] == 7).all()\n")


def test_the_tianshou_block_runs(tmp_path):
    """A collector fills the buffer."""
    need("tianshou")
    script = "import gymnasium\nfrom tianshou.env import DummyVectorEnv\nfrom types import SimpleNamespace\n"
    script += "envs = DummyVectorEnv([lambda: gymnasium.make('CartPole-v1')] * 2)\n"
    script += "algorithm = SimpleNamespace()\n"
    block = readme_block("VectorReplayBuffer").replace("100_000", "1000")
    _run(tmp_path, f"{script}{block}collector.reset()\nassert len(buffer) == 0 and buffer.buffer_num == 2\n")


def test_the_rllib_block_is_a_configuration(tmp_path):
    """RLlib makes the buffer of it."""
    need("ray")
    check = "config.validate()\nfrom ray.rllib.utils.from_config import from_config\n"
    check += "from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer\n"
    check += "made = from_config(EpisodeReplayBuffer, dict(config.replay_buffer_config))\n"
    check += "assert (made.capacity, made._item.n, type(made).__module__) == (100_000, 3, 'echo_shm.adapters.rllib')\n"
    _run(tmp_path, readme_block("DQNConfig") + check)


def test_the_versions_are_those_that_readme_names():
    """README names them, requirements.txt pins them, and the tests run with them."""
    here = Path(__file__).parent
    pinned = (here / "requirements.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)(?:\[[\w,]+\])?==([\d.]+)", pinned, re.MULTILINE))
    need("torch", "jax", "gymnasium", "stable_baselines3", "torchrl", "tianshou", "ray")
    rows = re.findall(r"^\| \[.*\| ([\w-]+) ([\d.]+) \|$", (here.parents[1] / "README.md").read_text(), re.MULTILINE)
    assert dict(rows) == pins == {name: version(name).partition("+")[0] for name in pins}
