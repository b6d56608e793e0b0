"""An adapter whose framework is not installed, or is broken."""

import pytest
from harness.programs import run_python

#: Has the import of a package raise an error, as if it were not there, or were broken.
IMPORT = """
import sys
from unittest import mock

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise {error}

sys.meta_path.insert(0, Finder())
for name in {{"torch", "gymnasium"}} - {{{package!r}}}:  # which others need, too, and take long to import
    sys.modules[name] = mock.MagicMock()
import echo_shm.adapters.{adapter}
"""

ADAPTERS = [
    ("cleanrl", "torch", "PyTorch", "cleanrl"),
    ("sb3", "stable_baselines3", "Stable-Baselines3", "sb3"),
    ("sb3_dqn", "stable_baselines3", "Stable-Baselines3", "sb3"),
    ("torchrl", "torch", "TorchRL", "torchrl"),
    ("torchrl", "tensordict", "TorchRL", "torchrl"),
    ("tianshou", "tianshou", "Tianshou", "tianshou"),
    ("rllib", "ray", "RLlib", "rllib"),
    ("ray", "ray", "Ray", "ray"),
]
"""The adapter, a package, the framework, and the extra."""


def last_line(adapter, package, error):
    """The last line that Python writes when it imports an adapter."""
    return run_python(IMPORT.format(adapter=adapter, package=package, error=error), status=1).stderr.splitlines()[-1]


@pytest.mark.parametrize(("adapter", "package", "framework", "extra"), ADAPTERS)
def test_the_message_names_the_extra(adapter, package, framework, extra):
    """It says what is missing and what to install, in one line."""
    line = last_line(adapter, package, f"ModuleNotFoundError('No module named', name={package!r})")
    assert line.startswith(f"ModuleNotFoundError: echo_shm.adapters.{adapter} needs {framework}: {package!r} is not")
    assert line.endswith(f"pip install 'echo-shm[{extra}]'")


@pytest.mark.parametrize(("adapter", "package", "framework", "extra"), ADAPTERS)
@pytest.mark.parametrize(
    "error", ["ImportError('libcore.so: no such file')", "ModuleNotFoundError('No module named', name='inner')"]
)
def test_a_broken_package_says_itself_what_is_wrong(adapter, package, framework, extra, error):
    """Nobody is told to install what is there."""
    assert "pip install" not in last_line(adapter, package, error)
