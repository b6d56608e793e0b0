"""Batches that learners have."""

from echo_shm import Replay
from echo_shm._core import ffi, lib
from echo_shm.ring import lockfile
from echo_shm.ring.batch_names import batch_ring
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment


def leased(replay: Replay) -> int:
    """How many batches of the replay's rings learners have."""
    total, info = 0, ffi.new("es_owner_info *")
    for name in lockfile.names():
        if batch_ring(replay.handle.name, name) is None:
            continue
        view = RingView(Segment.attach(name, read_only=True))  # to be kept: it has the mapping
        ring = view._ring
        held = ffi.new("uint32_t[]", lib.es_monitor_owner_entries(ring))
        lib.es_monitor_count_held(ring, held, len(held))
        index = lib.es_monitor_next_owner(ring, 0, info)
        while index >= 0:
            total += held[index] if info.id.role == lib.ES_ROLE_LEARNER else 0
            index = lib.es_monitor_next_owner(ring, index + 1, info)
    return total
