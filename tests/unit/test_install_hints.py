"""What messages and documents say to install can be installed as it is printed."""

import ast
import re
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pytest needs the same under this name
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: The packages of each extra, by the names under which they are imported.
EXTRAS: dict[str, set[str]] = {
    extra: {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in requirements}
    for extra, requirements in PROJECT["optional-dependencies"].items()
}

#: Where a user reads hints.
FILES = sorted(
    path
    for pattern in ("*.md", "Makefile", "echo_shm/**/*.py", "bench/*.py", "bench/*.md", "tests/*.md")
    for path in ROOT.glob(pattern)
)

#: Packages that are in no extra, except for the tests.
ALONE = {"pip", "stable-baselines3", "cloudpickle", "ml_dtypes", "atheris", "pre-commit"}

#: What stands for an extra in sources: of console.need() and adapters.missing.needs(), whose extras are checked below,
#: and of make's pattern.
FILLED_IN = {"{extra}", "$*"}


def _hints() -> list[tuple[str, str]]:
    """What is given to pip, each with its file."""
    return [
        (path.relative_to(ROOT).as_posix(), what)
        for path in FILES
        for what in re.findall(r"\bpip\s+install\s+(?:-\S+\s+)*('[^'\n]+'|[\w.-]+)", path.read_text())
    ]


@pytest.mark.parametrize(("file", "what"), _hints())
def test_a_hint_can_be_typed(file: str, what: str) -> None:
    """It is this project, with an extra that exists, in quotes; or one of a few packages."""
    extra = re.fullmatch(rf"'(?:\.|{PROJECT['name']})\[(.+)\]'", what)
    assert what == "." or what in ALONE or (extra and extra[1] in {*EXTRAS, *FILLED_IN}), f"{file}: {what}"


def test_every_kind_of_file_has_hints() -> None:
    """The search sees the hints of documents, of the Makefile and of messages."""
    files = {file for file, _ in _hints()}
    assert files >= {"README.md", "CONTRIBUTING.md", "Makefile", "echo_shm/cli/console.py", "bench/__main__.py"}


def test_an_extra_has_the_packages_that_it_is_named_for() -> None:
    """Where a command needs a package, each extra that its message can name exists and has the package."""
    needs = [
        (module.value, extra.value)
        for path in FILES
        if path.suffix == ".py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "console.need"
        for module, extra in [(call.args[0], one) for one in ast.walk(call.args[1])]
        if isinstance(module, ast.Constant) and isinstance(extra, ast.Constant)
    ]
    assert len(needs) > 10
    for module, extra in needs:
        assert module.partition(".")[0] in EXTRAS[extra], f"{module} is not in the extra {extra}"


def test_a_backbones_extra_has_what_it_needs() -> None:
    """The extra that a backbone's message names brings the packages whose imports it guards."""
    calls = [
        [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        for path in (ROOT / "echo_shm/planning/backbones").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "needs"
    ]
    assert len(calls) > 4
    for _, extra, *packages in calls:
        brought = {one.partition("_")[0] for one in EXTRAS[extra]}
        assert {package.partition(".")[0] for package in packages} == brought, extra


def test_an_adapters_extra_exists() -> None:
    """It has the adapter's name, or the one that is given."""
    extras = [
        extra.value
        for path in (ROOT / "echo_shm/adapters").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "needs"
        for extra in [next((one.value for one in call.keywords if one.arg == "extra"), call.args[0])]
        if isinstance(extra, ast.Constant)
    ]
    assert len(extras) > 4
    assert set(extras) <= EXTRAS.keys()
