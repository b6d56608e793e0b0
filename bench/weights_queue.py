"""Weights through a ``multiprocessing.Queue`` of each reader: they are pickled once, and put into each queue."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from bench import weights_program as program
from bench.replay_program import Leaves, Measurement, Sizes
from bench.weights_program import Publish, Readers


def _get(number: int, stamp: Callable[[], None], queue: Any) -> None:
    stamp()
    while True:
        weights = pickle.loads(queue.get())
        assert weights
        stamp()


@contextlib.contextmanager
def _published(params: Leaves, count: int) -> Iterator[tuple[Readers, list[Publish]]]:
    context = program.context("bench.weights_queue", "bench.native")
    queues = [context.Queue() for _ in range(count)]

    def publish() -> None:
        pickled = pickle.dumps(params, pickle.HIGHEST_PROTOCOL)
        for queue in queues:
            queue.put(pickled)

    with program.readers(context, _get, [(queue,) for queue in queues]) as running:
        running.await_all()
        yield running, [publish]
    for queue in queues:
        queue.cancel_join_thread()
        queue.close()


ROWS: dict[str, Callable[[Sizes], Measurement]] = {"queue of weights": program.receive(_published)}
