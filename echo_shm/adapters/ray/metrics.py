"""The figures of a shard for Ray's own exporter: each node's agent has them for Prometheus, beside Ray's.

They are named as ``echo-shm metrics`` names them, after Ray's prefix: ``ray_echo_shm_replay_items``.
"""

from typing import Any

from ray.util.metrics import Counter, Gauge

from echo_shm.adapters.ray.directory import Report
from echo_shm.replay.metric_names import OF_LIMITERS, OF_TABLES

#: What each series is of. The replay and the shard are those of the process.
_TAGS = ("replay", "shard")


class Metrics:
    """What a shard reports, as metrics of its process.

    Args:
        replay: The replay's name.
        shard: The shard's number.

    """

    def __init__(self, replay: str, shard: int) -> None:
        own = {"replay": replay, "shard": str(shard)}

        def gauge(name: str, words: str, *tags: str) -> Any:
            return Gauge(f"echo_shm_replay_{name}", words, (*_TAGS, *tags)).set_default_tags(own)

        self._steps = gauge("steps", "Steps that it holds.")
        self._steps_max = gauge("steps_max", "The most steps.")
        self._gauges = [
            (gauge(name, words, "table"), field) for name, kind, words, field in OF_TABLES if kind == "gauge"
        ]
        self._limits = [(gauge(name, words, "table"), name.removeprefix("limiter_")) for name, words in OF_LIMITERS]
        self._counters = [
            (Counter(f"echo_shm_replay_{name}", words, (*_TAGS, "table")).set_default_tags(own), field)
            for name, kind, words, field in OF_TABLES
            if kind == "counter"
        ]
        self._counted: dict[tuple[str, str], int] = {}

    def set(self, report: Report) -> None:
        """Has the exporter say what a report says."""
        self._steps.set(report.num_steps)
        self._steps_max.set(report.capacity)
        for name, info in report.tables.items():
            tags = {"table": name}
            for gauge, field in self._gauges:
                gauge.set(getattr(info, field), tags)
            for gauge, field in self._limits:
                gauge.set(float(getattr(info.limiter, field)), tags)
            for counter, field in self._counters:
                # Ray's counters are told what has come: of a store that this process goes on with, all of it.
                new = getattr(info, field) - self._counted.get((name, field), 0)
                if new > 0:
                    counter.inc(new, tags)
                    self._counted[name, field] = getattr(info, field)
