"""Arrays that the kernels take, checked. An error says what was got and what to use."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: A number, or an array of them.
Numbers: TypeAlias = float | Sequence[float] | npt.NDArray[Any]
#: An integer, or an array of them.
Integers: TypeAlias = int | Sequence[int] | npt.NDArray[Any]
Doubles: TypeAlias = npt.NDArray[np.float64]

#: Arrays of these are taken as they are.
_FLOATS = np.dtype(np.float32), np.dtype(np.float64)


def real_array(label: str, value: object, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """A C-contiguous array of real numbers, of that dtype or of its own.

    Raises:
        ValueError: ``value`` holds something else, bools too.

    """
    if (
        type(value) is np.ndarray
        and value.flags.c_contiguous
        and value.dtype in (_FLOATS if dtype is None else (dtype,))
    ):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{label}: {error}") from None
    # bfloat16 and the like have kind V.
    if array.size and (array.dtype.kind not in "iufV" or not np.can_cast(array.dtype, np.float64, "same_kind")):
        raise ValueError(f"{label} holds {array.dtype}: use real numbers")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which callers look for
        return np.ascontiguousarray(array, dtype).reshape(array.shape)


def integer_array(label: str, value: object) -> npt.NDArray[np.int64]:
    """A C-contiguous array of int64.

    Raises:
        ValueError: ``value`` holds something else, or an integer that needs more bits.

    """
    array = np.asarray(value)
    if array.size and (array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.max() >= 2**63)):
        raise ValueError(f"{label} holds {array.dtype}: use integers of at most 63 bits")
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)


def broadcast(**arrays: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The arrays, C-contiguous and of one shape.

    Raises:
        ValueError: Their shapes do not fit together.

    """
    try:
        return [np.ascontiguousarray(array).reshape(array.shape) for array in np.broadcast_arrays(*arrays.values())]
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"these shapes do not fit together: {shapes}") from None


def place(shape: tuple[int, ...], index: int) -> str:
    """Where element ``index`` is, in C order: ``"[2, 3]"``; nothing in an array of one number."""
    return f"[{', '.join(map(str, np.unravel_index(index, shape)))}]" if shape else ""
