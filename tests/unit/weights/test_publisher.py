"""What a publisher publishes, and what it refuses."""

import os
import re
from collections import OrderedDict

import numpy as np
import optree
import pytest

from echo_shm import ConnectionClosedError, Publisher, SegmentError, Server, ShmClient, SpecMismatchError, Subscriber
from unit.weights.conftest import params, unusual


def same(got, expected):
    """Whether two trees have equal leaves."""
    assert optree.tree_structure(got) == optree.tree_structure(expected)
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip(*map(optree.tree_leaves, (got, expected)), strict=True)
    )


def test_versions_count_from_one(publisher, subscriber):
    """publish() returns the version's number, and what was published is copied: later changes are the caller's."""
    mine = params(1)
    assert publisher.version == subscriber.latest_version == 0
    assert publisher.publish(mine) == 1
    mine["layers"][0] += 1
    assert same(subscriber.latest(), params(1))
    assert publisher.publish(mine) == publisher.version == subscriber.latest_version == 2
    assert same(subscriber.latest(), mine)


def test_numbers_of_the_callers(publisher, subscriber):
    """A version may have any number above the latest one; others are refused, and nothing is published."""
    assert [publisher.publish(params(n), version) for n, version in [(1, 7), (2, None), (3, 2**48 - 1)]] == [
        *(7, 8),
        2**48 - 1,
    ]
    assert same(subscriber.latest(), params(3))
    assert subscriber.version == subscriber.latest_version == 2**48 - 1
    with Publisher(params()) as other:
        other.publish(params(), 5)
        for version in (5, 4, 0, -1, 2**48, 6.0, True):
            with pytest.raises(ValueError, match=re.escape(f"version={version!r}: use an integer above the latest")):
                other.publish(params(), version)
        assert other.version == 5


def test_arrays_that_are_not_contiguous(publisher, subscriber):
    """They are published as their elements are."""
    mine = params()
    mine["layers"][0] = np.arange(15, dtype=np.float32).reshape(5, 3).T
    publisher.publish(mine)
    assert same(subscriber.latest(), mine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["layers"].pop(), "['layers'][1] is missing"),
        (lambda p: p.update(more=np.zeros(1)), "['more'] is not expected"),
        (lambda p: p.update(layers=tuple(p["layers"])), "the containers differ"),
        (lambda p: p.update(steps=np.zeros((), np.int32)), "leaf ['steps']: got int32[], expected int64[]"),
        (lambda p: p["layers"].__setitem__(1, np.zeros(6)), "leaf ['layers'][1]: got float64[6], expected float64[5]"),
    ],
)
def test_other_parameters_are_refused(publisher, subscriber, change, message):
    """The message names the first leaf that differs, and nothing is published."""
    other = params(1)
    change(other)
    with pytest.raises(SpecMismatchError, match=re.escape(message)):
        publisher.publish(other)
    assert publisher.version == 0


def test_leaves_that_are_no_arrays():
    """A number or an object is refused, with what to write in its place."""
    with pytest.raises(TypeError, match=re.escape("params['b'] is float; wrap it")):
        Publisher({"a": np.zeros(1), "b": 0.5})
    with pytest.raises(TypeError, match="no fixed size"):
        Publisher({"a": np.array([None])})
    with pytest.raises(ValueError, match="no array leaves"):
        Publisher({})


@pytest.mark.parametrize(
    "numbers", [{"max_leases": 0}, {"max_leases": 2**15}, {"max_subscribers": 0}, {"max_leases": True}]
)
def test_numbers_out_of_range(numbers):
    """They are refused before anything is made."""
    with pytest.raises(ValueError, match="use an integer from 1 to"):
        Publisher(params(), **numbers)


def test_two_at_once(publisher, name):
    """The second one of a name is refused, and the message says who has it."""
    with Publisher(params(), name=name) as first:
        first.publish(params(1))
        with pytest.raises(SegmentError, match="have a publisher already, this process"):
            Publisher(params(), name=name)
        assert first.publish(params(2)) == 2


def test_close_ends_it(publisher, subscriber):
    """After close() the name is gone, nothing can be published, and subscribers keep what there is."""
    publisher.publish(params(1))
    publisher.close()
    publisher.close()
    assert not [entry for entry in os.listdir("/dev/shm") if entry.endswith(publisher.name)]
    with pytest.raises(ConnectionClosedError, match="closed"):
        publisher.publish(params(2))
    assert same(subscriber.latest(), params(1))
    with subscriber.lease() as view:
        assert same(view, params(1))
    with pytest.raises(ConnectionClosedError, match="closed"):
        subscriber.wait(2)
    with pytest.raises(SegmentError, match="no segment is named"):
        Subscriber(publisher.name)


def test_a_structure_that_needs_an_example(name):
    """By name such weights need an example; a handle has the structure."""
    with Publisher(unusual(), name=name) as publisher:
        publisher.publish(unusual(1))
        with pytest.raises(SpecMismatchError, match="pass an example"):
            Subscriber(name)
        with Subscriber(name, unusual()) as one, Subscriber(publisher.handle) as two:
            assert same(one.latest(), unusual(1))
            assert same(two.latest(), unusual(1))


def test_an_ordered_dict_needs_none(name):
    """PyTorch's state_dict() is one. Its order is kept."""
    with Publisher(OrderedDict(b=np.zeros(2), a=np.zeros(3)), name=name) as publisher:
        publisher.publish(OrderedDict(b=np.ones(2), a=np.zeros(3)))
        with Subscriber(name) as subscriber:
            assert list(subscriber.latest()) == ["b", "a"]
            assert same(subscriber.latest(), OrderedDict(b=np.ones(2), a=np.zeros(3)))


def test_rings_and_weights_are_told_apart(publisher):
    """Neither is taken for the other, and a ring cannot have a name that weights have."""
    with Server({"a": np.zeros(1)}, 1) as server:
        with pytest.raises(SegmentError, match="no segment is named"):
            Subscriber(server.name)
        with pytest.raises(SegmentError, match="has no weights to subscribe to"):
            ShmClient(server.handle).subscriber()
    for attach in (ShmClient, Server.attach):
        with pytest.raises(SegmentError, match="holds weights, it is no ring"):
            attach(publisher.name)
    with pytest.raises(ValueError, match="to weights"):
        Server({"a": np.zeros(1)}, 1, name="x.weights")


def test_a_servers_publisher_ends_with_it():
    """A client of the ring finds it, and closing the server removes it."""
    with Server({"a": np.zeros(1)}, 1) as server:
        server.publisher(params()).publish(params(3))
        with ShmClient(server.handle) as client, client.subscriber() as subscriber:
            assert same(subscriber.latest(), params(3))
        with pytest.raises(SegmentError, match="have a publisher already"):
            server.publisher(params())
    assert not [entry for entry in os.listdir("/dev/shm") if server.name in entry]


def test_repr_and_pickle(publisher, subscriber):
    """They say what they are, and do not pickle."""
    publisher.publish(params())
    assert repr(publisher) == f"<Publisher of {publisher.name!r}, version 1, open>"
    assert repr(subscriber) == f"<Subscriber of {publisher.name!r}, version 0 of 1>"
    for thing in (publisher, subscriber):
        with pytest.raises(TypeError, match=r"pickle publisher\.handle"):
            thing.__reduce__()
