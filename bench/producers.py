"""What a sample costs as producers grow in number, from one to hundreds.

Every producer process sends the same Atari sample as fast as it can, a fixed number of times, into a ring that is too
small for all of them; the learner takes batches and reads no data. All start together, when all are attached. Costs
are CPU time of the thread that sends or takes: on two cores, 256 processes wait most of the time. The first thousand
sends of each process stand apart, for each process maps the ring's pages for itself. A sleep is a voluntary context
switch.

What many processes on few cores cost without any ring is measured beside it: as many processes copy the same bytes to
shared memory of the same size, and take turns. A turn is as many copies as the ring's producers send for one sleep.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import echo_shm
from bench import peers
from bench.samples import SAMPLES
from bench.scale import Scale
from bench.table import Figure, Floor

#: Sends of each process that are counted apart.
FIRST = 1000

#: Producer counts at which id-echo is measured, too.
PEER_COUNTS = (1, 8, 64)

_BATCH_SIZE, _NUM_BUFFERS = 256, 8  # 58 MB
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["bench.producers"])


class _Report(ctypes.Structure):
    """What a producer has measured: seconds of CPU time and sleeps, of the first sends and of the others."""

    _fields_ = (
        ("ready", ctypes.c_int),
        ("first_cpu", ctypes.c_double),
        ("cpu", ctypes.c_double),
        ("first_sleeps", ctypes.c_double),
        ("sleeps", ctypes.c_double),
        ("page_table_bytes", ctypes.c_double),
    )


@dataclass(frozen=True)
class _Costs:
    """Of one run: microseconds of CPU time a sample, and so on."""

    first: float
    steady: float
    sleeps: float
    learner: float
    rate: float
    page_tables: float


def _page_table_bytes() -> float:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) * 1024.0 for line in file if line.startswith("VmPTE:")), 0.0)


def _sends(send: Any, sample: Any, count: int) -> tuple[float, float]:
    """CPU seconds and sleeps of so many sends."""
    usage, start = resource.getrusage(resource.RUSAGE_THREAD), time.thread_time()
    for _ in range(count):
        send(sample)
    cpu = time.thread_time() - start
    return cpu, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - usage.ru_nvcsw


def _produce(handle: echo_shm.Handle, reports: Any, number: int, go: Any, sends: int) -> None:
    report, sample = reports[number], SAMPLES["atari"]()
    with echo_shm.ShmClient(handle) as client:
        report.ready = 1
        go.wait()
        report.first_cpu, report.first_sleeps = _sends(client.send, sample, FIRST)
        report.cpu, report.sleeps = _sends(client.send, sample, sends - FIRST)
        report.page_table_bytes = _page_table_bytes()


def _copy_in_turns(path: str, number: int, reports: Any, turns: Any, go: Any, copies: int, turn: int) -> None:
    """Copies, ``turn`` at a time; two processes have their turn at once."""
    frames, report, count = SAMPLES["atari"]()["obs"].reshape(-1), reports[number], len(turns)
    memory = np.asarray(np.memmap(path, np.uint8, "r+"))
    memory[:: mmap.PAGESIZE] = 1
    slots = memory.reshape(_BATCH_SIZE * _NUM_BUFFERS, -1)[:, : len(frames)]
    report.ready = 1
    go.wait()
    start, position = time.thread_time(), number * turn
    for _ in range(copies // turn):
        turns[number].acquire()
        for i in range(position, position + turn):
            np.copyto(slots[i % len(slots)], frames)
        position += count * turn
        turns[(number + 2) % count].release()
    report.cpu = time.thread_time() - start


def _copies(count: int, turn: int, copies: int) -> float:
    """Microseconds of CPU time a copy."""
    copies -= copies % turn
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        size = SAMPLES["atari"]()["obs"].nbytes
        file.truncate(_BATCH_SIZE * _NUM_BUFFERS * (size + -size % 64))  # aligned, as in the ring
        reports, go = _CONTEXT.RawArray(_Report, count), _CONTEXT.Event()
        turns = [_CONTEXT.Semaphore(int(i < 2)) for i in range(count)]
        arguments = [(file.name, i, reports, turns, go, copies, turn) for i in range(count)]
        with _started(_copy_in_turns, arguments, reports, go):
            pass
    return 1e6 * sum(float(report.cpu) for report in reports) / (count * copies)


@contextlib.contextmanager
def _running(server: echo_shm.Server, count: int, sends: int) -> Iterator[Any]:
    """Producers that start to send when the block is entered. The value is their reports."""
    reports, go = _CONTEXT.RawArray(_Report, count), _CONTEXT.Event()
    with _started(_produce, [(server.handle, reports, i, go, sends) for i in range(count)], reports, go):
        yield reports


@contextlib.contextmanager
def _started(target: Any, arguments: list[tuple[Any, ...]], reports: Any, go: Any) -> Iterator[None]:
    """Processes that go on when the block is entered, all ready. They have ended when it is left."""
    processes = [_CONTEXT.Process(target=target, args=args, daemon=True) for args in arguments]
    try:
        for process in processes:
            process.start()
        while not all(report.ready for report in reports):
            if any(process.exitcode is not None for process in processes):
                raise RuntimeError("a process ended before all were ready; its traceback is on stderr")
            time.sleep(0.01)
        go.set()
        yield
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
            process.join()


def _sends_of_each(count: int, scale: Scale) -> int:
    return max(2 * FIRST, scale.sends // count)


def _run(count: int, scale: Scale) -> _Costs:
    sends = _sends_of_each(count, scale)
    batches = count * sends // _BATCH_SIZE
    with echo_shm.Server(SAMPLES["atari"](), _BATCH_SIZE, num_buffers=_NUM_BUFFERS) as server:
        with _running(server, count, sends) as reports:
            for _ in range(batches // 2):
                server.sample()
            cpu, start = time.thread_time(), time.perf_counter()
            for _ in range(batches - batches // 2):
                server.sample()
            cpu, elapsed = time.thread_time() - cpu, time.perf_counter() - start
        rest = sends - FIRST
        return _Costs(
            first=1e6 * sum(report.first_cpu for report in reports) / (count * FIRST),
            steady=1e6 * sum(report.cpu for report in reports) / (count * rest),
            sleeps=sum(report.sleeps for report in reports) / (count * rest),
            learner=1e6 * cpu / (batches - batches // 2),
            rate=(batches - batches // 2) * _BATCH_SIZE / elapsed,
            page_tables=sum(report.page_table_bytes for report in reports) / 1e6,
        )


def _peer_rate(count: int, scale: Scale) -> float:
    with peers.batches("atari", _BATCH_SIZE, _NUM_BUFFERS, count) as batches:
        for _ in range(2 * _NUM_BUFFERS + 1):
            next(batches)
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < scale.seconds:
            next(batches)
            done += 1
        return done * _BATCH_SIZE / elapsed


def producers(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One to hundreds of producers, large samples."""
    runs: dict[int, list[_Costs]] = {count: [] for count in scale.producers}
    copies: dict[int, list[float]] = {count: [] for count in runs}
    theirs: dict[int, list[float]] = {count: [] for count in PEER_COUNTS if peers.available and count in runs}
    for _ in range(scale.repetitions):
        for count, costs in runs.items():
            costs.append(_run(count, scale))
            sends = _sends_of_each(count, scale)
            turn = min(sends, round(1 / max(costs[-1].sleeps, 1 / sends)))
            copies[count].append(_copies(count, turn, sends))
            if count in theirs:
                theirs[count].append(_peer_rate(count, scale))
    figures, most = [], max(runs)
    for count, costs in runs.items():
        path = f"`send`, Atari, {count} producer{'s' * (count > 1)}"
        steady, first = [c.steady for c in costs], [c.first for c in costs]
        crowd = count == most > 2
        few = runs[2] if count != 2 else []
        figures += [
            Figure(f"{path}: CPU time", "µs", steady, "2 producers", [c.steady for c in few], _floor(crowd, 1.5)),
            Figure(
                f"Copies alone, in turns, Atari, {count} process{'es' * (count > 1)}: CPU time",
                "µs",
                copies[count],
                "2 processes",
                copies[2] if count != 2 else [],
            ),
            Figure(f"{path}: CPU time of the first {FIRST:,}", "µs", first, "later", steady, _floor(crowd, 2.0)),
            Figure(
                f"{path}: sleeps",
                "a sample",
                [c.sleeps for c in costs],
                floor=Floor(0.05, of="value") if crowd else None,
            ),
            Figure(
                f"{path}: the learner's CPU time for a batch",
                "µs",
                [c.learner for c in costs],
                "2 producers",
                [c.learner for c in few],
                _floor(crowd, 1.5),
            ),
            Figure(f"{path}: page tables", "MB", [c.page_tables for c in costs]),
            Figure(path, "samples/s", [c.rate for c in costs], "id-echo", theirs.get(count, ())),
        ]
    return figures


def _floor(wanted: bool, bound: float) -> Floor | None:
    return Floor(bound) if wanted else None
