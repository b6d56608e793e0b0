"""Weights to many nodes with many readers each: one transfer a node, and the time until the last reader has them.

Each node here is a network namespace with its raylet, a relay in an actor, as a shard's actor has one, and readers that
a forkserver starts. A reader looks at a version where it lies in its node's shared memory.
"""

import contextlib
import os
import time
from typing import Any

import ray

from bench import ray_reader, weights_program
from bench.ray_samples import on
from bench.replay_program import Leaves

#: Versions that are published, after one that is not counted.
VERSIONS = 5

#: Nodes beside the learner's, and readers on each.
NODES, READERS = 8, 16


class _Node:
    """An actor: a node's relay, and its readers."""

    def __init__(self, name: str, readers: int) -> None:
        from echo_shm.adapters.ray.weights import Relay

        self._name, self._count = name, readers
        self._relay = Relay(name, ray.get_runtime_context().get_node_id(), max_leases=1)  # each takes memory
        self._stack = contextlib.ExitStack()

    def follow(self, offer: Any) -> None:
        """Follows that publisher."""
        self._relay.follow(offer)

    def start(self) -> None:
        """Starts the readers once there is a version, and returns when each has it."""
        while self._relay.version == 0:
            time.sleep(0.01)
        make = weights_program.context("bench.ray_reader")
        readers = weights_program.readers(make, ray_reader.read, [(self._name,)] * self._count)
        self._readers = self._stack.enter_context(readers)
        self._readers.await_all()

    def last(self, since: int) -> int:
        """When the last reader had a version after that moment (ns of the machine's clock)."""
        return self._readers.await_all(since)

    def close(self) -> None:
        """Ends."""
        self._stack.close()
        self._relay.stop()


class Fleet:
    """Nodes with readers, and a publisher in this process.

    Args:
        cluster: The nodes; the first one is the learner's.
        params: What is published.
        readers: On each other node.

    """

    def __init__(self, cluster: Any, params: Leaves, readers: int) -> None:
        from echo_shm.adapters.ray.weights import Offers, RayPublisher

        self._params, name, head = params, f"bench-{os.getpid()}", cluster.nodes[0]
        self._links = cluster.nodes[1:]
        offers = Offers()
        self._publisher = RayPublisher(params, f"{name}-learner", head.id, head.host, offers.announce)
        offer = offers.report(0, None, 0)
        make = ray.remote(_Node)
        self._nodes = [make.options(**on(node.id)).remote(f"{name}-{i}", readers) for i, node in enumerate(self._links)]
        ray.get([node.follow.remote(offer) for node in self._nodes])
        self._publisher.publish(params)
        ray.get([node.start.remote() for node in self._nodes])
        self.publish()

    def publish(self) -> tuple[float, float]:
        """Seconds from the call to the moment when the last reader has it, and bytes that went to a node, at most."""
        before = [node.traffic()[0] for node in self._links]
        start = time.monotonic_ns()
        self._publisher.publish(self._params)
        last = max(ray.get([node.last.remote(start) for node in self._nodes]))
        sent = [node.traffic()[0] - was for node, was in zip(self._links, before, strict=True)]
        return (last - start) / 1e9, float(max(sent))

    def close(self) -> None:
        """Ends all of it."""
        ray.get([node.close.remote() for node in self._nodes])
        for node in self._nodes:
            ray.kill(node)
        self._publisher.close()
