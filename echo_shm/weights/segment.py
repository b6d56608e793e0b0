"""The segment that weights lie in: its name, its layout, and how it is found."""

import numpy as np

from echo_shm.errors import SegmentError
from echo_shm.ring.lockfile import WEIGHTS
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Array, Spec

#: Slots beside those that may be leased: one has the latest version, one is being filled.
SPARE_SLOTS = 2

#: How long a process sleeps before it looks for the dead (seconds).
_REAP_INTERVAL = 0.1


def segment_name(name: str) -> str:
    """The segment with the weights of that name: of a ring, of a replay, or of a publisher of its own."""
    return name if name.endswith(WEIGHTS) else name + WEIGHTS


def geometry(max_leases: int, max_subscribers: int) -> Geometry:
    """The layout of a segment for so many leases and subscribers."""
    return Geometry(
        batch_size=1,
        num_buffers=max_leases + SPARE_SLOTS,
        max_producers=max_subscribers,
        order="fifo",
        detailed_metrics=False,
        reap_interval=_REAP_INTERVAL,
        weights=True,
    )


def check_holds_weights(segment: Segment) -> None:
    """Raises SegmentError unless the segment holds weights."""
    if not segment.geometry.weights:
        raise SegmentError(
            f"segment {segment.name!r} is a ring, it holds no weights: attach with ShmClient or Server.attach"
        )


def empty_arrays(spec: Spec) -> list[Array]:
    """A new array for each leaf."""
    return [np.empty(leaf.shape, leaf.dtype) for leaf in spec.leaves]
