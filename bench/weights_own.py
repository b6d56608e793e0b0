"""echo_shm's weights, as its users write them, and the copies of the machine beside them."""

import contextlib
import ctypes
import itertools
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench import native
from bench import weights_program as program
from bench.replay_program import Leaves, Measurement, Sizes
from bench.weights_program import Publish, Readers
from echo_shm import Publisher, Subscriber

#: Blocks of calls that contenders take turns with.
_BLOCKS = 4

#: Calls without news, a loop.
_CALLS = 50

#: A call that says how long it took (ns).
_Timed = Callable[[], int]


def _timed(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> _Timed:
    """``before`` is not counted."""

    def once() -> int:
        if before is not None:
            before()
        start = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - start

    return once


def _medians(contenders: list[_Timed], seconds: float) -> list[float]:
    """Nanoseconds of the median call of each. They take turns."""
    times: list[list[int]] = [[] for _ in contenders]
    for _ in range(_BLOCKS):
        for once, mine in zip(contenders, times, strict=True):
            once()  # the caches are its own afterwards
            until = time.monotonic() + seconds / _BLOCKS / len(contenders)
            mine.append(once())
            while time.monotonic() < until:
                mine.append(once())
    return [statistics.median(mine) for mine in times]


def _addresses(leaves: Leaves) -> Any:
    return (ctypes.c_void_p * len(leaves))(*(leaf.ctypes.data for leaf in leaves.values()))


def _copies(sizes: Sizes) -> Measurement:
    """MB/s of publish(), and of memcpy into shared memory, of as much as the segment has and of one version's.

    Then of latest(), of numpy's copies; of poll(into=), and of memcpy of the same leaves.
    """
    params = program.parameters(sizes.weights[0])
    nbytes = program.size_of(params)
    publisher = Publisher(params)
    publisher.publish(params)
    subscriber = Subscriber(publisher.name)
    slots = subscriber._segment.geometry.num_buffers
    stack = contextlib.ExitStack()
    region = stack.enter_context(native.shared_region(nbytes * slots))
    one = stack.enter_context(native.shared_region(nbytes))
    source, lib = np.concatenate([leaf.reshape(-1) for leaf in params.values()]), native.load(native.built())
    kept = {name: np.empty_like(leaf) for name, leaf in params.items()}
    lengths = (ctypes.c_uint64 * len(params))(*(leaf.nbytes for leaf in params.values()))
    to, places = _addresses(kept), itertools.cycle(range(region, region + nbytes * slots, nbytes))
    tree: list[Any] = [None]

    def publish() -> None:
        publisher.publish(params)

    def latest() -> None:
        tree[0] = subscriber.latest()

    def copied() -> int:
        def work() -> None:
            tree[0] = {name: np.copy(leaf) for name, leaf in view.items()}

        with subscriber.lease() as view:
            return _timed(work)()

    def read() -> int:
        publish()
        with subscriber.lease() as view:
            leaves = _addresses(view)
            return _timed(lambda: lib.bench_copy_leaves(to, leaves, lengths, len(kept)))()

    contenders = [
        _timed(publish),
        _timed(lambda: lib.bench_copy(next(places), source.ctypes.data, nbytes)),
        _timed(lambda: lib.bench_copy(one, source.ctypes.data, nbytes)),
        _timed(latest),
        copied,
        _timed(lambda: subscriber.poll(into=kept), publish),
        read,
    ]

    def measure() -> list[float]:
        assert stack  # the memory lives as long as this
        return [nbytes * 1e3 / ns for ns in _medians(contenders, sizes.seconds)]

    for _ in range(slots):  # every page is there
        for once in (contenders[1], contenders[5]):
            once()
    return measure


class _Empty:
    def poll(self) -> None:
        """An empty method."""


def _poll(sizes: Sizes) -> Measurement:
    """Nanoseconds of poll() without news, and of an empty method."""
    params = program.parameters(sizes.weights[0])
    publisher = Publisher(params)
    publisher.publish(params)
    subscriber = Subscriber(publisher.name)
    subscriber.latest()
    calls = "; ".join(["one.poll()"] * _CALLS)
    timers = [timeit.Timer(calls, globals={"one": one, "publisher": publisher}) for one in (subscriber, _Empty())]
    contenders: list[_Timed] = [lambda timer=timer: int(timer.timeit(20) * 1e9) for timer in timers]  # type: ignore[misc]
    return lambda: [ns / (20 * _CALLS) for ns in _medians(contenders, sizes.seconds / 4)]


def _subscribe(number: int, stamp: Callable[[], None], handle: Any) -> None:
    subscriber = Subscriber(handle)
    kept = subscriber.latest()
    stamp()
    while True:
        subscriber.wait(subscriber.version + 1)
        subscriber.poll(into=kept)
        stamp()


@contextlib.contextmanager
def _published(params: Leaves, count: int) -> Iterator[tuple[Readers, list[Publish]]]:
    context = program.context("bench.weights_own", "bench.items_own")
    with Publisher(params) as publisher:
        publisher.publish(params)
        with program.readers(context, _subscribe, [(publisher.handle,)] * count) as running:
            running.await_all()
            yield running, [lambda: publisher.publish(params)]


ROWS: dict[str, Callable[[Sizes], Measurement]] = {
    "weights copies": _copies,
    "weights poll": _poll,
    "weights receive": program.receive(_published),
}
