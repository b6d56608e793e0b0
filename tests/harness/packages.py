"""Tests with packages that the test extra does not bring."""

import importlib.util
import os

import pytest


def need(*packages: str) -> None:
    """Skips a test module without these packages. Where ECHO_SHM_NEED_ADAPTERS is set, they must be there."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        assert "ECHO_SHM_NEED_ADAPTERS" not in os.environ, f"not installed: {', '.join(missing)}"
        pytest.skip(f"needs {', '.join(missing)}: see tests/README.md", allow_module_level=True)
