"""TLS from the client's side: lost and stalled connections are noticed, as without TLS."""

import contextlib
import itertools
import os
import select
import selectors
import socket
import ssl
import time
from unittest import mock

import numpy as np
import pytest
from harness.peers import EXAMPLE, sample
from harness.pretender import Pretender
from harness.threads import Background
from harness.waiting import LONG, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_shm import TcpClient
from echo_shm.net import wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import DecoderV1
from echo_shm.net.client.tls_stream import TlsStream
from echo_shm.net.tcp import ON_ONE_HOST


@pytest.fixture
def pretend(tls):
    """Makes pretenders with TLS; a connection for which ``before(visit)`` is false ends before its handshake."""
    with contextlib.ExitStack() as stack:

        def make(play, before=lambda visit: True):
            def play_over_tls(visit):
                if before(visit):
                    visit.sock = tls[0].wrap_socket(visit.sock, server_side=True)
                    with visit.sock:
                        play(visit)

            host = Pretender(EXAMPLE, play_over_tls)
            stack.callback(host.close)
            return host

        yield make


def test_lost_in_the_handshake(pretend, tls):
    """A connection that ends in its TLS handshake is a lost one: the client tries again."""

    def play(visit):
        visit.accept(known=True)
        if visit.number > 0:
            visit.acknowledge_all()

    host = pretend(play, before=lambda visit: visit.number != 1)
    with TcpClient("localhost", host.port, EXAMPLE, tls=tls[1]) as one:
        one.send(sample(0))
        one.wait(20)
    assert len(host.visits) == 3


def test_half_a_record(pretend, tls, monkeypatch):
    """A server that stops in the middle of a TLS record counts as silent, and is given up."""
    monkeypatch.setattr(wire, "SILENCE", 0.3)

    def play(visit):
        visit.accept(known=True)
        socket.socket.send(visit.sock, b"\x17\x03\x03\x00\x40abc")
        time.sleep(60)

    host = pretend(play)
    one = TcpClient("localhost", host.port, EXAMPLE, tls=tls[1])
    until(lambda: len(host.visits) > 3)
    host.close()
    one._sender.abandon()


def test_both_ways_at_once(serve, tls, background):
    """Megabytes of samples go while acknowledgements come; a full ring blocks neither thread inside TLS."""
    example = np.zeros(1000, np.uint64)
    server = serve(100, 4, example, tls=tls[0])
    block = np.repeat(np.arange(6_000, dtype=np.uint64), 1000).reshape(-1, 1000)
    with TcpClient("localhost", server.port, example, tls=tls[1]) as one:
        sending = background(one.send_many, block)
        got = []
        for turn in range(60):
            if turn % 20 == 10:
                time.sleep(0.3)  # the ring fills
            got += server.sample(timeout=20).batch[:, 777].tolist()
        sending.result()
        one.wait(20)
    assert got == list(range(6_000))


def test_one_time_for_all_addresses():
    """timeout= bounds connecting as a whole, however many addresses of a host do not answer."""
    with contextlib.ExitStack() as stack:
        addresses, port = [], 0
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            listener = stack.enter_context(socket.socket())
            listener.bind((host, port))
            listener.listen(0)
            port = listener.getsockname()[1]
            for _ in range(4):  # until there is no room for one more
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, port))
            addresses.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)))
        started = time.monotonic()
        with (
            mock.patch("socket.getaddrinfo", return_value=addresses),
            pytest.raises(TimeoutError, match="does not answer"),
        ):
            TcpClient("many", port, EXAMPLE, timeout=3)
        assert time.monotonic() - started < 6


def test_the_next_address_serves(serve):
    """When nothing listens at an address, the next one is tried."""
    server = serve(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    good = ("127.0.0.1", server.port)
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (nobody, good)]
    with (
        mock.patch("socket.getaddrinfo", return_value=addresses),
        TcpClient("many", server.port, EXAMPLE, timeout=20) as one,
    ):
        one.send(sample(3))
        one.wait()
    assert server.sample(timeout=20).batch["n"].tolist() == [3]


@contextlib.contextmanager
def connected(tls, **options):
    """A bridge's connection after its handshake, and its client's socket."""
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        for name, value in options.items():
            one.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    ours.setblocking(False)
    shaking = Background(lambda: tls[1].wrap_socket(theirs, server_hostname="localhost"))
    with ours:
        connection = Connection(ours, "a client", mock.create_autospec(DecoderV1), 0.0, tls[0])
        until(connection.shake_hands)
        with shaking.result() as client:
            yield connection, client


@pytest.mark.parametrize("then", ["a frame", "an end"])
def test_a_batch_that_must_wait(tls, then):
    """A batch that was sent in part goes on, whatever there is to say meanwhile; and all of it comes once."""
    with connected(tls) as (connection, learner):
        frame = b"f" * 20
        sent = [number.to_bytes(20, "big") * size for number, size in enumerate((1_000, 100_000, 1_000))]
        for number, data in enumerate(sent):
            connection.add_batch(number, [memoryview(data)])
        connection.send()
        assert connection.is_mid_batch  # the socket is full
        if then == "a frame":
            connection.out += frame
        else:
            connection.start_closing(frame, 0.0)
            sent.pop()
        came, expected = bytearray(), b"".join(sent[:2]) + frame + b"".join(sent[2:])
        learner.settimeout(30)
        while len(came) < len(expected):
            with contextlib.suppress(ssl.SSLWantReadError):
                came += learner.recv(1 << 16)
            connection.send()
        assert came == expected


SIZES = st.lists(st.sampled_from([1, 7, 500, 16000, 16384, 33000]), min_size=1, max_size=12)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(leaves=st.lists(SIZES, min_size=1, max_size=4), spaces=SIZES)
def test_batches_of_leaves_of_any_size(tls, leaves, spaces):
    """The other side gets their bytes, in whatever spaces it wants them, also where the socket is full meanwhile."""
    with connected(tls, SO_SNDBUF=4096) as (connection, learner):
        stream, random, expected = TlsStream(learner), np.random.default_rng(0), b""
        for number, sizes in enumerate(leaves):
            views = [memoryview(random.bytes(size)) for size in sizes]
            connection.add_batch(number, views)
            expected += b"".join(views)
        came, wanted, end = b"", itertools.cycle(spaces), time.monotonic() + LONG
        while len(came) < len(expected) and time.monotonic() < end:
            connection.send()
            some = [bytearray(next(wanted)) for _ in range(3)]
            with contextlib.suppress(TimeoutError):
                n = stream.read_into([memoryview(one) for one in some], 0.0)
                came += b"".join(some)[:n]
        assert came == expected
        assert connection.batch_bytes == 0
        assert not connection.is_mid_batch


def test_what_has_come_and_has_no_room_yet(tls):
    """It is decrypted later, although the socket has nothing to say of it."""
    with connected(tls) as (connection, client):
        connection.decoder.space.side_effect = lambda: memoryview(bytearray(10_000))
        client.sendall(bytes(50_000))
        ready = [(connection.receive(), connection.has_unread) for _ in range(6)]
        assert ready == [(10_000, True)] * 5 + [(None, False)]
        assert not select.select([connection.sock], [], [], 0)[0]


@pytest.mark.parametrize("then", ["it says no more", "it is no TLS any more", "it is killed, and has not read"])
def test_what_came_before_the_end(tls, then):
    """It is had first, whatever comes behind it."""
    with connected(tls) as (connection, client):
        connection.decoder.space.side_effect = lambda: memoryview(bytearray(1000))
        connection.add_batch(0, [memoryview(bytes(1 << 20))])
        connection.send()
        client.sendall(bytes(100))
        if then == "it says no more":
            with contextlib.suppress(OSError):
                client.settimeout(0)
                client.unwrap()
        elif then == "it is no TLS any more":
            os.write(client.fileno(), b"no record" * 100)
        else:
            client.close()
        assert connection.receive() == 100
        assert connection.has_unread == (then != "it is killed, and has not read")
        if then == "it is killed, and has not read":
            with pytest.raises(ConnectionResetError):
                connection.receive()
        else:
            assert connection.receive() == 0


def test_what_tls_answers_by_itself(tls):
    """Nothing is read while the client does not read that."""
    with connected(tls) as (connection, client):
        connection.decoder.space.side_effect = lambda: memoryview(bytearray(1000))
        connection.add_batch(0, [memoryview(bytes(1 << 20))])
        connection.send()
        client.sendall(bytes(100))
        assert connection.events == selectors.EVENT_READ | selectors.EVENT_WRITE
        connection._tls._made.write(bytes(1 << 18))
        assert connection.events == selectors.EVENT_WRITE
        assert (connection.receive(), connection.has_unread) == (None, False)


def test_a_client_of_an_old_tls(tls, monkeypatch):
    """It is told why it is refused."""
    monkeypatch.setattr(tls[0], "minimum_version", ssl.TLSVersion.TLSv1_3)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with ours, theirs:
        connection = Connection(ours, "a client", mock.create_autospec(DecoderV1), 0.0, tls[0])
        shaking = Background(old.wrap_socket, theirs)
        with pytest.raises(ssl.SSLError, match=r"(?i)unsupported protocol"):
            until(connection.shake_hands)
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            shaking.result()


@contextlib.contextmanager
def streams(tls):
    """The socket of one side, and the stream of the other."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        theirs = socket.create_connection(listener.getsockname())
        shaking = Background(lambda: tls[1].wrap_socket(theirs, server_hostname="localhost"))
        ours = stack.enter_context(tls[0].wrap_socket(listener.accept()[0], server_side=True))
        learner = stack.enter_context(shaking.result())
        stream = TlsStream(learner)
        # The server's tickets come first.
        ours.sendall(b"x")
        assert stream.receive(1, LONG) == b"x"
        yield ours, learner, stream


MUCH, SOME = 600_000, 100_000


def test_a_thread_that_waits_for_much_is_not_woken_for_each_packet(tls, monkeypatch):
    """It sleeps until as much has come as may wait in a connection."""
    monkeypatch.setattr("echo_shm.net.client.tls_stream._PATIENCE", 10 * LONG)
    with streams(tls) as (ours, learner, stream):
        space = memoryview(bytearray(MUCH))
        waiting = Background(stream.receive_into, space, None, MUCH)
        until(lambda: learner.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == ON_ONE_HOST)
        ours.sendall(b"a" * SOME)
        time.sleep(0.1)  # one that is woken too soon returns meanwhile
        assert waiting.runs
        ours.sendall(b"b" * (MUCH - SOME))
        assert waiting.result() > SOME


def test_what_has_come_does_not_wait_for_the_rest(tls):
    """The rest may come late, or never. Who does not wait gets it, too."""
    with streams(tls) as (ours, _, stream):
        space = memoryview(bytearray(MUCH))
        with mock.patch.object(stream, "_await", wraps=stream._await) as awaited:
            waiting = Background(stream.receive_into, space, LONG, MUCH)
            until(lambda: awaited.called)
        ours.sendall(b"a" * 10)
        assert waiting.result() == 10
        ours.sendall(b"b" * 10)
        came = []
        while not came:
            with contextlib.suppress(TimeoutError):
                came.append(stream.receive_into(space, 0.0, MUCH))
        assert came == [10]


@pytest.mark.parametrize("what", ["a few bytes", "the end"])
def test_what_wakes_a_thread_that_waits(tls, monkeypatch, what):
    """A few bytes do, once no more are awaited, and the end of the connection does in any case."""
    monkeypatch.setattr("echo_shm.net.client.tls_stream._PATIENCE", 10 * LONG)
    with streams(tls) as (ours, _, stream):
        stream._await(SOME)
        expected = MUCH if what == "the end" else 0
        with mock.patch.object(stream, "_wait", wraps=stream._wait) as waits:
            waiting = Background(stream.receive_into, memoryview(bytearray(MUCH)), None, expected)
            until(lambda: waits.called)
            ours.sendall(b"a")
            if what == "the end":
                ours.close()
            assert waiting.result() == 1
