"""What a learner gets: batches, and at the end of a stream what does not fill one."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import optree

from echo_shm._batch import over
from echo_shm._core import ffi, lib
from echo_shm.ring.metrics import SampleInfo
from echo_shm.spec import Array, Tree

if TYPE_CHECKING:
    from echo_shm._batch import Lease as BatchLease
    from echo_shm._core import Ring


class _SampleFields(NamedTuple):
    batch: Tree
    info: SampleInfo


class Sample(_SampleFields):
    """A batch, and the ring's state when it was taken. ``batch, info = sample`` works.

    Attributes:
        batch: A pytree like the example. Each leaf is an array of shape ``(batch_size, *leaf.shape)``, a view of the
            ring. The batch's slots stay taken for as long as anything refers to this sample, to one of its arrays, or
            to a view or a tensor over one. The last reference gives them back to the producers. So does
            :meth:`release`, at once.
        info: :class:`SampleInfo`.
        versions: The version of the weights that each sample was made with: int64, of shape ``(batch_size,)``, a
            read-only view like the batch's arrays. 0: made without weights. See :attr:`ShmClient.version`.

    """

    #: What ends with this sample and its arrays.
    # Not annotated, because typing.get_type_hints() could not find the type where it looks.
    _leases = cast("Sequence[BatchLease]", ())
    #: Those of a copy.
    _versions = cast("Array | None", None)

    @property
    def versions(self) -> Array:
        """The version of the weights that each sample was made with."""
        if self._versions is not None:
            return self._versions
        if len(self._leases) == 1:
            return self._leases[0].versions
        return np.zeros(len(optree.tree_leaves(self.batch)[0]), np.int64)

    def release(self) -> None:
        """Releases the batch although arrays may still refer to it: producers may use its space again. Idempotent.

        After that the arrays are still safe to read, but hold the data of later samples. With ``ECHO_SHM_POISON=1``
        in the environment all their bits become ones at once.
        """
        for lease in self._leases:
            lease.release()

    def __reduce__(self) -> "tuple[type[Sample], tuple[Tree, SampleInfo], dict[str, Array]]":
        # A copy has its own arrays and holds no slots.
        return Sample, (self.batch, self.info), {"_versions": np.array(self.versions)}


def copy_of(sample: Sample) -> Sample:
    """A copy, which takes no slots."""
    copied = Sample(optree.tree_map(np.copy, sample.batch), sample.info)
    copied._versions = frozen(np.array(sample.versions))
    return copied


class Lease:
    """A context manager over one batch. :meth:`Server.lease` makes it."""

    _sample: Sample | None = None

    def __init__(self, take: "Callable[[], Sample | None]") -> None:
        self._take = take

    def __enter__(self) -> Sample | None:
        if self._sample is not None:
            raise RuntimeError("this lease is entered already; call lease() for each batch")
        self._sample = self._take()
        return self._sample

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sample is not None:
            self._sample.release()
            self._sample = None


class Remainder:
    """The samples of incomplete batches at the end of a stream, copied in the order of their positions."""

    def __init__(
        self,
        ring: "Ring",
        batches: list[Array],
        versions: Array,
        batch_size: int,
        unflatten: Callable[[list[Array]], Tree],
    ) -> None:
        self._ring = ring
        self._batches = [*batches, versions]
        self._batch_size = batch_size
        self._unflatten = unflatten
        self._lock = threading.Lock()  # threads that share a server drain it together
        self._parts: list[tuple[int, list[Array]]] = []
        self._leases: list[BatchLease] = []

    def add(self, lease: "BatchLease") -> None:
        """Copies the committed samples of a leased batch. It stays leased until all of its samples are released."""
        mask = np.zeros(self._batch_size, np.uint8)
        lib.es_api_committed_mask(self._ring, lease.batch, lease.round, ffi.from_buffer("uint8_t[]", mask))
        number = lease.round * self._batches[0].shape[0] + lease.batch
        part = number, [batches[lease.batch][mask.astype(bool)] for batches in self._batches]
        with self._lock:
            self._parts.append(part)
            self._parts.sort(key=lambda part: part[0])
            self._leases.append(lease)

    def next(self, drop_last: bool) -> Sample | None:
        """The next batch: full ones first, then the shorter last one, unless it is dropped."""
        with self._lock:
            return self._next(drop_last)

    def _next(self, drop_last: bool) -> Sample | None:
        total = sum(len(part[0]) for _, part in self._parts)
        if total == 0 or (total < self._batch_size and drop_last):
            # What is left is dropped, or nothing is left: other learners need not wait for these batches.
            for lease in self._leases:
                lease.release()
            self._leases = []
            return None
        joined = [concatenate(leaf) for leaf in zip(*(part for _, part in self._parts), strict=True)]
        batch = [leaf[: self._batch_size] for leaf in joined]
        self._parts = [(0, [leaf[self._batch_size :] for leaf in joined])]
        versions = np.ascontiguousarray(batch.pop())
        info = SampleInfo._of(self._ring, versions)
        leases: Sequence[BatchLease] = ()
        if total <= self._batch_size:
            leases, self._leases = self._leases, []
            for lease in leases:
                lease.delivered = True
        sample = Sample(self._unflatten([self._leaf(leaf, leases) for leaf in batch]), info)
        sample._leases, sample._versions = leases, frozen(versions)
        return sample

    def _leaf(self, copied: Array, leases: "Sequence[BatchLease]") -> Array:
        """A view that keeps what was copied leased."""
        copied = np.ascontiguousarray(copied).reshape(copied.shape)
        return over(copied, (copied, leases), self._batches[0].flags.writeable)


def frozen(array: Array) -> Array:
    """The array, which can no longer be written to."""
    array.flags.writeable = False
    return array


def concatenate(parts: Sequence[Array]) -> Array:
    """As np.concatenate, which does not keep big-endian and padded dtypes."""
    joined: Array = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    at = 0
    for part in parts:
        joined[at : at + len(part)] = part
        at += len(part)
    return joined
