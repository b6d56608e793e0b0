"""Weights over nodes, without a cluster: relays of several nodes on this machine, and the learners that they follow."""

import contextlib
import itertools
import os
import pickle
import signal
import threading
import traceback
from dataclasses import replace

import numpy as np
import pytest
from harness.packages import need
from harness.peers import connected
from harness.waiting import LONG, until

need("ray")
need("cryptography")

from unit.weights.conftest import params, unusual  # noqa: E402
from unit.weights.test_publisher import same  # noqa: E402

from echo_shm import ConnectionClosedError, Publisher, SpecMismatchError, Subscriber  # noqa: E402
from echo_shm.adapters.ray import weights  # noqa: E402
from echo_shm.adapters.ray.directory import Directory, Place, Report, Roster  # noqa: E402
from echo_shm.adapters.ray.weights import Offers, RayPublisher, Relay  # noqa: E402
from echo_shm.ring import lockfile  # noqa: E402

_numbers = itertools.count()

#: So many versions were published before; more than anybody could count through.
MANY = 10**12


@pytest.fixture
def offers():
    """What the directory knows."""
    return Offers()


@pytest.fixture
def learner(offers, name):
    """Makes publishers, each in a process of its own as far as relays can tell."""
    with contextlib.ExitStack() as stack:
        yield lambda like=None, node="here": stack.enter_context(
            RayPublisher(
                params() if like is None else like,
                f"{name}-{next(_numbers)}",
                node,
                "127.0.0.1",
                offers.announce,
            )
        )


@pytest.fixture
def relay(offers, name):
    """Makes relays of nodes, and has them report to the directory, as shards do."""
    with contextlib.ExitStack() as stack:

        def make(node):
            made = Relay(f"{name}-{node}", node)
            stack.callback(made.stop)
            report(made, offers)
            return made

        yield make


@contextlib.contextmanager
def ending():
    """Whatever happens, a forked process goes no further: it would run the tests after this one, too."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def report(one, offers):
    """A shard's report."""
    one.follow(offers.report(0, one.offer, one.version))


def test_each_node_gets_versions_under_their_numbers(learner, relay, offers, name):
    """On the learner's own node without a connection; on another one; and on one that comes later: the last one."""
    offers.report(0, None, MANY)
    publisher = learner()
    assert publisher._offer.keys.private_key is None
    near, far = relay("here"), relay("there")
    assert publisher.publish(params(1)) == MANY + 1
    for one in (near, far):
        until(lambda one=one: one.version == MANY + 1)
    assert connected(publisher._ring) == 1
    with Subscriber(f"{name}-here") as local, Subscriber(f"{name}-there") as remote:
        for n in range(2, 6):
            assert publisher.publish(params(n)) == MANY + n
        for one in (local, remote):
            assert one.wait(MANY + 5, timeout=30) == MANY + 5
            assert same(one.latest(), params(5))
            assert one.version == MANY + 5
    late = relay("late")
    until(lambda: late.version == MANY + 5)
    with Subscriber(f"{name}-late") as subscriber:
        assert same(subscriber.latest(), params(5))


def test_node_types_that_relays_do_not_know(learner, relay, name):
    """The workers that know them get them."""
    publisher = learner(unusual())
    publisher.publish(unusual(7))
    for node in ("here", "there"):
        one = relay(node)
        until(lambda one=one: one.version == 1)
        with Subscriber(f"{name}-{node}", unusual()) as subscriber:
            assert same(subscriber.latest(), unusual(7))


def test_a_relay_that_is_killed(learner, offers, relay, name):
    """The next one goes on: its subscriber is told of no version twice, and of the next one."""
    publisher = learner()
    publisher.publish(params(1))
    ready, tell = os.pipe()
    dies = os.fork()
    if dies == 0:
        with ending():
            made = Relay(f"{name}-there", "there")
            made.follow(offers.report(0, None, 0))
            until(lambda: made.version == 1)
            os.write(tell, b".")
            signal.pause()
    os.close(tell)
    try:
        assert os.read(ready, 1), "it has failed"
        with Subscriber(f"{name}-there") as subscriber:
            assert same(subscriber.latest(), params(1))
            os.kill(dies, signal.SIGKILL)
            os.waitpid(dies, 0)
            dies = 0
            next_one = Relay(f"{name}-there", "there")
            next_one.stop()
            assert next_one.version == 1, "it knows what its node has"
            publisher.publish(params(2))
            one = relay("there")
            until(lambda: one.version == 2)
            assert subscriber.poll(into := params())
            assert same(into, params(2))
            assert not subscriber.poll()
    finally:
        os.close(ready)
        if dies:
            os.kill(dies, signal.SIGKILL)
            os.waitpid(dies, 0)


@pytest.mark.parametrize("node", ["here", "there"])
def test_a_learner_that_is_killed(learner, relay, offers, name, node):
    """Workers keep what they have. The next learner, wherever it is, goes on with the numbers."""
    ready, tell = os.pipe()
    dies = os.fork()
    if dies == 0:
        with ending(), RayPublisher(params(), f"{name}-dies", "here", "127.0.0.1", Offers().announce) as made:
            for n in range(1, 5):
                made.publish(params(n))
            os.write(tell, pickle.dumps(made._offer))
            signal.pause()
    os.close(tell)
    offer = pickle.loads(os.read(ready, 1 << 16))
    os.close(ready)
    one = Relay(f"{name}-{node}", node)
    try:
        one.follow(offer)
        until(lambda: one.version == 4)
        with Subscriber(f"{name}-{node}") as subscriber:
            os.kill(dies, signal.SIGKILL)
            os.waitpid(dies, 0)
            assert same(subscriber.latest(), params(4))
            report(one, offers)
            other = learner(node="elsewhere")
            assert other.version == 4
            assert other.publish(params(9)) == 5
            report(one, offers)
            assert subscriber.wait(5, timeout=30) == 5
            assert same(subscriber.latest(), params(9))
    finally:
        one.stop()
        assert all(map(lockfile.collect, (f"{name}-dies", f"{name}-dies.weights")))


def test_the_newest_learner_wins(learner, relay, offers, name):
    """What an older one publishes from then on reaches nobody, though its numbers are higher."""
    old = learner()
    one = relay("here")
    for n in range(1, 8):
        old.publish(params(n))
    until(lambda: one.version == 7)
    report(one, offers)
    new = learner()
    report(one, offers)
    for n in range(8, 20):
        old.publish(params(n))
    assert new.publish(params(100)) == 8
    until(lambda: one.version == 8)
    with Subscriber(f"{name}-here") as subscriber:
        assert same(subscriber.latest(), params(100))
    number, version, _ = offers.announce(replace(old._offer, version=old.version))
    assert number == new._offer.number
    assert version <= 8, "what the old one has published reaches nobody"
    one.follow(old._offer)
    assert one.offer.number == new._offer.number


class Heard:
    """A directory that one thread at a time calls, as Ray has it. It counts what publishers say."""

    def __init__(self):
        self.directory, self.said, self._lock = Directory(), 0, threading.Lock()

    def announce(self, offer):
        """A publisher's word."""
        with self._lock:
            self.said += 1
            return self.directory.announce(offer)

    def report(self, number, one, version=None):
        """A shard's reports: it is told whom to follow, and then says that it does."""
        for _ in range(2):
            said = Report(number, 0, 0, 1, {}, 0)
            with self._lock:
                newest = self.directory.report(said, one.offer, one.version if version is None else version)
            one.follow(newest)

    def know(self, shards):
        """The keeper's word: there are so many shards."""
        places = tuple(Place(number, 0, "node", "127.0.0.1", 0) for number in range(shards))
        with self._lock:
            self.directory.publish(Roster(1, places))

    def wait(self, times):
        """Until a publisher has said so much more."""
        most = self.said + times
        until(lambda: self.said >= most)


def test_the_next_publisher_begins_above_what_nodes_have(relay, name, background, monkeypatch):
    """Also if the directory has not heard of it yet, or has forgotten all."""
    monkeypatch.setattr(weights, "_FOLLOWED", LONG)
    relays, heard = [relay("here"), relay("there")], Heard()
    heard.know(2)
    with contextlib.ExitStack() as stack:

        def begins(heard):
            made = RayPublisher(params(), f"{name}-{next(_numbers)}", "here", "127.0.0.1", heard.announce)
            return stack.enter_context(made)

        waits = background(begins, heard)
        heard.wait(1)
        heard.report(0, relays[0])
        heard.wait(2)
        assert waits.runs, "one shard does not follow it"
        heard.report(1, relays[1])
        old = waits.result()
        for n in range(1, 8):
            old.publish(params(n))
        until(lambda: [one.version for one in relays] == [7, 7])
        heard = Heard()
        waits = background(begins, heard)
        heard.wait(1)
        heard.report(0, relays[0], 3)
        heard.report(1, relays[1])
        heard.wait(2)
        assert waits.runs, "it has not heard which shards there are"
        heard.know(2)
        new = waits.result()
        assert new.version == 7
        assert new.publish(params(100)) == 8


def test_a_publisher_that_not_all_follow(name, monkeypatch, caplog):
    """It waits for a while, and says so."""
    monkeypatch.setattr(weights, "_FOLLOWED", 0.1)
    with RayPublisher(
        params(), f"{name}-alone", "here", "127.0.0.1", lambda offer: (offer.number or 7, 3, False)
    ) as one:
        assert one.version == 3
    assert "begins above version 3: a node that does not answer may have more" in caplog.text


def test_a_node_that_was_away_while_a_publisher_began(learner, relay, offers):
    """It has had a higher version of the one before. The next version is above that."""
    new, one = learner(), relay("here")
    offers.report(0, one.offer, 50)
    until(lambda: new.version == 50)
    assert new.publish(params(1)) == 51


def test_a_directory_that_was_started_again(learner, relay, offers):
    """It has forgotten all. A shard's report, and the publisher's word, bring it back."""
    publisher, one = learner(), relay("here")
    publisher.publish(params(1))
    until(lambda: one.version == 1)
    empty = Offers()
    assert empty.report(0, None, 0) is None
    assert empty.report(0, one.offer, one.version).number == publisher._offer.number
    empty = Offers()
    assert empty.announce(replace(publisher._offer, version=3)) == (publisher._offer.number, 3, True)
    assert empty.announce(replace(publisher._offer, number=0))[0] > publisher._offer.number


def test_other_weights_are_refused(learner, relay, offers):
    """The message names the first leaf that differs, and the learner of before goes on."""
    publisher, one = learner(), relay("here")
    with pytest.raises(SpecMismatchError, match=r"before: got .*float32"):
        learner({"w": np.zeros(3, np.float32)})
    publisher.publish(params(3))
    until(lambda: one.version == 1)


def test_a_publisher_that_is_closed(learner, relay, name):
    """Workers keep the latest version; nothing more can be published."""
    publisher, one = learner(), relay("there")
    publisher.publish(params(2))
    until(lambda: one.version == 1)
    publisher.close()
    publisher.close()
    with pytest.raises(ConnectionClosedError):
        publisher.publish(params(3))
    with Subscriber(f"{name}-there") as subscriber:
        assert same(subscriber.latest(), params(2))


def test_a_relay_does_not_take_over_from_a_living_one(name, relay, learner):
    """Weights of that name that another process publishes stay as they are."""
    with Publisher(params(), name=f"{name}-there") as theirs:
        theirs.publish(params(5))
        publisher, one = learner(), relay("there")
        publisher.publish(params(1))
        one.stop()
        with Subscriber(f"{name}-there") as subscriber:
            assert same(subscriber.latest(), params(5))
