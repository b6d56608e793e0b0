"""A client's threads wake each other, and end wherever one of them fails or is interrupted."""

import contextlib
import gc
import os
import signal
import threading
import time
from unittest import mock

import numpy as np
import pytest
from harness.interrupts import Interrupt, at_opcode, interrupt, run_traced
from harness.peers import EXAMPLE, sample
from harness.pretender import Visit
from harness.waiting import until

from echo_shm import ConnectionClosedError, TcpClient
from echo_shm.net import wire
from echo_shm.net.client import client as client_module
from echo_shm.net.client import connection, sender

BIG = np.zeros(1 << 22, np.uint8)


def stall(visit):
    """Accepts the client, and takes none of its samples."""
    visit.accept()
    time.sleep(60)


def test_a_block_beyond_the_clients_ring(serve, client, background):
    """A block larger than the client's own ring is sent, also when the sending thread has just fallen asleep."""
    example = np.zeros(1000, np.uint8)
    server = serve(1000, 4, example)
    one = client(server, example)
    send = one._writer.send_many

    def send_to_a_sleeper(data, timeout):
        until(lambda: one._sender.sleeping and one._sender._wakeups.empty())
        send(data, timeout)

    one._writer.send_many = send_to_a_sleeper
    block = np.repeat(np.arange(12_000, dtype=np.uint64), 125).view(np.uint8).reshape(-1, 1000)
    sending = background(one.send_many, block)
    got = [n for _ in range(12) for n in server.sample(timeout=20).batch.view(np.uint64)[:, 0].tolist()]
    sending.result()
    assert got == list(range(12_000))


def test_what_was_sent_of_a_block(pretend, background):
    """Whatever ends send_many() in the middle, its error says how many samples are on their way."""
    over = threading.Event()

    def play(visit):
        visit.accept()
        over.wait(60)
        visit.sock.sendall(wire.bye(0, "that is enough"))

    host = pretend(play, BIG)
    block = np.broadcast_to(BIG, (100, len(BIG))).copy()
    one = TcpClient("127.0.0.1", host.port, BIG)
    with pytest.raises(TimeoutError, match=r"did not take samples for 0\.2 s; (\d+) of the samples were sent") as late:
        one.send_many(block, timeout=0.2)
    assert 0 < late.value.sent < 100
    assert f"; {late.value.sent} of the" in str(late.value)
    sending = background(one.send_many, block)
    over.set()
    with pytest.raises(ConnectionClosedError, match=r"that is enough; 0 of the samples were sent") as closed:
        sending.result()
    assert closed.value.sent == 0
    with pytest.raises(ConnectionClosedError, match="not acknowledged"):
        one.close()


def test_impossible_times(pretend):
    """A timeout that is no number of seconds is refused; 0 is one."""
    with TcpClient("127.0.0.1", pretend(Visit.take_all).port, EXAMPLE) as one:
        one.send(sample(0), timeout=0)
        calls = one.wait, one.close, lambda timeout: one.send(sample(0), timeout)
        for call in (*calls, lambda timeout: one.send_many({"n": np.zeros(1, np.int64)}, timeout)):
            for wrong in (float("nan"), "1", True, -1):
                with pytest.raises(ValueError, match="use seconds, 0 or more, or None for the client's own"):
                    call(timeout=wrong)


def test_a_reader_that_fails(pretend):
    """When the reading thread fails, no call waits for it."""

    def send_on():
        while True:
            one.send(sample(0))
            one.wait(20)

    one = TcpClient("127.0.0.1", pretend(Visit.take_all).port, EXAMPLE)
    with mock.patch.object(connection.Connection, "_receive", side_effect=MemoryError("none left")):
        one._sender._lose(one._sender._connection, OSError("cut"))  # the next link is read through this
        with pytest.raises(ConnectionClosedError, match="none left"):
            send_on()
    with contextlib.suppress(ConnectionClosedError):
        one.close()
    for thread in (one._sender._receive_thread, one._sender._send_thread):
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("which", ["receiver", "sender"])
def test_no_more_threads(pretend, monkeypatch, which):
    """A client that cannot start its threads leaves no thread and no connection."""
    gone, start = threading.Event(), threading.Thread.start

    def play(visit):
        visit.accept()
        if visit.sock.recv(100) == b"":
            gone.set()

    def start_some(thread):
        if which in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    host = pretend(play)
    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        TcpClient("127.0.0.1", host.port, EXAMPLE)
    assert gone.wait(20)
    until(lambda: not [thread for thread in threading.enumerate() if "echo_shm" in thread.name])


def test_closed_by_a_signals_handler(pretend, background):
    """close() in a signal handler ends the close() that the signal interrupted."""
    one = TcpClient("127.0.0.1", pretend(stall).port, EXAMPLE, timeout=1)
    one.send(sample(0))
    before = signal.signal(signal.SIGUSR1, lambda *_: one.close())
    try:
        cutting = background(lambda: (until(lambda: one._sender._flushing), os.kill(os.getpid(), signal.SIGUSR1)))
        with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
            one.close()
        cutting.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    one.close()
    one._sender._send_thread.join(20)
    assert not one._sender._send_thread.is_alive()


def test_close_interrupted_anywhere(pretend):
    """Wherever Ctrl-C interrupts close(), another close() ends both threads."""
    host, n, left = pretend(stall), 0, [0]
    while left[0] <= 0:
        n += 1
        one = TcpClient("127.0.0.1", host.port, EXAMPLE)
        one._timeout = 0.01
        one.send(sample(0))
        trace, left = at_opcode(n, interrupt, sender, client_module)
        with contextlib.suppress(Interrupt, ConnectionClosedError):
            run_traced(one.close, trace)
        with contextlib.suppress(ConnectionClosedError):
            one.close()
        assert one._sender.ended.is_set(), f"interrupted at point {n}"
        one._sender._send_thread.join(20)
        one._sender._receive_thread.join(20)
        assert not one._sender._send_thread.is_alive(), f"interrupted at point {n}"
        assert not one._sender._receive_thread.is_alive(), f"interrupted at point {n}"
        assert one._sender._flushing == 0, f"interrupted at point {n}"
    assert n > 20


def test_collected_while_it_delivers(pretend):
    """Collecting a client does not wait until it has delivered; it delivers all the same."""
    gate = threading.Event()

    def play(visit):
        visit.accept()
        gate.wait(30)
        number, count = visit.take()
        visit.sock.sendall(wire.ack(number + count))
        visit.sock.recv(100)

    one = TcpClient("127.0.0.1", pretend(play).port, EXAMPLE)
    its, one.me = one._sender, one
    one.send(sample(0))
    del one
    gc.collect()
    until(lambda: its._closing.acquire(blocking=False) is False or its._closing.release())
    assert not its.ended.is_set()
    gate.set()
    until(lambda: its._closed)
    assert its.acknowledged == its.sent() == 1
