"""Slots that are written in place, as ``csrc/python/slotmodule.c`` has them."""

from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: A leaf: its dtype, its shape, the address of slot 0's, bytes from one slot's to the next, numpy's array flags.
Leaf = tuple[np.dtype[Any], tuple[int, ...], int, int, int]

class Writer(Protocol):
    """What a reservation asks for all that is not common. It keeps the attachment."""

    def _claim(self, reservation: Reservation, code: int, timeout: float | None, /) -> None:
        """Goes on with a claim whose first attempt returned ``code``."""
    def _check_slot(self, tree: Any, arrays: tuple[npt.NDArray[Any], ...], /) -> None:
        """Raises unless the tree holds the slot's arrays."""
    def _check(self, code: int, /) -> None:
        """Raises the exception for a negative result."""

class Reservation:
    """A slot that is written in place: a context manager whose value is a pytree of writable arrays over the slot.

    A clean exit commits the sample. An exception aborts it, and the next producer gets the slot. Then the arrays are
    read-only.
    """

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def _claim(self, timeout_ns: int, /) -> int:
        """Calls ``es_api_reserve``, and returns what it returned. For the writer, while the reservation is entered."""

class Slots:
    """An attachment's slots, to write in place."""

    def __new__(
        cls,
        es_api_reserve: int,
        es_api_commit: int,
        es_api_abort: int,
        es_ring: int,
        capacity: int,
        leaves: tuple[Leaf, ...],
        form: Any,
        unflatten: object,
        keep: object,
        /,
    ) -> Slots:
        """Makes them.

        Args:
            es_api_reserve: The address of the C function, as for the next two.
            es_api_commit: As above.
            es_api_abort: As above.
            es_ring: The address of the attachment. Whoever reserves keeps it alive.
            capacity: Slots of the ring.
            leaves: What each leaf looks like.
            form: A tree of dicts, lists, tuples, named tuples and None, with the leaves' numbers; None: ``unflatten``
                builds the trees, and the writer checks them.
            unflatten: Takes a tuple of arrays and returns a tree.
            keep: Keeps the mapping, but not the attachment. The base of each array; it has no buffer.

        """
    def reserve(self, writer: Writer, timeout: float | None, /) -> Reservation:
        """A reservation. It claims its slot when it is entered, and waits ``timeout`` seconds for one."""
