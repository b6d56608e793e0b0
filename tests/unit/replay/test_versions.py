"""Each item says with which version of the weights its last step was made."""

import multiprocessing

import numpy as np
import pytest

from echo_shm import Replay, ReplayClient, Subscriber, Table
from echo_shm.replay import Fifo, NStep, Queue, Writer

EXAMPLE = {"obs": np.zeros(2, np.float32), "reward": np.zeros((), np.float32)}
PARAMS = np.zeros(3)


def step(n):
    """The step of that number."""
    return {"obs": np.full(2, n, np.float32), "reward": np.full((), n, np.float32)}


def steps(first, n):
    """n steps, stacked."""
    numbers = np.arange(first, first + n, dtype=np.float32)
    return {"obs": np.stack([numbers, numbers], 1), "reward": numbers}


def queue(**options):
    """A replay whose items come once each, in order."""
    return Replay(EXAMPLE, 100, [Table("q", rate_limiter=Queue(100))], **options)


def came(batch):
    """Numbers and versions."""
    assert batch.versions.dtype == np.int64
    return list(zip(batch.data["reward"].tolist(), batch.versions.tolist(), strict=True))


def test_embedded():
    """add and extend note what was assigned, 0 at first; each draw says it, and so does get."""
    with queue() as replay:
        assert replay.version == 0
        replay.add(step(0))
        replay.version = 7
        replay.add(step(1), terminated=True)
        replay.version = 3
        replay.extend(steps(2, 2))
        replay.version = 2**62
        replay.add(step(4))
        assert replay.version == 2**32 - 1
        key = replay.sample(1).key
        assert came(replay.sample(4)) == [(1, 7), (2, 3), (3, 3), (4, 2**32 - 1)]
        with pytest.raises(KeyError):
            replay.get(key)
    with Replay(EXAMPLE, 10) as replay:
        replay.version = 5
        replay.add(step(0))
        assert replay.get(replay.sample(3).key).versions.tolist() == [5] * 3


@pytest.mark.parametrize("wrong", [-1, 2**62 + 1, 0.5, False])
def test_no_version(wrong):
    """What is no version is refused."""
    with queue() as replay:
        replay.version = 2
        with pytest.raises(ValueError, match="use an integer from 0"):
            replay.version = wrong
        assert replay.version == 2


def test_items_of_several_steps():
    """They have the version of their last step, and what an episode ends with is a step."""
    table = Table("t", sampler=Fifo(), max_times_sampled=1, item=NStep(2, 0.5, ["obs"]))
    with Replay(EXAMPLE, 100, [table]) as replay:
        for n in range(4):
            replay.version = 10 + n
            replay.add(step(n))
        replay.version = 20
        replay.add(step(4), terminated=True, final={"obs": np.zeros(2, np.float32)})
        assert replay.sample(5).versions.tolist() == [12, 13, 20, 20, 20]


def test_what_was_drawn_for_a_batch_that_was_cut_short():
    """It keeps its version until it comes."""
    with queue() as replay:
        for n in range(3):
            replay.version = n + 1
            replay.add(step(n))
        with pytest.raises(TimeoutError):
            replay.sample(5, timeout=0)
        assert came(replay.sample(2)) == [(0, 1), (1, 2)]
        replay.version = 9
        replay.add(step(3))
        assert came(replay.sample(2)) == [(2, 3), (3, 9)]


def test_workers_carry_what_their_subscriber_got():
    """A writer's steps carry the version of its process's subscriber; the replay's own what it has published."""
    with queue(thread=True) as replay, replay.publisher(PARAMS) as publisher, Writer(replay.handle) as writer:
        publisher.publish(PARAMS)
        assert (replay.version, writer.version) == (1, 0)
        writer.add(step(0))
        with writer.subscriber() as subscriber:
            subscriber.latest()
            writer.add(step(1))
            writer.extend(steps(2, 2))
            with Writer(replay.handle) as later, Subscriber(publisher.name):
                later.add(step(4))
            publisher.publish(PARAMS)
            writer.version = 9
            subscriber.latest()
            writer.add(step(5))
        writer.flush(20)
        replay.add(step(6))
        assert came(replay.sample(7)) == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 9), (6, 2)]
        replay.version = 4
        publisher.publish(PARAMS)
        assert replay.version == 4


def test_checkpoints_and_files_keep_them(tmp_path):
    """A checkpoint has them, and so have what was drawn and not returned, and the files of a store."""
    with queue(store=f"{tmp_path}/store/") as replay:
        for n in range(4):
            replay.version = n + 5
            replay.add(step(n))
        with pytest.raises(TimeoutError):
            replay.sample(5, timeout=0)
        replay.checkpoint(tmp_path / "saved")
    with Replay.restore(tmp_path / "saved") as restored:
        assert came(restored.sample(4)) == [(n, n + 5) for n in range(4)]
    with Replay(EXAMPLE, 10, store=f"{tmp_path}/other/") as replay:
        replay.version = 5
        replay.add(step(0))
    with Replay.attach(f"{tmp_path}/other/") as again:
        assert again.version == 0
        again.add(step(1))
        assert set(came(again.sample(50))) == {(0, 5), (1, 0)}


def learn(handle, conn):
    """A learner in another process."""
    with ReplayClient(handle) as client:
        for batch in client.dataset_iter(2, table="q"):
            conn.send(came(batch))


def test_learners_elsewhere():
    """Batches that the replay draws into shared memory have them, too."""
    with queue(thread=True) as replay:
        near, far = multiprocessing.get_context("spawn").Pipe()
        learner = multiprocessing.get_context("spawn").Process(target=learn, args=(replay.handle, far), daemon=True)
        learner.start()
        with Writer(replay.handle) as writer:
            for n in range(4):
                writer.version = n + 3
                writer.add(step(n))
        got = []
        for _ in range(2):
            assert near.poll(60)
            got += near.recv()
        assert got == [(n, n + 3) for n in range(4)]
    learner.join(20)
