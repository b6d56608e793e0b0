"""Samples that say which they are, and bare sockets that speak to a bridge."""

import contextlib
import socket

import numpy as np

from echo_shm.net import wire
from echo_shm.net.wire import Hello
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment

EXAMPLE = {"n": np.zeros((), np.int64), "x": np.zeros((2, 3), np.float32)}
KEY = b"k" * 16


def sample(n):
    """A sample that says which it is, in both leaves."""
    return {"n": np.full((), n, np.int64), "x": np.full((2, 3), n, np.float32)}


def numbers(batch):
    """Which samples a batch has; each is whole."""
    assert (batch["x"] == batch["n"][:, None, None]).all()
    return batch["n"].tolist()


def connected(server):
    """How many remote clients a ring's bridges have."""
    return sum(remote.connected for remote in RingView(Segment.attach(server.name, read_only=True)).remotes())


def raw(server):
    """A bare connection."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    sock.settimeout(20)
    return sock


def said(sock):
    """Everything that comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            data += chunk
    return data


def exactly(sock, n):
    """The next n bytes."""
    data = b""
    while len(data) < n:
        chunk = sock.recv(n - len(data))
        assert chunk, f"closed after {len(data)} of {n} bytes"
        data += chunk
    return data


def greet(server, sock, client=b"i" * 16, doubt=wire.NO_RING):
    """A raw client's handshake, without a key."""
    exactly(sock, wire.GREETING_REST + 5)
    hello = Hello(client, 0, b"n" * 32, wire.spec_hash(server._segment.spec.schema), doubt)
    sock.sendall(hello.to_bytes())
    header = wire.read_server_header(exactly(sock, wire.HEADER_BYTES))
    return header, exactly(sock, header.length)
