"""The type stubs of the compiled modules say what the modules have."""

import ast
import re
from pathlib import Path

import pytest

from echo_shm import _batch, _core, _history, _replay, _send, _slot
from echo_shm._build import HEADERS

PACKAGE = Path(__file__).resolve().parents[2] / "echo_shm"


def declared(source):
    """What headers declare: functions with the number of their arguments, constants, structs with their fields."""
    text = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    functions = {
        name: 0 if arguments.strip() == "void" else len(arguments.split(","))
        for name, arguments in re.findall(r"^(?:const )?\w+ \**(es_\w+)\(([^)]*)\);", text, re.MULTILINE)
    }
    enums = re.findall(r"enum \w+ \{(.*?)\}", text, re.DOTALL)
    constants = {name for body in enums for name in re.findall(r"\bES_\w+", body)}
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # pointers to functions
        structs[name] = re.findall(r"(\w+)(?:\[\d+\])?\s*[,;]", body)
    return functions, constants, structs


def stubbed(source):
    """The same of a stub: the members of class ``lib``, and the classes whose docstring is a struct's name."""
    functions, constants, structs = {}, set(), {}
    for cls in ast.parse(source).body:
        if not isinstance(cls, ast.ClassDef):
            continue
        # A field with the name of a keyword of Python's has an underscore after it.
        names = [node.target.id.removesuffix("_") for node in cls.body if isinstance(node, ast.AnnAssign)]
        if cls.name == "lib":
            methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
            functions = {node.name: len(node.args.posonlyargs + node.args.args) for node in methods}
            constants = set(names)
        elif names and (struct := re.fullmatch(r"``(es_\w+) \*``\.", ast.get_docstring(cls) or "")):
            structs[struct[1]] = names
    return functions, constants, structs


HEADER = "\n".join(path.read_text() for path in HEADERS)
STUB = (PACKAGE / "_core.pyi").read_text()


def test_the_core_stub_is_the_headers():
    """Every function, constant and field that cffi reads is in the stub, and the reverse."""
    functions, constants, structs = declared(HEADER)
    assert len(functions) > 40
    assert len(constants) > 20
    assert len(structs) > 4
    assert stubbed(STUB) == (functions, constants, structs)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("int es_api_detach(es_ring *r);", ""),
        ("int es_api_detach(es_ring *r);", "int es_api_detach(es_ring *r, int how);"),
        ("int es_api_detach(es_ring *r);", "int es_api_detach(es_ring *r);\nvoid es_leave(es_ring *r);"),
        ("ES_FULL = -10001,", "ES_FULL = -10001, ES_STUFFED = -10099,"),
        ("uint32_t closed;", "uint32_t shut;"),
    ],
)
def test_differences_are_seen(before, after):
    """A header that differs from the stub in one declaration is not taken for it."""
    assert HEADER.count(before) == 1
    assert stubbed(STUB) != declared(HEADER.replace(before, after))


def test_the_stubs_name_what_there_is():
    """The compiled modules have every function and constant of their stubs."""
    functions, constants, _ = stubbed(STUB)
    assert {*functions, *constants} == {name for name in dir(_core.lib) if name.lower().startswith("es_")}


#: For each small module, what its stub has for type checkers alone.
FOR_TYPES_ONLY = {_send: {"Plan", "VectorPlan"}, _batch: set(), _slot: {"Writer"}, _replay: set(), _history: set()}


@pytest.mark.parametrize("module", FOR_TYPES_ONLY, ids=lambda module: module.__name__)
def test_the_small_stubs_name_what_there_is(module):
    """The same for the classes, methods and functions of the other modules, and the reverse."""
    tree = ast.parse((PACKAGE / f"{module.__name__.partition('.')[2]}.pyi").read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert {node.name for node in nodes} - FOR_TYPES_ONLY[module] == {name for name in dir(module) if name[0] != "_"}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name not in FOR_TYPES_ONLY[module]:
            there = {name for name in vars(getattr(module, node.name)) if name not in ("__doc__", "__module__")}
            stub = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            stub |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
            assert stub == there
