"""The adapter for Ray against Ray's object store, RLlib's and TorchRL's buffers in actors, and a bare stream.

One cluster of two nodes on this machine; each has a network namespace, and a bridge device joins them. The learner is
this process, on the head. All contenders take turns on the same cluster.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.replay_program import BATCH_SIZE
from bench.scale import Scale
from bench.table import Figure, Floor
from bench.throughput import in_turns

#: Processes that write. With the learner and a shard, two cores have enough to do.
_WORKERS = 1

#: Of Ray's object store on each node (bytes): a list of Atari samples has 14 MB, and several are under way.
_OBJECT_STORE = 1_000_000_000

_STREAMS = {"a bare stream": False, "a bare stream over TLS": True}

#: A worker copies each sample, and a shard twice.
_BESIDE = "a bare stream over TLS, beside a process that copies each sample three times"

#: Those without a floor.
_STACKED = "`ray.put` and `ray.get` of stacked samples"
_COPIED = "a process that copies each sample twice, beside one that copies it once"

_TITLES = {"cartpole": "CartPole", "atari": "Atari"}


def _slower(measure: Callable[..., tuple[float, float]], *args: Any) -> Callable[[], float]:
    """Of what is stored and what is drawn a second."""

    def call() -> float:
        values = measure(*args)
        print(f"{getattr(measure, '__name__', 'ours')}{args}: {values}", file=sys.stderr, flush=True)
        return min(values)

    return call


class _Run:
    """Measures on one cluster.

    Args:
        scale: How much.
        made: The cluster.

    """

    def __init__(self, scale: Scale, made: Any) -> None:
        self.scale, self.made = scale, made
        self.head, self.other = made.nodes

    def samples(self, name: str, remote: bool) -> list[Figure]:
        """Samples a second from workers to the learner."""
        from bench import ray_peers, ray_samples

        node, seconds = self.other if remote else self.head, self.scale.seconds
        sizes = name, self.head.id, node.id, _WORKERS, seconds
        contenders = {
            "ours": _slower(ray_samples.ours, name, node.id, _WORKERS, seconds),
            "one": _slower(ray_samples.ours, name, node.id, _WORKERS, seconds, False),
            "`ray.put` and `ray.get` of lists": _slower(ray_peers.objects, *sizes),
            _STACKED: _slower(ray_peers.objects, *sizes, True),
            "RLlib `ReplayBuffer` in an actor": _slower(ray_peers.rllib, *sizes),
        }
        if importlib.util.find_spec("torchrl") is not None:
            contenders["TorchRL `RayReplayBuffer`"] = _slower(ray_peers.torchrl, *sizes)
        nbytes = ray_samples.size_of(name)
        if remote and name == "atari":
            for what, tls in _STREAMS.items():
                contenders[what] = partial(self._stream, nbytes, tls)
            contenders[_BESIDE] = partial(self._stream, nbytes, True, 3)
            contenders["kept"] = partial(ray_samples.kept, name, node.id, seconds)
        if not remote and name == "atari":
            # A worker copies each sample into a ring; a shard's thread stores it, and gathers it for a batch.
            contenders[_COPIED] = partial(ray_samples.copied, name, 2, seconds)
        values = in_turns(contenders, self.scale.repetitions)
        where = "another node" if remote else "the learner's node"
        path = f"`RayReplay`, {_TITLES[name]}, workers on {where}"
        floor = {("cartpole", False): 20.0, ("atari", False): 5.0, ("cartpole", True): 5.0}.get((name, remote))
        figures = []
        for peer, theirs in values.items():
            if peer not in ("ours", "one", "kept"):
                bound = 0.7 if peer in _STREAMS else floor
                demanded = None if bound is None or peer in (_STACKED, _COPIED) else Floor(bound)
                figures.append(Figure(f"{path}, `extend`", "samples/s", values["ours"], peer, theirs, demanded))
        lists = values["`ray.put` and `ray.get` of lists"]
        figures.append(Figure(f"{path}, `add`", "samples/s", values["one"], "`ray.put` and `ray.get` of lists", lists))
        if "kept" in values:
            path = f"`RayReplay.dataset_iter({BATCH_SIZE})`, {_TITLES[name]}, stored before, on another node"
            for peer in _STREAMS:
                figures.append(Figure(path, "samples/s", values["kept"], peer, values[peer], Floor(0.7)))
        return figures

    def _stream(self, nbytes: int, tls: bool, copies: int = 0) -> float:
        """Blocks of as many bytes as a batch has, as samples a second."""
        return 1e6 * self._megabytes(nbytes * BATCH_SIZE, tls, copies) / nbytes

    def _megabytes(self, block: int, tls: bool, copies: int = 0) -> float:
        """Blocks of so many bytes, as MB/s."""
        from bench import ray_bare

        return ray_bare.rate(self.head.host, self.other.run, block, self.scale.seconds, tls, copies) / 1e6

    def values(self) -> list[Figure]:
        """TransferQueue's large case."""
        from bench import ray_values

        count = ray_values.VALUES if self.scale.seconds >= 1 else 1024
        contenders = {
            "ours": lambda: ray_values.replayed(self.other.id, count) / 1e6,
            "`ray.put` and `ray.get` of stacked values": lambda: ray_values.objects(self.other.id, count) / 1e6,
        }
        for what, tls in _STREAMS.items():
            contenders[what] = partial(self._megabytes, ray_values.NBYTES * ray_values.BATCH, tls)
        values = in_turns(contenders, 1)
        path = f"`RayReplay`, a queue of {count:,} values of 128 KiB, workers on another node"
        return [Figure(path, "MB/s", values["ours"], peer, values[peer]) for peer in contenders if peer != "ours"]

    def paper(self) -> list[Figure]:
        """What a thousand shards would cost."""
        from bench import ray_paper

        stream = 1e6 * self._megabytes(10_000_000, True)
        runs = [ray_paper.measured(self.scale.seconds, stream) for _ in range(self.scale.repetitions)]
        ray_paper.say(runs[0])
        return ray_paper.figures(runs)


def _weights(scale: Scale, made: Any) -> list[Figure]:
    """Weights from the learner's node to readers on all others."""
    from bench import ray_bare, ray_weights, weights_program

    params = weights_program.parameters(max(scale.weights))
    nbytes, readers = weights_program.size_of(params), ray_weights.READERS if scale.seconds >= 1 else 2
    fleet = ray_weights.Fleet(made, params, readers)
    try:
        seconds, sent = zip(*(fleet.publish() for _ in range(ray_weights.VERSIONS)), strict=True)
    finally:
        fleet.close()
    head, *others = made.nodes
    path = f"Weights of {nbytes / 1e6:.0f} MB to {len(others)} nodes with {readers} readers each"
    figures = [
        Figure(
            f"{path}: to one node",
            "MB",
            [one / 1e6 for one in sent],
            "one copy",
            [nbytes / 1e6] * len(sent),
            Floor(1.05),
        )
    ]
    for what, tls in _STREAMS.items():
        bare = ray_bare.fan_out(head.host, [one.run for one in others], nbytes, len(sent), tls)
        figures.append(Figure(f"{path}: the last reader has them", "s", seconds, f"{what} to each", bare))
    return figures


def on_ray(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """All rows. None where there is no Ray, or no network namespace can be made."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from harness import ray_cluster

    why = (
        ray_cluster.why_not()
        if importlib.util.find_spec("ray")
        else "Ray is not installed: pip install 'echo-shm[ray]'"
    )
    if why:
        print(f"nothing on Ray: {why}", file=sys.stderr)
        return []
    from bench import ray_weights

    # First: so many nodes may run into Ray's time limits when they start, and then little is lost.
    with ray_cluster.cluster(ray_weights.NODES if scale.seconds >= 1 else 2, isolated=True) as made:
        weights = _weights(scale, made)
    with ray_cluster.cluster(1, isolated=True, object_store=_OBJECT_STORE) as made:
        run = _Run(scale, made)
        figures = [one for remote in (False, True) for name in _TITLES for one in run.samples(name, remote)]
        return [*figures, *run.values(), *run.paper(), *weights]
