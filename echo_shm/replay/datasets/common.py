"""What all formats need: what a dataset says of its steps, and how steps get into a replay."""

import importlib
import json
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from echo_shm.errors import ConnectionClosedError, EchoShmError, SegmentError, SpecMismatchError, with_sent
from echo_shm.replay.replay import Replay
from echo_shm.spec import Array, Leaf, Spec, Tree, canonical

#: What the header of a dataset says that it is.
_FORMAT, _VERSION = "echo_shm steps", 1

#: A key of a step, or the keys that lead to a part of it.
Name: TypeAlias = str | int | tuple[str | int, ...]


def need(module: str, extra: str) -> ModuleType:
    """Imports a package that an extra installs.

    Raises:
        ImportError: It is not installed. The message says how to install it.

    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module} ({error}): pip install 'echo-shm[{extra}]'") from error


class Header(NamedTuple):
    """What the steps of a dataset look like.

    Attributes:
        spec: Of one step.
        names: A name for each leaf.

    """

    spec: Spec
    names: tuple[str, ...]

    def to_json(self, **more: Any) -> bytes:
        """The header as JSON, with further entries."""
        said = json.loads(self.spec.schema)
        schema = {"tree": said["tree"], "leaves": said["leaves"]}  # without what the tables make of the steps
        return canonical({"format": _FORMAT, "version": _VERSION, "schema": schema, "names": self.names, **more})

    def example(self, what: str) -> Tree:
        """One step of zeros.

        Raises:
            ValueError: It has node types that only the user can build.

        """
        if self.spec.treespec is None:
            raise ValueError(
                f"{what} has node types beyond dict, OrderedDict, list, tuple and None: no example can be made of it; "
                "make one as the steps were"
            )
        return self.spec.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in self.spec.leaves])

    def check_fits(self, replay: Replay, what: str) -> None:
        """Raises SpecMismatchError, which names the first leaf that differs, unless a replay has the same steps."""
        mine = replay._spec
        for got, expected in zip(self.spec.leaves, mine.leaves, strict=False):
            if got != expected:
                raise SpecMismatchError(f"{what} does not fit the replay: got {got}, expected {expected}")
        if len(self.spec.leaves) != len(mine.leaves):
            longer = max(self.spec.leaves, mine.leaves, key=len)
            extra = longer[min(len(self.spec.leaves), len(mine.leaves))]
            side = "the dataset" if longer is self.spec.leaves else "the replay"
            raise SpecMismatchError(
                f"{what} does not fit the replay: got {len(self.spec.leaves)} leaves, expected {len(mine.leaves)}; "
                f"only {side} has {extra}"
            )
        got_tree, tree = (json.loads(spec.schema)["tree"] for spec in (self.spec, mine))
        if got_tree != tree:
            raise SpecMismatchError(
                f"{what} does not fit the replay: the leaves agree, but the containers differ: got "
                f"{json.dumps(got_tree)}, expected {json.dumps(tree)}"
            )


def header_of(replay: Replay, is_reserved: Callable[[str], bool]) -> Header:
    """The header for a replay's steps.

    A leaf's name is made of its keys: ``obs/image``. If that is taken, or reserved, it is the path:
    ``['obs']['image']``.
    """
    spec = replay._spec
    paths = [leaf.path or "step" for leaf in spec.leaves]
    plain = ["/".join(str(entry) for entry in path) for path in spec.structure.paths()]
    usable = [name != "" and not is_reserved(name) and plain.count(name) == 1 for name in plain]
    names = [name if good else path for name, path, good in zip(plain, paths, usable, strict=True)]
    return Header(spec, tuple(names if len(set(names)) == len(names) else paths))


def header_from(said: bytes | str, what: str) -> tuple[Header, dict[str, Any]]:
    """Reads a header, and returns it with all entries.

    Raises:
        ValueError: It is damaged, or of another format.

    """
    try:
        data = json.loads(said)
        if data["format"] != _FORMAT or data["version"] != _VERSION:
            raise ValueError(f"it is {data['format']!r} of version {data['version']!r}")
        spec = Spec.from_schema(canonical(data["schema"]), what)
        names = tuple(data["names"])
        if len(set(names)) != len(spec.leaves) or not all(isinstance(name, str) for name in names):
            raise ValueError("its names are no names of leaves")
    except SegmentError as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{what} is not a dataset that this version of echo_shm can read: {error!r}") from None
    return Header(spec, names), data


def flat(spec: Spec, tree: Tree) -> list[Array]:
    """The leaves of a tree that is known to be as a step's."""
    leaves: list[Any] = spec.structure.flatten_up_to(tree)
    return leaves


def part_of(spec: Spec, argument: str, name: Any) -> Tree:
    """A part of a step's tree, with the leaves' numbers at its leaves."""
    tree: Tree = spec.structure.unflatten(range(len(spec.leaves)))
    for key in name if isinstance(name, tuple) else (name,):
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            known = ", ".join(leaf.path or "one array" for leaf in spec.leaves)
            raise ValueError(f"{argument}={name!r}: steps have no such key. They have {known}") from None
    return tree


def exact(leaf: Leaf, value: Any, n: int, where: str) -> Array:
    """An array of n of a leaf."""
    array = np.asarray(value)
    want = (n, *leaf.shape)
    if array.shape == want and array.dtype != leaf.dtype and array.dtype.kind in "iuf" and leaf.dtype.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(leaf.dtype)
        if array.dtype.kind == leaf.dtype.kind == "f" or _fits(array, leaf.dtype):
            array = cast
    if array.shape != want or array.dtype != leaf.dtype:
        raise SpecMismatchError(
            f"{where}: {leaf.name}: got {array.dtype}{list(array.shape)}, expected {leaf.dtype}{list(want)}"
        )
    return np.ascontiguousarray(array).reshape(want)


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether integers are all in the range of another type of integers."""
    if "f" in (array.dtype.kind, dtype.kind):
        return False
    limits = np.iinfo(dtype)
    return array.size == 0 or bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)


class Importer:
    """Adds the steps of a dataset to a replay, episode by episode. It is a context manager.

    Args:
        replay: The replay.
        timeout: As for :meth:`Replay.extend`.
        what: What messages call the dataset.

    """

    def __init__(self, replay: Replay, timeout: float | None, what: str) -> None:
        self._replay = replay
        self._timeout = timeout
        self._what = what
        self._last: list[Array] | None = None  # the last step, which may turn out to end its episode
        self._added = 0

    @property
    def added(self) -> int:
        """How many steps are stored."""
        return self._added

    def steps(self, leaves: Sequence[Array]) -> None:
        """Goes on with an episode, or begins one: arrays of shape ``(n, *leaf.shape)``, exact."""
        if not len(leaves[0]):
            return
        if self._last is not None:
            self._extend(self._last)
        self._extend([array[:-1] for array in leaves])
        self._last = [array[-1:].copy() for array in leaves]

    def end(self, terminated: bool, truncated: bool, final: Sequence[Array] | None = None) -> None:
        """Ends an episode; ``final``: exact arrays of shape ``leaf.shape``."""
        if self._last is None:
            return
        build = self._replay._spec.structure.unflatten
        step = build([array[0, ...] if array.ndim > 1 else array.reshape(()) for array in self._last])
        try:
            self._replay.add(
                step,
                terminated=terminated,
                truncated=truncated,
                final=None if final is None else build(final),
                timeout=self._timeout,
            )
        except (TimeoutError, ConnectionClosedError, EchoShmError) as error:
            raise self._with_sum(error, 0) from error.__cause__
        self._added += 1
        self._last = None
        if not terminated and not truncated:
            self._replay.end_episode()

    def _extend(self, leaves: Sequence[Array]) -> None:
        n = len(leaves[0])
        if not n:
            return
        try:
            self._replay.extend(self._replay._spec.structure.unflatten(leaves), timeout=self._timeout)
        except (TimeoutError, ConnectionClosedError, EchoShmError) as error:
            raise self._with_sum(error, getattr(error, "sent", 0)) from error.__cause__
        self._added += n

    def _with_sum(self, error: Exception, sent: int) -> Exception:
        """The same error, which says how many steps are stored in all."""
        self._added += sent
        return with_sent(error, f"{error}; of {self._what}, {self._added:,} steps are stored", self._added)

    def __enter__(self) -> "Importer":
        self._replay.end_episode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._replay._core.closed:
            self._replay.end_episode()  # what is added next is no part of the episode that was cut short
