"""id-echo, set up as its README shows: a TCP client in each worker process, a server in the learner."""

import contextlib
import importlib.util
import logging
import multiprocessing
from collections.abc import Iterator
from typing import Any

from bench.samples import SAMPLES

available = importlib.util.find_spec("echo") is not None


def _send_for_ever(port: int, name: str) -> None:
    from echo import ConnectionClosedError, TcpClient

    logging.disable()  # that the connection ends is no news
    sample: Any = SAMPLES[name]()
    client = TcpClient("127.0.0.1", port, sample)
    with contextlib.suppress(ConnectionClosedError):
        while True:
            client.send(sample)


@contextlib.contextmanager
def batches(name: str, batch_size: int, num_buffers: int, workers: int) -> Iterator[Iterator[Any]]:
    """What ``dataset_iter`` gives while worker processes send one sample as fast as they can."""
    from echo import Server, TcpTransport

    server = Server(SAMPLES[name](), batch_size, transport=TcpTransport(port=0), num_buffers=num_buffers)
    server.start()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_send_for_ever, args=(server.port, name), daemon=True) for _ in range(workers)]
    try:
        for process in processes:
            process.start()
        yield server.dataset_iter()
    finally:
        server.close()
        for process in processes:
            process.kill()
            process.join()


def in_process(name: str, batch_size: int, num_buffers: int) -> Any:
    """A server without a transport, fed by ``submit()``."""
    from echo import Server

    return Server(SAMPLES[name](), batch_size, num_buffers=num_buffers)
