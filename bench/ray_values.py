"""Many large values from the workers of one node to the learner of another, each once, in the order of their coming."""

import time
from typing import Any

import numpy as np
import ray

from bench.ray_samples import on

#: TransferQueue's large case: so many values of so many bytes.
VALUES, NBYTES = 61_440, 128 * 1024

#: Values that the table stores, and that a batch has.
STORED, BATCH = 8_192, 64

_WORKERS = 2

#: If nothing comes for so long, something is lost (seconds).
_SILENCE = 60.0


def _write(writer: Any, i: int, count: int) -> None:
    """A worker: values are numbered, so that the learner sees whether each came once."""
    values = np.random.default_rng(i).integers(0, 256, (BATCH, NBYTES), np.uint8)
    for first in range(0, count, BATCH):
        values[:, :8] = (i * count + first + np.arange(BATCH)).astype(np.int64)[:, None].view(np.uint8)
        writer.extend({"value": values})


def replayed(worker_node: str, values: int) -> float:
    """Bytes a second through a RayReplay whose table is a queue: from the learner's first batch to its last."""
    from echo_shm.adapters.ray import RayReplay
    from echo_shm.replay import Fifo, Queue, Table

    tables = [Table("queue", sampler=Fifo(), remover=Fifo(), max_times_sampled=1, rate_limiter=Queue(STORED))]
    example, each = {"value": np.zeros(NBYTES, np.uint8)}, values // _WORKERS
    # Room for what is in the queue, and for the steps that writers keep: otherwise items would go for want of room.
    with RayReplay(example, STORED + STORED // 8, tables, shards=[worker_node]) as replay:
        group = replay.spawn(_write, _WORKERS, [each] * _WORKERS, **on(worker_node))
        seen, start, count = np.zeros(values, np.int64), 0.0, 0
        for batch in replay.dataset_iter(BATCH, timeout=_SILENCE):
            numbers = batch.data["value"][:, :8].copy().view(np.int64)[:, 0]
            np.add.at(seen, numbers, 1)
            count += BATCH
            if not start:
                start, count = time.perf_counter(), 0
            if seen.sum() == values:
                break
        elapsed = time.perf_counter() - start
        group.join(60)
    if (seen != 1).any():
        raise RuntimeError(f"{(seen == 0).sum()} values did not come, and {(seen > 1).sum()} came more than once")
    return count * NBYTES / elapsed


class _Putter:
    """A worker that puts values into Ray's object store, a batch at a time."""

    def __init__(self) -> None:
        self._values = np.random.default_rng(0).integers(0, 256, (BATCH, NBYTES), np.uint8)

    def put(self) -> Any:
        """A list that holds the reference of them, for Ray replaces a reference by its object."""
        return [ray.put(self._values)]


def objects(worker_node: str, values: int) -> float:
    """Bytes a second by ``ray.put`` and ``ray.get`` of stacked values: from the learner's first batch to its last."""
    from bench.ray_peers import Pipeline

    actors = [ray.remote(_Putter).options(**on(worker_node)).remote() for _ in range(_WORKERS)]
    pipelines = [Pipeline(actor.put.remote) for actor in actors]
    count, start = 0, 0.0
    while count < values - BATCH:
        batch = ray.get(pipelines[count // BATCH % _WORKERS].next()[0])
        if start:
            count += len(batch)
        else:
            start = time.perf_counter()
    elapsed = time.perf_counter() - start
    for pipeline in pipelines:
        pipeline.end()
    for actor in actors:
        ray.kill(actor)
    return count * NBYTES / elapsed
