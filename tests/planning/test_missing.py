"""A backbone whose package is not installed."""

from harness.programs import run_python

CASES = [
    ("transformer", "torch", "planning"),
    ("huggingface", "torch", "planning"),
    ("huggingface", "transformers", "planning-huggingface"),
    ("openai", "openai", "planning-openai"),
    ("anthropic", "anthropic", "planning-anthropic"),
    ("gemini", "google", "planning-gemini"),
    ("gemini", "google.genai", "planning-gemini"),
]
"""The backbone, the package that is not there, and the extra."""

#: Imports each backbone while a package seems not to be there. What it needs beside it is loaded quickly.
IMPORT = f"""
import importlib, sys, types
from unittest import mock

import echo_shm.replay

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == package:
            raise ModuleNotFoundError("No module named", name=name)

sys.meta_path.insert(0, Finder())
for module, package, _ in {CASES!r}:
    google = types.ModuleType("google")
    google.__path__ = []
    others = {{"torch": mock.MagicMock(), "google": google}}
    others.pop(package, None)
    for name in list(sys.modules):
        if name.startswith("echo_shm.planning.backbones."):
            del sys.modules[name]
    with mock.patch.dict(sys.modules, others):
        try:
            importlib.import_module("echo_shm.planning.backbones." + module)
        except ModuleNotFoundError as error:
            print(error.name, error, sep="|")
"""


def test_the_message_names_the_extra():
    """It says what is missing and what to install."""
    lines = run_python(IMPORT).stdout.splitlines()
    assert len(lines) == len(CASES)
    for line, (_, package, extra) in zip(lines, CASES, strict=True):
        name, _, told = line.partition("|")
        assert name == package
        assert told.startswith("echo_shm.planning.backbones needs ")
        assert told.endswith(f"{name!r} is not there: pip install 'echo-shm[{extra}]'")
