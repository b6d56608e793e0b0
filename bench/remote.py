"""Samples a second through the bridge, over loopback TCP, against id-echo's and against bare sockets.

As in :mod:`bench.throughput`: worker processes send one sample as fast as they can, the learner
counts batches in steady state, contenders take turns. The bare loop is one process that calls
``sendall`` with a sample and one that calls ``recv_into`` with a buffer of a mebibyte: what the
machine's TCP gives anybody.

A replay's learner takes batches, which lie in memory of its own: at most :data:`AHEAD` are on their way. The bare loop
beside it sends as many different batches, and receives each into another memory.
"""

import contextlib
import ctypes
import logging
import multiprocessing
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import echo_shm
from bench import peers
from bench.samples import SAMPLES, flat
from bench.scale import Scale
from bench.table import Figure, Floor
from bench.throughput import Measure, in_turns, rate
from echo_shm.net.tcp import set_options

#: Items of a replay's batch, how many batches are made ahead, and steps that the replay stores.
BATCH, AHEAD, STORED = 256, 4, 8192

#: Clients that are connected and send nothing, in the measurement of what they cost; and those that do.
IDLE, BUSY = 250, 6

_CONTEXT = multiprocessing.get_context("spawn")


def _send_for_ever(port: int, name: str) -> None:
    logging.disable()  # that the connection ends is no news
    sample = SAMPLES[name]()
    client = echo_shm.TcpClient("127.0.0.1", port, sample)
    with contextlib.suppress(echo_shm.ConnectionClosedError):
        while True:
            client.send(sample)


def _connect_and_wait(port: int, name: str, count: int, ready: Any) -> None:
    sample = SAMPLES[name]()
    clients = [echo_shm.TcpClient("127.0.0.1", port, sample) for _ in range(count)]
    ready.set()
    while clients:
        time.sleep(1)


def _remote(name: str, scale: Scale, workers: int = 1, idle: int = 0) -> Measure:
    def measure() -> float:
        logging.disable()  # of clients that are killed
        transport = echo_shm.TcpTransport(0)
        with echo_shm.Server(SAMPLES[name](), scale.batch_size, transport, scale.num_buffers) as server:
            server.start()
            with _running(_send_for_ever, [(server.port, name)] * workers), _idlers(server.port, name, idle):
                return rate(server.dataset_iter(), scale)

    return measure


@contextlib.contextmanager
def _running(target: Any, arguments: list[tuple[Any, ...]]) -> Iterator[None]:
    processes = [_CONTEXT.Process(target=target, args=args, daemon=True) for args in arguments]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def _idlers(port: int, name: str, count: int) -> Iterator[None]:
    ready = _CONTEXT.Event()
    with _running(_connect_and_wait, [(port, name, count, ready)] if count else []):
        if count and not ready.wait(60):
            raise RuntimeError(f"{count} idle clients were not connected within 60 s")
        yield


def _id_echo(name: str, scale: Scale, workers: int = 1) -> Measure:
    def measure() -> float:
        with peers.batches(name, scale.batch_size, scale.num_buffers, workers) as batches:
            return rate(batches, scale)

    return measure


def _sendall(port: int, data: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        while True:
            sock.sendall(data)


def _bare(name: str, scale: Scale) -> Measure:
    data = flat(SAMPLES[name]())

    def measure() -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with _running(_sendall, [(port, data)]), listener.accept()[0] as sock:
                buffer, total = bytearray(1 << 20), 0
                for _ in range(200):
                    sock.recv_into(buffer)
                start = time.perf_counter()
                while (elapsed := time.perf_counter() - start) < scale.seconds:
                    total += sock.recv_into(buffer)
                return total / len(data) / elapsed

    return measure


def _hold(connection: Any) -> None:
    """A process that has a replay of Atari steps, and a bridge."""
    sample = SAMPLES["atari"]()
    rng = np.random.default_rng(0)
    with echo_shm.Replay(sample, STORED, thread=True, transport=echo_shm.TcpTransport(0)) as replay:
        for _ in range(STORED // BATCH):
            replay.extend({name: _noise(rng, leaf) for name, leaf in sample.items()})
        connection.send(replay.port)
        with contextlib.suppress(EOFError):
            connection.recv()


def _noise(rng: Any, leaf: Any) -> Any:
    return rng.integers(0, 2, (BATCH, *np.shape(leaf))).astype(np.asarray(leaf).dtype)


@contextlib.contextmanager
def _held() -> Iterator[int]:
    """The port of a replay in another process, which closes it at the end: nothing of it stays in shared memory."""
    mine, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_hold, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield mine.recv()
    finally:
        mine.close()
        process.join()


def _learner(scale: Scale) -> Measure:
    """Items a second."""

    def measure() -> float:
        with _held() as port, echo_shm.ReplayClient(f"tcp://127.0.0.1:{port}") as client:
            batches = client.dataset_iter(BATCH, prefetch=AHEAD)
            for _ in range(2 * AHEAD):
                next(batches)
            count, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < scale.seconds:
                next(batches)
                count += BATCH
            batches.close()
            return count / elapsed

    return measure


def _send_batches(port: int, size: int) -> None:
    batches = [np.full(size, i, np.uint8).data for i in range(AHEAD + 1)]
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        set_options(sock)
        while True:
            for batch in batches:
                sock.sendall(batch)


def _bare_batches(scale: Scale) -> Measure:
    size = len(flat(SAMPLES["atari"]())) * BATCH

    def measure() -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with _running(_send_batches, [(port, size)]), listener.accept()[0] as sock:
                spaces = [np.zeros(size, np.uint8).data for _ in range(AHEAD + 2)]
                count, start = -2 * AHEAD, 0.0
                while True:
                    for space in spaces:
                        at = 0
                        while at < size:
                            at += sock.recv_into(space[at:])
                        count += 1
                        if count == 0:
                            start = time.perf_counter()
                        if count > 0 and (elapsed := time.perf_counter() - start) >= scale.seconds:
                            return count * BATCH / elapsed

    return measure


def remote(scale: Scale, lib: ctypes.CDLL) -> list[Figure]:
    """One client and several, small and large samples, and what idle clients cost."""
    figures = []
    for name, title, workers, floor in (
        ("cartpole", "CartPole", 1, Floor(10)),
        ("cartpole", "CartPole", max(scale.workers), Floor(10)),
        ("atari", "Atari", 1, Floor(2)),
    ):
        contenders = {"ours": _remote(name, scale, workers)}
        if name == "atari":
            contenders["bare"] = _bare(name, scale)
        if peers.available:
            contenders["id-echo"] = _id_echo(name, scale, workers)
        values = in_turns(contenders, scale.repetitions)
        path = f"`TcpClient.send`, {title}, {workers} client{'s' * (workers > 1)}"
        figures.append(Figure(path, "samples/s", values["ours"], "id-echo", values.get("id-echo", ()), floor))
        if name == "atari":
            figures.append(Figure(path, "samples/s", values["ours"], "bare sockets", values["bare"], Floor(0.7)))
    values = in_turns(
        {"with": _remote("cartpole", scale, BUSY, IDLE), "without": _remote("cartpole", scale, BUSY)}, scale.repetitions
    )
    path = f"`TcpClient.send`, CartPole, {BUSY} clients beside {IDLE} idle ones"
    figures.append(Figure(path, "samples/s", values["with"], "without those", values["without"], Floor(0.95)))
    values = in_turns({"ours": _learner(scale), "bare": _bare_batches(scale)}, scale.repetitions)
    path = f"`ReplayClient.dataset_iter({BATCH})` on another host, Atari"
    figures.append(Figure(path, "samples/s", values["ours"], "bare sockets", values["bare"], Floor(0.7)))
    return figures
