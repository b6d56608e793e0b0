"""Imports and includes go down. The floors are in the order of the list; what is above knows what is below."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: From the bottom. Modules that share a floor do not know each other.
FLOORS = [
    {"_core", "_send", "_build"},
    {"errors", "lifetime"},
    {"spec", "sidecar"},
    {"segment"},
    {"metrics", "attachment"},
    {"sample", "fast_path", "handle"},
    {"client", "protocols", "trajectory_accumulator"},
    {"spawn", "taker", "net"},
    {"server"},
    {"screen", "demo_check"},
    {"top", "demo_view"},
    {"demo"},
    {"cli"},
    {"__main__"},
]

#: The rooms of the floor that is a folder, from the bottom.
NET = [
    {"wire", "checks", "patience", "tcp", "duplex", "outbox"},
    {"inbound", "link", "door"},
    {"connection"},
    {"intake"},
    {"pump", "bridge"},
    {"unattended", "process"},
    {"client"},
    {"keeper"},
    {"transport"},
]

#: A concept's files may be several; those of one floor of ``INCLUDES`` are in the order of what may include what.
CONCEPTS = {
    "es_take": "es_ring",
    "es_reap": "es_ring",
    "es_mend": "es_ring",
    "es_end": "es_ring",
    "es_watch": "es_api",
    "es_bridge": "es_api",
}
INCLUDES = [
    ["es_types", "es_base", "es_wait"],
    ["es_words", "es_layout", "es_owner", "es_stats"],
    ["es_ring", "es_copy"],
    ["es_api"],
]


def imported(tree):
    """The echo_shm modules that a syntax tree imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "echo_shm" if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names = [f"{module}.{alias.name}" if module == "echo_shm" else module for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "echo_shm" and "." in name:
                yield name.split(".")[1]


def upward(name, source):
    """What a module imports that is not on a floor below its own."""
    floor = {module: number for number, modules in enumerate(FLOORS) for module in modules}
    return sorted({other for other in imported(ast.parse(source)) if floor.get(other, 99) >= floor[name]})


MODULES = sorted(path.stem for path in (ROOT / "echo_shm").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name):
    """A module imports from floors below its own only, functions' own imports included."""
    assert name in set().union(*FLOORS), f"give {name} a floor"
    assert upward(name, (ROOT / "echo_shm" / f"{name}.py").read_text()) == []


NET_MODULES = sorted(path.stem for path in (ROOT / "echo_shm" / "net").glob("*.py") if path.stem != "__init__")


def upward_in_net(name, source):
    """What a module of net/ imports that is neither below it there nor below net/."""
    room = {module: number for number, modules in enumerate(NET) for module in modules}
    rooms, others = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "echo_shm.net":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("echo_shm.net."):
            rooms.add(str(node.module).split(".")[2])
        elif isinstance(node, ast.ImportFrom | ast.Import):
            others |= set(imported(node))
    floor = next(number for number, modules in enumerate(FLOORS) if "net" in modules)
    below = set().union(*FLOORS[:floor])
    return sorted({other for other in rooms if room.get(other, 99) >= room[name]} | (others - below))


@pytest.mark.parametrize("name", NET_MODULES)
def test_imports_in_net_go_down(name):
    """A module of net/ imports from what is below it there, and from floors below net/."""
    assert name in set().union(*NET), f"give net/{name} a room"
    assert upward_in_net(name, (ROOT / "echo_shm" / "net" / f"{name}.py").read_text()) == []


def test_upward_imports_in_net_are_seen():
    """The reader of net/ sees imports that go up or sideways."""
    assert upward_in_net("wire", "from echo_shm.net import link") == ["link"]
    assert upward_in_net("pump", "from echo_shm.net.bridge import Bridge") == ["bridge"]
    assert upward_in_net("link", "from echo_shm.server import Server") == ["server"]
    assert upward_in_net("link", "from echo_shm.net.wire import Frame\nfrom echo_shm.spec import Spec") == []


def test_nobody_imports_the_package():
    """Modules import from each other, not from the package, whose __init__ imports them."""
    for name in MODULES:
        source = (ROOT / "echo_shm" / f"{name}.py").read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module == "echo_shm":
                assert all((ROOT / "echo_shm" / f"{alias.name}.py").exists() for alias in node.names), name


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("segment", "import echo_shm.server"),
        ("segment", "from echo_shm.client import ShmClient"),
        ("errors", "def f():\n    from echo_shm import spec"),
        ("client", "from .server import Server"),
        ("client", "from . import server"),
        ("metrics", "from echo_shm.attachment import Attachment"),
        ("spec", "from echo_shm.unheard_of import x"),
    ],
)
def test_upward_imports_are_seen(name, source):
    """The reader of imports sees every way of importing upward or sideways."""
    assert upward(name, source) != []


def c_rank(file):
    """A C file's floor, and its place there."""
    stem = Path(file).stem
    concept = CONCEPTS.get(stem, stem)
    return next((f, row.index(concept)) for f, row in enumerate(INCLUDES) if concept in row)


def c_upward(file, source):
    """What a C file includes that is neither below it nor of its own concept."""
    included = re.findall(r'^\s*#\s*include\s*"([^"]+)"', source, re.MULTILINE)
    return [other for other in included if not (c_rank(other) <= c_rank(file))]


C_FILES = sorted(path.name for path in (ROOT / "csrc").glob("*.[ch]"))


@pytest.mark.parametrize("file", C_FILES)
def test_includes_go_down(file):
    """A C file includes its own concept's header and those below, never one above."""
    assert c_upward(file, (ROOT / "csrc" / file).read_text()) == []


def test_upward_includes_are_seen():
    """The reader of includes sees an upward one."""
    assert c_upward("es_layout.c", '#include <stdio.h>\n# include "es_ring.h"\n') == ["es_ring.h"]
    assert c_upward("es_wait.h", '#include "es_layout.h"') == ["es_layout.h"]
    assert c_upward("es_ring.h", '#include "es_api.h"') == ["es_api.h"]


def test_python_reads_one_header():
    """The Python build reads es_api.h and the plain types under it, and no atomics."""
    build = (ROOT / "echo_shm" / "_build.py").read_text()
    assert set(re.findall(r"es_\w+\.h", build)) == {"es_types.h", "es_api.h"}
    for header in ("es_types.h", "es_api.h"):
        assert "_Atomic" not in re.sub(r"/\*.*?\*/", "", (ROOT / "csrc" / header).read_text(), flags=re.DOTALL)
