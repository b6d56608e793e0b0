"""Clients that come again, and what a bridge tells them: places, numbers, acknowledgements, heartbeats."""

import contextlib
import socket
import struct
import threading
import time
from unittest import mock

import numpy as np
import pytest
from harness.peers import EXAMPLE, connected, exactly, greet, numbers, raw, said, sample
from harness.waiting import until

from echo_shm import Server, TcpClient
from echo_shm.net import wire
from echo_shm.net.bridge import bridge as bridge_module
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.net.wire import Hello
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment


def test_clients_that_come_again(serve):
    """A client that was connected before is refused like others: there are never more clients than allowed."""
    server = serve(1, max_connections=3)
    for turn in range(2):
        accepted, socks = 0, []
        for i in range(12):
            sock = raw(server)
            socks.append(sock)
            header, _ = greet(server, sock, bytes([i + 1]) * 16)
            accepted += header.kind is wire.Frame.ACCEPT
            if turn == 0:
                sock.close()
                until(lambda: connected(server) == 0)
        for sock in socks:
            sock.close()
        assert accepted == (12, 3)[turn]
        until(lambda: connected(server) == 0)


def test_places_of_the_lost(serve, client, in_bridges):
    """A connection that is reset while its samples wait for a full ring gives its place up."""
    in_bridges("from echo_shm.net import wire; wire.HEARTBEAT = 0.5")  # a beat to a lost client fails
    server = serve(1, 2, max_connections=4)
    socks = [raw(server) for _ in range(4)]
    for i, sock in enumerate(socks):
        greet(server, sock, bytes([i + 1]) * 16)
        sock.sendall(wire.samples_header(100, 0) + bytes(3200))
    until(lambda: connected(server) == 4)
    time.sleep(0.2)
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    until(lambda: connected(server) == 0)
    client(server)


def test_a_client_that_comes_twice(serve):
    """A client that connects again has lost its old connection, known to the bridge or not; the old one ends."""
    server = serve(1, 10)
    with raw(server) as old, raw(server) as new:
        greet(server, old)
        old.sendall(wire.samples_header(1, 0) + struct.pack("<q6f", 0, *[0.0] * 6) + wire.samples_header(1, 1)[:9])
        exactly(old, wire.HEADER_BYTES)
        header, _ = greet(server, new)
        assert header.number == 1
        assert said(old) == b""
        old.close()
        for n in range(1, 6):
            new.sendall(wire.samples_header(1, n) + struct.pack("<q6f", n, *[float(n)] * 6))
            while (told := exactly(new, wire.HEADER_BYTES)) == wire.ack(n):  # a server may repeat an acknowledgement
                pass
            assert told == wire.ack(n + 1)
            time.sleep(0.02)
    assert [numbers(server.sample(timeout=20).batch) for _ in range(6)] == [[n] for n in range(6)]


def test_a_client_that_was_forgotten(serve, monkeypatch):
    """A client in doubt whose place went to another is told so each time it connects."""
    monkeypatch.setattr("echo_shm.ring.transports._REMOTES", 16)  # the least number of places
    server = serve(1, 40, max_connections=1)
    mine, entries = server._segment.uuid, server._segment.geometry.max_remotes
    with raw(server) as sock:
        greet(server, sock)
        sock.sendall(wire.samples_header(1, 0) + bytes(32))
        assert exactly(sock, wire.HEADER_BYTES) == wire.ack(1)
    with raw(server) as sock:
        header, _ = greet(server, sock, doubt=mine)
        assert (header.kind, header.number) == (wire.Frame.ACCEPT, 1)
    for i in range(entries):
        with raw(server) as sock:
            assert greet(server, sock, b"%016d" % i)[0].kind is wire.Frame.ACCEPT
        until(lambda: connected(server) == 0)
    for _ in range(3):
        with raw(server) as sock:
            header, text = greet(server, sock, doubt=mine)
            assert (header.kind, header.number) == (wire.Frame.REFUSE, wire.Refusal.FORGOTTEN)
            assert text == b"it was forgotten, and samples of it may be in the ring"
    with raw(server) as sock:  # in doubt of another ring it is accepted
        assert greet(server, sock, doubt=b"o" * 16)[0].kind is wire.Frame.ACCEPT


def test_acknowledgements_of_tiny_samples():
    """A version 1 client that does not read its acknowledgements is not read from, and not ended."""
    count = 4 << 20
    with Server(np.zeros((), np.uint8), 1 << 16, num_buffers=4) as server, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # as on a real network
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 1, 8), None)
        greeting = wire.greeting_v1(server._segment.spec)
        with socket.create_connection(listener.getsockname(), timeout=20) as sock:
            sock.setblocking(False)
            left, heard = memoryview(bytes(count)), bytearray()

            def turn():
                nonlocal left
                with contextlib.suppress(BlockingIOError):
                    left = left[sock.send(left) :] if left else left
                bridge.run_once(0.001)
                with contextlib.suppress(TimeoutError):
                    server.sample(timeout=0)
                return max((len(client.out) for client in bridge._clients), default=0)

            def came():
                return RingView(Segment.attach(server.name, read_only=True)).remotes()[0].bytes

            while turn() <= 1 << 16:
                pass
            before = came()
            for _ in range(50):
                turn()
            assert came() == before < count
            while len(heard) < len(greeting) + count:
                turn()
                with contextlib.suppress(BlockingIOError):
                    while chunk := sock.recv(1 << 16):
                        heard += chunk
                assert bridge._clients
            assert heard == greeting + wire.ACK_V1 * count
        while bridge._clients:
            bridge.run_once(0.01)
        bridge.close()


def test_samples_that_are_there_already(serve):
    """Samples of a frame that the ring has already do not go there again; the rest does."""
    server = serve(6, 2)
    with raw(server) as sock:
        greet(server, sock)
        for first, count in ((0, 4), (1, 3), (1, 5)):
            x = np.repeat(np.arange(first, first + count, dtype=np.float32), 6)
            data = np.arange(first, first + count).tobytes() + x.tobytes()
            sock.sendall(wire.samples_header(count, first) + data)
        acknowledged = []
        while 6 not in acknowledged:
            acknowledged.append(wire.read_server_header(exactly(sock, wire.HEADER_BYTES)).number)
        assert set(acknowledged) <= {4, 6}  # 6 alone, when all three came at once
    assert numbers(server.sample(timeout=20).batch) == list(range(6))


@pytest.mark.parametrize("end", [b"", wire.bye(50)])
def test_a_client_that_only_reads_on(serve, end):
    """A client that ends its sending, with or without a BYE, and goes on reading, is told what arrived."""
    server = serve(1, 60)
    with raw(server) as sock:
        greet(server, sock)
        sock.sendall(wire.samples_header(50, 0) + bytes(50 * 32) + end)
        sock.shutdown(socket.SHUT_WR)
        told = said(sock)
    assert told.endswith(wire.ack(50))
    assert not told.replace(wire.ack(50), b"").replace(wire.ack(0), b"")  # a server may repeat an acknowledgement


def test_many_small_frames():
    """However many frames of one client a bridge has received, it serves the others in between."""
    with Server(EXAMPLE, 1) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 2, 8), None)
        bridge.run_once(0)
        evil, good = (socket.create_connection(listener.getsockname(), timeout=20) for _ in range(2))
        with evil, good:
            for sock, client_id, number in ((evil, b"e" * 16, 2**40), (good, b"g" * 16, 0)):
                sock.sendall(Hello(client_id, number, bytes(32), wire.spec_hash(bridge._spec.schema)).to_bytes())
            while len(bridge._clients) < 2:
                bridge.run_once(0.1)
            evil.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    evil.sendall((wire.samples_header(1, 0) + bytes(32)) * 1000)
            good.sendall(wire.samples_header(1, 0) + bytes(32))
            with mock.patch.object(bridge._ingest, "put", wraps=bridge._ingest.put) as take:
                bridge.run_once(0.1)
                bridge.run_once(0.1)
            assert server.sample(timeout=0) is not None
            assert 2 <= take.call_count < 1000
        while bridge._clients:
            bridge.run_once(0.1)
        bridge.close()


def test_a_quiet_server_beats(monkeypatch):
    """While a ring is full a bridge repeats that it is there: its clients wait, and do not give it up."""
    monkeypatch.setattr(wire, "HEARTBEAT", 0.1)
    monkeypatch.setattr(bridge_module, "_CHECK_EVERY", 0.05)
    with Server(EXAMPLE, 1, num_buffers=2) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 2, 8), None)
        serving = threading.Thread(target=bridge.run)
        serving.start()
        with TcpClient("127.0.0.1", port, EXAMPLE) as one:
            for n in range(10):
                one.send(sample(n))
            first = one._sender._connection
            for _ in range(3):
                first.heard = False
                until(lambda: first.heard)
            assert one._sender._connection is first
            assert [numbers(server.sample(timeout=20).batch) for _ in range(10)] == [[n] for n in range(10)]
            one.wait()
        bridge._stopping = True
        serving.join(20)
        assert not serving.is_alive()
