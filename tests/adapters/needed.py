"""Frameworks: test files that need one are skipped without it."""

import importlib.util
import os

import pytest


def need_or_skip(package: str) -> None:
    """Skips the file where a package is missing. Where ECHO_SHM_NEED_ADAPTERS is set, it must be there."""
    if importlib.util.find_spec(package) is None:
        assert "ECHO_SHM_NEED_ADAPTERS" not in os.environ, f"{package} is not installed"
        pytest.skip(f"needs {package}: pip install 'echo-shm[{package}]'", allow_module_level=True)
