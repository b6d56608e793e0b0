"""What a bridge refuses, and which clients it does not wait for: other clients do not notice."""

import socket
import struct
import time

import numpy as np
import psutil
import pytest
from harness.peers import KEY, connected, greet, numbers, raw, said, sample
from harness.waiting import until

from echo_shm import ConnectionClosedError, SpecMismatchError, TcpClient, WireError
from echo_shm.net import wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import Decoder
from echo_shm.net.wire import Hello


def test_other_samples(serve):
    """An example that is not the server's is refused, with the first leaf that differs."""
    server = serve()
    for example, message in (
        (
            sample(0) | {"x": np.zeros((2, 3), np.int32)},
            r"got \['x'\]: int32\[2, 3\], expected \['x'\]: float32\[2, 3\]",
        ),
        (sample(0) | {"x": np.zeros((3, 2), np.float32)}, r"got \['x'\]: float32\[3, 2\]"),
        ({"n": np.zeros((), np.int64)}, "got 1 leaves, expected 2"),
        ([np.zeros((), np.int64), np.zeros((2, 3), np.float32)], "Server spec mismatch"),
    ):
        with pytest.raises(SpecMismatchError, match=message):
            TcpClient("127.0.0.1", server.port, example)


def test_other_samples_in_the_log(serve, capfd):
    """The bridge's log has the leaves of its ring in one short line, however many there are."""
    server = serve(1, example={f"leaf{i}": np.zeros(3) for i in range(100)})
    with pytest.raises(SpecMismatchError, match=r"got \['n'\]: int64\[\], expected \['leaf0'\]: float64\[3\]"):
        TcpClient("127.0.0.1", server.port, sample(0))
    server.close()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "refused" in line]
    assert "its samples are not this ring's (['leaf0']: float64[3], ['leaf1" in line
    assert len(line) < 400


def test_a_sample_that_does_not_fit(serve, client):
    """A sample of another shape raises in send(), in id-echo's words, and the client goes on."""
    server = serve(1)
    one = client(server)
    with pytest.raises(ValueError, match="Payload size"):
        one.send({"n": np.zeros((), np.int64), "x": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=rf"not that of the server at 127\.0\.0\.1:{server.port}: \['x'\] is missing"):
        one.send({"n": np.zeros((), np.int64)})
    one.send(sample(5))
    assert numbers(server.sample(timeout=20).batch) == [5]


def test_keys(serve, client):
    """Only a client that knows the key is accepted, and it accepts only a server that knows it."""
    server = serve(1, authkey=KEY)
    one = client(server, authkey=KEY)
    one.send(sample(3))
    assert numbers(server.sample(timeout=20).batch) == [3]
    with pytest.raises(WireError, match="asks for a key"):
        client(server)
    with pytest.raises(WireError, match="it does not know the authkey"):
        client(server, authkey=b"x" * 16)
    with pytest.raises(WireError, match="asks for no key, so it does not know this client's: authkey="):
        client(serve(1), authkey=KEY)


def test_garbage(serve, client):
    """A connection that does not speak the protocol is told so and closed; other clients do not notice."""
    server = serve(1)
    one = client(server)
    for data, text in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"unexpected magic b'GET ', expected b'ECHO'"),
        (b"\x00" * 200, b"unexpected magic b'\\x00\\x00\\x00\\x00', expected b'ECHO'"),
        (b"ECHO\x01" + b"\x00" * 200, b"unsupported wire version 1, expected 2"),
        (b"ECHO\x02" + b"\xff" * 200, b"unsupported wire version 2, expected 2"),
        (Hello(bytes(16), 0, bytes(32), bytes(32)).to_bytes(), b"a client's id may not be all zeros"),
        (Hello(b"i" * 16, 2**63, bytes(32), bytes(32)).to_bytes(), b"no sample has the number 9223372036854775808"),
    ):
        with raw(server) as sock:
            sock.sendall(data)
            answer = said(sock)
        assert answer[: wire.GREETING_REST + 5].startswith(b"ECHO\x02")
        assert answer[wire.GREETING_REST + 5 :] == wire.refuse(wire.Refusal.PROTOCOL, text.decode())
        one.send(sample(4))
        assert numbers(server.sample(timeout=20).batch) == [4]


def test_bad_frames(serve, client):
    """A bad frame (too long, not the next one, no frame) ends the connection; the samples before it are delivered."""
    server = serve(1)
    one = client(server)
    frames = [
        (wire.samples_header(2**31, 0), "a frame of 2147483648 samples, expected 1 to 32768"),
        (wire.samples_header(1, 99) + bytes(32), "samples from 99 on, expected from 1 on"),
        (wire.ack(1), "a client sends no ACK frame of 0 bytes"),
        (b"\xff" * 16, f"no frame starts with {b'!' * 16!r}".replace("!", "\\xff")),
    ]
    for who, (frame, text) in enumerate(frames):
        with raw(server) as sock:
            greet(server, sock, bytes([who + 1]) * 16)
            sock.sendall(wire.samples_header(1, 0) + struct.pack("<q6f", 7, *[7.0] * 6) + frame)
            assert said(sock).endswith(wire.bye(1, text))
        assert numbers(server.sample(timeout=20).batch) == [7]
        one.send(sample(4))
        assert numbers(server.sample(timeout=20).batch) == [4]


def test_half_a_frame_holds_nothing(serve, client):
    """A client that stalls or vanishes in the middle of a frame claims no slot and delays nobody."""
    server = serve(2, 1)
    stalled, vanishing = raw(server), raw(server)
    for sock in (stalled, vanishing):
        greet(server, sock)
        sock.sendall(wire.samples_header(2, 0) + bytes(33))
    vanishing.close()
    one = client(server)
    for n in range(6):
        one.send(sample(n))
    assert [numbers(server.sample(timeout=20).batch) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    stalled.close()


@pytest.mark.parametrize("processes", [1, 3])
def test_more_clients_than_allowed(serve, client, processes):
    """A client that comes when all places are taken is told so; a place that becomes free can be taken."""
    server = serve(1, max_connections=2, processes=processes)
    one, _two = client(server), client(server)
    for _ in range(3):
        with pytest.raises(ConnectionClosedError, match="too many clients: 2 are connected"):
            client(server)
    one.close()
    until(lambda: connected(server) == 1)
    client(server).send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]


def test_more_version_1_clients_than_allowed(serve, client):
    """One version 1 client too many: its connection is closed without a word."""
    server = serve(1, max_connections=1, wire_version=1)
    one = client(server)
    with raw(server) as sock:
        assert said(sock) == b""
    one.send(sample(1))
    info = server.sample(timeout=20).info
    assert (info.active_connections, info.refused_connections) == (1, 1)


def test_silent_connections(serve, client, in_bridges):
    """Connections without a hello take no client's place, however many there are, and are dropped in the end."""
    in_bridges("from echo_shm.net.bridge import bridge; bridge._HELLO_TIME = 3.0")
    server = serve(1, max_connections=1)
    silent = [raw(server) for _ in range(700)]
    client(server).send(sample(1))
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    assert len(bridge.net_connections()) < 600
    assert numbers(server.sample(timeout=20).batch) == [1]
    for sock in silent:
        assert said(sock)[:5] in (b"", b"ECHO\x02")
        sock.close()


def test_silent_connections_over_tls(serve, client, tls):
    """A client that never begins or never ends a TLS handshake costs the bridge neither time nor a place."""
    server = serve(1, max_connections=1, tls=tls[0])
    silent = [raw(server) for _ in range(20)]
    for sock in silent[10:]:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the start of a ClientHello
    one = client(server, host="localhost", tls=tls[1])
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    before, started = sum(bridge.cpu_times()[:2]), time.monotonic()
    time.sleep(1)
    assert (sum(bridge.cpu_times()[:2]) - before) / (time.monotonic() - started) < 0.5
    one.send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]
    for sock in silent:
        sock.close()


def own_memory(process):
    """Bytes of memory that a process has for itself: the ring's pages do not count."""
    info = process.memory_info()
    return info.rss - info.shared


def test_memory_is_bounded(serve):
    """A client that stalls inside the longest frame costs a bridge the memory of one frame; a refused one, nothing."""
    example = np.zeros(1 << 16, np.uint8)
    server, clients = serve(1, 2, example, max_connections=16), []
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    before = own_memory(bridge)
    for i in range(40):
        sock = raw(server)
        clients.append(sock)
        header, body = greet(server, sock, bytes([i + 1]) * 16)
        if i >= 16:
            assert header.kind is wire.Frame.REFUSE
            continue
        max_frame = wire.Accept.from_bytes(header, body, None, None, None).max_frame
        sock.sendall(wire.samples_header(max_frame >> 16, 0) + bytes(max_frame - 1))
    until(lambda: own_memory(bridge) - before > 15 * max_frame)
    grown = own_memory(bridge) - before
    for sock in clients:
        sock.close()
    assert grown < 18 * max_frame + (4 << 20)


def test_memory_before_tls(serve, tls):
    """A connection before the end of its TLS handshake does not cost the memory of a frame."""
    server, clients = serve(1, 2, np.zeros(1 << 24, np.uint8), wire_version=1, tls=tls[0]), []
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    before = own_memory(bridge)
    for _ in range(20):
        clients.append(raw(server))
    # 20 and the listener; a forked bridge may have other sockets of ours
    until(lambda: sum(one.laddr.port == server.port for one in bridge.net_connections()) == 21)
    grown = own_memory(bridge) - before
    for sock in clients:
        sock.close()
    assert grown < 1 << 24


def test_out_of_descriptors(serve, client):
    """A bridge without free descriptors serves the clients it has; a guest makes room for the next connection."""
    server = serve(1)
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    bridge.rlimit(psutil.RLIMIT_NOFILE, (bridge.num_fds() + 20, 1024))
    one = client(server)
    silent = [raw(server) for _ in range(30)]
    client(server).send(sample(0))
    assert numbers(server.sample(timeout=20).batch) == [0]
    for sock in silent:
        sock.close()
    until(lambda: len(bridge.net_connections()) == 3)  # two clients, and the listener
    bridge.rlimit(psutil.RLIMIT_NOFILE, (bridge.num_fds() + 2, 1024))
    with pytest.raises(ConnectionClosedError, match="closed the connection during the handshake"):
        client(server)
    for n in range(100):
        one.send(sample(n))
        assert numbers(server.sample(timeout=20).batch) == [n]
    bridge.rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
    client(server).send(sample(7))
    assert numbers(server.sample(timeout=20).batch) == [7]


def test_last_words_arrive(serve):
    """A client is told why it is refused, also when much unread data follows the fault."""
    server = serve(1)
    with raw(server) as sock:
        greet(server, sock)
        sock.sendall(wire.samples_header(1, 5) + bytes(1 << 19))
        data = said(sock)
    assert data.endswith(wire.bye(0, "samples from 5 on, expected from 0 on"))


def test_who_leaves_costs_nothing():
    """A connection that is refused frees its memory at once."""
    near, far = socket.socketpair()
    with near, far:
        decoder = Decoder(8, 1 << 20)
        decoder.begin()
        connection = Connection(near, "peer", decoder, 0.0)
        assert len(decoder.space()) > 1 << 20
        connection.start_closing(b"because", 1.0)
        assert len(decoder.space()) == 0
        far.sendall(bytes(1000))
        assert connection.receive() == 1000
        connection.send()
        assert said(far) == b"because"


def test_refusals_are_counted(serve, client):
    """Each connection that is ended because of what it sent counts once; those that end well do not."""
    server = serve(1)
    with pytest.raises(SpecMismatchError):
        client(server, {"n": np.zeros((), np.int64)})
    with raw(server) as sock:
        sock.sendall(b"?" * 200)
        said(sock)
    with raw(server) as sock:
        greet(server, sock)
        sock.sendall(wire.samples_header(1, 0)[:9])
        sock.shutdown(socket.SHUT_WR)
        said(sock)
    with raw(server) as sock:
        greet(server, sock)
    raw(server).close()
    with client(server) as one:
        one.send(sample(1))
    assert server.sample(timeout=20).info.refused_connections == 3


def test_a_flood_of_connects(serve, client):
    """Hundreds of connections that come and go leave nothing behind, and delay no client."""
    server = serve(1, max_connections=50)
    one = client(server)
    bridge = psutil.Process(server._transports[0]._supervisors[0].pid)
    before = bridge.num_fds()
    for turn in range(5):
        socks = [raw(server) for _ in range(100)]
        one.send(sample(turn))
        assert numbers(server.sample(timeout=20).batch) == [turn]
        for sock in socks:
            sock.close()
    until(lambda: bridge.num_fds() == before)


def test_refusals_are_logged(serve, capfd):
    """The bridge logs each connection that it refuses, with the reason."""
    server = serve(1)
    with raw(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" * 20)
        said(sock)
    server.close()
    assert "refused: unexpected magic b'GET ', expected b'ECHO'" in capfd.readouterr().err
