"""Batches and the arrays over them, as ``csrc/python/batchmodule.c`` has them."""

from typing import Any

import numpy as np
import numpy.typing as npt

#: A leaf: its dtype, the shape of a batch of it, the address of batch 0, bytes of a batch, numpy's array flags.
Leaf = tuple[np.dtype[Any], tuple[int, ...], int, int, int]

class Lease:
    """One batch that this process has taken. Each array over the batch refers to it.

    When it dies it releases the batch, or gives it back if ``delivered`` is not set.
    """

    @property
    def batch(self) -> int:
        """The batch's physical index."""
    @property
    def round(self) -> int:
        """The batch's round."""
    @property
    def ended(self) -> bool:
        """Whether it was released or given back."""
    @property
    def shared(self) -> bool:
        """Whether other learners have been attached, too."""
    @property
    def versions(self) -> npt.NDArray[Any]:
        """The version of each sample of the batch: a read-only view, int64, that refers to this lease."""
    delivered: bool

    def release(self) -> None:
        """Producers may use the batch's space again. Idempotent."""
    def give_back(self) -> None:
        """The batch is delivered again, here or to another learner. Idempotent."""

#: What a take returns: see :meth:`Reader.take`.
Taken = tuple[tuple[npt.NDArray[Any], ...] | None, Lease | None, int, bool, bytes]

class Reader:
    """An attachment that takes batches."""

    def __new__(
        cls,
        es_api_take: int,
        es_api_release: int,
        es_api_give_back: int,
        es_ring: int,
        batch_size: int,
        num_batches: int,
        leaves: tuple[Leaf, ...],
        versions: tuple[Leaf],
        keep: object,
        /,
    ) -> Reader:
        """Makes a reader.

        Args:
            es_api_take: The address of the C function, as for the next two.
            es_api_release: As above.
            es_api_give_back: As above.
            es_ring: The address of the attachment.
            batch_size: Samples in a batch.
            num_batches: Batches in the ring.
            leaves: What each leaf looks like.
            versions: The same of the samples' versions, in a tuple.
            keep: Keeps the attachment and the mapping. The reader refers to it, and each lease to the reader.

        """
    @property
    def held(self) -> int:
        """Leases that have not ended."""
    def leased(self, batch: int, /) -> int:
        """The lap (round + 1) in which that physical batch is leased here, or 0."""
    def take(self, flags: int, timeout_ns: int, /) -> Taken:
        """Calls ``es_api_take``.

        Returns:
            One array for each leaf, if the batch is full; the lease, if a batch was taken; what the C function
            returned if that is negative, otherwise 0; whether a sweep is due; the bytes of the ``es_snapshot``.

        """

def over(array: npt.NDArray[Any], owner: object, writable: bool, /) -> npt.NDArray[Any]:
    """A view of a C-contiguous array that refers to ``owner`` and not to the array. ``owner`` keeps the array.

    Raises:
        ValueError: The array is not C-contiguous.

    """
