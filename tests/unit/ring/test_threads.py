"""Threads: several in one client, several in one server, and close() while others wait."""

import sys
import threading
import time

import numpy as np
import pytest
from harness.valid import problem_of
from harness.waiting import until

from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm._core import ffi, lib

EXAMPLE = {"who": np.zeros((), np.int64), "n": np.zeros((), np.int64), "fill": np.zeros(50, np.int64)}
COUNT = 300


def row(who, n):
    """Sample n of thread who."""
    return {"who": np.int64(who), "n": np.int64(n), "fill": np.full(50, 1000 * who + n)}


def rows(who, start, stop):
    """Several of them, stacked."""
    n = np.arange(start, stop)
    return {"who": np.full(len(n), who), "n": n, "fill": np.repeat(1000 * who + n, 50).reshape(-1, 50)}


def send_all(client, who):
    """Sends COUNT samples in each of the four ways in turn."""
    bound_tree = {"who": np.asarray(who), "n": np.asarray(0), "fill": np.zeros(50, np.int64)}
    bound = client.bind(bound_tree)
    for n in range(0, COUNT, 5):
        client.send(row(who, n), timeout=30)
        client.send_many(rows(who, n + 1, n + 3), timeout=30)
        with client.reserve(timeout=30) as slot:
            slot["who"][...], slot["n"][...], slot["fill"][:] = who, n + 3, 1000 * who + n + 3
        bound_tree["n"][...], bound_tree["fill"][:] = n + 4, 1000 * who + n + 4
        bound.send(timeout=30)


def read(batch):
    """A batch's samples as (who, n), after checking that each is whole."""
    assert (batch["fill"] == (1000 * batch["who"] + batch["n"])[:, None]).all()
    return list(zip(batch["who"].tolist(), batch["n"].tolist(), strict=True))


@pytest.fixture(autouse=True)
def _switch_often():
    """Makes the interpreter switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_share_a_client(background):
    """All samples of threads that share one client arrive whole, each thread's in order."""
    with Server(EXAMPLE, 4) as server, ShmClient(server.handle) as client:
        senders = [background(send_all, client, who) for who in range(4)]
        got = [pair for _ in range(COUNT) for pair in read(server.sample(30).batch)]
        for sender in senders:
            sender.result()
        for who in range(4):
            assert [n for w, n in got if w == who] == list(range(COUNT))
        assert problem_of(server._ring) is None


def test_threads_share_a_server(background):
    """Learner threads with leases on one server share the stream: each batch to exactly one, to the end."""

    def learn():
        got = []
        while True:
            with server.lease() as sample:
                if sample is None:
                    return got
                got += read(sample.batch)

    with Server(EXAMPLE, 3) as server, ShmClient(server.handle) as client:
        learners = [background(learn) for _ in range(3)]
        senders = [background(send_all, client, who) for who in range(2)]
        for sender in senders:
            sender.result()
        server.close()
        got = [pair for learner in learners for pair in learner.result()]
    assert sorted(got) == [(who, n) for who in range(2) for n in range(COUNT)]


def test_threads_share_sample(background):
    """Threads that call sample() on one server leak no lease and lose no batch.

    Each goes on to the end of the stream. The batch of a thread that stops earlier would stay taken until another
    thread calls sample(), and the others may all be waiting.
    """
    with Server(EXAMPLE, 1, num_buffers=2) as server:

        def take():
            got = 0
            while server.sample(30) is not None:
                got += 1
                time.sleep(0.0005)  # keeps its batch while another thread gets one
            return got

        takers = [background(take) for _ in range(3)]
        for n in range(3 * COUNT):
            server.submit(row(0, n), timeout=30)
        server.close()
        assert sum(taker.result() for taker in takers) == 3 * COUNT


@pytest.mark.parametrize("repeat", range(5))
def test_threads_share_the_end_of_a_stream(background, repeat):
    """Threads that drain one closed server together neither lose nor double samples of partial batches."""

    class Abandoned(Exception):
        pass

    def drain():
        barrier.wait()
        return [pair for sample in server.dataset_iter(copy=True, drop_last=False) for pair in read(sample.batch)]

    with Server(EXAMPLE, 4, num_buffers=32) as server, ShmClient(server.handle) as client:
        barrier, held, sent = threading.Barrier(4), [], []
        for n in range(125):
            if n % 4 == 1:
                held.append(client.reserve())
                held[-1].__enter__()
            else:
                client.send(row(repeat, n))
                sent.append((repeat, n))
        server.close()
        for reservation in held:
            reservation.__exit__(Abandoned, None, None)
        threads = [background(drain) for _ in range(4)]
        got = [pair for thread in threads for pair in thread.result()]
        assert sorted(got) == sent


@pytest.mark.parametrize("way", ["send", "send_many", "reserve", "bind"])
def test_closing_a_client_under_a_waiting_thread(background, way):
    """A thread that waits for room gets ConnectionClosedError when another closes the client."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        client = ShmClient(server.handle)
        client.send(row(0, 0))
        use = {
            "send": lambda: client.send(row(0, 1)),
            "send_many": lambda: client.send_many(rows(0, 1, 3)),
            "reserve": client.reserve().__enter__,
            "bind": client.bind({k: np.asarray(v) for k, v in row(0, 1).items()}).send,
        }[way]
        waiting = background(use)
        snap = ffi.new("es_snapshot *")
        until(lambda: lib.es_monitor_observe(server._ring, snap) or snap.producers_waiting == 1)
        client.close()
        with pytest.raises(ConnectionClosedError):
            waiting.result()
        assert read(server.sample(1).batch) == [(0, 0)]


def test_closing_the_ring_under_waiting_producers(background):
    """Threads and clients that wait for room are all told when the server closes."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        clients = [ShmClient(server.handle) for _ in range(3)]
        clients[0].send(row(0, 0))
        waiting = [background(client.send, row(1, n)) for n, client in enumerate(clients)]
        snap = ffi.new("es_snapshot *")
        until(lambda: lib.es_monitor_observe(server._ring, snap) or snap.producers_waiting == 3)
        server.close()
        for thread in waiting:
            with pytest.raises(ConnectionClosedError):
                thread.result()
        for client in clients:
            client.close()


@pytest.mark.parametrize("samples", [0, 1])
def test_closing_under_waiting_learners(background, samples):
    """Threads that wait for a batch get None when the server closes."""
    with Server(EXAMPLE, 2) as server, Server.attach(server.name) as other:
        waiting = [background(learner.lease().__enter__) for learner in (server, server, other)]
        for n in range(samples):
            server.submit(row(0, n))
        server.close()
        assert [thread.result() for thread in waiting] == [None] * 3


def test_closing_a_further_learner_under_its_waiting_thread(background):
    """A thread that waits in an attached learner gets None when that one closes; the ring goes on."""
    with Server(EXAMPLE, 1) as server:
        other = Server.attach(server.name)
        waiting = background(other.sample)
        other.close()
        assert waiting.result() is None
        server.submit(row(0, 0))
        assert read(server.sample(1).batch) == [(0, 0)]


def test_closing_from_many_threads(background):
    """Many threads may close one server or client at once."""
    for _ in range(20):
        server = Server(EXAMPLE, 1)
        client = ShmClient(server.handle)
        for thread in [background(x.close) for x in (server, client) * 3]:
            thread.result()
        assert server.sample() is None


def test_attaching_from_many_threads(background):
    """Many threads may make and close clients at once; no client gets the place of another."""
    with Server(EXAMPLE, 2, max_producers=8, num_buffers=64) as server:

        def come_and_go(who):
            for n in range(10):
                with ShmClient(server.handle) as client:
                    client.send(row(who, n), timeout=30)

        for thread in [background(come_and_go, who) for who in range(6)]:
            thread.result()
        got = [pair for _ in range(30) for pair in read(server.sample(10).batch)]
        for who in range(6):
            assert [n for w, n in got if w == who] == list(range(10))
        assert server.sample is not None
        assert problem_of(server._ring) is None
