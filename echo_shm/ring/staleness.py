"""Batches without samples that were made with weights that are too old."""

import operator

import numpy as np

from echo_shm._core import lib
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.metrics import SampleInfo
from echo_shm.ring.sample import Sample, concatenate, frozen
from echo_shm.spec import Array


class FreshBatches:
    """Leaves out the samples that are too old, and puts batches together of what is left of others.

    A batch passes as it is if none of its samples is too old. Otherwise the rest of it is copied and waits for more.
    What waits may become too old meanwhile.

    Args:
        attachment: Of the learner that takes the batches.
        max_age: The most versions that a sample's may lie before the latest one.
        writable: Whether the arrays can be written to.

    Raises:
        ValueError: ``max_age`` is no integer of at least 0.

    """

    def __init__(self, attachment: Attachment, max_age: int, writable: bool) -> None:
        if isinstance(max_age, bool) or not hasattr(max_age, "__index__") or max_age < 0:
            raise ValueError(f"max_age={max_age!r}: use an integer of at least 0 (versions), or None")
        self._ring = attachment.ring
        self._spec = attachment.segment.spec
        self._batch_size = attachment.segment.geometry.batch_size
        self._max_age, self._writable = operator.index(max_age), writable
        # What waits: for each part of a batch, one array for each leaf, and the versions.
        self._parts: list[list[Array]] = []

    def passes(self, sample: Sample) -> bool:
        """Whether a batch is full and has no sample that is too old."""
        return sample.info.age_max <= self._max_age and len(sample.versions) == self._batch_size

    def keep(self, sample: Sample) -> None:
        """Copies the samples of a batch that are not too old."""
        leaves = self._spec.structure.flatten_up_to(sample.batch)
        self._keep_fresh([*map(np.asarray, leaves), sample.versions], sample.info.latest_version)

    def complete(self) -> list[Sample]:
        """A batch of what waits, in a list; an empty one if that does not fill a batch."""
        if sum(len(part[-1]) for part in self._parts) < self._batch_size:
            return []
        return self._join(self._batch_size)

    def rest(self) -> list[Sample]:
        """The same at the end of the stream, where the last batch may be shorter."""
        return self._join(1)

    def _keep_fresh(self, part: list[Array], latest: int) -> None:
        fresh = part[-1] >= latest - self._max_age
        old = len(fresh) - int(np.count_nonzero(fresh))
        if old:
            lib.es_age_count_too_old(self._ring, old)
        if old < len(fresh):
            self._parts.append([array[fresh] for array in part])

    def _join(self, least: int) -> list[Sample]:
        """A batch of what is fresh now, if that is as many samples."""
        parts, self._parts = self._parts, []
        latest = SampleInfo._of(self._ring, np.empty(0, np.int64)).latest_version
        for part in parts:
            self._keep_fresh(part, latest)
        if sum(len(part[-1]) for part in self._parts) < least:
            return []
        *leaves, versions = map(concatenate, zip(*self._parts, strict=True))
        size = self._batch_size
        self._parts = [[array[size:] for array in (*leaves, versions)]] if len(versions) > size else []
        batch = [array[:size] if self._writable else frozen(array[:size]) for array in leaves]
        versions = frozen(versions[:size])
        sample = Sample(self._spec.structure.unflatten(batch), SampleInfo._of(self._ring, versions, latest))
        sample._versions = versions
        return [sample]
