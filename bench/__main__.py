"""``python -m bench``: measures and prints a Markdown table.

``--quick`` takes small sizes, to see that everything runs; its figures mean
nothing. ``--only NAME`` measures one group. ``--json FILE`` also writes every
repetition's value; ``make bench`` writes ``bench/results.json`` and has
:mod:`bench.plot` and :mod:`bench.report` make the plot and the tables of it.
A missed floor is printed, not an error.
"""

import argparse
import ctypes
import datetime
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from bench import (
    adapters,
    items,
    latency,
    native,
    on_ray,
    peers,
    planning,
    planning_hot_cold,
    producers,
    remote,
    replay,
    scale,
    table,
    throughput,
    wake,
    weights,
)

GROUPS: dict[str, Callable[[scale.Scale, ctypes.CDLL], list[table.Figure]]] = {
    "cartpole": throughput.cartpole,
    "atari": throughput.atari,
    "sample": latency.sample,
    "wake": wake.wake,
    "submit": throughput.submit,
    "workers": throughput.workers,
    "learners": throughput.learners,
    "producers": producers.producers,
    "remote": remote.remote,
    "replay": replay.replay,
    "items": items.items,
    "weights": weights.weights,
    "adapters": adapters.adapters,
    "planning": planning.planning,
    "hot_cold": planning_hot_cold.hot_cold,
    "ray": on_ray.on_ray,
}

NOTES = """\
Medians of {repetitions} interleaved repetitions (least to most); a ratio is taken within a repetition.
Throughput is end to end: worker processes send the same arrays as fast as they can, the learner iterates
`dataset_iter()` and reads no data; counted after the ring was filled twice over. Both libraries: batches of
{batch_size} samples, {num_buffers} batches in the ring; id-echo with its defaults otherwise, over loopback TCP.
memcpy: one process, one call a sample, into shared memory of the ring's size.
Replay buffers are full, hold the same contents, and have a process each.
`python -m bench` measures this; bench/ says how."""


def measure(names: list[str], size: scale.Scale) -> list[table.Figure]:
    """The figures of the named groups. Progress goes to stderr."""
    figures: list[table.Figure] = []
    lib = native.load(native.built())
    for name in names:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        start = time.monotonic()
        figures += GROUPS[name](size, lib)
        print(f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return figures


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; the figures mean nothing")
    parser.add_argument("--only", action="append", choices=GROUPS, metavar="NAME", help=f"one of: {', '.join(GROUPS)}")
    parser.add_argument("--repetitions", type=int, metavar="N", help="how often each contender is measured")
    parser.add_argument("--json", metavar="FILE", help="write every repetition's value there")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    size = scale.QUICK if options.quick else scale.FULL
    size = replace(size, repetitions=options.repetitions or size.repetitions)
    if not peers.available:
        print("id-echo is not installed: no ratios to it (pip install 'echo-shm[bench]')", file=sys.stderr)
    machine = table.machine()
    figures = measure(options.only or list(GROUPS), size)
    print(", ".join(f"{key}: {value}" for key, value in machine.items()))
    print()
    print(table.markdown(figures))
    print()
    print(NOTES.format(**vars(size)))
    if options.json:
        results = {
            "date": datetime.date.today().isoformat(),
            "command": shlex.join(["python", "-m", "bench", *(sys.argv[1:] if arguments is None else arguments)]),
            "machine": machine,
            "scale": vars(size),
            "figures": [figure.as_dict() for figure in figures],
        }
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
