"""What a batch costs this machine, whichever of its processes do the work."""

import sys

import psutil


def busy_seconds() -> float:
    """Processor time that all processes of this machine and its kernel have used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def say_cost(busy: float, batches: int) -> None:
    """Prints what each of so many batches has cost since :func:`busy_seconds` was ``busy``."""
    cost = 1e3 * (busy_seconds() - busy) / batches
    print(f"{cost:.3g} ms of processor time a batch", file=sys.stderr, flush=True)
