"""On which line of a TOML text each key and each element is. ``tomllib`` does not say."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

#: Where something is in the data: keys of tables, and indices of arrays.
Path: TypeAlias = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})(?!")'
    r"|'''.*?'''(?:'{0,2})(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}#\n]*")


def lines(text: str, loads: Callable[[str], dict[str, Any]]) -> dict[Path, int]:
    """The line of each table, key and element, counted from 1.

    Args:
        text: A text that ``loads`` accepts.
        loads: ``tomllib.loads``.

    """
    return _Reader(text, loads).read()


class _Reader:
    """Goes through a text once. It is valid, so only its structure is looked at."""

    def __init__(self, text: str, loads: Callable[[str], dict[str, Any]]) -> None:
        self._text = text
        self._loads = loads
        self._at = 0
        self._found: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}  # how many tables each [[array]] has so far

    def read(self) -> dict[Path, int]:
        table: Path = ()
        self._skip(_GAP)
        while self._at < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._key_and_value(table)
            self._skip(_GAP)
        return self._found

    def _skip(self, pattern: "re.Pattern[str]") -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found.group() if found else ""

    def _note(self, path: Path) -> None:
        # A table is where it is named first.
        self._found.setdefault(path, self._text.count("\n", 0, self._at) + 1)

    def _header(self) -> Path:
        many = self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        keys = self._keys()
        path: Path = ()
        for key in keys[:-1]:
            path = self._last((*path, key))
        path = (*path, keys[-1])
        if many:
            size = self._sizes[path] = self._sizes.get(path, 0) + 1
            self._note(path)
            path = (*path, size - 1)
        else:
            path = self._last(path)
        self._note(path)
        self._at += 2 if many else 1
        return path

    def _last(self, path: Path) -> Path:
        """The table that a header means: of an array of tables, the last one."""
        self._note(path)
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _keys(self) -> list[str]:
        """The parts of a dotted key."""
        keys = []
        while True:
            self._skip(_SPACE)
            bare = self._skip(_BARE)
            keys.append(bare or next(iter(self._loads(self._skip(_STRING) + " = 0"))))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _key_and_value(self, table: Path) -> None:
        start = self._at
        for key in self._keys():
            table = (*table, key)
            end, self._at = self._at, start
            self._note(table)
            self._at = end
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(table)

    def _value(self, path: Path) -> None:
        first = self._text[self._at]
        if first == "[":
            self._elements(path, "]")
        elif first == "{":
            self._elements(path, "}")
        elif first in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_OTHER)

    def _elements(self, path: Path, end: str) -> None:
        """The elements of an array, or the keys of a table in braces."""
        self._at += 1
        index = 0
        self._skip(_GAP)
        while not self._text.startswith(end, self._at):
            if end == "]":
                self._note((*path, index))
                self._value((*path, index))
                index += 1
            else:
                self._key_and_value(path)
            self._skip(_GAP)
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip(_GAP)
        self._at += 1
