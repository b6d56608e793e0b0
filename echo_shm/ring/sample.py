"""What a learner gets: batches, and at the end of a stream what does not fill one."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.ring.metrics import SampleInfo
from echo_shm.spec import Array, Tree

if TYPE_CHECKING:
    from echo_shm._core import Ring, Snapshot

_es_api_release = lib.es_api_release  # looking it up in lib takes time on every batch


class _SampleFields(NamedTuple):
    batch: Tree
    info: SampleInfo


class Sample(_SampleFields):
    """A batch, and the ring's state when it was taken. ``batch, info = sample`` works.

    Attributes:
        batch: A pytree like the example. Each leaf is an array of shape ``(batch_size, *leaf.shape)``, a view of the
            ring. It holds this batch until the sample is released: by :meth:`release`, by the next
            ``server.sample()``, at the end of its lease, or when its server is closed. After that it is still safe to
            read, but holds the data of later samples.
        info: :class:`SampleInfo`.

    """

    #: While the batch is leased: the ``es_ring``, the batch's index and its round.
    # Not annotated, because typing.get_type_hints() could not find these types where it looks.
    _lease = cast("tuple[Ring, int, int] | None", None)
    _also = cast("Sequence[tuple[Ring, int, int]]", ())

    def release(self) -> None:
        """Releases the batch: producers may use its space again. Idempotent."""
        # Cleared only after the call, because an exception may interrupt it. A second release has no effect.
        lease = self._lease  # read once: another thread may release it, too
        if lease is not None:
            _es_api_release(*lease)
            self._lease = None
        if self._also:
            for lease in self._also:
                _es_api_release(*lease)
            self._also = ()

    def __reduce__(self) -> "tuple[type[Sample], tuple[Tree, SampleInfo]]":
        # A copy has its own arrays and holds no slots.
        return Sample, (self.batch, self.info)


class Lease:
    """A context manager over one batch. :meth:`Server.lease` makes it."""

    _sample: Sample | None = None

    def __init__(self, take: "Callable[[Snapshot], Sample | None]", give_back: "Callable[[Snapshot], None]") -> None:
        self._take = take
        self._give_back = give_back
        self._snap = ffi.new("es_snapshot *")

    def __enter__(self) -> Sample | None:
        if self._sample is not None:
            raise RuntimeError("this lease is entered already; call lease() for each batch")
        try:
            self._sample = self._take(self._snap)
            return self._sample
        except BaseException:
            self._give_back(self._snap)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sample is not None:
            self._sample.release()
            self._sample = None


class Remainder:
    """The samples of incomplete batches at the end of a stream, copied in the order of their positions."""

    def __init__(
        self, ring: "Ring", batches: list[Array], batch_size: int, unflatten: Callable[[list[Array]], Tree]
    ) -> None:
        self._ring = ring
        self._batches = batches
        self._batch_size = batch_size
        self._unflatten = unflatten
        self._lock = threading.Lock()  # threads that share a server drain it together
        self._parts: list[tuple[int, list[Array]]] = []
        self._leases: list[tuple[int, int]] = []

    def add(self, index: int, snap: "Snapshot") -> None:
        """Copies the committed samples of a leased batch. It stays leased until all of its samples are released."""
        mask = np.zeros(self._batch_size, np.uint8)
        lib.es_api_committed_mask(self._ring, index, snap.round, ffi.from_buffer("uint8_t[]", mask))
        number = snap.round * self._batches[0].shape[0] + index
        part = number, [batches[index][mask.astype(bool)] for batches in self._batches]
        with self._lock:
            self._parts.append(part)
            self._parts.sort(key=lambda part: part[0])
            self._leases.append((index, snap.round))

    def holds(self, index: int, round_: int) -> bool:
        """Whether that batch is one of those copied."""
        with self._lock:
            return (index, round_) in self._leases

    def next(self, snap: "Snapshot", drop_last: bool) -> Sample | None:
        """The next batch: full ones first, then the shorter last one, unless it is dropped."""
        with self._lock:
            return self._next(snap, drop_last)

    def _next(self, snap: "Snapshot", drop_last: bool) -> Sample | None:
        total = sum(len(part[0]) for _, part in self._parts)
        if total == 0 or (total < self._batch_size and drop_last):
            # What is left is dropped, or nothing is left: other learners need not wait for these batches.
            for lease in self._leases:
                _es_api_release(self._ring, *lease)
            self._leases = []
            return None
        joined = [_concatenate(leaf) for leaf in zip(*(part for _, part in self._parts), strict=True)]
        batch = [leaf[: self._batch_size] for leaf in joined]
        self._parts = [(0, [leaf[self._batch_size :] for leaf in joined])]
        for leaf in batch:
            leaf.flags.writeable = self._batches[0].flags.writeable
        lib.es_monitor_observe(self._ring, snap)
        sample = Sample(self._unflatten(batch), SampleInfo(snap))
        if total <= self._batch_size:
            leases, self._leases = self._leases, []
            sample._also = [(self._ring, index, round_) for index, round_ in leases]
        return sample


def _concatenate(parts: Sequence[Array]) -> Array:
    """As np.concatenate, which does not keep big-endian and padded dtypes."""
    joined: Array = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    at = 0
    for part in parts:
        joined[at : at + len(part)] = part
        at += len(part)
    return joined
