"""Tests with packages that the test extra does not bring."""

import importlib.util
import os
import re
from pathlib import Path

import pytest


def need(*packages: str) -> None:
    """Skips a test module without these packages. Where ECHO_SHM_NEED_ADAPTERS is set, they must be there."""
    missing = [package for package in packages if not _is_there(package)]
    if missing:
        assert "ECHO_SHM_NEED_ADAPTERS" not in os.environ, f"not installed: {', '.join(missing)}"
        pytest.skip(f"needs {', '.join(missing)}: see tests/README.md", allow_module_level=True)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package that it would be part of
        return False


def readme_block(words: str) -> str:
    """The one Python block of README with these words in it."""
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if words in one]
    return str(block)
