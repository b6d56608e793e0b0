"""dataset_iter(max_age=...): batches without samples that are too old."""

import threading

import numpy as np
import pytest
from harness.waiting import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm import Server

PARAMS = np.zeros(2)


def example(i=0):
    """A sample with a big-endian leaf, a leaf without bytes, and a number."""
    return {"i": np.array(i, np.int64), "big": np.full(3, i, ">f4"), "empty": np.zeros(0)}


def send(server, number, version):
    """Submits the sample of that number."""
    server.version = version
    server.submit(example(number))


def publish(publisher, version):
    """Publishes until that is the latest version."""
    while publisher.version < version:
        publisher.publish(PARAMS)


def numbers(sample):
    """The numbers of a batch's samples, which must be whole."""
    batch = sample.batch
    assert np.array_equal(batch["big"], np.broadcast_to(batch["i"][:, None], (len(batch["i"]), 3)))
    assert (batch["big"].dtype, batch["empty"].shape) == (np.dtype(">f4"), (len(batch["i"]), 0))
    return batch["i"].tolist()


def test_mixed_batches_are_put_together():
    """Batches stay full: what is left of mixed ones is put together. All are copies."""
    with Server(example(), 3, num_buffers=8) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 10)
        for number, version in enumerate([8, 7, 10, 9, 9, 9, 1, 2, 3, 10, 7, 8, 8, 10, 10]):
            send(server, number, version)
        stream, got = server.dataset_iter(max_age=2), []
        for _ in range(3):
            sample = next(stream)
            got.append(numbers(sample))
            assert not sample._leases
            assert sample.versions.tolist() == [[8, 7, 10, 9, 9, 9, 1, 2, 3, 10, 7, 8, 8, 10, 10][i] for i in got[-1]]
        assert got == [[3, 4, 5], [0, 2, 9], [12, 13, 14]]
        assert sample.info.too_old == 5
        server.close()
        assert list(stream) == []


def test_a_batch_that_is_kept_stops_nothing():
    """Far more than the ring holds is left out while the last batch is still referred to, as in any for loop."""
    with Server(example(), 2, num_buffers=3) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 10)
        sender = threading.Thread(
            target=lambda: [send(server, number, 10 * (number % 100 < 2)) for number in range(202)], daemon=True
        )
        sender.start()
        got = []
        for sample in server.dataset_iter(max_age=2):
            got.append(numbers(sample))
            if len(got) == 3:
                break
        sender.join(LONG)
        assert got == [[0, 1], [100, 101], [200, 201]]


def test_ages_of_what_was_put_together():
    """They are those of the samples that are in it."""
    with Server(example(), 2, num_buffers=8) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 10)
        for number, version in enumerate([9, 0, 10, 0, 7, 0]):
            send(server, number, version)
        sample = next(server.dataset_iter(max_age=2))
        assert (numbers(sample), sample.info.age_mean, sample.info.age_max) == ([0, 2], 0.5, 1)
        assert sample.info.too_old == 2


def test_what_waits_grows_old():
    """What waits for the rest of its batch is looked at again: newer weights may have come."""
    with Server(example(), 2, num_buffers=8) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 10)
        stream = server.dataset_iter(max_age=2)
        for number, version in enumerate([10, 10, 8, 0, 9, 0]):
            send(server, number, version)
        assert numbers(next(stream)) == [0, 1]
        assert numbers(next(stream)) == [2, 4]
        for number, version in enumerate([8, 0, 9, 9]):
            send(server, number, version)
        assert numbers(next(stream)) == [2, 3]  # 8 waits
        publish(publisher, 11)
        for number, version in enumerate([11, 0, 11, 0]):
            send(server, number, version)
        sample = next(stream)
        assert (numbers(sample), sample.info.latest_version, sample.info.age_max) == ([0, 2], 11, 0)


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_end(drop_last):
    """What waits at the end comes with drop_last=False, together with the short batch, and then what is left."""
    with Server(example(), 3, num_buffers=8) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 5)
        for number, version in enumerate([5, 5, 0, 5, 0, 5, 5, 0]):
            send(server, number, version)
        server.close()
        got = [numbers(sample) for sample in server.dataset_iter(drop_last=drop_last, max_age=0)]
    assert got == ([[0, 1, 3]] if drop_last else [[0, 1, 3], [5, 6]])


def test_nothing_is_too_old_without_weights():
    """Without a publisher every sample comes, whatever its version."""
    with Server(example(), 2, num_buffers=4, writable=True) as server:
        for number, version in enumerate([0, 9, 5, 2, 1]):
            send(server, number, version)
        server.close()
        got = list(server.dataset_iter(drop_last=False, max_age=0))
    assert [numbers(sample) for sample in got] == [[0, 1], [2, 3], [4]]
    assert got[-1].batch["i"].flags.writeable


def test_what_is_put_together_can_be_written_to():
    """As the batches of the ring, if the server is writable."""
    with Server(example(), 1, num_buffers=4, writable=True) as server, server.publisher(PARAMS) as publisher:
        publish(publisher, 1)
        send(server, 0, 0)
        send(server, 1, 1)
        server.close()
        (sample,) = server.dataset_iter(max_age=0)
    assert sample.batch["big"].flags.writeable


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_no_age(wrong):
    """What is no integer of at least 0 is refused at the first batch."""
    with Server(example(), 1) as server, pytest.raises(ValueError, match=r"max_age=.*use an integer of at least 0"):
        next(server.dataset_iter(max_age=wrong))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40),
    batch_size=st.integers(1, 4),
    max_age=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_any_stream(steps, batch_size, max_age, drop_last):
    """No sample is too old, none comes twice, none is missing that never was. All batches but the last are full."""
    with Server(example(), batch_size, num_buffers=64) as server, server.publisher(PARAMS) as publisher:
        stream, made, got, latest_at_end = server.dataset_iter(drop_last=drop_last, max_age=max_age), {}, [], 0

        def check(sample):
            info = sample.info
            ages = info.latest_version - sample.versions
            assert ages.max() <= max_age
            assert (info.age_max, info.age_mean) == (ages.max(), ages.mean()) or info.latest_version == 0
            assert [made[i] for i in numbers(sample)] == sample.versions.tolist()
            got.append(numbers(sample))

        publish(publisher, 1)
        for back, news in steps:
            publish(publisher, publisher.version + news)
            made[len(made)] = version = max(0, publisher.version - back)
            send(server, len(made) - 1, version)
        latest_at_end = publisher.version
        server.close()
        for sample in stream:
            check(sample)
            too_old = sample.info.too_old
        came = [number for batch in got for number in batch]
        assert len(came) == len(set(came))
        fresh = [number for number, version in made.items() if latest_at_end - version <= max_age]
        if drop_last:
            assert set(came) <= set(fresh)
            assert all(len(batch) == batch_size for batch in got)
        else:
            assert sorted(came) == fresh
            assert all(len(batch) == batch_size for batch in got[:-1])
            if got:
                assert too_old <= len(made) - len(fresh)
