"""The same samples by what others have for it: Ray's object store, RLlib's buffer and TorchRL's buffer, in actors.

In their favour: workers have their blocks ready, stacked where a buffer takes them so, and do not make them of steps.
Enough calls are under way that nobody waits for an answer. A buffer is on the learner's node.
"""

import collections
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ray

from bench.ray_samples import STORED, Span, block, learn, on, span, steps, work
from bench.replay_program import BATCH_SIZE

#: Calls that are under way at once, of each worker and of the learner.
_CALLS = 4


class Pipeline:
    """Keeps some calls under way.

    Args:
        call: Makes one.

    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._running: collections.deque[Any] = collections.deque(call() for _ in range(_CALLS))

    def next(self) -> Any:
        """The answer of the oldest one."""
        self._running.append(self._call())
        return ray.get(self._running.popleft())

    def end(self) -> None:
        """Waits for all."""
        ray.get(list(self._running))


class _Putter:
    """A worker that puts samples into Ray's object store, 256 at a time."""

    def __init__(self, name: str, stacked: bool) -> None:
        self._samples = block(name) if stacked else steps(name)

    def put(self) -> Any:
        """A list that holds the reference of one, for Ray replaces a reference by its object."""
        return [ray.put(self._samples)]


def objects(
    name: str, learner_node: str, worker_node: str, workers: int, seconds: float, stacked: bool = False
) -> tuple[float, float]:
    """Samples a second by ``ray.put`` and ``ray.get``: put, and taken.

    Args:
        name: Of the samples.
        learner_node, worker_node: The ids of the nodes. The learner is this process.
        workers: How many.
        seconds: How long the learner counts.
        stacked: Not lists of 256 samples, but one sample of stacked arrays.

    """
    actors = [ray.remote(_Putter).options(**on(worker_node)).remote(name, stacked) for _ in range(workers)]
    pipelines = [Pipeline(actor.put.remote) for actor in actors]
    turn = collections.deque(pipelines)

    def draw() -> Any:
        turn.rotate(-1)
        return ray.get(turn[0].next()[0])

    with span() as counted:
        drawn = learn(counted, draw, seconds)
    for pipeline in pipelines:
        pipeline.end()
    for actor in actors:
        ray.kill(actor)
    return drawn, drawn


def _add(add: Callable[[], Any], span: Span) -> float:
    pipeline = Pipeline(add)
    rate = work(span, pipeline.next)
    pipeline.end()
    return rate


@ray.remote
def _into_rllib(buffer: Any, name: str, span: Span) -> float:
    """A worker."""
    from ray.rllib.policy.sample_batch import SampleBatch

    batch = SampleBatch(block(name))
    return _add(lambda: buffer.add.remote(batch), span)


def rllib(name: str, learner_node: str, worker_node: str, workers: int, seconds: float) -> tuple[float, float]:
    """Samples a second by RLlib's ``ReplayBuffer`` in an actor, as its distributed replay has it: stored, and drawn."""
    from ray.rllib.utils.replay_buffers import ReplayBuffer, StorageUnit

    made = ray.remote(ReplayBuffer).options(**on(learner_node))
    buffer = made.remote(capacity=STORED[name], storage_unit=StorageUnit.TIMESTEPS)
    task = _into_rllib.options(**on(worker_node))
    with span() as counted:
        running = [task.remote(buffer, name, counted) for _ in range(workers)]
        while ray.get(buffer.__len__.remote()) < BATCH_SIZE:
            time.sleep(0.01)
        pipeline = Pipeline(lambda: buffer.sample.remote(BATCH_SIZE))
        drawn = learn(counted, lambda: dict(pipeline.next()), seconds)
        stored = sum(ray.get(running))
    ray.kill(buffer)
    return stored, drawn


@ray.remote
def _into_torchrl(client: Any, name: str, span: Span) -> float:
    """A worker."""
    import torch
    from tensordict import TensorDict

    batch = TensorDict({key: torch.from_numpy(leaf) for key, leaf in block(name).items()}, [BATCH_SIZE])
    return work(span, lambda: client.extend(batch))


def torchrl(name: str, learner_node: str, worker_node: str, workers: int, seconds: float) -> tuple[float, float]:
    """Samples a second by TorchRL's ``RayReplayBuffer``: stored, and drawn."""
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    buffer = RayReplayBuffer(
        storage=partial(LazyTensorStorage, STORED[name]), batch_size=BATCH_SIZE, remote_config=on(learner_node)
    )
    task = _into_torchrl.options(**on(worker_node))
    try:
        with span() as counted:
            running = [task.remote(buffer.client(), name, counted) for _ in range(workers)]
            while buffer.write_count < BATCH_SIZE:
                time.sleep(0.01)
            drawn = learn(counted, lambda: {key: leaf.numpy() for key, leaf in buffer.sample().items()}, seconds)
            stored = sum(ray.get(running))
    finally:
        buffer.shutdown()
    return stored, drawn
