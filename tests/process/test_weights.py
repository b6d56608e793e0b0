"""Publishers and subscribers in processes of their own, which are killed."""

import os
import random
import time

import numpy as np
import pytest
from harness.waiting import until

from echo_shm import EchoShmError, Publisher, Replay, SegmentError, Server, ShmClient, SpecMismatchError, Subscriber

#: Elements of each leaf. A version takes long enough to be copied that kills fall into it.
SIZE = 50_000


def _params(version=0):
    return {"a": np.full(SIZE, version, np.int64), "b": np.full((SIZE // 10, 10), -version, np.float64)}


def _check(tree, version):
    """Each element of a version says which one it is."""
    assert (tree["a"] == version).all()
    assert (tree["b"] == -version).all()


def _publish(conn, name):
    """Publishes as fast as it can, from where the one before it stopped."""
    with Publisher(_params(), name=name, max_leases=3) as publisher:
        conn.send(publisher.version)
        while True:
            version = publisher.version + 1
            assert publisher.publish(_params(version)) == version


def _read(conn, name):
    """Reads in each way, and checks each element. Versions never go back."""
    with Subscriber(name) as subscriber:
        subscriber.wait(1, timeout=30)
        conn.send(os.getpid())
        mine, last = _params(), 0
        while True:
            if subscriber.poll(into=mine):
                _check(mine, subscriber.version)
            with subscriber.lease() as view:
                _check(view, subscriber.version)
                _check(view, subscriber.version)
            _check(subscriber.latest(), subscriber.version)
            assert subscriber.version >= last
            last = subscriber.version


def _lease(conn, name, count):
    with Subscriber(name) as subscriber:
        leases = [subscriber.lease() for _ in range(count)]
        views = [lease.__enter__() for lease in leases]
        conn.send(len(views))
        conn.recv()


def _serve(conn, name):
    with Server({"x": np.zeros(1)}, 1, name=name) as server:
        server.publisher(_params()).publish(_params(1))
        conn.send(server.handle)
        conn.recv()


def _replay(conn, name):
    with Replay({"x": np.zeros(1)}, 10, store="shm", name=name) as replay:
        replay.publisher(_params()).publish(_params(1))
        conn.send("published")
        conn.recv()


@pytest.fixture
def weights(name):
    """A name for weights; what is left of them is removed."""
    yield name
    for file in os.listdir("/dev/shm"):
        if file.endswith((f"{name}.weights", name)):
            os.unlink(f"/dev/shm/{file}")


@pytest.mark.watchdog(180)  # starts 33 interpreters, while three processes are as fast as they can
def test_whoever_is_killed(weights, act):
    """Publishers and readers are killed at any moment. Nobody reads a torn version, and each publisher goes on."""
    chance = random.Random(1)
    publisher = act(_publish, weights)
    version = publisher.hear()
    readers = [act(_read, weights) for _ in range(2)]
    for reader in readers:
        reader.hear()
    with Subscriber(weights) as subscriber:
        for _ in range(15):
            time.sleep(chance.random() * 0.02)
            publisher.kill()
            _check(subscriber.latest(), subscriber.version)
            publisher = act(_publish, weights)
            before, version = version, publisher.hear()
            assert version >= max(before, subscriber.version)
            victim = chance.randrange(2)
            assert readers[victim].is_silent()  # otherwise it has failed
            readers[victim].kill()
            readers[victim] = act(_read, weights)
            readers[victim].hear()
        subscriber.wait(version + 3, timeout=30)
        assert all(reader.is_silent() for reader in readers)


def test_a_killed_process_holds_no_lease(weights, act):
    """Its leases are had again. The publisher has gone on meanwhile."""
    with Publisher(_params(), name=weights, max_leases=3) as publisher, Subscriber(weights) as subscriber:
        publisher.publish(_params(1))
        holder = act(_lease, weights, 3)
        assert holder.hear() == 3
        with pytest.raises(EchoShmError, match=f"in use, by process {holder.pid}:"), subscriber.lease():
            pass
        for version in range(2, 12):
            assert publisher.publish(_params(version)) == version
        holder.kill()
        with subscriber.lease() as one, subscriber.lease() as two, subscriber.lease() as three:
            for view in (one, two, three):
                _check(view, 11)


def test_a_second_publisher_in_another_process(weights, act):
    """It is refused, and told which process publishes."""
    publisher = act(_publish, weights)
    publisher.hear()
    with pytest.raises(SegmentError, match=f"have a publisher already, process {publisher.pid}"):
        Publisher(_params(), name=weights)


def test_parameters_that_the_dead_had_otherwise(weights, act):
    """Whoever goes on with other parameters is told which leaf differs, and may go on with the right ones."""
    publisher = act(_publish, weights)
    publisher.hear()
    publisher.kill()
    with pytest.raises(SpecMismatchError, match=r"has left: got \['a'\]: int64\[3\], expected \['a'\]: int64\[50000\]"):
        Publisher({**_params(), "a": np.zeros(3, np.int64)}, name=weights)
    with Publisher(_params(), name=weights) as publisher:
        assert publisher.publish(_params(publisher.version + 1)) == publisher.version


def test_a_ring_that_takes_the_name_of_a_dead_one(weights, act):
    """What the dead one has left as weights is not the new ring's: its versions begin anew."""
    dead = act(_serve, weights)
    handle = dead.hear()
    with ShmClient(handle) as client, client.subscriber() as old:
        _check(old.latest(), 1)
        dead.kill()
        os.unlink(f"/dev/shm/echo_shm.{weights}")
        os.unlink(f"/dev/shm/echo_shm_locks.{weights}")
        with Server({"x": np.zeros(1)}, 1, name=weights) as server:
            publisher = server.publisher(_params())
            assert publisher.version == 0
            assert publisher.publish(_params(7)) == 1
            with ShmClient(server.handle) as mine, mine.subscriber() as new:
                _check(new.latest(), 7)
        _check(old.latest(), 1)


def test_a_learner_that_takes_over_goes_on(weights, act):
    """A further learner of a ring whose creator was killed publishes the next version to the same subscribers."""
    dead = act(_serve, weights)
    handle = dead.hear()
    with ShmClient(handle) as client, client.subscriber() as subscriber:
        dead.kill()
        with Server.attach(handle) as server:
            publisher = server.publisher(_params())
            assert server.version == 1
            assert publisher.publish(_params(2)) == 2
            assert server.version == 2
            assert subscriber.wait(2, timeout=30) == 2
            _check(subscriber.latest(), 2)
    until(lambda: not any(file.endswith(f"{weights}.weights") for file in os.listdir("/dev/shm")))


def test_a_replay_that_takes_over_goes_on(weights, act):
    """What it adds is made with the dead one's last version until it publishes its own."""
    dead = act(_replay, weights)
    assert dead.hear() == "published"
    dead.kill()
    with Replay.attach(weights) as replay:
        publisher = replay.publisher(_params())
        replay.add({"x": np.zeros(1)})
        assert publisher.publish(_params(2)) == 2
        replay.add({"x": np.zeros(1)})
        assert {*replay.sample(50).versions.tolist()} == {1, 2}
