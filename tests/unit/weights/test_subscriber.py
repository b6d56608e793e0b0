"""What a subscriber gets: copies, news, leases; and what it says when it gets nothing."""

import os
import re
import threading

import numpy as np
import pytest
from harness.waiting import LONG

from echo_shm import ConnectionClosedError, EchoShmError, ForkedError, SpecMismatchError, Subscriber
from unit.weights.conftest import params
from unit.weights.test_publisher import same


def test_before_the_first_version(publisher, subscriber):
    """There is no news, and who wants weights is told how to get them."""
    assert subscriber.poll() is False
    assert subscriber.version == subscriber.latest_version == 0
    for call in (subscriber.latest, lambda: subscriber.lease().__enter__()):
        with pytest.raises(EchoShmError, match=r"no version yet: .*publish.*subscriber\.wait\(1"):
            call()


def test_poll_copies_what_is_new(publisher, subscriber):
    """It copies into the arrays that it is given, once for each version that it finds."""
    mine = params()
    publisher.publish(params(1))
    assert subscriber.poll(into=mine) is True
    assert same(mine, params(1))
    assert subscriber.poll(into=mine) is False
    publisher.publish(params(2))
    publisher.publish(params(3))
    assert subscriber.poll() is subscriber.poll() is True  # nothing was copied: it stays news
    assert same(mine, params(1))
    assert subscriber.poll(into=mine) is True
    assert same(mine, params(3))
    assert subscriber.version == 3


def test_each_way_makes_a_version_old(publisher, subscriber):
    """What was copied or leased is no news any more."""
    publisher.publish(params(1))
    subscriber.latest()
    assert subscriber.poll() is False
    publisher.publish(params(2))
    with subscriber.lease():
        assert subscriber.version == 2
    assert subscriber.poll() is False


def test_poll_into_other_layouts(publisher, subscriber):
    """Arrays that are not contiguous get the same; those that cannot be written to, or do not fit, are refused."""
    publisher.publish(params(1))
    mine = params()
    mine["layers"][0] = np.zeros((5, 3), np.float32).T
    assert subscriber.poll(into=mine)
    assert same(mine, params(1))
    publisher.publish(params(2))
    plain = params()
    for into in (mine, plain):
        into["layers"][1].flags.writeable = False
        with pytest.raises(ValueError, match=re.escape("leaf ['layers'][1]: the array is read-only")):
            subscriber.poll(into=into)
    assert same(plain, params())
    with pytest.raises(SpecMismatchError, match=re.escape("leaf ['steps']: got int32[]")):
        subscriber.poll(into={**params(), "steps": np.zeros((), np.int32)})
    assert subscriber.poll() is True


def test_arrays_of_a_subclass(publisher, subscriber, tmp_path):
    """Files that are mapped are arrays, too: they are published, and copied to."""
    mine = params(1)
    mine["layers"][0] = np.memmap(tmp_path / "weights", np.float32, "w+", shape=(3, 5))
    mine["layers"][0][...] = 1
    publisher.publish(mine)
    assert same(subscriber.latest(), params(1))
    publisher.publish(params(2))
    assert subscriber.poll(into=mine)
    assert same(mine, params(2))


def test_latest_is_private(publisher, subscriber):
    """The arrays of one call are nobody else's."""
    publisher.publish(params(1))
    one, two = subscriber.latest(), subscriber.latest()
    one["layers"][0] += 1
    assert same(two, params(1))
    assert same(subscriber.latest(), params(1))


def test_a_lease_stays_as_it_is(publisher, subscriber):
    """Whatever is published meanwhile. Its arrays are views of the segment, read-only."""
    publisher.publish(params(1))
    with subscriber.lease() as view:
        for version in range(2, 30):
            assert publisher.publish(params(version)) == version
        assert same(view, params(1))
        assert not any(leaf.flags.writeable or leaf.flags.owndata for leaf in view["layers"])
    with subscriber.lease() as view:
        assert same(view, params(29))


def test_all_leases_in_use(publisher, subscriber):
    """One more is refused, with who has them; the publisher goes on; one that ends can be had again."""
    publisher.publish(params(1))
    with Subscriber(publisher.name) as other, subscriber.lease() as one, other.lease():
        with pytest.raises(EchoShmError, match=rf"in use, by process {os.getpid()}: .*max_leases"), other.lease():
            pass
        publisher.publish(params(2))
        assert same(one, params(1))
    with subscriber.lease() as view:
        assert same(view, params(2))


def test_closing_ends_its_leases(publisher, subscriber):
    """So its leases are there for others."""
    publisher.publish(params(1))
    other = Subscriber(publisher.name)
    leases = [other.lease() for _ in range(2)]
    for lease in leases:
        lease.__enter__()
    other.close()
    with subscriber.lease(), subscriber.lease():
        pass
    with pytest.raises(ConnectionClosedError, match="closed"):
        other.latest()


def test_wait(publisher, subscriber):
    """It returns once the version is there, at once if it is there already."""
    publisher.publish(params(1))
    assert subscriber.wait(1, timeout=0) == 1
    with pytest.raises(TimeoutError, match=r"stayed at version 1 for 0\.01 s; waited for 2"):
        subscriber.wait(2, timeout=0.01)
    got = []
    waiter = threading.Thread(target=lambda: got.append(subscriber.wait(3, timeout=LONG)))
    waiter.start()
    publisher.publish(params(2))
    publisher.publish(params(3))
    waiter.join(LONG)
    assert got == [3]
    for wrong in (-1, 1.5, True, 2**48):
        with pytest.raises(ValueError, match="use an integer"):
            subscriber.wait(wrong)


def test_wait_ends_with_the_publisher(publisher, subscriber):
    """A version that never comes is waited for no longer."""
    said = []

    def wait():
        try:
            subscriber.wait(1)
        except ConnectionClosedError as error:
            said.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    publisher.close()
    waiter.join(LONG)
    assert len(said) == 1


def test_a_forked_child_is_refused(publisher, subscriber):
    """Each call of an inherited subscriber or publisher raises, poll() too."""
    publisher.publish(params(1))
    subscriber.latest()
    assert subscriber.poll() is False
    calls = [subscriber.poll, subscriber.latest, lambda: subscriber.wait(1), lambda: publisher.publish(params())]
    calls.append(lambda: subscriber.lease().__enter__())
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except ForkedError:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(calls)
    assert publisher.publish(params(2)) == 2  # the child's exit has ended nothing
