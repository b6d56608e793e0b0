"""Numbers about a ring: what comes with each batch, and what an onlooker sees.

Names are id-echo's where it has one; each keeps its nearest meaning in a ring
that producers write to directly, without queues or drainers in between.
"""

from dataclasses import dataclass
from typing import Any

from echo_shm._core import ffi, lib
from echo_shm.errors import error_from
from echo_shm.ring.segment import Segment


@dataclass(frozen=True)
class HistSnapshot:
    """A distribution of durations, in nanoseconds. All zero without ``detailed_metrics``.

    Percentiles are upper edges of buckets an eighth of a power of two wide, so
    at most 12.5 % above the true value.
    """

    count: int
    min_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: int
    p90_ns: int
    p99_ns: int

    @classmethod
    def _from_c(cls, h: Any) -> "HistSnapshot":
        mean = h.sum_ns / h.count if h.count else 0.0
        return cls(h.count, h.min_ns, h.max_ns, mean, h.p50_ns, h.p90_ns, h.p99_ns)


class SampleInfo:
    """The ring as it was when a batch was handed out. Immutable.

    Counters (``…_total``, ``…_count``, ``dead_producers``, ``reopened_slots``, ``refused_connections``) only
    grow, over the segment's life and all its learners; except the three that need
    ``detailed_metrics``, which cover the producers attached now. The others are gauges. A
    process killed between an event and its count leaves a figure wrong by one.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    @property
    def store_size(self) -> int:
        """Samples claimed by producers and not yet taken by a learner."""
        return int(self._raw.store_size)

    @property
    def active_connections(self) -> int:
        """Attached producers, and clients connected to bridges. The learner's own :meth:`Server.submit` is none."""
        return int(self._raw.active_producers) + int(self._raw.active_remotes)

    @property
    def refused_connections(self) -> int:
        """Remote connections that bridges refused, or ended for what came from them (or did not come)."""
        return int(self._raw.refused_remotes)

    @property
    def queue_depth_sum(self) -> int:
        """Slots in use: samples claimed and not yet released, those in leased batches included."""
        return int(self._raw.occupancy)

    @property
    def queue_depth_max(self) -> int:
        """The most slots in use that any take has seen; the ring's capacity means that producers were held up."""
        return int(self._raw.occupancy_max)

    @property
    def push_blocked_count(self) -> int:
        """Times that a producer found the ring full and slept (once for each reap interval that it slept)."""
        return int(self._raw.push_blocked)

    @property
    def samples_inserted_total(self) -> int:
        """Slots claimed since the segment was made, by :meth:`Server.submit` too."""
        return int(self._raw.samples_inserted)

    @property
    def notify_count(self) -> int:
        """Times that a producer woke sleeping learners; a learner that finds its batch ready does not sleep."""
        return int(self._raw.notify_count)

    @property
    def dead_producers(self) -> int:
        """Producers that died and were cleaned up after."""
        return int(self._raw.dead_producers)

    @property
    def stalled_producers(self) -> int:
        """Producers that are alive but stopped (SIGSTOP), or hold a slot and have not moved for a second."""
        return int(self._raw.stalled_producers)

    @property
    def reopened_slots(self) -> int:
        """Slots that were claimed by a producer that died or aborted, and offered again."""
        return int(self._raw.reopened_slots)

    @property
    def learner_wait(self) -> float:
        """Seconds that this learner slept for this batch."""
        return float(self._raw.learner_wait_ns) / 1e9

    @property
    def cas_success_total(self) -> int:
        """Slots claimed by producers attached now. Needs ``detailed_metrics``."""
        return int(self._raw.cas_success)

    @property
    def cas_failure_total(self) -> int:
        """Claims that lost a slot to another producer, of producers attached now. Needs ``detailed_metrics``."""
        return int(self._raw.cas_failure)

    @property
    def reservation_retries_total(self) -> int:
        """Claims that started over, of producers attached now. Needs ``detailed_metrics``."""
        return int(self._raw.reservation_retries)

    @property
    def drain_round(self) -> HistSnapshot:
        """Time a learner took to find a complete batch and lease it. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.look)

    @property
    def memcpy(self) -> HistSnapshot:
        """Time a producer took to copy the samples of one claim into their slots. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.copy)

    @property
    def queue_dwell(self) -> HistSnapshot:
        """Time a batch waited from its last commit until it was taken. Needs ``detailed_metrics``."""
        return HistSnapshot._from_c(self._raw.dwell)

    def as_dict(self) -> dict[str, Any]:
        """Every field by name."""
        return {name: getattr(self, name) for name, kind in vars(type(self)).items() if isinstance(kind, property)}

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self.as_dict().items() if not isinstance(v, HistSnapshot))
        return f"SampleInfo({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_info, (bytes(ffi.buffer(self._raw)),)


def _unpickle_info(data: bytes) -> SampleInfo:
    raw = ffi.new("es_snapshot *")
    ffi.buffer(raw)[:] = data
    return SampleInfo(raw)


@dataclass(frozen=True)
class Owner:
    """A producer or learner attached to a ring.

    ``blocked_time`` is in seconds; ``held`` counts slots claimed or batches leased at the moment.
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


@dataclass(frozen=True)
class Remote:
    """A client of a bridge: connected, or gone and remembered.

    ``bridge`` is the bridge's owner index, ``committed`` the samples of this client that are in the ring;
    ``bytes`` and ``frames`` came over the wire since the client was first seen.
    """

    index: int
    peer: str
    connected: bool
    bridge: int
    committed: int
    bytes: int
    frames: int


class RingView:
    """Looks on at a ring through a read-only mapping: nothing in it can change the ring."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        error = ffi.new("int *")
        ring = lib.es_open(segment.base, segment.size, ffi.NULL, 0, error)
        if ring == ffi.NULL:
            raise error_from(error[0], f"segment {segment.name!r}")
        self._ring = ffi.gc(ring, lib.es_free)

    def snapshot(self) -> Any:
        """An ``es_snapshot`` of this moment; no batch, so ``round``, ``length`` and the wait are 0."""
        snap = ffi.new("es_snapshot *")
        lib.es_observe(self._ring, snap)
        return snap

    def remotes(self) -> list[Remote]:
        """The clients of all bridges."""
        info, found = ffi.new("es_remote_info *"), []
        index = lib.es_next_remote(self._ring, 0, info)
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
            index = lib.es_next_remote(self._ring, index + 1, info)
        return found

    def owners(self) -> list[Owner]:
        """Everybody registered, dead owners that nobody has reaped yet included."""
        info = ffi.new("es_owner_info *")
        count = lib.es_owner_count(self._ring)
        held = ffi.new("uint32_t[]", count)
        lib.es_count_held(self._ring, held, count)
        found = []
        index = lib.es_next_owner(self._ring, 0, info)
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
                )
            )
            index = lib.es_next_owner(self._ring, index + 1, info)
        return found
