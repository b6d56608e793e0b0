"""Configurations from a TOML file, and from the arguments of a command line.

A configuration is a frozen dataclass. Its fields are numbers, texts, flags, or configurations in turn, and any of them
may be None. A field that is a mapping takes whatever names there are. One that is a tuple of texts is a list in a file,
and a text with commas on a command line; the configuration makes the tuple.
"""

import argparse
import dataclasses
import difflib
import importlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from echo_shm import toml_lines

_Self = TypeVar("_Self", bound="Readable")

#: The place in a file of what an error is about.
_Path = toml_lines.Path


class Readable:
    """The base of configurations that are read."""

    @classmethod
    def from_toml(cls: type[_Self], path: str | Path) -> _Self:
        """Reads a file in TOML. Its keys are the fields; a configuration in this one is a table.

        Raises:
            OSError: It cannot be read.
            ValueError: It is not TOML, a key is unknown or missing, or a value cannot be used. The message says in
                which line, and what to use.

        """
        text = Path(path).read_bytes().decode()
        toml = _tomllib()
        try:
            data = toml.loads(text)
        except toml.TOMLDecodeError as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        made: _Self = _File(str(path), toml_lines.lines(text, toml.loads)).read(cls, data, ())
        return made

    @classmethod
    def from_args(
        cls: type[_Self],
        argv: Sequence[str] | None = None,
        *,
        prog: str | None = None,
        also: Mapping[str, str] | None = None,
    ) -> _Self:
        """Reads the arguments of a command line: ``--batch-size 64 --ppo.clip-epsilon 0.1 --no-progress``.

        The entries of a mapping are ``--env-kwargs.rooms 2``: numbers, true, false, null and lists as in JSON, and
        otherwise texts.

        ``--config FILE`` reads a file first, and the other arguments replace what is in it. ``none`` is None. The
        first mention of a configuration that is None, such as ``--replay``, makes one with its defaults.

        Args:
            argv: The arguments. None: those of this process.
            prog: The name of the program. None: that of this process.
            also: For ``--help``: options that the program has taken out of the arguments itself, such as
                ``"--suite SUITE"``, and what each is.

        Raises:
            SystemExit: ``--help`` was asked for; or an argument is unknown or cannot be used, which is printed.

        """
        parser = argparse.ArgumentParser(
            prog=prog,
            usage="%(prog)s [options]",
            description=_without_marks(inspect.getdoc(cls) or ""),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        for option, said in (also or {}).items():
            flag, _, value = option.partition(" ")
            how: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
            parser.add_argument(flag, dest=flag, default=argparse.SUPPRESS, help=said, **how)
        parser.add_argument("--config", metavar="FILE", help="a TOML file with the same names")
        _add_arguments(parser, cls, (), sys.argv[1:] if argv is None else argv)
        given = vars(parser.parse_args(argv))
        for name in given:
            if name.startswith("--"):
                parser.error(f"{name}: use it once")
        path = given.pop("config")
        try:
            base = None if path is None else cls.from_toml(path)
            made: _Self = _made(cls, base, {tuple(name.split(".")): value for name, value in given.items()})
            return made
        except (ValueError, TypeError, OSError) as error:
            parser.error(str(error))


# --- the fields of a configuration -----------------------------------------------


def _kinds(cls: type) -> dict[str, tuple[Any, bool]]:
    """For each field: its type, and whether it may be None."""
    found = {}
    for name, hint in typing.get_type_hints(cls).items():
        options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        (kind,) = (one for one in options if one is not type(None))
        found[name] = kind, len(options) > 1
    return found


def _is_mapping(kind: Any) -> bool:
    return typing.get_origin(kind) is Mapping


def _required(cls: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]


def _instead(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"


def _made(cls: Any, base: Any, given: Mapping[tuple[str, ...], Any]) -> Any:
    """A configuration of what was given, and otherwise of what the base has."""
    values: dict[str, Any] = {}
    for name, (kind, _) in _kinds(cls).items():
        inner = {path[1:]: value for path, value in given.items() if path[0] == name}
        if not inner:
            continue
        if dataclasses.is_dataclass(kind):
            below = {path: value for path, value in inner.items() if path}
            values[name] = inner[()] if inner.get((), 0) is None else _made(kind, getattr(base, name, None), below)
        elif _is_mapping(kind):
            values[name] = {**getattr(base, name, {}), **{path[0]: value for path, value in inner.items()}}
        else:
            values[name] = inner[()]
    missing = [name for name in _required(cls) if base is None and name not in values]
    if missing:
        raise ValueError(f"{missing[0]} is missing: use --{missing[0].replace('_', '-')}")
    return dataclasses.replace(base, **values) if base is not None else cls(**values)


# --- a file -----------------------------------------------------------------------


def _tomllib() -> Any:
    if sys.version_info >= (3, 11):
        return importlib.import_module("tomllib")
    try:
        return importlib.import_module("tomli")
    except ModuleNotFoundError:
        raise ModuleNotFoundError("TOML needs the package tomli: pip install 'echo-shm[planning-agents]'") from None


class _File:
    """Makes configurations of a file's data. An error names the line."""

    def __init__(self, path: str, lines: Mapping[_Path, int]) -> None:
        self._path, self._lines = path, lines

    def error(self, where: _Path, text: str) -> ValueError:
        while where and where not in self._lines:
            where = where[:-1]
        return ValueError(f"{self._path}{f', line {self._lines[where]}' if where else ''}: {text}")

    def read(self, cls: Any, data: object, where: _Path) -> Any:
        kinds = _kinds(cls)
        label = "".join(f"{one}." for one in where)
        if not isinstance(data, dict):
            raise self.error(where, f"{label[:-1]}={data!r:.80}: use a table of {', '.join(kinds)}")
        for name in data:
            if name not in kinds:
                raise self.error((*where, name), f"unknown key {label + name!r}: {_instead(name, list(kinds))}")
        for name in _required(cls):
            if name not in data:
                raise self.error(where, f"the key {label + name!r} is missing")
        values = {
            name: self.read(kinds[name][0], value, (*where, name))
            if dataclasses.is_dataclass(kinds[name][0])
            else value
            for name, value in data.items()
        }
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:
            named = re.match(r"\w+", str(error))
            raise self.error((*where, named[0]) if named else where, label + str(error)) from None


# --- a command line ---------------------------------------------------------------


def _without_marks(words: str) -> str:
    """The words of a docstring, or of a comment, for a terminal."""
    return re.sub(r":\w+:`(?:~[\w.]*\.)?([^`]+)`|``", r"\1", words)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A description as it is written."""


def _comments(cls: type) -> dict[str, str]:
    """What the source says above each field, after ``#:``. A class has the fields of those that it is made of, too."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        # Not inspect.getsource(): it looks into the file of the package from which the class is exported.
        checks: Any = one.__dict__.get("__post_init__")
        if checks is None:
            continue
        said, source = "", Path(checks.__code__.co_filename).read_text(encoding="utf-8")
        for line in source.partition(f"class {one.__name__}(")[2].partition("def __post_init__")[0].splitlines():
            if comment := re.match(r"\s*#: (.*)", line):
                said = f"{said} {comment[1]}".strip()
            elif named := re.match(r"\s*(\w+): ", line):
                found[named[1]], said = said, ""
    return found


def _add_arguments(parser: argparse.ArgumentParser, cls: Any, where: tuple[str, ...], argv: Sequence[str] = ()) -> None:
    """Arguments for the fields of a configuration. Without an argument there is no entry in what was parsed."""
    help_of = _comments(cls)
    defaults = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    for name, (kind, may_be_none) in _kinds(cls).items():
        path = (*where, name)
        flag = "--" + ".".join(path).replace("_", "-")
        words = _without_marks(help_of.get(name, "")).replace("%", "%%")
        default = f" (default: {_as_text(defaults[name])})" if name in defaults else ""
        common: dict[str, Any] = {"dest": ".".join(path), "default": argparse.SUPPRESS, "help": words + default}
        if dataclasses.is_dataclass(kind):
            if may_be_none:
                parser.add_argument(flag, action="store_const", const=(), **common)
                parser.add_argument(f"--no-{flag[2:]}", action="store_const", const=None, **{**common, "help": None})
            _add_arguments(parser, kind, path, argv)
        elif _is_mapping(kind):
            del common["dest"]
            # The names are the user's: those that are there, and one for the help.
            entries = dict.fromkeys(arg.partition("=")[0] for arg in argv if arg.startswith(f"{flag}."))
            for entry in entries:
                if not entry[len(flag) + 1 :] or "." in entry[len(flag) + 1 :]:
                    parser.error(f"{entry}: use {flag}.NAME VALUE; a value may be JSON: {flag}.size '{{\"rooms\": 2}}'")
            for entry in entries or (f"{flag}.NAME",):
                dest = f"{'.'.join(path)}.{entry[len(flag) + 1 :].replace('-', '_')}"
                parser.add_argument(entry, dest=dest, type=_plain, metavar="VALUE", **common)
        elif kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            parser.add_argument(flag, type=_converter(kind, may_be_none), metavar=name.upper(), **common)


def _as_text(value: Any) -> str:
    """A default as one would give it."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _plain(text: str) -> Any:
    """What JSON reads; the text itself if that is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _converter(kind: Any, may_be_none: bool) -> Any:
    """From a text to a value of that type."""
    of_literal = typing.get_origin(kind) is Literal
    numeric = kind if kind in (int, float) else str  # so is a list: with commas, which the configuration parts

    def convert(text: str) -> Any:
        return None if may_be_none and text.lower() == "none" else numeric(text)

    convert.__name__ = " or ".join(map(repr, typing.get_args(kind))) if of_literal else numeric.__name__
    return convert
