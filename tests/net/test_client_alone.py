"""A client whose server misbehaves: it soon says what happened to its samples, and ends when it is told to."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import ssl
import threading
import time
from unittest import mock

import numpy as np
import pytest
from harness.peers import EXAMPLE, sample
from harness.pretender import RING, Visit
from harness.waiting import until

from echo_shm import ConnectionClosedError, SpecMismatchError, TcpClient, WireError
from echo_shm.net import wire
from echo_shm.net.client import connection
from echo_shm.net.client.backoff import Backoff
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


def test_close_while_others_send(pretend, client):
    """When another thread closes, a sample whose send() returned is delivered, or close() says that it is not."""
    for _ in range(20):
        host = pretend(Visit.take_all)
        one, sent = client(host), [0, 0]

        def work(who, one=one, sent=sent):
            with contextlib.suppress(ConnectionClosedError):
                while True:
                    one.send(sample(who))
                    sent[who] += 1

        threads = [threading.Thread(target=work, args=(who,)) for who in (0, 1)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        one.close()
        for thread in threads:
            thread.join(20)
        assert one._sender.acknowledged == one._sender.sent() == sum(sent)
        host.close()


def test_close_while_connecting(pretend):
    """close() does not wait for a connect that gets no answer."""
    host = pretend(lambda visit: visit.accept(known=True) if visit.number == 0 else time.sleep(60))
    one = TcpClient("127.0.0.1", host.port, EXAMPLE)
    one._timeout = 0.2
    one.send(sample(0))
    until(lambda: len(host.visits) > 1)
    with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
        one.close()
    assert one._sender._send_thread.is_alive()
    host.close()
    one._sender._send_thread.join(20)
    assert not one._sender._send_thread.is_alive()


def test_ctrl_c_in_close(pretend, client, background):
    """Ctrl-C in close() gives up what is not delivered: no thread waits or runs afterwards."""

    def play(visit):
        visit.accept()
        time.sleep(60)

    one = client(pretend(play))
    one.send(sample(0))

    def interrupt():
        until(lambda: one._sender._flushing)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.close()
    interrupting.result()
    one.close()
    one._sender._send_thread.join(20)
    assert not one._sender._send_thread.is_alive()
    with pytest.raises(ConnectionClosedError, match="is closed"):
        one.send(sample(1))


def test_collected_in_its_own_thread(pretend):
    """A client that is collected in its own sending thread does not wait there for that thread."""
    one = TcpClient("127.0.0.1", pretend(Visit.take_all).port, EXAMPLE)
    its, one.me = one._sender, one
    take = its._lease_full

    def take_after_collecting(*args):
        gc.collect()
        take(*args)

    one.send(sample(0))
    del one
    its._lease_full = take_after_collecting
    its.wake()
    until(its.ended.is_set)
    assert its.acknowledged == its.sent() == 1


def test_how_patience_ends(monkeypatch):
    """Pauses between tries grow; a connection of use starts the time again, a mere connection does not."""
    clock = itertools.count(1000).__next__
    monkeypatch.setattr("echo_shm.net.client.backoff.time", mock.Mock(monotonic=lambda: clock()))
    backoff = Backoff(10)
    assert backoff.time_left() <= 0
    backoff.restart(useful=False)
    assert backoff.time_left() == 9
    pauses = [backoff.next_delay() for _ in range(9)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0, 1)
    backoff.restart(useful=False)
    assert backoff.time_left() == 8
    assert backoff.next_delay() == 1
    backoff.restart(useful=True)
    assert backoff.time_left() == 9
    assert backoff.next_delay() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": None}, "host=None: use a name or an address"),
        ({"host": "x" * 70}, "use a valid name or address"),
        ({"port": "50051"}, "port='50051': use an integer from 1 to 65535"),
        ({"port": 0}, "port=0: use an integer"),
        ({"port": True}, "port=True: use an integer"),
        ({"max_inflight_msgs": 0}, "max_inflight_msgs=0: use an integer"),
        (
            {"authkey": "a key of characters"},
            r"authkey is of type str: use at least 16 bytes, for instance authkey\.encode\(\)",
        ),
        ({"authkey": b"short"}, "authkey has 5 bytes: use at least 16"),
        ({"tls": True}, r"tls=True: use an ssl\.SSLContext\(ssl\.PROTOCOL_TLS_CLIENT\)"),
        ({"reconnect": float("nan")}, "reconnect=nan: use seconds"),
        ({"reconnect": -1}, "reconnect=-1: use seconds, more than 0, or True or False"),
        ({"reconnect": None}, "reconnect=None: use seconds, more than 0, or True or False"),
        ({"timeout": 0}, "timeout=0: use seconds, more than 0, or None"),
        ({"timeout": "1"}, "timeout='1': use seconds"),
    ],
)
def test_impossible_arguments(options, message):
    """Impossible arguments are refused before the client connects, with what was got and what is possible."""
    with pytest.raises(ValueError, match=message):
        TcpClient(**{"host": "127.0.0.1", "port": 1, "data_sample": EXAMPLE, **options})


def test_times_without_end(pretend):
    """Infinite times are possible: there is no timeout then."""
    with TcpClient(
        "127.0.0.1", pretend(Visit.take_all).port, EXAMPLE, timeout=float("inf"), reconnect=float("inf")
    ) as one:
        one.send(sample(0))
        one.wait()


def test_keys_are_not_shown():
    """Neither a client's nor a bridge's settings show the key when they are printed."""
    from echo_shm.net.bridge.bridge import Settings
    from echo_shm.spec import Spec

    key = b"this is the key!"
    assert "this" not in repr(connection.Options("h", 1, Spec.from_example(EXAMPLE), b"c" * 16, key, None))
    assert "this" not in repr(Settings(key, 2, 3))
