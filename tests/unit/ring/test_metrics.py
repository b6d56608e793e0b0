"""SampleInfo: every field that id-echo's has, and ours."""

import copy
import pickle

import numpy as np
import pytest
from harness.waiting import until

from echo_shm import HistSnapshot, Server, ShmClient

COUNTS = [
    "store_size", "active_connections", "queue_depth_sum", "queue_depth_max", "push_blocked_count",
    "samples_inserted_total", "notify_count", "cas_success_total", "cas_failure_total", "reservation_retries_total",
    "dead_producers", "stalled_producers", "reopened_slots", "refused_connections", "latest_version", "age_max",
    "too_old",
]  # fmt: skip
HISTOGRAMS = ["drain_round", "memcpy", "queue_dwell"]
HISTOGRAM_FIELDS = ["count", "min_ns", "max_ns", "mean_ns", "p50_ns", "p90_ns", "p99_ns"]
EXAMPLE = np.zeros(4)


def sampled(server, n=None):
    """Submits a batch and takes it."""
    for _ in range(server.batch_size if n is None else n):
        server.submit(EXAMPLE, timeout=5)
    return server.sample(5)


@pytest.mark.parametrize("detailed", [False, True])
def test_every_field(detailed):
    """All fields are there, of the right type, whether or not details are measured."""
    with Server(EXAMPLE, 2, detailed_metrics=detailed) as server:
        info = sampled(server).info
        for name in COUNTS:
            assert isinstance(getattr(info, name), int), name
        assert isinstance(info.learner_wait, float)
        assert isinstance(info.age_mean, float)
        for name in HISTOGRAMS:
            histogram = getattr(info, name)
            assert isinstance(histogram, HistSnapshot)
            for field in HISTOGRAM_FIELDS:
                assert isinstance(getattr(histogram, field), float if field == "mean_ns" else int), field
        assert set(info.as_dict()) == {*COUNTS, *HISTOGRAMS, "learner_wait", "age_mean"}
        assert "samples_inserted_total=2" in repr(info)


def test_counts():
    """Each count is what was done."""
    with Server(EXAMPLE, 2, num_buffers=3) as server, ShmClient(server.name), ShmClient(server.name) as client:
        for _ in range(5):
            client.send(EXAMPLE)
        first = server.sample(1)
        info = first.info
        assert info.active_connections == 2
        assert info.samples_inserted_total == 5
        assert info.store_size == 3
        assert info.queue_depth_sum == 5
        assert info.queue_depth_max == 5
        assert info.push_blocked_count == 0
        assert info.dead_producers == info.stalled_producers == info.reopened_slots == 0
        client.send(EXAMPLE)
        with pytest.raises(TimeoutError):
            client.send(EXAMPLE, timeout=0.5)
        del first
        info = server.sample(1).info
        assert info.push_blocked_count >= 1
        assert info.store_size == 2
        assert info.queue_depth_max == 5
        assert info.queue_depth_sum == 4


def test_active_connections_follow():
    """A client that leaves is no longer counted; the learner itself never is."""
    with Server(EXAMPLE, 1) as server:
        assert sampled(server).info.active_connections == 0
        client = ShmClient(server.name)
        assert sampled(server).info.active_connections == 1
        client.close()
        assert sampled(server).info.active_connections == 0


def test_waits():
    """learner_wait is the time slept for this batch, waits that timed out included."""
    with Server(EXAMPLE, 1) as server:
        assert sampled(server).info.learner_wait == 0
        with pytest.raises(TimeoutError):
            server.sample(0.5)
        assert sampled(server).info.learner_wait > 0.04
        assert sampled(server).info.learner_wait == 0


def test_wakes(background):
    """A commit that wakes a sleeping learner is counted; one that finds none is not."""
    with Server(EXAMPLE, 1) as server:
        assert sampled(server).info.notify_count == 0

        def woken():
            taken = background(server.sample, 30)
            server.submit(EXAMPLE, timeout=30)
            taken.result()
            return sampled(server).info.notify_count

        until(woken)


def test_histograms_need_detailed_metrics():
    """Without detailed_metrics the histograms and claim counters are empty."""
    with Server(EXAMPLE, 1) as server:
        sampled(server)
        info = sampled(server).info
        assert all(getattr(info, name) == HistSnapshot(0, 0, 0, 0.0, 0, 0, 0) for name in HISTOGRAMS)
        assert info.cas_success_total == info.cas_failure_total == info.reservation_retries_total == 0


def test_histograms():
    """With detailed_metrics each histogram counts its events, and its figures are in order."""
    with Server(EXAMPLE, 2, detailed_metrics=True) as server, ShmClient(server.name) as client:
        for _ in range(10):
            client.send(EXAMPLE)
            client.send(EXAMPLE)
            info = server.sample(5).info
        assert info.cas_success_total == 20
        assert info.memcpy.count == 20
        assert info.queue_dwell.count == 10
        assert info.drain_round.count == 10
        for name in HISTOGRAMS:
            h = getattr(info, name)
            assert 0 <= h.min_ns <= h.mean_ns <= h.max_ns
            assert h.min_ns <= h.p50_ns <= h.p90_ns <= h.p99_ns
            assert h.p99_ns <= h.max_ns * 1.125 + 1


def test_reset_histograms():
    """reset_histograms() empties the histograms of later snapshots, keeps the counters, and changes no old one."""
    with Server(EXAMPLE, 1, detailed_metrics=True) as server:
        for _ in range(3):
            before = sampled(server).info
        server.reset_histograms()
        after = sampled(server).info
        assert before.memcpy.count == 3
        assert after.memcpy.count == 1
        assert after.samples_inserted_total == 4


def test_infos_are_snapshots():
    """An info stays as it was when its batch was handed out, and cannot be changed."""
    with Server(EXAMPLE, 1) as server:
        first = sampled(server).info
        second = sampled(server).info
        assert (first.samples_inserted_total, second.samples_inserted_total) == (1, 2)
        with pytest.raises(AttributeError):
            first.store_size = 3
        with pytest.raises(AttributeError):
            first.other = 3
        with pytest.raises(AttributeError):
            first.memcpy.count = 3


@pytest.mark.parametrize("duplicate", [lambda i: pickle.loads(pickle.dumps(i)), copy.copy, copy.deepcopy])
def test_infos_pickle(duplicate):
    """An info goes through pickle and copy with every field."""
    with Server(EXAMPLE, 1, detailed_metrics=True) as server:
        sampled(server)
        info = sampled(server).info
    assert duplicate(info).as_dict() == info.as_dict()


def test_copied_samples_pickle():
    """A sample that holds no lease (dataset_iter(copy=True)) pickles whole."""
    with Server(EXAMPLE, 1) as server:
        server.submit(EXAMPLE + 3)
        server.close()
        (sample,) = server.dataset_iter(copy=True)
    again = pickle.loads(pickle.dumps(sample))
    np.testing.assert_array_equal(again.batch, sample.batch)
    assert again.info.as_dict() == sample.info.as_dict()


def test_reopened_slots():
    """An aborted reservation is counted as a slot that was offered again."""
    with Server(EXAMPLE, 1) as server, ShmClient(server.name) as client:
        with pytest.raises(KeyError), client.reserve():
            raise KeyError
        assert sampled(server).info.reopened_slots == 1
