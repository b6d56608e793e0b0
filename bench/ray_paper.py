"""A thousand shards, on paper: what each part costs is measured with as many as it takes, and the rest is computed.

Shards are simulated: their reports come from this process, and what they have drawn is there already. So what a learner
pays is the Mixer alone, without the way to its shards. Costs are processor time: of the directory's process with all
that Ray does in it, and of the learner's thread.
"""

import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
import psutil
import ray

from bench.ray_samples import block
from bench.replay_program import BATCH_SIZE
from bench.table import Figure

#: Shards of which the costs are measured.
SHARDS = (1, 10, 100, 1000)

#: Bytes of weights that go to each node.
WEIGHTS = 100_000_000


@dataclass(frozen=True)
class Costs:
    """What was measured.

    Attributes:
        report: The directory takes one (seconds).
        report_bytes: Of one, pickled.
        look: The directory answers one, by the number of shards (seconds).
        look_bytes: Of an answer, pickled, by the number of shards.
        batch: The Mixer makes one, by the number of shards (seconds).
        stream: A bare stream over TLS to another node (bytes a second).

    """

    report: float
    report_bytes: int
    look: Mapping[int, float]
    look_bytes: Mapping[int, int]
    batch: Mapping[int, float]
    stream: float


def _each(call: Any, least: float, clock: Callable[[], float] = time.thread_time) -> float:
    """Processor time of a call by that clock (seconds)."""
    call()
    calls, start, until = 0, clock(), time.monotonic() + least
    while time.monotonic() < until or calls == 0:
        call()
        calls += 1
    return (clock() - start) / calls


def _info() -> Any:
    """What a shard with one table says of it."""
    from echo_shm import Replay, Table
    from echo_shm.replay import Prioritized

    with Replay({"x": np.zeros(4)}, 100, [Table("train", sampler=Prioritized())]) as replay:
        replay.extend({"x": np.zeros((100, 4))})
        return replay.info("train")


def directory(seconds: float) -> tuple[float, int, dict[int, float], dict[int, int]]:
    """Costs of a report and of looks; see :class:`Costs`."""
    from echo_shm.adapters.ray.directory import Directory, Place, Report, Roster

    actor, info, node = (
        ray.remote(Directory).options(num_cpus=0).remote(),
        _info(),
        ray.get_runtime_context().get_node_id(),
    )
    process = psutil.Process(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))
    reports = [Report(number, 0, 100, 100, {"train": info}, 1) for number in range(max(SHARDS))]
    report, look, nbytes = 0.0, {}, {}

    def spent() -> float:
        times = process.cpu_times()
        return times.user + times.system

    for shards in SHARDS:
        places = tuple(Place(number, 0, node, "10.0.0.1", 1) for number in range(shards))
        ray.get(actor.publish.remote(Roster(shards, places)))
        ray.get([actor.report.remote(one, None, 0) for one in reports[:shards]])
        nbytes[shards] = len(pickle.dumps(ray.get(actor.look.remote())))
        look[shards] = _each(lambda: ray.get([actor.look.remote() for _ in range(20)]), seconds, spent) / 20
    report = _each(lambda: ray.get([actor.report.remote(one, None, 0) for one in reports[:200]]), seconds, spent) / 200
    ray.kill(actor)
    return report, len(pickle.dumps(reports[0])), look, nbytes


class _Drawn:
    """A source that always has a batch."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def ask(self, n: int, *_: int) -> None:
        """From now on of n items."""
        from echo_shm.replay import Batch

        data = optree.tree_map(lambda leaf: np.resize(leaf, (n, *leaf.shape[1:])), self._data)
        floats, integers = np.full(n, 1e-3), np.zeros(n, np.int64)
        self._batch = Batch(data, np.arange(n, dtype=np.uint64), floats, floats, floats, *[integers] * 4)

    def next(self) -> Any:
        """One."""
        return self._batch

    def close(self) -> None:
        """Nothing."""


class _Shards:
    """Shards with equal masses, each with what it has drawn."""

    def __init__(self, count: int) -> None:
        from echo_shm.adapters.ray.shares import Mass

        self._data = block("cartpole")
        self._masses = {number: Mass(1000, math.log(1000.0), 0.0) for number in range(count)}

    def masses(self) -> tuple[dict[int, Any], float]:
        """Of all."""
        return self._masses, 0.1

    def source(self, number: int) -> _Drawn:
        """One of them."""
        return _Drawn(self._data)


def batches(seconds: float) -> dict[int, float]:
    """Seconds of a batch of 256 CartPole items from the Mixer, by the number of shards that they are drawn from."""
    from echo_shm.adapters.ray.mixing import Mixer

    costs = {}
    for shards in SHARDS:
        mixer = Mixer(_Shards(shards), BATCH_SIZE, 0.4, 1, np.random.default_rng(0))  # type: ignore[arg-type]
        for _ in range(50):  # by then most shards have been asked
            mixer.next()
        costs[shards] = _each(mixer.next, seconds)
        mixer.close()
    return costs


def figures(runs: Sequence[Costs]) -> list[Figure]:
    """The rows of what was measured. Compared with one shard."""
    most, rows = max(SHARDS), []
    rows.append(Figure("`Directory.report` of a shard", "µs", [1e6 * one.report for one in runs]))
    for path, what in (("`Directory.look`", "look"), (f"`Mixer.next` of {BATCH_SIZE} CartPole items", "batch")):
        first = [1e6 * getattr(one, what)[1] for one in runs]
        for shards in SHARDS[1:]:
            costs = [1e6 * getattr(one, what)[shards] for one in runs]
            rows.append(Figure(f"{path}, {shards:,} shards", "µs", costs, "1 shard", first))
    rows.append(Figure("A report, pickled", "bytes", [float(one.report_bytes) for one in runs]))
    rows.append(Figure(f"A look at {most:,} shards, pickled", "bytes", [float(one.look_bytes[most]) for one in runs]))
    return rows


def paper(costs: Costs, mass_age: float = 1.0, learners: int = 1) -> str:
    """What a thousand shards cost, and the first bottleneck, in Markdown.

    Args:
        costs: What was measured.
        mass_age: That of the replay (seconds). Shards report, and learners look, twice in it.
        learners: Processes that look. The keeper is one more.

    """
    most, each = max(SHARDS), 2 / mass_age
    reporting, looking = most * each * costs.report, (learners + 1) * each * costs.look[most]
    busy = reporting + looking
    coming, going = most * each * costs.report_bytes, (learners + 1) * each * costs.look_bytes[most]
    sending = most * WEIGHTS / costs.stream
    lines = [
        f"| at {most:,} shards, mass_age={mass_age:g} s, {learners} learner(s) | |",
        "| --- | --- |",
        f"| the directory takes {most * each:,.0f} reports a second | {reporting:.0%} of a core |",
        f"| the directory answers {(learners + 1) * each:.0f} looks a second | {looking:.0%} of a core |",
        f"| bytes to and from the directory | {coming / 1e6:.1f} and {going / 1e6:.1f} MB/s |",
        f"| a batch of {BATCH_SIZE} | {1e3 * costs.batch[most]:.2f} ms; of 1 shard {1e3 * costs.batch[1]:.2f} ms |",
        f"| that is, at most | {1 / costs.batch[most]:,.0f} batches/s, {1 / costs.batch[1]:,.0f} of 1 shard |",
        f"| weights of {WEIGHTS / 1e6:.0f} MB go to each node from the learner's | {sending:,.0f} s a version |",
    ]
    limits = {
        "the directory's one thread": most / busy,
        "weights once a minute from one node": 60 * costs.stream / WEIGHTS,
        "the learner's draws, at 100 batches a second": most / (100 * costs.batch[most]),
    }
    lines += ["", "Shards at which each is used up, if its cost grows as the number does:", ""]
    lines += [f"- {what}: {shards:,.0f}" for what, shards in sorted(limits.items(), key=lambda one: one[1])]
    return "\n".join(lines)


def measured(seconds: float, stream: float) -> Costs:
    """All of it, in this process's cluster."""
    report, nbytes, look, look_bytes = directory(seconds)
    return Costs(report, nbytes, look, look_bytes, batches(seconds), stream)


def say(costs: Costs) -> None:
    """Prints it to stderr: standard output is the table's."""
    print(paper(costs), file=sys.stderr, flush=True)
