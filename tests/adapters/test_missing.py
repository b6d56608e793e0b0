"""An adapter whose framework is not installed."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("adapter", "package"),
    [("torchrl", "torch"), ("torchrl", "tensordict"), ("tianshou", "tianshou"), ("rllib", "ray")],
)
def test_the_message_names_the_extra(adapter, package, monkeypatch):
    """It says what to install, in one line."""
    for name in [name for name in sys.modules if name.startswith("echo_shm.adapters.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'echo-shm\[{adapter}\]'") as raised:
        importlib.import_module(f"echo_shm.adapters.{adapter}")
    assert "\n" not in str(raised.value)
