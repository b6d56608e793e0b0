"""The lines of keys in a TOML text: the same keys and elements as tomllib finds, each on its line."""

from typing import Any

import pytest

from echo_shm.toml_lines import lines

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pytest needs the same under this name
    import tomli as tomllib

TEXT = '''# a comment with [brackets] = "and quotes
name = "a # no comment" # a comment
"quoted \\" key".'other.key' . bare = 'C:\\'
numbers = [1, 2.5, # a comment, with ] and "
  [3, 4,],
  "a]b", """three
  lines \\""" ] """, \'\'\'and ] " too\'\'\'
]
dates = [ 1979-05-27 07:32:00, inf, true ]
empty = []
[example]
obs = { dtype = "uint8", shape = [84, 84], "more.so" = { } }
text = """
[not.a.table]
x = 1"""
ends = """quoted "word"""""
[example.deep.er]
[[tables]]
name = "one"
[[tables]]
name = "two"
  [tables.sampler]
  type = "Uniform"
  [[tables.more]]
  a.b = 1
  a.c = 2
  [[tables.more]]
[[many]]# no space
  list=[1,
2]
[last]
x = 1'''


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Where everything is in the data."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path} | {one for key, below in items for one in _paths(below, (*path, key))}


def test_everything_has_a_line() -> None:
    """As many keys and elements as there are, and no others."""
    assert set(lines(TEXT, tomllib.loads)) | {()} == _paths(tomllib.loads(TEXT))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (('quoted " key', "other.key", "bare"), 3),
        (("numbers",), 4),
        (("numbers", 2, 1), 5),
        (("numbers", 4), 6),
        (("numbers", 5), 7),
        (("example",), 11),
        (("example", "obs", "shape", 1), 12),
        (("example", "ends"), 16),
        (("example", "deep"), 17),
        (("tables",), 18),
        (("tables", 1), 20),
        (("tables", 1, "sampler", "type"), 23),
        (("tables", 1, "more", 0, "a", "c"), 26),
        (("many", 0, "list", 1), 30),
        (("last", "x"), 32),
    ],
)
def test_lines(path: tuple[str | int, ...], line: int) -> None:
    """They are counted from 1. A table is where it is named first."""
    assert lines(TEXT, tomllib.loads)[path] == line
