"""A client's end without a server: close(), Ctrl-C, collection; and how long it tries again."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import threading
import time
from unittest import mock

import pytest
from harness.peers import EXAMPLE, sample
from harness.pretender import Visit
from harness.waiting import until

from echo_shm import ConnectionClosedError, TcpClient
from echo_shm.net import wire
from echo_shm.net.client import connection, finalizers
from echo_shm.net.client.backoff import Backoff


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


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("limit", ["timeout", "close_timeout"])
@pytest.mark.parametrize("stuck_in", ["pause", "resolving", "connecting", "handshake", "TLS"])
def test_close_without_a_connection(pretend, tls, monkeypatch, stuck_in, limit, missing):
    """close() waits for what is missing as long as it may, and not at all for a try to connect."""
    stuck, over = threading.Event(), threading.Event()

    def wait(*_, **__):
        stuck.set()
        over.wait(60)
        raise ConnectionResetError

    def play(visit):
        if visit.number > 0:
            wait()
        if stuck_in == "TLS":
            visit.sock = tls[0].wrap_socket(visit.sock, server_side=True)
        with visit.sock:
            visit.accept(known=True)
            visit.sock.sendall(wire.ack(sum(visit.take()) - missing))

    host = pretend(play)
    options = {"tls": tls[1]} if stuck_in == "TLS" else {}
    one = TcpClient("localhost", host.port, EXAMPLE, **options, **({limit: 0.1} if limit == "close_timeout" else {}))
    if stuck_in == "resolving":
        monkeypatch.setattr(socket, "getaddrinfo", wait)
    elif stuck_in == "connecting":
        monkeypatch.setattr(socket.socket, "connect", wait)
    elif stuck_in == "pause":
        monkeypatch.setattr(Backoff, "next_delay", lambda _: stuck.set() or 60)
    one.send(sample(0))
    assert stuck.wait(20)
    thread = one._sender._send_thread
    if stuck_in != "pause":
        monkeypatch.setattr(thread, "join", None)
    expected = pytest.raises(
        ConnectionClosedError, match=r"1 samples not acknowledged: .* 0\.1 s; the connection is lost"
    )
    with expected if missing else contextlib.nullcontext():
        one.close(**({limit: 0.1} if limit == "timeout" else {}))
    assert thread.is_alive() == (stuck_in != "pause")
    over.set()
    host.close()
    until(lambda: not thread.is_alive())


def test_close_while_another_thread_closes(pretend, background):
    """The second close() has its own limit."""
    host = pretend(lambda visit: (visit.accept(), time.sleep(60)))
    one = TcpClient("127.0.0.1", host.port, EXAMPLE)
    one.send(sample(0))
    first = background(one.close, 30)
    until(lambda: one._sender._flushing)
    with pytest.raises(
        ConnectionClosedError, match=r"another thread is closing it, and has not finished within 0\.1 s"
    ):
        one.close(0.1)
    host.close()
    one._sender.abandon()
    with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
        first.result()
    one.close()


def test_the_end_of_a_process_closes_all_at_once(pretend):
    """At the end of a process, the times of clients whose server takes nothing do not add up."""
    host = pretend(lambda visit: (visit.accept(), time.sleep(60)))
    made = [TcpClient("127.0.0.1", host.port, EXAMPLE, close_timeout=2) for _ in range(20)]
    for one in made:
        one.send(sample(0))
    started = time.monotonic()
    finalizers._close_all()
    assert 2 <= time.monotonic() - started < 20
    assert all(one._sender._closed for one in made)


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
    from echo_shm.net.bridge.admission import Settings
    from echo_shm.spec import Spec

    key = b"this is the key!"
    assert "this" not in repr(connection.Options("h", 1, Spec.from_example(EXAMPLE), b"c" * 16, key, None))
    assert "this" not in repr(Settings(key, 2, 3))


def _full(serve, **options):
    """A server whose ring is full, and a client with samples that do not fit into it."""
    server = serve(2, 2)
    client = TcpClient("127.0.0.1", server.port, EXAMPLE, **options)
    for i in range(10):
        client.send(sample(i))
    until(lambda: client._in_flight_count == 6, "the ring is full")
    return server, client


def test_close_gives_up_without_progress(serve):
    """A learner that takes nothing does not keep close() for ever: it says how many samples are missing."""
    _, client = _full(serve, close_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(ConnectionClosedError, match=r"with 6 samples not acknowledged.*for 0\.5 s: the learner takes"):
        client.close()
    assert time.monotonic() - started >= 0.5
    assert not client._sender._send_thread.is_alive()  # it was not given up
    client.close()


def test_close_goes_on_while_there_is_progress(serve):
    """However long it takes in all: what counts is the time since the last acknowledgement."""
    server, client = _full(serve, close_timeout=3)
    got = []

    def take():
        for _ in range(5):
            time.sleep(1)
            got.extend(server.sample(30).batch["n"].tolist())

    taking = threading.Thread(target=take)
    taking.start()
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started > 2.5
    taking.join()
    assert got == list(range(10))


def test_close_has_a_limit_of_its_own(serve):
    """close(timeout=) limits the whole of it."""
    _, client = _full(serve)
    with pytest.raises(ConnectionClosedError, match=r"6 samples not acknowledged.*within 0\.3 s"):
        client.close(timeout=0.3)


def test_an_exception_in_the_block_is_not_hidden(serve, caplog):
    """Leaving the block by an exception closes, too; that samples are missing is logged."""

    def work():
        _, client = _full(serve, close_timeout=0.5)
        with client:
            raise LookupError("the user's own")

    with pytest.raises(LookupError, match="the user's own"):
        work()
    assert "6 samples not acknowledged" in caplog.text
