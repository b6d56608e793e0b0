"""Samples a second, end to end.

Worker processes send one sample over and over, as fast as they can; the
learner, in this process, iterates over batches and counts. The count starts
when the ring has been filled once over, so that neither the start of the
workers nor the first touch of a page is in it, and it starts and ends at the
arrival of a batch. Contenders take turns: in each repetition every one is
measured once, from the start of its processes to their end, and ratios are
taken within a repetition.

Both sides get the same arrays, batch size and number of batches in the ring,
and their own defaults otherwise. The learner reads no sample: what a batch is
worth is not either library's business. memcpy is measured alone, without a
learner: the same bytes a sample, one call a sample, into as many slots.
"""

import contextlib
import ctypes
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import echo_shm
from bench import native, peers
from bench.samples import SAMPLES, flat, stacked
from bench.scale import Scale
from bench.table import Figure, Floor

#: Samples a call of send_many.
MANY = 64

#: A contender's measurement; one call is one repetition.
Measure = Callable[[], float]


# --- workers ------------------------------------------------------------------


def _by_send(client: echo_shm.ShmClient, sample: Any) -> None:
    while True:
        client.send(sample)


def _by_bound_send(client: echo_shm.ShmClient, sample: Any) -> None:
    bound = client.bind(sample)
    while True:
        bound.send()


def _by_send_many(client: echo_shm.ShmClient, sample: Any) -> None:
    many = stacked(sample, MANY)
    while True:
        client.send_many(many)


def _by_reserve(client: echo_shm.ShmClient, sample: Any) -> None:
    obs, action = sample["obs"], sample["action"]
    while True:
        with client.reserve() as slot:
            slot["obs"][...] = obs
            slot["action"][...] = action


_WAYS = {"send": _by_send, "bind().send": _by_bound_send, "send_many": _by_send_many, "reserve": _by_reserve}


def _produce(client: echo_shm.ShmClient, way: str, name: str) -> None:
    _WAYS[way](client, SAMPLES[name]())


# --- learners -----------------------------------------------------------------


def rate(batches: Iterator[Any], scale: Scale) -> float:
    """Samples a second in steady state."""
    for _ in range(2 * scale.num_buffers + 1):
        next(batches)
    count, start = 0, time.perf_counter()
    while True:
        next(batches)
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= scale.seconds:
            return count * scale.batch_size / elapsed


def _shm(way: str, name: str, scale: Scale, workers: int = 1) -> Measure:
    def measure() -> float:
        with (
            echo_shm.Server(SAMPLES[name](), scale.batch_size, num_buffers=scale.num_buffers) as server,
            server.spawn(_produce, workers, [way] * workers, [name] * workers),
        ):
            return rate(server.dataset_iter(), scale)

    return measure


def _id_echo(name: str, scale: Scale, workers: int = 1) -> Measure:
    def measure() -> float:
        with peers.batches(name, scale.batch_size, scale.num_buffers, workers) as batches:
            return rate(batches, scale)

    return measure


def _memcpy(lib: ctypes.CDLL, name: str, scale: Scale) -> Measure:
    sample = flat(SAMPLES[name]())
    return lambda: native.memcpy_rate(lib, sample, scale.batch_size * scale.num_buffers, scale.seconds)


def _count_for_ever(handle: echo_shm.Handle, count: Any) -> None:
    for _ in echo_shm.Server.attach(handle).dataset_iter():
        count.value += 1


def _two_learners(name: str, scale: Scale, workers: int) -> Measure:
    """Samples a second that two learners get together: this process, and one attached to its ring."""

    def measure() -> float:
        context = multiprocessing.get_context("spawn")
        count = context.RawValue(ctypes.c_uint64, 0)
        with echo_shm.Server(SAMPLES[name](), scale.batch_size, num_buffers=scale.num_buffers) as server:
            other = context.Process(target=_count_for_ever, args=(server.handle, count), daemon=True)
            other.start()
            try:
                with server.spawn(_produce, workers, ["send"] * workers, [name] * workers):
                    batches = server.dataset_iter()
                    while count.value < 2 * scale.num_buffers:
                        next(batches)
                    before, start = count.value, time.perf_counter()
                    mine = rate(batches, scale)
                    theirs = (count.value - before) * scale.batch_size / (time.perf_counter() - start)
                    return mine + theirs
            finally:
                other.kill()
                other.join()

    return measure


def _submitting(server: Any, name: str, scale: Scale) -> float:
    """Samples a second through one thread that submits a batch, takes it, and starts over."""
    sample, count, start = SAMPLES[name](), 0, time.perf_counter()
    while True:
        for _ in range(scale.batch_size):
            server.submit(sample)
        server.sample()
        count += scale.batch_size
        elapsed = time.perf_counter() - start
        if elapsed >= scale.seconds:
            return count / elapsed


def _shm_submit(name: str, scale: Scale) -> Measure:
    def measure() -> float:
        with echo_shm.Server(SAMPLES[name](), scale.batch_size, num_buffers=scale.num_buffers) as server:
            return _submitting(server, name, scale)

    return measure


def _id_echo_submit(name: str, scale: Scale) -> Measure:
    def measure() -> float:
        with contextlib.closing(peers.in_process(name, scale.batch_size, scale.num_buffers)) as server:
            return _submitting(server, name, scale)

    return measure


# --- figures ------------------------------------------------------------------


def in_turns(contenders: dict[str, Measure], repetitions: int) -> dict[str, list[float]]:
    """Each contender's values, one a repetition, measured A B C A B C …"""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, measure in contenders.items():
            values[name].append(measure())
    return values


def _with_peer(contenders: dict[str, Measure], peer: Measure) -> dict[str, Measure]:
    return {"id-echo": peer, **contenders} if peers.available else contenders


def cartpole(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One worker, small samples."""
    floors = {"send": Floor(14), "bind().send": Floor(50), "send_many": Floor(100), "reserve": Floor(20)}
    contenders = {way: _shm(way, "cartpole", scale) for way in floors}
    values = in_turns(_with_peer(contenders, _id_echo("cartpole", scale)), scale.repetitions)
    return [
        Figure(f"{_title(way)}, CartPole", "samples/s", values[way], "id-echo", values.get("id-echo", ()), floor)
        for way, floor in floors.items()
    ]


def atari(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One worker, large samples."""
    floors = {"send": (Floor(12), Floor(0.65)), "bind().send": (Floor(16), Floor(0.85))}
    contenders = {way: _shm(way, "atari", scale) for way in floors}
    contenders["memcpy"] = _memcpy(lib, "atari", scale)
    values = in_turns(_with_peer(contenders, _id_echo("atari", scale)), scale.repetitions)
    figures = []
    for way, (to_peer, to_memcpy) in floors.items():
        path = f"{_title(way)}, Atari"
        figures += [
            Figure(path, "samples/s", values[way], "id-echo", values.get("id-echo", ()), to_peer),
            Figure(path, "samples/s", values[way], "memcpy", values["memcpy"], to_memcpy),
        ]
    return figures


def submit(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One process that feeds itself."""
    contenders = {"submit": _shm_submit("cartpole", scale)}
    values = in_turns(_with_peer(contenders, _id_echo_submit("cartpole", scale)), scale.repetitions)
    peer = values.get("id-echo", ())
    return [Figure("`submit()` and `sample()` in one thread, CartPole", "samples/s", values["submit"], "id-echo", peer)]


def workers(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """Several worker processes at a time."""
    figures = []
    for n in scale.workers:
        contenders = {"send": _shm("send", "cartpole", scale, n)}
        values = in_turns(_with_peer(contenders, _id_echo("cartpole", scale, n)), scale.repetitions)
        path = f"`send`, CartPole, {n} worker{'s' * (n > 1)}"
        figures.append(Figure(path, "samples/s", values["send"], "id-echo", values.get("id-echo", ())))
    return figures


def learners(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One ring, two learners."""
    contenders = {"one": _shm("send", "cartpole", scale, 2), "two": _two_learners("cartpole", scale, 2)}
    values = in_turns(contenders, scale.repetitions)
    path = "`send`, CartPole, 2 workers, 2 learners"
    return [Figure(path, "samples/s", values["two"], "one learner", values["one"])]


def _title(way: str) -> str:
    return f"`send_many` of {MANY}" if way == "send_many" else f"`{way}{'()' if way != 'send' else ''}`"
