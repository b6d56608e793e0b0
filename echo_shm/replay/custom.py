"""Selectors written in Python, as the C core calls them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from echo_shm._core import ffi, lib
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import arguments
from echo_shm.replay.selectors import CustomSelector

if TYPE_CHECKING:
    from echo_shm._core import CData, CustomCalls
    from echo_shm.replay.batch import Settings

#: The functions of an ``es_custom_selector``: those below.
_CALLS = {
    name: ffi.addressof(lib, f"custom_{name}")
    for name in ("insert", "update", "remove", "draw", "probability", "refuse")
}


class CustomSelectors:
    """The custom selectors of a replay, and what they have raised.

    Args:
        what: The replay, in words.
        name: Of its store in shared memory, or None.

    Attributes:
        why: Why the replay is closed, in words; None if no selector has closed it.
        let_go: Ends the replay, but for its store.

    What a draw or a probability raises is raised by the call that asked, and changes nothing. A selector that raised
    when it was told of a change, or a remover that did not choose, cannot go on, and the store has changed already. So
    the replay lets go of it then, as if its process had been killed.
    """

    def __init__(self, what: str, name: str | None) -> None:
        self._what = what
        self._goes_on = "Its steps are gone: store='shm' keeps them"
        if name is not None:
            self._goes_on = f"Its store is whole: Replay.attach({name!r}, ...) goes on with it, and with new selectors"
        self._handles: list[CData] = []
        self._raised: dict[int, BaseException] = {}  # by thread
        self.why: str | None = None
        self.let_go: Callable[[], None] | None = None

    def bind(
        self,
        tables: "Mapping[str, Settings]",
        samplers: Mapping[str, CustomSelector] | None,
        removers: Mapping[str, CustomSelector] | None,
    ) -> "tuple[CustomCalls, int]":
        """What ``es_replay_open`` takes: two for each table.

        Raises:
            ValueError: One is missing, or not needed, or in use already.
            TypeError: One is something else.

        """
        given = {"sampler": samplers or {}, "remover": removers or {}}
        parts = []
        for role, selectors in given.items():
            arguments.check_tables(selectors, tuple(tables))
            for table, settings in tables.items():
                part = self._part(table, role, settings.is_custom[role == "remover"], selectors.get(table))
                if part is not None:
                    parts.append((2 * list(tables).index(table) + (role == "remover"), part))
        for _, part in parts:
            if part.selector._in_use or sum(other.selector is part.selector for _, other in parts) > 1:
                raise ValueError(
                    f"{part.what}, {part.selector!r}, has the members of another table or of another replay, or is "
                    "given twice: make a new one for each"
                )
        calls = ffi.new("es_custom_selector[]", [{}] * (2 * len(tables)))
        for place, part in parts:
            object.__setattr__(part.selector, "_in_use", True)  # it may be frozen
            self._handles.append(ffi.new_handle(part))
            calls[place] = {"self": self._handles[-1], **_CALLS}
        return calls, 2 * len(tables)

    def _part(self, table: str, role: str, is_custom: bool, selector: object) -> "_Part | None":
        if selector is None:
            if is_custom:
                raise ValueError(
                    f"{self._what}: the {role} of table {table!r} is written in Python: "
                    f"pass a new one, {role}s={{{table!r}: ...}}"
                )
            return None
        if not isinstance(selector, CustomSelector):
            raise TypeError(f"{role}s[{table!r}]={selector!r}: use an instance of a subclass of CustomSelector")
        if not is_custom:
            raise ValueError(f"{role}s[{table!r}]: the {role} of that table is not written in Python: leave it out")
        return _Part(selector, f"the {role} of table {table!r}", role == "remover", self)

    def __len__(self) -> int:
        return len(self._handles)

    def drop(self) -> None:
        """Lets go of the selectors. The core, which is closed, calls them no more."""
        self._handles.clear()
        self.let_go = None

    # -- what they raise

    def failed(self, part: "_Part", method: str, error: BaseException) -> None:
        """Keeps what a method has raised, for the call that runs in this thread."""
        self._raised[threading.get_ident()] = error
        if self.why is None and (part.is_remover or method not in ("draw", "probability")):
            name = f"{type(part.selector).__qualname__}.{method}"
            self.why = f"{self._what} is closed: {name}, {part.what}, raised {error!r}. {self._goes_on}"

    def check(self) -> None:
        """Raises what :meth:`reraise` does if a call in this thread has failed, or any has closed the replay."""
        if self.why is not None or threading.get_ident() in self._raised:
            self.reraise()

    def reraise(self) -> NoReturn:
        """Raises what the call in this thread must raise."""
        error = self._raised.pop(threading.get_ident(), None)
        if self.why is not None and self.let_go is not None:
            let_go, self.let_go = self.let_go, None
            let_go()
        if error is not None and (self.why is None or not isinstance(error, Exception)):
            raise error
        raise ConnectionClosedError(self.why or f"{self._what}: a selector has failed") from error


@dataclass
class _Part:
    """A table's sampler or remover, as ``self`` in C."""

    selector: CustomSelector
    what: str
    is_remover: bool
    all: CustomSelectors


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Called by cffi when a function below has raised."""
    if trace is not None:
        method = trace.tb_frame.f_code.co_name[1:]
        part: _Part = ffi.from_handle(trace.tb_frame.f_locals["this"])
        part.all.failed(part, "draw" if method == "refuse" else method, error)


def _part_of(this: "CData") -> _Part:
    part: _Part = ffi.from_handle(this)
    return part


@ffi.def_extern(name="custom_insert", error=1, onerror=_failed)
def _insert(this: "CData", key: int, priority: float) -> int:
    _part_of(this).selector.insert(key, priority)
    return 0


@ffi.def_extern(name="custom_update", error=1, onerror=_failed)
def _update(this: "CData", key: int, priority: float) -> int:
    _part_of(this).selector.update(key, priority)
    return 0


@ffi.def_extern(name="custom_remove", error=1, onerror=_failed)
def _remove(this: "CData", key: int) -> int:
    _part_of(this).selector.remove(key)
    return 0


@ffi.def_extern(name="custom_draw", error=1, onerror=_failed)
def _draw(this: "CData", numbers: "CData", n: int, keys: "CData", probabilities: "CData") -> int:
    part = _part_of(this)
    drawn = part.selector.draw(_array(numbers, n, np.float64).copy())
    found = _checked(drawn, n, f"{type(part.selector).__qualname__}.draw, {part.what},")
    _array(keys, n, np.uint64)[:] = found[0]
    _array(probabilities, n, np.float64)[:] = found[1]
    return 0


@ffi.def_extern(name="custom_probability", error=1, onerror=_failed)
def _probability(this: "CData", key: int, to: "CData") -> int:
    part = _part_of(this)
    probability = float(part.selector.probability(key))
    if not 0 <= probability <= 1:
        name = f"{type(part.selector).__qualname__}.probability"
        raise ValueError(f"{name}, {part.what}, returned {probability} for key {key}: expected 0 to 1")
    _array(to, 1, np.float64)[0] = probability
    return 0


@ffi.def_extern(name="custom_refuse", onerror=_failed)
def _refuse(this: "CData", key: int) -> None:
    part = _part_of(this)
    name = f"{type(part.selector).__qualname__}.draw"
    raise ValueError(f"{name}, {part.what}, returned key {key}, which no member has: draw those that were inserted")


def _array(at: "CData", n: int, kind: type[Any]) -> npt.NDArray[Any]:
    """n numbers of C's, of 8 bytes each."""
    return np.frombuffer(memoryview(ffi.buffer(at, 8 * n)), kind)


def _checked(drawn: Any, n: int, who: str) -> Sequence[Any]:
    """Keys and probabilities of n draws."""
    expected = f"expected a tuple of keys, uint64[{n}], and probabilities, float64[{n}]"
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise TypeError(f"{who} returned {drawn!r:.80}: {expected}")
    keys, probabilities = np.asarray(drawn[0]), np.asarray(drawn[1])
    if keys.dtype.kind not in "ui" or keys.shape != (n,) or (keys.dtype.kind == "i" and bool((keys < 0).any())):
        raise ValueError(f"{who} returned keys of {keys.dtype}{list(keys.shape)}: {expected}")
    if probabilities.dtype.kind not in "fui" or probabilities.shape != (n,):
        raise ValueError(
            f"{who} returned probabilities of {probabilities.dtype}{list(probabilities.shape)}: {expected}"
        )
    wrong = ~((probabilities > 0) & (probabilities <= 1))
    if wrong.any():
        raise ValueError(
            f"{who} returned the probability {probabilities[wrong.argmax()]}: expected more than 0, up to 1"
        )
    return keys, probabilities
