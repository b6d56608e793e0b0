"""What is counted and measured: the snapshot that comes with each batch, and a read-only view of a ring.

Names are id-echo's where it has one. Each keeps the nearest meaning that it can have in a ring that producers write
to directly, without queues and without drainers.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.errors import error_from
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array

if TYPE_CHECKING:
    from echo_shm._core import HistSummary, Places, Ring, Snapshot


@dataclass(frozen=True)
class HistSnapshot:
    """A distribution of durations, in nanoseconds. All fields are 0 without ``detailed_metrics``.

    Percentiles are upper edges of buckets that are an eighth of a power of two wide. So they are at most 12.5 %
    above the true value.
    """

    count: int
    min_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: int
    p90_ns: int
    p99_ns: int

    @classmethod
    def _from_c(cls, h: "HistSummary") -> "HistSnapshot":
        mean = h.sum_ns / h.count if h.count else 0.0
        return cls(h.count, h.min_ns, h.max_ns, mean, h.p50_ns, h.p90_ns, h.p99_ns)


class SampleInfo:
    """The state of the ring when a batch was taken. Immutable.

    Counters (``…_total``, ``…_count``, ``dead_producers``, ``reopened_slots``, ``refused_connections``, ``too_old``)
    only grow, over the life of the segment and all its learners. Three of them need ``detailed_metrics``, and cover
    only the producers that are attached now. All other numbers are gauges. A process that is killed between an event
    and its count leaves the number wrong by one.
    """

    __slots__ = ("_bytes",)

    @classmethod
    def _of(cls, ring: "Ring", versions: Array, latest: int | None = None) -> "SampleInfo":
        """The state now, with the ages of samples of these versions: a contiguous array.

        ``latest``: the latest version, if that is not what it is now.
        """
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(ring, snap)
        if latest is not None:
            snap.latest_version = latest
        lib.es_age_measure(ffi.from_buffer("int64_t[]", versions), len(versions), snap)
        return cls(bytes(ffi.buffer(snap)))

    def __init__(self, snapshot: bytes) -> None:
        self._bytes = snapshot  # of an es_snapshot

    @property
    def _raw(self) -> "Snapshot":
        return ffi.from_buffer("es_snapshot *", self._bytes)

    @property
    def store_size(self) -> int:
        """Samples claimed by producers and not yet taken by a learner."""
        return self._raw.store_size

    @property
    def active_connections(self) -> int:
        """Attached producers, and clients connected to bridges. :meth:`Server.submit` does not count as one."""
        return self._raw.active_producers + self._raw.active_remotes

    @property
    def refused_connections(self) -> int:
        """Remote connections that a bridge refused, or ended because of what they sent or failed to send."""
        return self._raw.refused_remotes

    @property
    def queue_depth_sum(self) -> int:
        """Slots in use: samples claimed and not yet released. Includes those in leased batches."""
        return self._raw.occupancy

    @property
    def queue_depth_max(self) -> int:
        """The largest number of slots in use that any take has seen. If it is the capacity, producers had to wait."""
        return self._raw.occupancy_max

    @property
    def push_blocked_count(self) -> int:
        """How often a producer found the ring full and waited. A long wait counts once a reap interval.

        A bridge is one producer, and its wait counts once, however long it is.
        """
        return self._raw.push_blocked

    @property
    def samples_inserted_total(self) -> int:
        """Slots claimed since the segment was created, :meth:`Server.submit` included."""
        return self._raw.samples_inserted

    @property
    def notify_count(self) -> int:
        """How often a producer woke sleeping learners. A learner that finds its batch ready does not sleep."""
        return self._raw.notify_count

    @property
    def dead_producers(self) -> int:
        """Producers that died and were reaped."""
        return self._raw.dead_producers

    @property
    def stalled_producers(self) -> int:
        """Living producers that are stopped (SIGSTOP), or have held one claim for a second."""
        return self._raw.stalled_producers

    @property
    def reopened_slots(self) -> int:
        """Slots whose producer died or aborted, and that were opened for other producers again."""
        return self._raw.reopened_slots

    @property
    def latest_version(self) -> int:
        """The version of the weights that was published last; 0 if none was. See :meth:`Server.publisher`."""
        return self._raw.latest_version

    @property
    def age_mean(self) -> float:
        """The age of the batch's samples: ``latest_version`` less their versions, on average. NaN without weights."""
        return self._raw.age_mean if self._raw.latest_version else math.nan

    @property
    def age_max(self) -> int:
        """The same for the oldest of them. 0 without weights."""
        return self._raw.age_max

    @property
    def too_old(self) -> int:
        """Samples that ``dataset_iter(max_age=...)`` has left out."""
        return self._raw.too_old

    @property
    def learner_wait(self) -> float:
        """Seconds that this learner slept for this batch."""
        return self._raw.learner_wait_ns / 1e9

    @property
    def cas_success_total(self) -> int:
        """Slots claimed by producers attached now. Needs ``detailed_metrics``."""
        return self._raw.cas_success

    @property
    def cas_failure_total(self) -> int:
        """Claims that lost a slot to another producer, by producers attached now. Needs ``detailed_metrics``."""
        return self._raw.cas_failure

    @property
    def reservation_retries_total(self) -> int:
        """Claims that started over, by producers attached now. Needs ``detailed_metrics``."""
        return self._raw.reservation_retries

    @property
    def drain_round(self) -> HistSnapshot:
        """The time a learner took to find a complete batch and lease it. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.look)

    @property
    def memcpy(self) -> HistSnapshot:
        """The time a producer took to copy the samples of one claim into their slots. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.copy)

    @property
    def queue_dwell(self) -> HistSnapshot:
        """The time from a batch's last commit until it was taken. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.dwell)

    def as_dict(self) -> dict[str, float | HistSnapshot]:
        """All fields by name."""
        names = (name for name, kind in vars(type(self)).items() if isinstance(kind, property))
        return {name: getattr(self, name) for name in names if not name.startswith("_")}

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self.as_dict().items() if not isinstance(v, HistSnapshot))
        return f"SampleInfo({fields})"

    def __reduce__(self) -> tuple[type["SampleInfo"], tuple[bytes]]:
        return SampleInfo, (self._bytes,)


@dataclass(frozen=True)
class Owner:
    """A producer or learner attached to a ring.

    ``blocked_time`` is in seconds. ``waiting``: it waits for a slot, or for a batch.
    ``held`` counts the slots that it has claimed, or the batches that it leases, now. ``held_time``: for how many
    seconds it has had the oldest of these batches; 0.0 if it has none. ``is_bridge``: it sends or learns on behalf of
    clients on other hosts.
    """

    index: int
    role: str
    pid: int
    pid_namespace: int
    start_time: float
    samples: int
    blocked: int
    blocked_time: float
    waiting: bool
    held: int
    held_time: float
    is_bridge: bool


@dataclass(frozen=True)
class Remote:
    """A client of a bridge. It is connected, or it was and is remembered.

    ``bridge`` is the owner index of its bridge. ``committed`` counts its samples that are in the ring. ``bytes`` and
    ``frames`` count what it has sent since it first connected.
    """

    index: int
    peer: str
    connected: bool
    bridge: int
    committed: int
    bytes: int
    frames: int


class RingView:
    """A view of a ring through a read-only mapping. Nothing here can change the ring."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        error = ffi.new("int *")
        ring = lib.es_api_open(segment.base, segment.size, ffi.NULL, 0, error)
        if ring == ffi.NULL:
            raise error_from(error[0], f"segment {segment.name!r}")
        self._ring = ffi.gc(ring, lib.es_api_free)

    def places(self) -> "Places":
        """Where the ring's words are in the segment."""
        places = ffi.new("es_places *")
        lib.es_monitor_places(self._ring, places)
        return places

    def owner_entries(self) -> int:
        """How many entries the table of owners has, in use or not."""
        return int(lib.es_monitor_owner_entries(self._ring))

    def snapshot(self) -> "Snapshot":
        """The ring's state now. No batch is taken, so ``batch``, ``round``, ``length`` and the wait are 0."""
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(self._ring, snap)
        return snap

    def ages(self, snap: "Snapshot") -> tuple[float, int]:
        """The ages of the samples in the ring's slots, or there last: their mean, and the greatest.

        They are to the ``latest_version`` of a snapshot, which may have been set. (NaN, 0) without samples. A producer
        may write to some slots meanwhile: then their ages are the next ones.
        """
        used = min(self.segment.geometry.capacity, snap.samples_inserted)
        if not used:
            return math.nan, 0
        versions = self.segment.array(lib.es_age_offset(self._ring), (used,), np.dtype(np.int64), writable=False)
        lib.es_age_measure(ffi.from_buffer("int64_t[]", versions), used, snap)
        return snap.age_mean, snap.age_max

    def column(self, leaf: int) -> Array:
        """What the ring's slots hold of a leaf of shape () now, or held last. Shape ``(capacity,)``."""
        spec, geometry = self.segment.spec, self.segment.geometry
        index = leaf % len(spec.leaves)
        offset = lib.es_api_leaf_offset(self._ring, index)
        return self.segment.array(offset, (geometry.capacity,), spec.leaves[index].dtype, writable=False)

    def weights(self) -> tuple[int, int]:
        """Of a segment with weights: the latest version, and how many leases are in use."""
        leases = range(self.segment.geometry.num_buffers)
        return int(lib.es_weights_latest(self._ring)), sum(lib.es_weights_holder(self._ring, i) >= 0 for i in leases)

    def committed(self) -> tuple[int, int]:
        """How many samples are committed and not released, and how many full batches of them there are."""
        full = ffi.new("uint64_t *")
        return int(lib.es_monitor_count_committed(self._ring, full)), int(full[0])

    def remotes(self) -> list[Remote]:
        """The clients of all bridges."""
        info, found = ffi.new("es_remote_info *"), []
        index = lib.es_monitor_next_remote(self._ring, 0, info)
        while index >= 0:
            if info.state in (lib.ES_REMOTE_HERE, lib.ES_REMOTE_AWAY):
                found.append(
                    Remote(
                        index=index,
                        peer=ffi.string(info.peer).decode(errors="replace"),
                        connected=info.state == lib.ES_REMOTE_HERE,
                        bridge=info.bridge,
                        committed=info.committed,
                        bytes=info.bytes,
                        frames=info.frames,
                    )
                )
            index = lib.es_monitor_next_remote(self._ring, index + 1, info)
        return found

    def owners(self) -> list[Owner]:
        """All registered owners, including dead ones that are not reaped yet."""
        info = ffi.new("es_owner_info *")
        count = lib.es_monitor_owner_entries(self._ring)
        held = ffi.new("uint32_t[]", count)
        lib.es_monitor_count_held(self._ring, held, count)
        ages = ffi.new("uint64_t[]", count)
        lib.es_monitor_lease_ages(self._ring, ages, count)
        found = []
        index = lib.es_monitor_next_owner(self._ring, 0, info)
        while index >= 0:
            found.append(
                Owner(
                    index=index,
                    role="learner" if info.id.role == lib.ES_ROLE_LEARNER else "producer",
                    pid=info.id.pid,
                    pid_namespace=info.id.pid_namespace,
                    start_time=info.id.start_time,
                    samples=info.samples,
                    blocked=info.blocked,
                    blocked_time=info.blocked_ns / 1e9,
                    waiting=bool(info.waiting),
                    held=held[index],
                    held_time=ages[index] / 1e9,
                    is_bridge=bool(info.is_bridge),
                )
            )
            index = lib.es_monitor_next_owner(self._ring, index + 1, info)
        return found
