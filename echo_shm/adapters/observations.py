"""Observations as the frameworks give them: one row for each environment, an array or a dict of arrays."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

#: One observation, or many of them: an array, or a dict of arrays.
Observation = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
Arrays = list[npt.NDArray[Any]]


class Observations:
    """What is stored of the observations of n environments.

    Args:
        example: One observation: an array, or a dict of arrays.
        n: How many environments.
        stack: Of so many frames an observation consists. Only the newest one is stored.

    Raises:
        ValueError: The observation cannot be stacked so.

    """

    def __init__(self, example: Observation, n: int, stack: int) -> None:
        self._names = tuple(example) if isinstance(example, dict) else None
        leaves = list(example.values()) if isinstance(example, dict) else [example]
        self._shapes = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self._rows = [(n, *leaf.shape) for leaf in leaves]
        first = leaves[0].shape
        if stack != 1 and (self._names is not None or not first or stack < 1 or first[0] % stack):
            raise ValueError(
                f"stack={stack}: got observations of shape {', '.join(str(shape) for shape, _ in self._shapes)}, "
                "expected one array whose first dimension is a multiple of stack: put the channels first, or leave out "
                "stack"
            )
        self._channels = first[0] // stack if stack > 1 else 0  # of a frame; 0: nothing is stacked
        #: One observation as it is stored.
        rows: Any = self.rows([leaf[None] for leaf in leaves])
        self.stored: Observation = {k: v[0] for k, v in rows.items()} if self._names else rows[0]

    def exact(self, what: str, given: Any) -> Arrays:
        """Contiguous arrays of the right dtypes and shapes, with a leading n.

        Raises:
            ValueError: A shape differs, or a name is missing.

        """
        if self._names is not None and (not isinstance(given, dict) or not given.keys() >= set(self._names)):
            raise ValueError(f"{what}: got {given!r:.100}, expected a dict with {', '.join(map(repr, self._names))}")
        if self._names is None:
            return [_exact(what, given, self._rows[0], self._shapes[0][1])]
        both = zip(self._names, self._rows, self._shapes, strict=True)
        return [_exact(what, given[name], rows, dtype) for name, rows, (_, dtype) in both]

    def from_bytes(self, raw: list[bytes]) -> Arrays:
        """The arrays that have these bytes."""
        return [
            np.frombuffer(one, dtype).reshape(rows)
            for one, rows, (_, dtype) in zip(raw, self._rows, self._shapes, strict=True)
        ]

    def rows(self, leaves: Arrays) -> Observation:
        """What is stored of them."""
        if self._names is None:
            return leaves[0][:, -self._channels :] if self._channels else leaves[0]
        return dict(zip(self._names, leaves, strict=True))

    def differ(self, leaves: Arrays, raw: list[bytes]) -> npt.NDArray[np.bool_]:
        """Which rows have other bytes."""
        both = list(zip(leaves, self.from_bytes(raw), strict=True))
        return np.array([any(a[i].tobytes() != b[i].tobytes() for a, b in both) for i in range(len(leaves[0]))])

    def drawn(self, stored: Any) -> Any:
        """The observations of a batch as they were given, without a copy."""
        return stored.reshape(len(stored), *self._shapes[0][0]) if self._channels else stored


def _exact(what: str, given: Any, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """As :func:`exact_array`, but no dimension is missing beside that of one environment, or of a single number."""
    array = np.asarray(given, dtype, order="C")
    if array.shape == shape:
        return array
    if array.shape not in ((shape[1:] if shape[0] == 1 else shape), (shape[:1] if shape[1:] == (1,) else shape)):
        raise _wrong(what, given, shape)
    return array.reshape(shape)


def _wrong(what: str, given: Any, shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{what}: got shape {np.shape(given)}, expected {shape}, one row for each of {shape[0]} environments: make the "
        "buffer with the spaces and the number of these environments"
    )


def exact_array(what: str, given: Any, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A contiguous array of that shape and dtype, whose first dimension is that of the environments.

    With one environment that dimension may be missing, and those of an action may be flat or not.

    Raises:
        ValueError: It has another number of elements, or other environments.

    """
    array = np.asarray(given, dtype, order="C")
    if array.shape == shape:
        return array
    if array.size != math.prod(shape) or (shape[0] > 1 and array.shape[:1] != shape[:1]):
        raise _wrong(what, given, shape)
    return array.reshape(shape)
