"""What TCP gives anybody between two nodes: ``python -m bench.ray_bare send|take HOST PORT NBYTES [CERTIFICATE]``.

The program connects, over TLS if there is a certificate to trust. One that sends has as many different blocks as a
replay's learner has under way, one after the other, until the connection ends. Whoever receives puts each block into
another memory. One that takes answers each block with a byte.
"""

import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import ray_copy
from bench.ray_cost import busy_seconds, say_cost
from echo_shm.net.pem import server_context
from echo_shm.net.tcp import set_options

#: Starts a program on a node.
Start = Callable[..., Any]

#: Different blocks.
_BLOCKS = 5

_ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def _accepted(what: str, host: str, starts: Sequence[Start], nbytes: int, tls: bool) -> Iterator[list[socket.socket]]:
    """The connections of programs, one from each way to start one."""
    from echo_shm.adapters.ray.keys import Keys

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((host, 0), backlog=len(starts)))
        words = [sys.executable, "-m", "bench.ray_bare", what, host, str(listener.getsockname()[1]), str(nbytes)]
        keys = Keys.make()
        if tls:
            trusted = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".pem"))
            trusted.write(keys.certificate)
            trusted.flush()
            words.append(trusted.name)
        for start in starts:
            stack.callback(_end, start(*words, cwd=_ROOT))
        connections = []
        for _ in starts:
            connection = stack.enter_context(listener.accept()[0])
            set_options(connection)
            if tls:
                connection = stack.enter_context(server_context(keys.pem()).wrap_socket(connection, server_side=True))
            connections.append(connection)
        yield connections


def _end(sender: "subprocess.Popen[str]") -> None:
    sender.kill()
    sender.wait()


def rate(host: str, start: Start, nbytes: int, seconds: float, tls: bool, copies: int = 0) -> float:
    """Bytes a second.

    Args:
        host: Where this process listens.
        start: Starts a program on the other node, as :meth:`harness.ray_cluster.Node.run`.
        nbytes: Of a block.
        seconds: How long it is measured, after as long again.
        tls: Whether they are encrypted.
        copies: How many times another process copies as many bytes as each block has.

    """
    spaces = [memoryview(np.zeros(nbytes, np.uint8)) for _ in range(_BLOCKS + 1)]
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(ray_copy.beside(nbytes, copies)) if copies else lambda: None
        (connection,) = stack.enter_context(_accepted("send", host, [start], nbytes, tls))
        begun, start_at, busy, count = time.perf_counter(), 0.0, 0.0, 0
        while True:
            for space in spaces:
                at = 0
                while at < nbytes:
                    at += connection.recv_into(space[at:])
                tell()
                now = time.perf_counter()
                count += start_at > 0
                if start_at and now - start_at >= seconds:
                    say_cost(busy, count)
                    return count * nbytes / (now - start_at)
                if not start_at and now - begun >= seconds:
                    start_at, busy = now, busy_seconds()


def fan_out(host: str, starts: Sequence[Start], nbytes: int, times: int, tls: bool) -> list[float]:
    """Seconds until so many bytes are on each of several nodes, sent to all at once by threads of this process."""
    data, took = memoryview(np.full(nbytes, 1, np.uint8)), []

    def one(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.recv(1)

    with _accepted("take", host, starts, nbytes, tls) as connections, ThreadPoolExecutor(len(starts)) as threads:
        for _ in range(times + 1):
            start = time.perf_counter()
            list(threads.map(one, connections))
            took.append(time.perf_counter() - start)
    return took[1:]


def _send(connection: socket.socket, nbytes: int) -> None:
    blocks = [memoryview(np.full(nbytes, i, np.uint8)) for i in range(_BLOCKS)]
    while True:
        for block in blocks:
            connection.sendall(block)


def _take(connection: socket.socket, nbytes: int) -> None:
    space = memoryview(np.zeros(nbytes, np.uint8))
    while True:
        at = 0
        while at < nbytes:
            if not (count := connection.recv_into(space[at:])):
                return
            at += count
        connection.sendall(b"x")


def _main(what: str, host: str, port: str, nbytes: str, certificate: str = "") -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port))))
        set_options(connection)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version, context.check_hostname = ssl.TLSVersion.TLSv1_3, False
            context.load_verify_locations(certificate)
            connection = stack.enter_context(context.wrap_socket(connection))
        {"send": _send, "take": _take}[what](connection, int(nbytes))


if __name__ == "__main__":
    _main(*sys.argv[1:])
