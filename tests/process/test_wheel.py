"""The sdist and the wheel: built from a clean copy, installed into a fresh environment, used outside the checkout."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from harness.programs import quick_compiler

_ROOT = Path(__file__).resolve().parents[2]

#: What a checkout holds besides its sources.
_MADE = (".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "_core.c")


#: Removed from the environment. The checkout is not to be found by accident, and what is imported is compiled once.
_WITHOUT = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def _run(*command, cwd, **env):
    """The command's output; asserts that it ends well."""
    kept = {key: value for key, value in os.environ.items() if key not in _WITHOUT}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**kept, **env})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _files(folder):
    return {os.fspath(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class Built:
    """A clean copy of the sources, and what was built of it."""

    def __init__(self, folder):
        shutil.copytree(_ROOT, folder / "source", ignore=shutil.ignore_patterns(*_MADE))
        self.sources = _files(folder / "source")
        # The sdist from the folder, then the wheel from the sdist. With this environment's tools: that a build finds
        # those that it asks for was seen when this environment was made.
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", os.fspath(folder / "dist"))
        _run(*command, cwd=folder / "source", **quick_compiler(folder))
        (self.wheel,) = (folder / "dist").glob("*.whl")
        (self.sdist,) = (folder / "dist").glob("*.tar.gz")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that was built from it."""
    return Built(tmp_path_factory.mktemp("built"))


def test_the_wheel_has_the_whole_package(built):
    """Every file of the package and the compiled modules, and nothing else: no tests, no C sources."""
    package = {name for name in built.sources if name.startswith("echo_shm/")}
    assert {"echo_shm/py.typed", "echo_shm/net/WIRE.md"} <= package
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    assert inside == package | {
        f"echo_shm/_{name}.abi3.so" for name in ("core", "history", "send", "batch", "slot", "replay")
    }


def test_the_wheel_fits_every_later_python(built):
    """Its tag is abi3 from Python 3.10 on, in its name and in its metadata."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert built.wheel.name.endswith(f"-cp310-abi3-{platform}.whl")
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL")]
        assert email.message_from_bytes(wheel.read(name)).get_all("Tag") == [f"cp310-abi3-{platform}"]


def test_the_wheel_says_where_the_project_lives(built):
    """Its metadata has the four addresses, and README for a description."""
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    labels = {entry.partition(",")[0] for entry in metadata.get_all("Project-URL")}
    assert labels == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert metadata.get_payload(decode=True).decode() == (_ROOT / "README.md").read_text(encoding="utf-8")


def test_the_sdist_has_all_sources(built):
    """Whoever has the sdist can build, test and measure."""
    with tarfile.open(built.sdist) as sdist:
        inside = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    assert built.sources - inside == set()


@pytest.mark.watchdog(300)  # it downloads the dependencies where they are not in pip's cache
def test_the_wheel_works_outside_the_checkout(built, tmp_path):
    """Installed with its dependencies alone, it runs README's quick start and the command line."""
    _run(sys.executable, "-m", "venv", "--without-pip", "fresh", cwd=tmp_path)
    bin_ = tmp_path / "fresh" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", os.fspath(bin_ / "python"))
    _run(*pip, "install", "--quiet", "--no-compile", built.wheel, cwd=tmp_path)
    where = _run(bin_ / "python", "-c", "import echo_shm; print(echo_shm.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    example = next(b for b in re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.M) if "server.spawn" in b)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    assert _run(bin_ / "python", "example.py", cwd=tmp_path).startswith("156 batches")
    assert "demo" in _run(bin_ / "echo-shm", "--help", cwd=tmp_path)
