"""What ``echo-shm metrics`` says of rings, replays and rollouts: families of metrics, named as Prometheus has it.

Labels have few values: states, kinds, the tables of a replay, its rings of batches. No PID is a label: workers come
and go, and each PID would be a time series of its own.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from echo_shm.cli import replay_figures, top
from echo_shm.cli.ring_waits import RingWaits
from echo_shm.replay.metric_names import OF_LIMITERS, OF_TABLES
from echo_shm.ring.lockfile import INBOX
from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.rollouts import RolloutFigures
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from echo_shm._core import HistSummary, Snapshot

#: Most tables, and most rings of batches, that are told of.
MOST_TABLES = 64

#: Where a summary's quantiles are in a histogram's summary.
_QUANTILES = {"0.5": "p50_ns", "0.9": "p90_ns", "0.99": "p99_ns"}


class Sample(NamedTuple):
    """One value. ``ending``: what it adds to the family's name."""

    labels: dict[str, str]
    value: float
    ending: str = ""


class Family(NamedTuple):
    """Some values of one name.

    Attributes:
        name: Without ``_total``.
        kind: ``"counter"``, ``"gauge"`` or ``"summary"``.
        help: What it is, in a sentence.

    """

    name: str
    kind: str
    help: str
    samples: list[Sample]


def _one(name: str, kind: str, help_text: str, value: float) -> Family:
    return Family(f"echo_shm_{name}", kind, help_text, [Sample({}, float(value))])


def _many(name: str, kind: str, help_text: str, values: list[tuple[dict[str, str], float]]) -> Family:
    return Family(f"echo_shm_{name}", kind, help_text, [Sample(labels, float(value)) for labels, value in values])


# --- a ring -------------------------------------------------------------------


class RingFamilies:
    """The families of one ring, which is mapped read-only."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._view = RingView(segment)
        self._kinds = top.Kinds()
        self._owners: list[tuple[Owner, str]] = []
        self._waits = RingWaits(segment, self._kind)

    def _kind(self, owner: Owner) -> str:
        return self._kinds.of(owner, (one for one, _ in self._owners), self._segment.creator_pid)

    def collect(self) -> Iterator[Family]:
        """All families now."""
        snap = self._view.snapshot()
        self._owners = top.states(self._view)
        yield from self._counters(snap)
        yield from self._gauges(snap)
        yield from self._of_owners(snap)
        if snap.latest_version:
            mean, oldest = self._view.ages(snap)
            yield _one("weights_version", "gauge", "The latest version of the weights.", snap.latest_version)
            help_text = "Versions between the latest weights and those of the samples in the ring's slots."
            values = [({"stat": "mean"}, mean), ({"stat": "max"}, float(oldest))]
            yield _many("sample_age_versions", "gauge", help_text, values)
        if self._segment.geometry.detailed_metrics:
            yield _summary("look", "The time a learner took to find and lease a batch.", snap.look)
            yield _summary("copy", "The time a producer took to copy the samples of a claim.", snap.copy)
            yield _summary("dwell", "The time from a batch's last commit until it was taken.", snap.dwell)

    @staticmethod
    def _counters(snap: "Snapshot") -> Iterator[Family]:
        for name, value, help_text in (
            ("samples", snap.samples_inserted, "Slots that producers have claimed."),
            ("batches_taken", snap.batches_taken, "Batches that learners have taken, less those given back."),
            ("blocked", snap.push_blocked, "Times that a producer found the ring full. A long wait counts often."),
            ("learner_wakes", snap.notify_count, "Times that a producer woke sleeping learners."),
            ("dead_producers", snap.dead_producers, "Producers that died and were reaped."),
            ("reopened_slots", snap.reopened_slots, "Slots that dead or aborting producers gave back."),
            ("refused_connections", snap.refused_remotes, "Remote connections that a bridge refused or ended."),
            ("too_old_samples", snap.too_old, "Samples that learners left out for their age."),
        ):
            yield _one(name, "counter", help_text, value)

    def _gauges(self, snap: "Snapshot") -> Iterator[Family]:
        segment, geometry = self._segment, self._segment.geometry
        for name, value, help_text in (
            ("slots", geometry.capacity, "Slots of the ring."),
            ("slots_used", snap.occupancy, "Slots that are claimed and not yet released."),
            ("slots_used_max", snap.occupancy_max, "The most slots in use that a take has seen."),
            ("store_samples", snap.store_size, "Samples that are claimed and that no learner has taken."),
            ("remotes", snap.active_remotes, "Remote clients that are connected."),
            ("stalled_producers", snap.stalled_producers, "Living producers that are stopped or keep a slot."),
            ("closed", snap.closed, "1 once the ring takes no more samples."),
            ("segment_bytes", segment.size, "Bytes of shared memory."),
            ("sample_bytes", segment.spec.sample_bytes, "Bytes of a sample."),
            ("created_timestamp_seconds", segment.created, "When the segment was made."),
        ):
            yield _one(name, "gauge", help_text, value)

    def _of_owners(self, snap: "Snapshot") -> Iterator[Family]:
        counts = Counter((self._kind(owner), state) for owner, state in self._owners)
        values = [({"kind": kind, "state": state}, float(count)) for (kind, state), count in sorted(counts.items())]
        yield _many("owners", "gauge", "Attached processes by what they are and how they are.", values)
        learners = [owner for owner, state in self._owners if owner.role == "learner" and state != "dead"]
        yield _one("batches_held", "gauge", "Batches that learners refer to.", sum(one.held for one in learners))
        oldest = max((owner.held_time for owner in learners), default=0.0)
        yield _one("oldest_lease_seconds", "gauge", "How long a learner has had the oldest batch.", oldest)
        waits = self._waits.look(self._owners, snap.batches_taken, closed=bool(snap.closed))
        longest = {"producer": 0.0, "learner": 0.0}
        longest |= {"producer" if wait.of_producers else "learner": wait.seconds for wait in waits}
        help_text = "How long producers wait for space, and learners for a batch, as far as scrapes have seen."
        yield _many("wait_seconds", "gauge", help_text, [({"role": role}, time) for role, time in longest.items()])


def _summary(name: str, help_text: str, hist: "HistSummary") -> Family:
    """Quantiles are upper edges of buckets: at most an eighth above the true value."""
    samples = [Sample({"quantile": share}, getattr(hist, field) / 1e9) for share, field in _QUANTILES.items()]
    samples += [Sample({}, float(hist.count), "_count"), Sample({}, hist.sum_ns / 1e9, "_sum")]
    return Family(f"echo_shm_{name}_seconds", "summary", help_text, samples)


# --- a replay -----------------------------------------------------------------


def replay_families(reading: replay_figures.Reading) -> Iterator[Family]:
    """The families of one replay, as its board and its rings say."""
    seen = reading.seen
    for name, value, help_text in (
        ("alive", seen.alive, "1 while a process has the replay."),
        ("steps", seen.steps, "Steps that it holds."),
        ("steps_max", seen.capacity, "The most steps."),
        ("bytes", seen.bytes, "Bytes of shared memory."),
        ("figures_timestamp_seconds", seen.heard, "When the replay last said how it is."),
        ("weights_version", reading.version, "The latest version of the weights; 0 without."),
    ):
        if value is not None:
            yield _one(f"replay_{name}", "gauge", help_text, value)
    heard = seen.heard or 0.0
    longest = max((heard - wait.since for wait in seen.waiting), default=0.0)
    yield _one("replay_wait_seconds", "gauge", "How long somebody waits, for whatever.", max(0.0, longest))
    tables = list(seen.tables.items())[:MOST_TABLES]
    for name, kind, help_text, field in OF_TABLES:
        values = [({"table": table}, float(getattr(info, field))) for table, info in tables]
        yield _many(f"replay_{name}", kind, help_text, values)
    for name, help_text in OF_LIMITERS:
        field = name.removeprefix("limiter_")
        values = [({"table": table}, float(getattr(info.limiter, field))) for table, info in tables]
        yield _many(f"replay_{name}", "gauge", help_text, values)
    yield from _of_rings(reading)


def _of_rings(reading: replay_figures.Reading) -> Iterator[Family]:
    inbox = reading.rings.get(INBOX)
    if inbox is not None:
        states = Counter(state for owner, state in inbox.owners if owner.role == "producer" and not owner.is_bridge)
        values = [({"state": state}, float(count)) for state, count in sorted(states.items())]
        yield _many("replay_writers", "gauge", "Attached writers by how they are.", values)
        yield _one("replay_inbox_slots_used", "gauge", "Slots of the inbox in use.", inbox.occupancy)
        yield _one("replay_inbox_slots", "gauge", "Slots of the inbox.", inbox.capacity)
        if reading.version and not math.isnan(inbox.versions[0]):
            help_text = "Versions between the latest weights and those of the steps in the inbox."
            values = [({"stat": "mean"}, inbox.versions[0]), ({"stat": "max"}, float(inbox.versions[1]))]
            yield _many("replay_step_age_versions", "gauge", help_text, values)
    names = list(reading.seen.tables)
    of_rings = []
    for ending, one in list(reading.batches.items())[:MOST_TABLES]:
        table = names[one.table] if one.table < len(names) else str(one.table)
        rank = f"{one.rank}/{one.world_size}" if one.world_size else ""
        of_rings.append(({"table": table, "batch_size": str(one.n), "rank": rank}, reading.rings[ending]))
    taken = [(labels, float(ring.batches_taken)) for labels, ring in of_rings]
    yield _many("replay_batches_taken", "counter", "Batches that learners in other processes have taken.", taken)
    ahead = [(labels, float(ring.occupancy)) for labels, ring in of_rings]
    yield _many("replay_drawn_ahead_items", "gauge", "Items in batches that no learner has released.", ahead)
    learners = [(labels, float(ring.alive("learner"))) for labels, ring in of_rings]
    yield _many("replay_learners", "gauge", "Living learners in other processes.", learners)


# --- rollouts -----------------------------------------------------------------

#: Families of an engine: name, kind, help. A figure of that name has the value.
_OF_ROLLOUTS = (
    ("running", "gauge", "Rollouts that run."),
    ("waiting", "gauge", "Rollouts that wait until they may run."),
    ("submitted", "counter", "Rollouts that were submitted."),
    ("retried", "counter", "Attempts after the first of a rollout."),
    ("preempted", "counter", "Sequences whose blocks another one needed."),
    ("workers", "gauge", "Worker processes that are connected."),
    ("workers_max", "gauge", "Worker processes that there should be."),
    ("steps", "counter", "Steps of environments."),
    ("episodes", "counter", "Episodes that ended."),
    ("successes", "counter", "Episodes that succeeded."),
    ("reward", "gauge", "The sum of all rewards."),
    ("bandwidth_spent", "counter", "The cost of all steps, in entries of a KV cache that attention reads."),
    ("learner_cost", "counter", "The cost of the learner's updates."),
    ("learner_updates", "counter", "Updates of the learner whose cost is known."),
    ("eta", "gauge", "Reward for each unit of cost, of rollouts and of the learner."),
    ("reuse_rate", "gauge", "The share of the tokens of contexts that was computed before."),
    ("etps", "gauge", "Environment tokens a second, since the tracker began."),
    ("cost_per_success", "gauge", "The cost of rollouts and of the learner for each success."),
    ("context_tokens", "counter", "Tokens that the policy has read before its steps."),
    ("reused_tokens", "counter", "Those of them that were computed before."),
    ("environment_tokens", "counter", "Tokens of observations and of actions."),
    ("tokens", "counter", "Tokens that the backbone has answered."),
    ("blocks", "gauge", "Blocks of the KV cache."),
    ("blocks_free", "gauge", "Blocks that no rollout and no prefix has."),
    ("longest_wait", "gauge", "In how many dispatches one rollout was passed over at most."),
    ("wait_bound", "gauge", "The bound on that."),
    ("requests", "counter", "Requests to the backbone's server."),
    ("requests_retried", "counter", "Those of them that were repeated."),
    ("input_tokens", "counter", "Tokens that the server was sent."),
    ("remote_cost", "gauge", "What the server was paid, with what is set aside for requests under way."),
)  # fmt: skip


def rollouts_families(alive: bool, figures: RolloutFigures) -> Iterator[Family]:
    """The families of one engine, as its board says."""
    yield _one("rollouts_alive", "gauge", "1 while the engine's process lives.", alive)
    yield _one("rollouts_figures_timestamp_seconds", "gauge", "When the engine last said how it is.", figures.time)
    for name, kind, help_text in _OF_ROLLOUTS:
        value = getattr(figures, name)
        if value is not None:
            yield _one(f"rollouts_{name}", kind, help_text, value)
    # The name of a counter must not end with _total: that comes by itself.
    help_text = "What all steps would have cost without reuse."
    yield _one("rollouts_bandwidth_without_reuse", "counter", help_text, figures.bandwidth_total)
    ended = [({"how": how}, float(count)) for how, count in figures.ended.items()]
    yield _many("rollouts_ended", "counter", "Rollouts that have ended, by how.", ended)
    failed = [({"by": what}, float(count)) for what, count in figures.attempts_failed.items()]
    yield _many("rollouts_attempts_failed", "counter", "Attempts that failed, by what did.", failed)
