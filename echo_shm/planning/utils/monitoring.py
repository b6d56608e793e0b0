"""EchoRL's names of what watches a run: readings of the machine, and the figures that a run gives.

Every figure is one that was read. What cannot be read is None or left out, where EchoRL had 0.
"""

import collections
import dataclasses
import importlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from echo_shm.replay.validation import above_zero, integer

__all__ = ["MetricsCollector", "PerformanceMetrics", "PerformanceMonitor", "SystemMonitor"]


@dataclasses.dataclass(frozen=True)
class PerformanceMetrics:
    """Figures of one moment, by EchoRL's names. None: not known, which a collector leaves out."""

    timestamp: float
    step: int
    episode: int
    policy_loss: float | None = None
    value_loss: float | None = None
    kl_divergence: float | None = None
    total_reward: float | None = None
    episode_length: int | None = None
    success_rate: float | None = None
    #: Percent: of all processors, of the memory, and of a GPU and its memory.
    cpu_usage: float | None = None
    memory_usage: float | None = None
    gpu_usage: float | None = None
    gpu_memory: float | None = None
    kv_cache_hit_rate: float | None = None
    tokens_per_second: float | None = None
    bandwidth_efficiency: float | None = None
    rollout_bandwidth_cost: float | None = None


class MetricsCollector:
    """Collects figures, and says how they were distributed.

    Args:
        max_history: How many values of a figure are kept, the latest ones. There, all of them were.

    """

    def __init__(self, max_history: int = 10_000) -> None:
        self.max_history = integer("max_history", max_history, 1)
        self._values: dict[str, collections.deque[float]] = {}
        self._lock = threading.Lock()

    def collect_metrics(self, metrics: Any) -> None:
        """Takes all numbers of a dataclass or a mapping, and of those in it.

        Those are what a trainer gives (:class:`TrainingMetrics`), an engine (``engine.counts``,
        ``engine.tracker.snapshot()``) or a :class:`SystemMonitor`, and :class:`PerformanceMetrics`. A number of an
        inner one is named ``outer.inner``. Properties count, as :attr:`Efficiency.eta`.

        Raises:
            TypeError: It is neither.

        """
        if not isinstance(metrics, Mapping) and not _is_instance(metrics):
            raise TypeError(f"metrics is {type(metrics).__name__}: use a dataclass or a mapping of numbers")
        found = dict(_numbers(metrics, ""))
        with self._lock:
            for name, value in found.items():
                if name not in self._values:
                    self._values[name] = collections.deque(maxlen=self.max_history)
                self._values[name].append(value)

    def get_metric_summary(self, metric_name: str, window_size: int = 100) -> dict[str, float]:
        """Of the last values of a figure: mean, std, min, max, median and count; nothing if there was none."""
        with self._lock:
            values = list(self._values.get(metric_name, ()))[-integer("window_size", window_size, 1) :]
        if not values:
            return {}
        return {
            "mean": statistics.fmean(values),
            "std": statistics.pstdev(values),
            "min": min(values),
            "max": max(values),
            "median": statistics.median(values),
            "count": len(values),
        }

    def get_all_metrics_summary(self, window_size: int = 100) -> dict[str, dict[str, float]]:
        """The same of each figure."""
        with self._lock:
            names = list(self._values)
        return {name: self.get_metric_summary(name, window_size) for name in names}


class SystemMonitor:
    """Reads the machine in a thread, until it is stopped.

    Args:
        monitoring_interval: Seconds between two readings.
        collector: Takes each reading.

    """

    def __init__(self, monitoring_interval: float = 1.0, collector: MetricsCollector | None = None) -> None:
        self.monitoring_interval = above_zero("monitoring_interval", monitoring_interval)
        self.collector = collector or MetricsCollector()
        self._process = psutil.Process()
        self._latest: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def monitoring_active(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start_monitoring(self) -> None:
        """Begins. The first reading comes after an interval. No effect if the thread runs."""
        if self._thread is None:
            psutil.cpu_percent(None)  # from here on the first reading counts
            self._process.cpu_percent(None)
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="echo_shm-monitor", daemon=True)
            self._thread.start()

    def stop_monitoring(self) -> None:
        """Ends the thread, and reads once more. No effect if it does not run."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._read()

    def get_current_metrics(self) -> dict[str, float]:
        """The latest reading; nothing before the first.

        ``cpu_usage`` and ``memory_usage`` are percent of all processors and of the memory; ``process_cpu_usage`` is
        percent of one processor, ``process_memory`` bytes. With a GPU that PyTorch uses already: ``gpu_memory``,
        percent of it; and ``gpu_usage``, percent of the time, if the package nvidia-ml-py is there.
        """
        return dict(self._latest)

    def _run(self) -> None:
        while not self._stop.wait(self.monitoring_interval):
            self._read()

    def _read(self) -> None:
        reading = {
            "cpu_usage": psutil.cpu_percent(None),
            "memory_usage": float(psutil.virtual_memory().percent),
            "process_cpu_usage": self._process.cpu_percent(None),
            "process_memory": float(self._process.memory_info().rss),
            **_gpu(),
        }
        self._latest = reading
        self.collector.collect_metrics(reading)


class PerformanceMonitor:
    """Watches the machine while a run goes on, and takes the run's own figures::

        with PerformanceMonitor() as monitor:
            metrics = await trainer.train()
            monitor.metrics_collector.collect_metrics(metrics)
        print(monitor.get_performance_report())

    Args:
        metrics_collector: Where all figures go.
        system_monitor: What reads the machine.

    """

    def __init__(
        self, metrics_collector: MetricsCollector | None = None, system_monitor: SystemMonitor | None = None
    ) -> None:
        self.metrics_collector = metrics_collector or MetricsCollector()
        self.system_monitor = system_monitor or SystemMonitor(collector=self.metrics_collector)
        self._began = time.monotonic()

    def start_monitoring(self) -> None:
        """Begins to read."""
        self._began = time.monotonic()
        self.system_monitor.start_monitoring()

    def stop_monitoring(self) -> None:
        """Ends it."""
        self.system_monitor.stop_monitoring()

    def get_performance_report(self) -> dict[str, Any]:
        """Summaries of all figures, the latest reading, and the seconds since it began."""
        return {
            "total_training_time": time.monotonic() - self._began,
            "training_metrics": self.metrics_collector.get_all_metrics_summary(),
            "system_metrics": self.system_monitor.get_current_metrics(),
        }

    def export_performance_data(self, filepath: str | Path) -> None:
        """Writes the report as JSON."""
        Path(filepath).write_text(json.dumps(self.get_performance_report(), indent=2), encoding="utf-8")

    def __enter__(self) -> "PerformanceMonitor":
        self.start_monitoring()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_monitoring()


def _is_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _numbers(metrics: Any, where: str) -> Iterator[tuple[str, float]]:
    """All numbers of a dataclass or mapping by name. Flags, texts, lists and None are none."""
    items = metrics if isinstance(metrics, Mapping) else _fields(metrics)
    for name, value in items.items():
        if isinstance(value, Mapping) or _is_instance(value):
            yield from _numbers(value, f"{where}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{where}{name}", float(value)


def _fields(metrics: Any) -> dict[str, Any]:
    """The fields and the properties of a dataclass."""
    names = [field.name for field in dataclasses.fields(metrics)]
    names += [name for kind in type(metrics).__mro__ for name, one in vars(kind).items() if isinstance(one, property)]
    return {name: getattr(metrics, name) for name in names}


def _gpu() -> dict[str, float]:
    """Readings of the GPU that PyTorch uses. Nothing is initialized for them, nor imported but what reads the GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    reading = {"gpu_memory": 100.0 * (1.0 - free / total)}
    try:
        importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return reading
    return {**reading, "gpu_usage": float(torch.cuda.utilization())}
