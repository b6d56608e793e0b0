"""A client whose server misbehaves: it soon says what happened to its samples, and ends when it is told to."""

import socket
import ssl
import threading
import time

import numpy as np
import pytest
from harness.peers import EXAMPLE, sample
from harness.pretender import RING
from harness.waiting import until

from echo_shm import ConnectionClosedError, SpecMismatchError, TcpClient, WireError
from echo_shm.net import wire
from echo_shm.net.client import connection
from echo_shm.net.wire import Refusal

BIG = np.zeros(1 << 22, np.uint8)

_LONG_REFUSAL = b"\x02\0\0\0\xff\xff\xff\x7f" + bytes(8)


def test_a_server_that_takes_nothing(pretend, client):
    """A client that is accepted and dropped again and again gives up in time, and does not connect without pauses."""
    host = pretend(lambda visit: visit.accept(known=True))
    one = client(host, reconnect=1.5)

    def deliver():
        one.send(sample(0))
        one.wait()

    with pytest.raises(ConnectionClosedError, match=r"not made again within 1\.5 s"):
        deliver()
    assert 3 <= len(host.visits) < 30


def test_a_server_that_has_no_room(pretend, client):
    """A connection on which the server said something renews the client's patience, though nothing was acknowledged."""

    def play(visit):
        visit.accept(known=True)
        time.sleep(0.2)
        visit.sock.sendall(wire.ack(0))
        time.sleep(1.2)

    host = pretend(play)
    one = client(host, reconnect=1, timeout=5)
    one.send(sample(0))
    until(lambda: len(host.visits) >= 3, "it has connected again, and again")
    with pytest.raises(TimeoutError):
        one.wait(0.5)
    one._timeout = 0.1  # of its close()


def test_a_server_that_drips(pretend):
    """timeout= bounds the whole handshake, however slowly its bytes come."""

    def drip(visit):
        for byte in visit.greeting.to_bytes():
            visit.sock.sendall(bytes([byte]))
            time.sleep(0.5)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        TcpClient("127.0.0.1", pretend(drip).port, EXAMPLE, timeout=1)
    assert time.monotonic() - started < 15


def test_a_peer_that_says_nothing(pretend, monkeypatch):
    """A client soon gives up a peer that accepts connections and says nothing, or speaks another protocol."""
    monkeypatch.setattr(connection, "_FIRST_TIME", 0.5)
    host = pretend(lambda visit: time.sleep(20))
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{host.port} accepted the connection, but did not answer"):
        TcpClient("127.0.0.1", host.port, EXAMPLE)
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{host.port} does not answer: does it use TLS"):
        TcpClient("127.0.0.1", host.port, EXAMPLE, tls=ssl.create_default_context())
    port = pretend(lambda visit: visit.greet()).port
    with pytest.raises(WireError, match="does not use TLS as tls= does"):
        TcpClient("127.0.0.1", port, EXAMPLE, tls=ssl.create_default_context(), timeout=20)


def test_a_peer_that_takes_its_time(pretend, client, monkeypatch):
    """A client waits for a slow peer as long as its timeout= says."""
    monkeypatch.setattr(connection, "_FIRST_TIME", 0.2)
    client(pretend(lambda visit: (time.sleep(0.6), visit.take_all())), timeout=30).send(sample(0))


def test_nobody_there():
    """Where nothing listens, the error has the address, and what may be the reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        ConnectionRefusedError, match=rf"127\.0\.0\.1:{port}: Connection refused; is the server started"
    ):
        TcpClient("127.0.0.1", port, EXAMPLE)
    with pytest.raises(ConnectionClosedError, match=r"cannot find the host of no\.such\.host\.invalid:1"):
        TcpClient("no.such.host.invalid", 1, EXAMPLE)


def test_a_refusal_for_good(pretend, client):
    """A client that is told not to come again does not."""

    def play(visit):
        if visit.number:
            visit.refuse("you may not", Refusal.OTHER)
        visit.accept()
        visit.take()

    host = pretend(play)
    one = client(host)
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match="refused the connection: you may not"):
        one.wait()
    assert len(host.visits) == 2


def test_a_server_that_is_silent(pretend, client, monkeypatch):
    """A version 2 server that says nothing for long counts as gone, though its host answers."""
    monkeypatch.setattr(wire, "SILENCE", 0.5)

    def play(visit):
        visit.accept(committed=len(taken), known=True)
        if not taken:
            taken.append(visit.take())
        time.sleep(20)  # the connection stays

    taken = []
    host = pretend(play)
    one = client(host, reconnect=30)
    one.send(sample(0))
    until(lambda: one._in_flight_count == 0)
    assert len(host.visits) >= 2


def test_a_server_that_reads_no_more(pretend, client):
    """When a connection ends while the client is sending on it, the next one is made at once."""
    gone = threading.Event()

    def play(visit):
        visit.accept(known=True)
        if visit.number == 0:
            time.sleep(0.5)  # until the buffers in between are full
            visit.sock.shutdown(1)
            gone.wait(20)  # without closing: nothing resets the connection
        visit.acknowledge_all()

    host = pretend(play, BIG)
    one = client(host, BIG)
    for _ in range(8):
        one.send(BIG)
    started = time.monotonic()
    one.wait()
    assert time.monotonic() - started < 20
    gone.set()


def test_times_of_single_calls(pretend, client):
    """A call may have a timeout of its own, where the client has none, or a longer one."""

    def send_until_full(one):
        for _ in range(100):
            one.send(BIG, timeout=0.2)

    host = pretend(lambda visit: (visit.accept(), time.sleep(60)), BIG)
    for one in client(host, BIG, reconnect=False), client(host, BIG, reconnect=False, timeout=60):
        with pytest.raises(TimeoutError, match=r"did not take samples for 0\.2 s"):
            send_until_full(one)
        with pytest.raises(TimeoutError, match=r"did not take samples for 0\.1 s") as late:
            one.send_many(np.stack([BIG, BIG]), timeout=0.1)
        assert late.value.sent == 0
        with pytest.raises(TimeoutError, match=r"not acknowledged \d+ samples within 0\.2 s"):
            one.wait(timeout=0.2)
    host.close()


def test_a_server_that_is_busy(pretend, client):
    """A client that is told to come again does so, also when it is new."""

    def play(visit):
        if visit.number < 3:
            visit.refuse()
        visit.accept()
        number, count = visit.take()
        visit.sock.sendall(wire.ack(number + count))
        visit.sock.recv(100)

    host = pretend(play)
    one = client(host)
    one.send(sample(0))
    one.wait()
    assert len(host.visits) == 4


@pytest.mark.parametrize("refused", [False, True])
def test_a_server_that_has_forgotten(pretend, client, refused):
    """When the server has forgotten a client, the client says how many samples may not have arrived."""

    def play(visit):
        if visit.number == 0:
            visit.accept()
            visit.take()
        elif refused:
            visit.refuse("it was forgotten", Refusal.FORGOTTEN)
        else:
            visit.accept()

    host = pretend(play)
    one = client(host)
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match="has forgotten this client: 1 samples are in doubt"):
        one.wait()
    with pytest.raises(ConnectionClosedError, match="has forgotten this client"):
        one.send(sample(1))
    assert [visit.hello.doubt for visit in host.visits] == [wire.NO_RING, RING]


def test_last_words(pretend, client):
    """The samples that a server names as it ends are acknowledged; control characters in its text are not shown."""

    def play(visit):
        visit.accept()
        number, count = visit.take()
        body = b"good\n\x1b[31mbye"
        end = bytearray(wire.bye(number + count, "x" * len(body)))
        end[wire.HEADER_BYTES :] = body
        for i in range(0, len(end), 5):
            visit.sock.sendall(end[i : i + 5])
            time.sleep(0.01)
        visit.sock.recv(100)

    one = client(pretend(play))
    one.send(sample(0))
    one.wait()
    assert one._closed.wait(20)
    with pytest.raises(ConnectionClosedError, match=r"has closed: good\?\?\[31mbye$"):
        one.send(sample(1))
    one.close()  # nothing is missing


@pytest.mark.parametrize("number", [2, 2**62])
def test_acknowledgements_of_what_was_not_sent(pretend, client, number):
    """An acknowledgement of samples that were not sent ends the client."""

    def play(visit):
        visit.accept()
        visit.take()
        visit.sock.sendall(wire.ack(number))
        visit.sock.recv(100)

    one = client(pretend(play))
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match=f"acknowledged {number}, expected 0 to 1"):
        one.wait()


@pytest.mark.parametrize(
    ("play", "kind", "message"),
    [
        (lambda v: v.refuse("no\n\x1b[2Jway", Refusal.OTHER), ConnectionClosedError, r"connection: no\?\?\[2Jway$"),
        (lambda v: v.refuse("key", Refusal.KEY), WireError, "key"),
        (lambda v: v.accept(max_frame=0), WireError, "less than a sample"),
        (lambda v: (v.greet(), v.sock.sendall(_LONG_REFUSAL)), WireError, "no REFUSE frame of 2147483647 bytes"),
        (
            lambda v: (v.greet(), v.sock.sendall(wire.refuse_spec(b'{"leaves":[' + b"[" * 5000))),
            WireError,
            "schema is damaged",
        ),
        (lambda v: v.sock.sendall(b"ECHO\x01" + b"\xff" * 64), WireError, "arrays, more than"),
    ],
)  # fmt: skip
def test_lies(pretend, play, kind, message):
    """What a server says in the handshake takes little memory and time, and the error is short."""
    with pytest.raises(kind, match=message) as caught:
        TcpClient("127.0.0.1", pretend(play).port, EXAMPLE)
    assert len(str(caught.value)) < 6000


def test_a_long_name_in_a_refusal(pretend):
    """The names of a schema that is not ours are cut short."""
    schema = b'{"leaves":[{"dtype":"<f4","path":"' + b"x" * 900_000 + b'","shape":[]}],"tree":"leaf"}'
    with pytest.raises(SpecMismatchError) as caught:
        TcpClient("127.0.0.1", pretend(lambda v: (v.greet(), v.sock.sendall(wire.refuse_spec(schema)))).port, EXAMPLE)
    assert len(str(caught.value)) < 6000
