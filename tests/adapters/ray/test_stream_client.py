"""What workers of a stream send with, without a cluster: learners of two nodes on this machine."""

import contextlib
import itertools
import os
import signal
import threading

import numpy as np
import pytest
from harness.packages import need
from harness.peers import connected
from harness.waiting import until
from unit.weights.conftest import params
from unit.weights.test_publisher import same

need("ray")
need("cryptography")

from echo_shm import ConnectionClosedError, SegmentError, Server, TcpTransport  # noqa: E402
from echo_shm.adapters.ray import learners as module  # noqa: E402
from echo_shm.adapters.ray import stream_client  # noqa: E402
from echo_shm.adapters.ray.example import Example  # noqa: E402
from echo_shm.adapters.ray.keys import Keys  # noqa: E402
from echo_shm.adapters.ray.learners import Learner, Learners  # noqa: E402
from echo_shm.adapters.ray.stream_client import StreamClient, Way  # noqa: E402
from echo_shm.ring import lockfile  # noqa: E402
from echo_shm.ring.segment import listing  # noqa: E402

EXAMPLE = np.zeros((), np.int64)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def keys():
    """Those of one stream."""
    return Keys.make()


@pytest.fixture
def learners():
    """The actor."""
    return Learners()


@pytest.fixture
def learner(learners, keys, name):
    """Makes learners; each is announced once."""
    with contextlib.ExitStack() as stack:

        def make(node="here", batch_size=10):
            bridge = TcpTransport(0, authkey=keys.authkey, tls=keys.pem())
            server = Server(EXAMPLE, batch_size, bridge, name=f"{name}-{next(_numbers)}")
            stack.enter_context(server).start()
            learners.announce(Learner(server.name, node, "127.0.0.1", server.port))
            return server

        yield make


@pytest.fixture
def client(learners, keys, name):
    """Makes clients."""
    with contextlib.ExitStack() as stack:

        def make(node="here", grace=5.0, worker="w"):
            way = Way(name, Example(EXAMPLE), keys.public(), grace, learners.place, learners.better, learners.end)
            return stack.enter_context(StreamClient(way, node, worker))

        yield make


def end(server, learners):
    """A learner ends, and says so."""
    learners.leave(server.name)
    server.close()


def numbers(server):
    """What it has got. It is closed."""
    return [n for sample in server.dataset_iter(drop_last=False) for n in sample.batch.tolist()]


@pytest.mark.parametrize("node", ["here", "there"])
def test_the_next_learner(learner, learners, client, node):
    """When one ends, its workers go on with another one. Each sample that was sent comes once."""
    first, second = learner(node), learner("there")
    one = client()
    if one.learner.ring == second.name:
        first, second = second, first
    one.send(np.int64(0))
    one.send_many(np.arange(1, 5))
    one.wait()
    end(first, learners)
    one.send(np.int64(5))
    one.send_many(np.arange(6, 30))
    one.wait()
    assert one.learner.ring == second.name
    end(second, learners)
    assert numbers(first) == list(range(5))
    assert numbers(second) == list(range(5, 30))


def test_in_the_middle_of_a_block(learner, learners, client, background):
    """A call that sends many goes on where the first learner ended."""
    first = learner(batch_size=5)
    one = client()
    sending = background(one.send_many, np.arange(100))
    got = first.sample(timeout=20).batch.tolist()
    second = learner("there", batch_size=200)
    end(first, learners)
    got += numbers(first)
    sending.result()
    one.wait()
    end(second, learners)
    assert got + numbers(second) == list(range(100))


def test_a_learner_that_joins(learner, learners, client, background, monkeypatch, caplog):
    """On a worker's own node it gets that worker, in the middle of what that sends. Each sample comes once."""
    monkeypatch.setattr(stream_client, "_BALANCING", 0.05)
    first = learner("there", batch_size=5)
    one = client()
    done = []
    enough = threading.Event()

    def send():
        while not enough.is_set():
            one.send(np.int64(len(done)))
            done.append(len(done))

    sending = background(send)
    taking = background(numbers, first)
    until(lambda: len(done) > 100)
    second = learner("here", batch_size=10**6)
    until(lambda: one.learner.ring == second.name)
    there = len(done)
    until(lambda: len(done) > there + 100)
    enough.set()
    sending.result()
    until(lambda: connected(first) == 0)  # what the client had sent there has come
    end(first, learners)
    end(second, learners)
    assert sorted(taking.result() + numbers(second)) == done
    assert caplog.text == ""  # it has not lost its learner


def test_no_learner(learner, learners, client):
    """It says for how long there was none, and what to do; or why the last one could not be reached."""
    with pytest.raises(ConnectionClosedError, match=r"no learner for 0\.2 s \(learner_grace\): nobody has "):
        client(grace=0.2)
    server = learner()
    port = server.port
    one = client(grace=0.2)
    end(server, learners)
    with pytest.raises(ConnectionClosedError, match=r"no learner for 0\.2 s.*; 0 of the samples were sent"):
        one.send_many(np.arange(5))
    learners.announce(Learner("gone", "there", "127.0.0.1", port))
    with pytest.raises(ConnectionClosedError, match=r"no learner for 0\.2 s .*is the server started"):
        client(grace=0.2)


def test_the_end_of_the_stream(learner, learners, client):
    """A client that waits for a learner, or loses its own, is told."""
    server = learner()
    one = client(grace=None)
    learners.close()
    end(server, learners)
    with pytest.raises(ConnectionClosedError, match="was closed"):
        one.send(np.int64(0))
    assert one.is_over
    with pytest.raises(ConnectionClosedError, match="is closed"):
        client(grace=None)


def test_a_dead_learner_gets_no_workers(learners, client, learner, name):
    """Its ring would fill, and nobody empty it. While there is no other one, the next one is waited for."""
    dies = os.fork()
    if dies == 0:
        with Server(EXAMPLE, 10, name=f"{name}-dies"):
            signal.pause()
    try:
        until(lambda: any(one == f"{name}-dies" for one in lockfile.names()) and listing(f"{name}-dies").segment)
    finally:
        os.kill(dies, signal.SIGKILL)
        os.waitpid(dies, 0)
    learners.announce(Learner(f"{name}-dies", "here", "127.0.0.1", 1))
    with pytest.raises(ConnectionClosedError, match="is dead"):
        client(grace=0.2)
    other = learner("there")
    assert client().learner.ring == other.name
    assert lockfile.collect(f"{name}-dies")


def test_weights_of_the_learner_that_it_sends_to(learner, learners, client, background):
    """A subscriber goes on with its client, and waits for the publisher of a learner that has just begun."""
    first = learner()
    one = client(grace=20)
    subscribing = background(one.subscriber)
    publisher = first.publisher(params())
    publisher.publish(params(1))
    subscriber = subscribing.result()
    assert subscriber.poll(into := params())
    assert same(into, params(1))
    assert (subscriber.version, one.version) == (1, 1)
    second = learner("there")
    other = second.publisher(params())
    for n in range(3):
        other.publish(params(10 + n))
    end(first, learners)
    one.send(np.int64(0))
    assert subscriber.wait(3, timeout=30) == 3
    assert same(subscriber.latest(), params(12))
    assert one.version == 3
    learner("elsewhere")
    third = client("elsewhere", grace=0.2, worker="x")
    with pytest.raises(SegmentError, match="no weights"):
        third.subscriber()


def test_places(learners, monkeypatch):
    """A learner of one's own node; else the one with the fewest workers. One that failed, or is silent, comes last."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    made = [Learner(f"r{i}", f"n{i}", "host", i) for i in range(3)]
    assert learners.place("w", "n0") == (None, False)
    for one in made:
        assert not learners.announce(one)

    def place(worker, node="far", failed=None):
        return learners.place(worker, node, failed)[0].ring

    assert {place(f"own{i}", "n1") for i in range(4)} == {"r1"}
    others = [place(f"far{i}") for i in range(6)]
    assert sorted(others) == ["r0"] * 3 + ["r2"] * 3
    for i in range(4):
        learners.end(f"own{i}")
    assert [place("late"), place("late"), place("late")] == ["r1"] * 3  # the same worker, again
    assert place("own", "n1", failed="r1") in ("r0", "r2")
    now[0] = module.ABSENT + 1
    learners.announce(made[2])
    assert {place(f"x{i}", "n0") for i in range(5)} == {"r2"}
    assert place("y", failed="r2") != "r2"
    learners.leave("r0")
    learners.leave("r1")
    assert place("y", failed="r2") == "r2"
    learners.close()
    assert learners.announce(made[0])
    assert learners.place("w", "n0") == (None, True)


def test_better_places(learners, monkeypatch):
    """One that joins gets a share, and no more; one of a worker's own node gets that in any case."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    a, b = Learner("a", "na", "host", 1), Learner("b", "nb", "host", 2)
    learners.announce(a)
    for worker in "uvw":
        learners.place(worker, "far")
    assert learners.better("u", "far", "a") is None
    learners.announce(b)
    assert learners.better("u", "far", "a") == b
    assert learners.better("v", "far", "a") is None  # one sends to b, and two to a
    learners.end("u")
    assert learners.better("v", "na", "a") is None  # it is at home
    assert learners.better("v", "far", "a") == b
    assert learners.better("w", "nb", "a") == b
    again = Learners()  # which learns from workers who sends to whom
    for one in (a, b):
        again.announce(one)
    assert again.better("v", "far", "a") is None
    assert again.better("w", "far", "a") == b
    now[0] = module.ABSENT + 1
    learners.announce(b)
    assert learners.better("v", "far", "b") is None  # a is silent
    assert learners.better("v", "far", "gone") is None
