"""Each sample carries the version of the weights that it was made with."""

import copy
import gc
import math
import pickle

import numpy as np
import pytest

from echo_shm import Publisher, Server, ShmClient, Subscriber

EXAMPLE = np.zeros((), np.int64)
PARAMS = {"w": np.zeros(3)}


@pytest.fixture
def server():
    """A ring of six batches of two."""
    with Server(EXAMPLE, 2, num_buffers=6) as server:
        yield server


@pytest.fixture
def client(server):
    """Its producer."""
    with ShmClient(server.name) as client:
        yield client


def versions(sample):
    """Those of a sample's batch, as a list. They must be what they say that they are."""
    array = sample.versions
    assert array.dtype == np.int64
    assert not array.flags.writeable
    return array.tolist()


def test_every_way_to_send_by_hand(server, client):
    """send, its slow path, send_many, bind, reserve and submit carry what was assigned last; 0 at first."""
    assert client.version == server.version == 0
    client.send(EXAMPLE)
    client.version = np.int32(1)
    client.send(7)  # a Python number is converted first
    client.version = 2
    client.send_many(np.arange(3))
    bound = client.bind(np.zeros((), np.int64))
    client.version = 3
    bound.send()
    with client.reserve() as slot:
        client.version = 2**62  # in the block: the slot was claimed before
        slot[...] = 1
    client.send(EXAMPLE)
    server.version = 5
    server.submit(EXAMPLE)
    server.submit_many(np.arange(1))
    assert [versions(server.sample(1)) for _ in range(5)] == [[0, 1], [2, 2], [2, 3], [3, 2**62], [5, 5]]


@pytest.mark.parametrize("wrong", [-1, 2**62 + 1, 1.0, "1", None, True])
def test_no_version(client, server, wrong):
    """What is no integer from 0 to 2**62 is refused, and changes nothing."""
    client.version = 4
    for one in (client, server):
        with pytest.raises(ValueError, match=r"use an integer from 0 .* to 2\*\*62"):
            one.version = wrong
    assert (client.version, server.version) == (4, 0)


def test_a_subscriber_stamps(server, client):
    """What a subscriber of this process has got, its clients carry, also those that come later; no other ring's."""
    with (
        server.publisher(PARAMS) as publisher,
        client.subscriber() as subscriber,
        Server(EXAMPLE, 1) as other_server,
        ShmClient(other_server.name) as other,
    ):
        publisher.publish(PARAMS)
        assert client.version == 0
        subscriber.latest()
        assert client.version == 1
        publisher.publish(PARAMS)
        assert subscriber.poll()
        assert client.version == 1  # it has not got it
        assert subscriber.poll(into={"w": np.zeros(3)})
        assert client.version == 2
        publisher.publish(PARAMS)
        with subscriber.lease():
            assert client.version == 3
        with ShmClient(server.name) as later:
            assert later.version == 3
        assert other.version == 0
        with Subscriber(publisher.handle) as second:
            publisher.publish(PARAMS)
            second.latest()
        assert client.version == 4


def test_a_version_by_hand_stays(server, client):
    """Neither a subscriber nor a publisher changes what the user has assigned."""
    with server.publisher(PARAMS) as publisher, client.subscriber() as subscriber:
        client.version = server.version = 0
        publisher.publish(PARAMS)
        subscriber.latest()
        assert client.version == server.version == 0
        client.version = 9
        assert client.version == 9


def test_a_forgotten_subscriber_stamps_nobody(server, client):
    """Clients that attach after a subscriber is gone carry nothing of it."""
    with server.publisher(PARAMS) as publisher:
        publisher.publish(PARAMS)
        subscriber = client.subscriber()
        subscriber.latest()
        del subscriber
        gc.collect()
        assert client.version == 1
        with ShmClient(server.name) as later:
            assert later.version == 0


def test_submit_carries_what_was_published(server):
    """The learner's own samples are made with what it has published. A publisher alone knows no ring."""
    with Publisher(PARAMS) as alone:
        alone.publish(PARAMS)
    assert server.version == 0
    with server.publisher(PARAMS) as publisher:
        publisher.publish(PARAMS)
        publisher.publish(PARAMS)
        assert server.version == 2


def test_ages(server, client):
    """They are those at the take: also of a batch that was released, and after newer versions."""
    client.send_many(np.arange(4))
    info = server.sample(1).info
    assert math.isnan(info.age_mean)
    assert (info.age_max, info.latest_version) == (0, 0)
    with server.publisher(PARAMS) as publisher:
        publisher.publish(PARAMS)
        assert server.sample(1).info.age_mean == 1  # made before the first weights
        client.version = 1
        client.send(EXAMPLE)
        publisher.publish(PARAMS)
        publisher.publish(PARAMS)
        client.version = 2
        client.send(EXAMPLE)
        sample = server.sample(1)
        sample.release()
        client.send_many(np.arange(12))
        publisher.publish(PARAMS)
        info = sample.info
        assert (info.age_mean, info.age_max, info.latest_version) == (1.5, 2, 3)
        assert info.as_dict()["age_mean"] == 1.5
        client.version = 5  # more than the learner has published
        for _ in range(6):
            server.sample(1)
        client.send_many(np.arange(2))
        info = server.sample(1).info
        assert (info.age_mean, info.age_max, info.latest_version) == (0, 0, 4)


def test_versions_live_as_the_batch_does(server, client):
    """They keep the batch's slots taken, are a view, and end with the batch."""
    client.version = 1
    client.send_many(np.arange(12))
    kept = server.sample(1).versions
    assert kept.base is not None
    gc.collect()
    with pytest.raises(TimeoutError):
        client.send(EXAMPLE, timeout=0)
    assert kept.tolist() == [1, 1]
    del kept
    client.send(EXAMPLE, timeout=0)
    with server.lease() as leased:
        assert versions(leased) == [1, 1]
    with Server.attach(server.name) as further:
        assert versions(further.sample(1)) == [1, 1]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_keep_their_versions(server, client, duplicate):
    """A copy of a sample has its own versions."""
    client.version = 3
    client.send_many(np.arange(2))
    sample = server.sample(1)
    again = duplicate(sample)
    sample.release()
    client.version = 4
    client.send_many(np.arange(12))
    assert again.versions.tolist() == [3, 3]


def test_rings_of_one_batch_and_copies():
    """The copies that a ring of one batch gives, and those of dataset_iter, have versions, too."""
    with Server(EXAMPLE, 2, num_buffers=1) as server:
        server.version = 1
        server.submit_many(np.arange(2))
        first = server.sample(1)
        server.version = 2
        assert versions(first) == [1, 1]
        with pytest.raises(TimeoutError):
            server.sample(0)
        assert versions(first) == [1, 1]
        server.submit_many(np.arange(2))
        sample = server.sample(1)
        assert (versions(first), versions(sample)) == ([1, 1], [2, 2])
    with Server(EXAMPLE, 2) as server:
        for version in (1, 2, 3):
            server.version = version
            server.submit(EXAMPLE)
        server.close()
        copies = list(server.dataset_iter(copy=True, drop_last=False))
    assert [versions(sample) for sample in copies] == [[1, 2], [3]]


def test_the_short_batch_at_the_end():
    """What is left at the end has its own versions and ages, without those of samples that never came."""
    with Server(EXAMPLE, 4) as server, ShmClient(server.name) as client, server.publisher(PARAMS) as publisher:
        publisher.publish(PARAMS)
        client.version = 1
        client.send_many(np.arange(4))
        claim = client.reserve()
        client.version = 0
        claim.__enter__()
        client.version = 1
        client.send(EXAMPLE)
        publisher.publish(PARAMS)
        client.version = 2
        client.send(EXAMPLE)
        client.close()  # the claim never becomes a sample
        server.close()
        full, short = server.dataset_iter(drop_last=False)
    assert (versions(full), full.info.age_max) == ([1, 1, 1, 1], 1)
    assert (versions(short), short.info.age_mean, short.info.latest_version) == ([1, 2], 0.5, 2)
