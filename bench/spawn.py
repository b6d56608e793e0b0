"""How long workers take to start: from ``Server.spawn`` until all of them are attached, and the CPU time of that.

``python -m bench.spawn --context forkserver`` prints a line per repetition. Each has a fresh interpreter, so the first
worker of "forkserver" waits for the forkserver to start. The CPU time is that of all processes.
"""

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
import psutil

import echo_shm
from echo_shm.ring.metrics import RingView


def _send_slowly(client: echo_shm.ShmClient) -> None:
    while True:
        time.sleep(1)
        client.send(np.zeros(()))


def _cpu_seconds() -> float:
    """The CPU time of this process and of all that descend from it and still run."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _measure(workers: int, context: str) -> None:
    """Prints the seconds and CPU seconds of one repetition."""
    with echo_shm.Server(np.zeros(()), 64, max_producers=workers) as server:
        view = RingView(server._segment)
        cpu, start = _cpu_seconds(), time.monotonic()
        with server.spawn(_send_slowly, workers, context=context):  # type: ignore[arg-type]
            while view.snapshot().active_producers < workers:
                time.sleep(0.01)
            print(time.monotonic() - start, _cpu_seconds() - cpu)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.spawn", description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--context", choices=("spawn", "forkserver", "fork"), default="forkserver")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.once:
        _measure(chosen.workers, chosen.context)
        return
    words = [
        sys.executable,
        "-m",
        "bench.spawn",
        "--once",
        f"--workers={chosen.workers}",
        f"--context={chosen.context}",
    ]
    figures = []
    for _ in range(chosen.repetitions):
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        figures.append(tuple(map(float, done.stdout.split())))
        print(f"{chosen.workers} workers, {chosen.context}: {figures[-1][0]:.1f} s, {figures[-1][1]:.1f} s of CPU")
    for name, values in zip(("seconds", "CPU seconds"), zip(*figures, strict=True), strict=True):
        print(f"{name}: median {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
