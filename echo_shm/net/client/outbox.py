"""A client's own ring: what was sent, and that the server may not have yet."""

import threading
from collections import deque
from typing import NamedTuple

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Spec


class _LeasedBatch(NamedTuple):
    """A whole batch that is leased until its last sample is acknowledged."""

    batch: int
    round: int
    end: int  # the number of the sample after its last


class Outbox:
    """A ring in this process's own memory, with a batch for a frame. A sample's number is its position.

    Args:
        spec: Of the samples.
        peer: Whom they are for.
        size: Samples of a batch.
        most: Samples that may be on their way at a time.

    Attributes:
        producer: The attachment that writes into it.
        size: As given.

    """

    def __init__(self, spec: Spec, peer: str, size: int, most: int) -> None:
        geometry = Geometry(size, max(3, -(-most // size) + 1), 1, "fifo", False, 0.1)
        segment = Segment.private(f"to {peer}", spec, geometry)
        self.size, self._batches, self._capacity = size, geometry.num_buffers, geometry.capacity
        self.producer = Attachment(segment, lib.ES_ROLE_PRODUCER)
        self._learner = Attachment(segment, lib.ES_ROLE_LEARNER)
        self._ring = self._learner.ring
        self._sizes = [leaf.nbytes for leaf in spec.leaves]
        self._columns = [
            segment.array(
                lib.es_leaf_offset(self._ring, i), (self._capacity * nbytes,), np.dtype(np.uint8), writable=False
            )
            for i, nbytes in enumerate(self._sizes)
        ]
        self._leased: deque[_LeasedBatch] = deque()
        self._lock = threading.Lock()

    def claimed(self) -> int:
        """The number of the next sample that is put in; of the caller's own none is missing."""
        return int(lib.es_claimed(self._ring))

    def committed(self, number: int) -> int:
        """Samples of one batch that are there, from that one on."""
        return int(lib.es_committed_from(self._ring, number))

    def bytes_of(self, number: int, count: int) -> list[memoryview]:
        """The bytes of some samples of one batch, leaf by leaf, where they lie."""
        slot = number % self._capacity
        return [
            column[slot * size : (slot + count) * size].data
            for column, size in zip(self._columns, self._sizes, strict=True)
        ]

    def lease_full(self, wait_ns: int = 0) -> None:
        """Keeps the batches that are full, until :meth:`release`; waits so long for the first of them."""
        snap = ffi.new("es_snapshot *")
        while (index := lib.es_take(self._ring, 0, wait_ns, snap)) >= 0:
            wait_ns = 0
            with self._lock:
                end = (snap.round * self._batches + index + 1) * self.size
                self._leased.append(_LeasedBatch(index, snap.round, end))

    def release(self, number: int) -> None:
        """Gives back the batches all of whose samples come before that one."""
        with self._lock:
            while self._leased and self._leased[0].end <= number:
                leased = self._leased.popleft()
                lib.es_release_batch(self._ring, leased.batch, leased.round)

    def detach(self) -> None:
        """Nothing is put in or taken out any more."""
        self.producer.detach()
        self._learner.detach()
