"""A client's own ring: it holds what was sent and may not be in the server's ring yet."""

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.net import wire
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Array, Spec

#: Bytes of samples in a frame, approximately.
_FRAME = 1 << 20
#: Most samples in a frame.
_MAX_FRAME_SAMPLES = 4096


def frame_samples(spec: Spec, max_frame: int) -> int:
    """How many samples a frame has at most. max_frame: most bytes of them, as the server says."""
    size = spec.sample_bytes
    return max(1, min(wire.samples_per_frame(min(max_frame, max(_FRAME, size)), size), _MAX_FRAME_SAMPLES))


class _LeasedBatch(NamedTuple):
    """A full batch. It is leased until its last sample is acknowledged."""

    batch: int
    round: int
    end: int  # the number of the sample after its last one


class Outbox:
    """A ring in this process's own memory. A batch is a frame, and a sample's number is its position.

    Args:
        spec: The samples' spec.
        peer: The server's address, for messages.
        size: Samples in a batch.
        most: How many samples may be unacknowledged.

    Attributes:
        producer: The attachment that writes to the ring.
        size: As given.

    """

    def __init__(self, spec: Spec, peer: str, size: int, most: int) -> None:
        geometry = Geometry(size, max(3, -(-most // size) + 1), 1, "fifo", False, 0.1)
        segment = Segment.private(f"to {peer}", spec, geometry)
        self.size, self._batches, self._capacity = size, geometry.num_buffers, geometry.capacity
        self.producer = Attachment(segment, lib.ES_ROLE_PRODUCER, f"the server at {peer}")
        self._learner = Attachment(segment, lib.ES_ROLE_LEARNER)
        self._ring = self._learner.ring
        self._leaves = spec.leaves
        self._sizes = [leaf.nbytes for leaf in spec.leaves]
        self._columns = [
            segment.array(
                lib.es_api_leaf_offset(self._ring, i), (self._capacity * nbytes,), np.dtype(np.uint8), writable=False
            )
            for i, nbytes in enumerate(self._sizes)
        ]
        self._versions = segment.array(
            lib.es_age_offset(self._ring), (self._capacity,), np.dtype(np.int64), writable=False
        )
        self._leased: deque[_LeasedBatch] = deque()
        self._lock = threading.Lock()

    def claimed(self) -> int:
        """The number of the next sample that is claimed. It counts at least all samples of the calling thread."""
        return int(lib.es_api_claimed(self._ring))

    def committed(self, number: int) -> int:
        """How many samples of one batch are committed, from that number on."""
        return int(lib.es_api_committed_from(self._ring, number))

    def bytes_of(self, number: int, count: int) -> list[memoryview]:
        """The bytes of ``count`` samples of one batch, one view for each leaf. Nothing is copied."""
        slot = number % self._capacity
        return [
            column[slot * size : (slot + count) * size].data
            for column, size in zip(self._columns, self._sizes, strict=True)
        ]

    def copies(self, number: int, end: int) -> list[Array]:
        """Copies of the samples from that number on, up to ``end``: for each leaf an array with a leading n."""
        slots = np.arange(number, end) % self._capacity
        return [
            column.reshape(self._capacity, leaf.nbytes)[slots].view(leaf.dtype).reshape(len(slots), *leaf.shape)
            for column, leaf in zip(self._columns, self._leaves, strict=True)
        ]

    def runs(self, number: int, count: int) -> Iterator[tuple[int, int, int]]:
        """The runs of ``count`` samples of one batch that have the same version: version, first number, how many."""
        slot = number % self._capacity
        versions = self._versions[slot : slot + count]
        ends = [*(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), count]
        for start, end in itertools.pairwise([0, *ends]):
            yield int(versions[start]), number + start, end - start

    def lease_full(self, wait_ns: int = 0) -> None:
        """Leases the full batches. Waits up to ``wait_ns`` nanoseconds for the first one."""
        snap = ffi.new("es_snapshot *")
        while (index := lib.es_api_take(self._ring, 0, wait_ns, snap)) >= 0:
            wait_ns = 0
            with self._lock:
                end = (snap.round * self._batches + index + 1) * self.size
                self._leased.append(_LeasedBatch(index, snap.round, end))

    def release(self, number: int) -> None:
        """Releases the batches whose samples are all below that number."""
        with self._lock:
            while self._leased and self._leased[0].end <= number:
                leased = self._leased.popleft()
                lib.es_api_release(self._ring, leased.batch, leased.round)

    def detach(self) -> None:
        """Detaches from the ring. After this, nothing is put in or taken out."""
        self.producer.detach()
        self._learner.detach()
