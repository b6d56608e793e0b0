"""Weights on other hosts: clients get whole versions, in order, whatever dies and is cut; slow ones skip versions."""

import contextlib
import os
import signal

import numpy as np
import pytest
from harness.peers import EXAMPLE, KEY, numbers, sample
from harness.processes import in_child
from harness.proxy import Proxy
from harness.waiting import LONG, until

from echo_shm import (
    ConnectionClosedError,
    EchoShmError,
    ForkedError,
    Replay,
    SegmentError,
    Server,
    ShmClient,
    SpecMismatchError,
    Subscription,
    Table,
    TcpClient,
    TcpTransport,
    WireError,
)
from echo_shm.replay import RemoteWriter, Writer
from echo_shm.ring.segment import Segment

#: Elements of the large leaf: a version is sent in many pieces, and takes long enough to be disturbed.
LARGE = 4_000_000


def params(version=0, size=1000):
    """Weights that say which version they are, in every element."""
    return {"w": [np.full(size, version, np.float64), np.full((), version, np.int32)], "none": np.zeros((0, 3))}


def which(tree):
    """The version that weights are, which are whole."""
    version = int(tree["w"][1])
    assert (tree["w"][0] == version).all()
    assert tree["none"].shape == (0, 3)
    return version


def bridge_of(server):
    """The process of a server's bridge; 0 while there is none."""
    return server._transports[0]._supervisors[0].pid


@pytest.fixture
def server(serve):
    """Has published version 1."""
    server = serve()
    server.publisher(params()).publish(params(1))
    return server


@pytest.fixture
def subscribed(client):
    """Makes clients that have subscribed, and have a version."""

    def make(server, **options):
        subscriber = client(server, **options).subscriber()
        which(subscriber.latest())
        return subscriber

    return make


@pytest.mark.parametrize("secured", [False, True])
def test_versions_arrive(serve, client, tls, secured):
    """In each way a client gets what the learner publishes, as a client of the learner's host does."""
    options = ({"authkey": KEY, "tls": tls[0]}, {"authkey": KEY, "tls": tls[1]}) if secured else ({}, {})
    server = serve(**options[0])
    publisher = server.publisher(params(), max_leases=1)
    publisher.publish(params(1))
    remote = client(server, host="localhost", **options[1])
    with remote.subscriber() as far, ShmClient(server.name).subscriber() as near:
        for one in (far, near):
            assert isinstance(one, Subscription)
            assert (one.wait(1, LONG), one.latest_version, one.version, one.poll(), one.poll()) == (1, 1, 0, True, True)
            assert which(one.latest()) == one.version == 1
            assert one.poll() is False
        mine = params()
        mine["w"][0] = np.zeros((1000, 2))[:, 0]  # not contiguous
        publisher.publish(params(2))
        for one in (far, near):
            assert one.wait(2, LONG) == 2
            assert one.poll(into=mine) is True
            assert (which(mine), one.version, one.poll(into=mine)) == (2, 2, False)
        publisher.publish(params(3))
        for one in (far, near):
            one.wait(3, LONG)
            with one.lease() as view:
                assert (which(view), one.version, one.poll()) == (3, 3, False)
                assert not view["w"][0].flags.writeable
            one.latest()["w"][0][:] = 0  # a private copy
            assert which(one.latest()) == 3


def test_a_lease_keeps_its_version(server, subscribed):
    """What a client leases stays as it is, however many later versions are leased; it takes no lease of the ring's."""
    subscriber = subscribed(server)
    with contextlib.ExitStack() as leases:
        views = []
        for version in range(2, 20):
            server._publisher.publish(params(version))
            subscriber.wait(version, LONG)
            views.append(leases.enter_context(subscriber.lease()))
        assert [which(view) for view in views] == list(range(2, 20))


def test_before_there_is_anything(serve, client):
    """Without a publisher, and before its first version, the client is told what to do; then it gets that version."""
    server = serve()
    one = client(server)
    for _ in range(2):
        with pytest.raises(SegmentError, match=r"no weights to subscribe to.*publisher\(params\)"):
            one.subscriber()
    publisher = server.publisher(params())

    def subscribed():
        with contextlib.suppress(SegmentError):
            return one.subscriber()

    subscriber = until(subscribed, "the bridge has found the weights")
    for call in (subscriber.latest, lambda: subscriber.lease().__enter__()):
        with pytest.raises(EchoShmError, match=r"no version yet: .*publish.*subscriber\.wait\(1"):
            call()
    with pytest.raises(TimeoutError, match=r"stayed at version 0 for 0\.05 s; waited for 1"):
        subscriber.wait(1, 0.05)
    assert (subscriber.poll(), subscriber.version, subscriber.latest_version) == (False, 0, 0)
    publisher.publish(params(1))
    assert subscriber.wait(1, LONG) == 1
    assert which(subscriber.latest()) == 1


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("kind", ["ring", "replay"])
def test_a_publisher_that_is_waited_for(kind, far, background):
    """A worker that starts before its learner's publisher can wait for that, on either host."""
    transport = TcpTransport(0)
    with contextlib.ExitStack() as stack:
        if kind == "ring":
            learner = stack.enter_context(Server(EXAMPLE, 10, transport))
            learner.start()
            worker = TcpClient("127.0.0.1", learner.port, EXAMPLE) if far else ShmClient(learner.handle)
        else:
            learner = stack.enter_context(Replay(EXAMPLE, 10, transport=transport))
            worker = RemoteWriter("127.0.0.1", learner.port, EXAMPLE) if far else Writer(learner.handle)
        stack.enter_context(worker)
        with pytest.raises(SegmentError, match="no weights to subscribe to"):
            worker.subscriber(timeout=0.01)
        with pytest.raises(ValueError, match="timeout=-1"):
            worker.subscriber(timeout=-1)
        coming = background(worker.subscriber, None, None)
        learner.publisher(params()).publish(params(1))
        with coming.result() as subscriber:
            assert subscriber.wait(1, LONG) == 1
            assert which(subscriber.latest()) == 1


def test_samples_carry_the_version(serve, client):
    """What a client sends carries the version that its subscriber has got last, unless one was assigned."""
    server = serve(1)
    publisher = server.publisher(params())
    one = client(server)
    subscriber = one.subscriber()
    expected = [0]
    one.send(sample(0))
    for version, get in ((1, subscriber.latest), (2, lambda: subscriber.poll(into=params())), (3, subscriber.lease)):
        publisher.publish(params(version))
        subscriber.wait(version, LONG)
        with contextlib.ExitStack() as stack:
            got = get()
            if version == 3:
                stack.enter_context(got)
            one.send(sample(version))
        expected.append(version)
    one.version = 7
    publisher.publish(params(4))
    subscriber.wait(4, LONG)
    subscriber.latest()
    one.send(sample(4))
    assert [server.sample().versions.tolist() for _ in range(5)] == [[version] for version in [*expected, 7]]


def test_a_slow_client_skips_versions(server, subscribed, monkeypatch):
    """A client is sent the version after the one that it has got, and then nothing until it asks for more."""
    subscriber = subscribed(server)
    feed, came = subscriber._feed, []
    filled = feed.filled
    monkeypatch.setattr(feed, "filled", lambda: (filled(), came.append(feed.number)))
    for version in range(2, 51):
        server._publisher.publish(params(version))
        until(lambda version=version: subscriber.latest_version == version, "the client has heard of it")
    assert subscriber.wait(50, LONG) == 50
    assert which(subscriber.latest()) == 50
    # The bridge sends the version that is the latest when it gets to it: not always the first that the client hears of.
    assert came[-1] == 50
    assert len(came) <= 2


def test_latest_waits_for_what_it_knows_of(server, subscribed):
    """latest() is no version before the latest one that the client has heard of, though an earlier one is there."""
    subscriber = subscribed(server)
    for version in range(2, 40):
        server._publisher.publish(params(version))
        if version % 3 == 0:
            until(lambda version=version: subscriber.latest_version == version, "the client has heard of it")
            assert which(subscriber.latest()) == version


@pytest.mark.parametrize("what", ["bridge", "link"])
@pytest.mark.watchdog(180)
def test_disturbed_while_a_version_is_sent(serve, what):
    """The bridge is killed, or the link is cut, in the middle of a version: the client asks again, gets it whole."""
    server = serve()
    publisher = server.publisher(params(0, LARGE))
    proxy = Proxy(server.port)
    with TcpClient("127.0.0.1", proxy.port, EXAMPLE) as one:
        subscriber = one.subscriber()
        for version in range(1, 6):
            publisher.publish(params(version, LARGE))
            until(lambda: subscriber._feed._coming, "a part has come")
            if what == "bridge":
                os.kill(bridge_of(server), signal.SIGKILL)
            else:
                proxy.cut()
            assert subscriber.wait(version, LONG) == version
            assert which(subscriber.latest()) == version
            one.send(sample(version))
            one.wait(LONG)
    proxy.close()


def test_while_the_link_is_cut(server, subscribed):
    """Nothing waits for a lost connection: what has come stays, and what is new comes with the next connection."""
    proxy = Proxy(server.port)
    with TcpClient("127.0.0.1", proxy.port, EXAMPLE) as one:
        subscriber = one.subscriber()
        assert which(subscriber.latest()) == 1
        proxy.stalled.set()
        proxy.cut()
        until(lambda: one._sender._loss is not None, "the client has noticed")
        server._publisher.publish(params(2))
        assert which(subscriber.latest()) == 1
        with subscriber.lease() as view:
            assert which(view) == 1
        assert subscriber.poll() is False
        proxy.stalled.clear()
        assert subscriber.wait(2, LONG) == 2
        assert which(subscriber.latest()) == 2
    proxy.close()


def _publish(conn, handle):
    """Publishes as fast as it can, from where the one before it stopped."""
    with Server.attach(handle) as server:
        publisher = server.publisher(params(0, 50_000))
        while True:
            version = publisher.version + 1
            publisher.publish(params(version, 50_000))
            if version % 50 == 0:
                conn.send(version)


def test_killed_publishers(serve, client, act):
    """A publisher is killed, and another one goes on from its version: clients get whole versions, which only rise."""
    server, last = serve(), 0
    mine, subscriber = params(0, 50_000), None
    for _ in range(4):
        actor = act(_publish, server.handle)
        first = actor.hear()
        assert first > last
        subscriber = subscriber or client(server).subscriber()
        for _ in range(20):
            subscriber.wait(max(last + 1, first), LONG)
            assert subscriber.poll(into=mine)
            assert which(mine) == subscriber.version > last
            last = subscriber.version
        actor.kill()
        actor.end()
    assert server.publisher(mine).version >= last  # and it cleans up


def test_a_wrong_example(server, client):
    """Weights that differ are refused, by the leaf's name. The client goes on, and can subscribe with another one."""
    one = client(server)
    wrong = params()
    wrong["w"][1] = np.zeros((), np.int64)
    with pytest.raises(SpecMismatchError, match=r"weights of 127.*\['w'\]\[1\]: int64\[\], expected .*int32"):
        one.subscriber(wrong)
    subscriber = one.subscriber(params())
    assert which(subscriber.latest()) == 1
    server._publisher.publish(params(2))
    subscriber.wait(2, LONG)
    with pytest.raises(SpecMismatchError, match=r"\['w'\]\[1\]"):
        subscriber.poll(into=wrong)
    assert which(subscriber.latest()) == 2
    one.send(sample(0))
    one.wait(LONG)


def test_stalled_clients(serve, client):
    """Clients that stall in the middle of versions, each of another one, delay no other client; they get the latest."""
    server = serve()
    publisher = server.publisher(params(0, LARGE))
    quick = client(server).subscriber()
    proxies, slow, version = [Proxy(server.port) for _ in range(6)], [], 0
    for proxy in proxies:
        version += 1
        publisher.publish(params(version, LARGE))
        slow.append(TcpClient("127.0.0.1", proxy.port, EXAMPLE).subscriber())
        until(lambda: slow[-1]._feed._coming or slow[-1]._feed.number, "a part has come")
        proxy.stalled.set()
    for _ in range(5):
        version += 1
        publisher.publish(params(version, LARGE))
        assert quick.wait(version, LONG) == version
        assert which(quick.latest()) == version
    for proxy in proxies:
        proxy.stalled.clear()
    for one in slow:
        assert one.wait(version, LONG) == version
        assert which(one.latest()) == version
        one._client.close()
    for proxy in proxies:
        proxy.close()


def test_while_the_ring_is_full(serve, client):
    """The next version comes to a client whose samples wait for room."""
    server = serve(1, 2)
    publisher = server.publisher(params())
    publisher.publish(params(1))
    one = client(server)
    subscriber = one.subscriber()
    assert which(subscriber.latest()) == 1
    until(lambda: subscriber._feed.requests == b"", "it has asked for the next one")
    for n in range(9):
        one.send(sample(n))
    until(lambda: one._sender.acknowledged == 2, "the ring is full")
    publisher.publish(params(2))
    assert subscriber.wait(2, LONG) == 2
    assert [numbers(server.sample().batch) for _ in range(9)] == [[n] for n in range(9)]


def test_the_publisher_closes(server, subscribed, client):
    """Whoever waits is told; what was published last can still be had. Another publisher counts from 1."""
    subscriber = subscribed(server)
    server._publisher.publish(params(2))
    server._publisher.publish(params(3))
    server._publisher.close()
    assert subscriber.wait(3, LONG) == 3
    with pytest.raises(ConnectionClosedError, match=r"closed them at version 3; waited for 4"):
        subscriber.wait(4, LONG)
    assert which(subscriber.latest()) == 3
    with pytest.raises(SegmentError, match="no weights"):
        client(server).subscriber()
    server.publisher(params()).publish(params(1))
    another = subscriber._client.subscriber()
    assert which(another.latest()) == another.version == 1
    assert subscriber.version == 0
    assert subscriber.poll()
    assert which(subscriber.latest()) == 1


def _learn(conn, name):
    """Publishes seven versions."""
    with Server(EXAMPLE, 10, name=name, transport=TcpTransport(0)) as server:
        server.start()
        publisher = server.publisher(params())
        for version in range(1, 8):
            publisher.publish(params(version))
        conn.send(server.port)
        conn.recv()


def test_another_learner(act):
    """A learner is killed, another one serves its port: clients go on with its weights, whose versions count from 1."""
    name = f"weights-{os.getpid()}"
    actor = act(_learn, name)
    port = actor.hear()
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(TcpClient("127.0.0.1", port, EXAMPLE))
        subscriber = one.subscriber()
        assert which(subscriber.latest()) == 7
        actor.kill()
        actor.end()
        Segment.attach(name).unlink()
        Segment.attach(f"{name}.weights").unlink()
        other = stack.enter_context(Server(EXAMPLE, 10, name=name, transport=TcpTransport(port)))
        publisher = other.publisher(params())
        for version in range(1, 8):  # as many as the other had
            publisher.publish(params(100 + version))

        def is_started():
            with contextlib.suppress(OSError):  # the dead learner's bridge may not have ended yet
                other.start()
                return True

        until(is_started, "the other learner listens")
        until(lambda: subscriber.version == 0, "the client has found the other learner")
        assert subscriber.wait(7, LONG) == 7
        assert subscriber.poll()
        assert (which(subscriber.latest()), subscriber.version) == (107, 7)
        one.close()


def test_ends(server, client):
    """A subscriber ends with its client, by its own close(), and in a forked child; others of the client go on."""
    one = client(server)
    closed, other = one.subscriber(), one.subscriber()
    closed.latest()
    closed.close()
    for call in (closed.latest, closed.poll, lambda: closed.wait(2, 1)):
        with pytest.raises(ConnectionClosedError, match=r"this subscriber to the weights of .* is closed"):
            call()
    assert which(other.latest()) == 1

    def use_inherited():
        for call in (other.latest, other.poll, lambda: other.wait(2, 1), one.subscriber):
            with pytest.raises(ForkedError):
                call()

    assert in_child(use_inherited) == ""
    assert other.poll() is False
    one.close()
    for call in (other.latest, lambda: other.wait(2, 1), one.subscriber):
        with pytest.raises(ConnectionClosedError, match="is closed"):
            call()


def test_a_server_that_closes(server, subscribed, background):
    """wait() without a limit ends when the server closes."""
    subscriber = subscribed(server)
    waiting = background(subscriber.wait, 2)
    until(lambda: subscriber._feed._goals, "it waits")
    server.close()
    with pytest.raises(ConnectionClosedError):
        waiting.result()


def test_a_replays_weights():
    """The writers of a replay on other hosts get its weights."""
    with Replay(EXAMPLE, 100, [Table("t")], transport=TcpTransport(0)) as replay:
        publisher = replay.publisher(params())
        publisher.publish(params(1))
        with RemoteWriter("127.0.0.1", replay.port, EXAMPLE) as writer:
            subscriber = writer.subscriber()
            assert which(subscriber.latest()) == 1
            publisher.publish(params(2))
            assert subscriber.wait(2, LONG) == 2
            writer.add(sample(0))


def test_version_1(serve, client):
    """The old protocol has no weights, and says so."""
    with pytest.raises(WireError, match="wire version 1, which has no weights"):
        client(serve(wire_version=1)).subscriber()
