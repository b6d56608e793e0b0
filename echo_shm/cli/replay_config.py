"""What ``echo-shm replay`` is told: a replay in TOML, or a function of Python that makes one."""

import contextlib
import difflib
import importlib
import inspect
import os
import re
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from echo_shm import replay as tables_of_replay
from echo_shm import toml_lines
from echo_shm.cli import console
from echo_shm.cli.console import UsageError
from echo_shm.net.transport import TcpTransport
from echo_shm.replay import CustomSelector, RateLimiter, Replay, Table
from echo_shm.replay.disk import is_directory
from echo_shm.replay.selectors import Selector
from echo_shm.replay.store import FILES
from echo_shm.ring.lockfile import check_name
from echo_shm.spec import Spec, Tree

_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")

#: What a replay is made with: the arguments of :class:`Replay`.
Arguments: TypeAlias = dict[str, Any]


def _classes(base: type) -> dict[str, type]:
    """The public classes of the replay package below ``base``, by name."""
    public = (getattr(tables_of_replay, name) for name in tables_of_replay.__all__)
    found = (one for one in public if isinstance(one, type) and issubclass(one, base))
    return {one.__name__: one for one in found if not issubclass(one, CustomSelector) and one is not Selector}


SELECTORS, LIMITERS = _classes(Selector), _classes(RateLimiter)

#: Keys of the whole, beside ``example``, ``tables`` and ``transport``: how each is given to :class:`Replay`.
_PLAIN = ("name", "capacity", "store", "sync_every", "seed", "max_items", "max_producers")

_STORES = ("memory", "shm")

#: Keys of ``[transport]`` that are arguments of TcpTransport as they are.
_OF_TRANSPORT = ("port", "host", "wire_version", "max_connections", "processes", "allow_unauthenticated")


class Config(NamedTuple):
    """A configuration that was read.

    Attributes:
        source: Where it comes from, for messages.
        arguments: The arguments of a replay, or a replay that was made already.
        explain: Turns what :class:`Replay` says of them into an error that says where.
        checkpoint: The directory of its checkpoints, or None.

    """

    source: str
    arguments: Arguments | Replay
    explain: Callable[[Exception], Exception]
    checkpoint: str | None = None


def read(config: str) -> Config:
    """Reads a configuration: the path of a TOML file, or ``module:function``.

    Raises:
        UsageError: It cannot be read, or it cannot be a replay's. The message says which line is wrong, and why.

    """
    found = None if Path(config).exists() else _FUNCTION.fullmatch(config)
    return _from_toml(config) if found is None else _from_function(config, *found.groups())


# --- Python -------------------------------------------------------------------


def _from_function(config: str, module: str, name: str) -> Config:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"{config}: there is no module {error.name!r} in {os.getcwd()!r} or among the installed packages"
        ) from None
    function = getattr(imported, name, None)
    if not callable(function):
        raise UsageError(f"{config}: module {module!r} has no function {name!r}")
    made, checkpoint = function(), None
    if isinstance(made, Mapping):
        made = dict(made)
        checkpoint = made.pop("checkpoint", None)
        if not isinstance(checkpoint, str | os.PathLike | None):
            raise UsageError(f"{config}: checkpoint={checkpoint!r:.80}: use the path of a directory")
        _check_arguments(config, made)
    elif not isinstance(made, Replay):
        raise UsageError(f"{config} has returned {made!r:.80}: return a Replay, or a dict of its arguments")
    path = None if checkpoint is None else os.fspath(checkpoint)
    return Config(config, made, lambda error: UsageError(f"{config}: {error}"), path)


def _check_arguments(config: str, given: Arguments) -> None:
    known = inspect.signature(Replay).parameters
    for name in given:
        if name not in known:
            raise UsageError(f"{config}: a Replay has no argument {name!r}{_instead(str(name), known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise UsageError(f"{config}: the argument {name!r} is missing")


# --- TOML ---------------------------------------------------------------------


def _tomllib() -> ModuleType:
    return importlib.import_module("tomllib") if sys.version_info >= (3, 11) else console.need("tomli", "cli")


def _from_toml(path: str) -> Config:
    toml = _tomllib()
    try:
        text = Path(path).read_bytes().decode()
        data = toml.loads(text)
    except OSError as error:
        hint = "" if "." in path else ": give the path of a TOML file, or module:function"
        raise UsageError(f"{path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: it is not UTF-8 from byte {error.start} on") from None
    except toml.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    reader = _Reader(path, data, toml_lines.lines(text, toml.loads))
    arguments = reader.arguments()
    return Config(path, arguments, reader.explain, reader.checkpoint())


def _instead(name: str, known: Any) -> str:
    """What a name may be in place of one that is unknown."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f": did you mean {close[0]!r}?" if close else f": use one of {', '.join(known)}"


class _Reader:
    """Turns the data of a file into arguments. An error names the line of the key that is wrong."""

    def __init__(self, path: str, data: dict[str, Any], lines: Mapping[toml_lines.Path, int]) -> None:
        self._path = path
        self._data = data
        self._lines = lines

    def error(self, where: toml_lines.Path, text: str) -> UsageError:
        """An error at that key, or at what is around it."""
        while where and where not in self._lines:
            where = where[:-1]
        line = f", line {self._lines[where]}" if where else ""
        return UsageError(f"{self._path}{line}: {text}")

    def explain(self, error: Exception) -> UsageError:
        """What :class:`Replay` says of the arguments, with the line of what it names."""
        return self._explain((), error)

    def _explain(self, where: toml_lines.Path, error: Exception) -> UsageError:
        """What a class says of its arguments: ``key=value: ...``, or ``table 'name': ...``."""
        text = str(error)
        table = re.match(r"table '(.*?)': ", text)
        if table is not None:
            numbers = (number for number, one in enumerate(self._data["tables"]) if one["name"] == table[1])
            return self.error(("tables", next(numbers, 0)), text)
        key = re.match(r"(?:(?:got )?\d+ )?(\w+)", text)  # also "2 tables have the name ..."
        return self.error(where if key is None else (*where, key[1]), _label(where) + text)

    def arguments(self) -> Arguments:
        """The arguments of a replay."""
        known = (*_PLAIN, "checkpoint", "example", "tables", "transport")
        self._known((), self._data, known, needed=("name", "capacity", "example"))
        arguments = {key: self._data[key] for key in _PLAIN if key in self._data}
        try:
            check_name(self._data["name"], FILES)
        except ValueError as error:
            raise self.error(("name",), str(error)) from None
        store = arguments.get("store", "memory")
        if is_directory(store):
            arguments["store"] = os.path.join(self._directory, store)
        elif store not in _STORES:
            raise self.error(
                ("store",), f"store={store!r}: use 'memory', 'shm', or the path of a directory, with a slash in it"
            )
        arguments["example"] = self._example(("example",), self._data["example"])
        if "tables" in self._data:
            arguments["tables"] = self._tables(self._data["tables"])
        if "transport" in self._data:
            arguments["transport"] = self._transport(self._data["transport"])
        return arguments

    def checkpoint(self) -> str | None:
        """The directory of its checkpoints, or None."""
        path = self._data.get("checkpoint")
        if path is not None and not (isinstance(path, str) and path and "\0" not in path):
            raise self.error(("checkpoint",), f"checkpoint={path!r:.80}: use the path of a directory")
        return None if path is None else os.path.join(self._directory, path)

    @property
    def _directory(self) -> Path:
        """Where relative paths start."""
        return Path(self._path).parent

    def _known(
        self, where: toml_lines.Path, given: object, known: tuple[str, ...], needed: tuple[str, ...] = ()
    ) -> None:
        """Raises unless ``given`` is a table whose keys are known, and has those that are needed."""
        if not isinstance(given, dict):
            raise self.error(where, f"{_name(where)}={given!r:.80}: use a table of {', '.join(known)}")
        for key in given:
            if key not in known:
                raise self.error((*where, key), f"{_label(where)}unknown key {key!r}{_instead(key, known)}")
        for key in needed:
            if key not in given:
                raise self.error(where, f"{_label(where)}the key {key!r} is missing")

    # -- the example

    def _example(self, where: toml_lines.Path, node: object) -> Tree:
        """A pytree of zeros."""
        if isinstance(node, dict) and isinstance(node.get("dtype"), str):
            return self._leaf(where, node)
        if isinstance(node, dict) and node:
            return {key: self._example((*where, key), below) for key, below in node.items()}
        if isinstance(node, list) and node:
            return [self._example((*where, index), below) for index, below in enumerate(node)]
        raise self.error(
            where,
            f"{_name(where)}={node!r:.80}: use {{ dtype = 'float32', shape = [3] }}, or a table or an array of such",
        )

    def _leaf(self, where: toml_lines.Path, leaf: dict[str, Any]) -> Any:
        self._known(where, leaf, ("dtype", "shape"))
        shape = leaf.get("shape", [])
        if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in shape):
            raise self.error(
                (*where, "shape"), f"{_name((*where, 'shape'))}={shape!r:.80}: use integers, 0 or more: [84, 84]"
            )
        key = "dtype"
        try:
            dtype = _dtype(leaf["dtype"])
            Spec.from_example(np.zeros((), dtype))
            key = "shape"
            zeros = np.zeros(shape, dtype)
            Spec.from_example(zeros)
        except (TypeError, ValueError, MemoryError) as error:
            at = (*where, key)
            raise self.error(at, f"{_name(at)}={leaf[key]!r}: {error}") from None
        return zeros

    # -- tables

    def _tables(self, given: object) -> list[Table]:
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise self.error(("tables",), f"tables={given!r:.80}: use [[tables]], once for each table")
        return [self._table(("tables", index), table) for index, table in enumerate(given)]

    def _table(self, where: toml_lines.Path, given: dict[str, Any]) -> Table:
        known = tuple(name for name in inspect.signature(Table).parameters)
        self._known(where, given, known, needed=("name",))
        arguments = dict(given)
        for key, classes in (("sampler", SELECTORS), ("remover", SELECTORS), ("rate_limiter", LIMITERS)):
            if key in given:
                arguments[key] = self._object((*where, key), given[key], classes)
        table: Table = self._call(where, Table, arguments)
        return table

    def _object(self, where: toml_lines.Path, given: object, classes: dict[str, type]) -> Any:
        """An object of one of the classes: its name, or a table of its ``type`` and its arguments."""
        if isinstance(given, str):
            given = {"type": given}
        example = f"{next(iter(classes))!r}, or {{ type = {next(iter(classes))!r}, ... }}"
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            raise self.error(where, f"{_name(where)}={given!r:.80}: use {example}")
        kind = classes.get(given["type"])
        if kind is None:
            at = (*where, "type")
            raise self.error(at, f"{_name(where)}: there is no {given['type']!r}{_instead(given['type'], classes)}")
        parameters = inspect.signature(kind).parameters
        needed = tuple(name for name, one in parameters.items() if one.default is one.empty)
        self._known(where, given, ("type", *parameters), needed)
        return self._call(where, kind, {key: value for key, value in given.items() if key != "type"})

    def _call(self, where: toml_lines.Path, kind: Callable[..., Any], arguments: Arguments) -> Any:
        try:
            return kind(**arguments)
        except (ValueError, TypeError) as error:
            raise self._explain(where, error) from None

    # -- the transport

    def _transport(self, given: object) -> TcpTransport:
        where: toml_lines.Path = ("transport",)
        self._known(where, given, (*_OF_TRANSPORT, "authkey_file", "tls"), needed=("port",))
        assert isinstance(given, dict)
        arguments = {key: given[key] for key in _OF_TRANSPORT if key in given}
        if type(arguments.get("allow_unauthenticated", False)) is not bool:
            value = arguments["allow_unauthenticated"]
            raise self.error((*where, "allow_unauthenticated"), f"allow_unauthenticated={value!r}: use true or false")
        if "authkey_file" in given:
            arguments["authkey"] = self._file((*where, "authkey_file"), given["authkey_file"]).read_bytes()
        if "tls" in given:
            arguments["tls"] = self._tls((*where, "tls"), given["tls"])
        try:
            return TcpTransport(**arguments)
        except ValueError as error:
            words = str(error).replace("authkey=,", "authkey_file,").replace("=True if", " = true if")
            raise self._explain(where, ValueError(re.sub(r"^authkey\b", "authkey_file", words))) from None

    def _tls(self, where: toml_lines.Path, given: object) -> ssl.SSLContext:
        self._known(where, given, ("certfile", "keyfile", "cafile"), needed=("certfile", "keyfile"))
        assert isinstance(given, dict)
        files = {key: self._file((*where, key), name) for key, name in given.items()}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(files["certfile"], files["keyfile"], lambda: "")  # never asks on a terminal
        except (ssl.SSLError, OSError) as error:
            raise self.error(where, f"{_label(where)}the certificate and its key cannot be used: {error}") from None
        if "cafile" in files:
            try:
                context.load_verify_locations(files["cafile"])
            except (ssl.SSLError, OSError) as error:
                at = (*where, "cafile")
                raise self.error(at, f"{_name(at)}={given['cafile']!r} cannot be used: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _file(self, where: toml_lines.Path, name: object) -> Path:
        """A file that can be read. A relative name starts at the directory of the configuration."""
        if not isinstance(name, str):
            raise self.error(where, f"{_name(where)}={name!r:.80}: use the path of a file")
        path = self._directory / name
        try:
            path.open("rb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise self.error(where, f"{_name(where)}={name!r}: {reason}; its path is {str(path)!r}") from None
        return path


def _name(where: toml_lines.Path) -> str:
    """Where something is, as in Python: ``tables[0].sampler``."""
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in where).lstrip(".")


def _label(where: toml_lines.Path) -> str:
    """What a message about something inside begins with."""
    return f"{_name(where)}: " if where else ""


def _dtype(name: str) -> "np.dtype[Any]":
    try:
        return np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        with contextlib.suppress(ImportError):
            kind = getattr(importlib.import_module("ml_dtypes"), name, None)
            if isinstance(kind, type) and issubclass(kind, np.generic):
                return np.dtype(kind)
    raise TypeError("numpy has no such dtype: use 'float32', 'uint8' and so on")
