"""Streams over the nodes of a cluster: each sample comes once, whoever is killed."""

import os
import signal
from collections import Counter

import numpy as np
import pytest
from harness import leftovers
from harness.packages import need
from harness.ray_cluster import cluster, on
from harness.waiting import until

need("ray")
need("cryptography")

import ray  # noqa: E402

from echo_shm import ConnectionClosedError, SpecMismatchError, Subscriber  # noqa: E402
from echo_shm.adapters.ray import RayStream, nodes  # noqa: E402
from echo_shm.adapters.ray.asking import ask  # noqa: E402
from echo_shm.adapters.ray.weights import Offers, RayPublisher, Relay, announcing  # noqa: E402

EXAMPLE = np.zeros((), np.int64)

#: Samples of each worker.
COUNT = 3000


@pytest.fixture(scope="module")
def two():
    """Two nodes."""
    with cluster(1, num_cpus=8) as made:
        yield made.nodes


@pytest.fixture(autouse=True)
def nothing_left(two):
    """Asserts that the test left nothing of ours in shared memory. Ray keeps processes for the next one."""
    files = leftovers.files()
    yield
    until(lambda: not leftovers.files() - files)


def count_up(client, i, first):
    """A worker: sends its numbers, and its last ones in one call."""
    for k in range(COUNT - 100):
        client.send(np.int64(first + k))
    client.send_many(np.arange(first + COUNT - 100, first + COUNT))
    client.wait()


class Learning:
    """A learner in an actor. It writes down what it gets."""

    def __init__(self, stream, path):
        self.stream, self.path = stream, path

    def learn(self, dies_after=None):
        """Takes batches until the stream ends. The first process kills itself while it has a batch in hand."""
        first = not os.path.exists(self.path)
        with open(self.path, "a") as file:
            for n, sample in enumerate(self.stream.dataset_iter(drop_last=False)):
                if first and n == dies_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                file.writelines(f"{one}\n" for one in sample.batch.tolist())
                file.flush()


def numbers(paths):
    """How often learners have got each number."""
    return Counter(int(line) for path in paths for line in path.read_text().split())


@pytest.mark.watchdog(300)
def test_each_sample_comes_once(two, tmp_path):
    """With a learner on each node. The actor that knows them is killed before workers ask it."""
    paths = [tmp_path / "0", tmp_path / "1"]
    with RayStream(EXAMPLE, 100) as stream:
        actor = ray.remote(Learning)
        learners = [
            actor.options(**nodes.on(node.id)).remote(stream, path) for node, path in zip(two, paths, strict=True)
        ]
        done = [one.learn.remote() for one in learners]
        until(lambda: len(ray.get(stream._learners.look.remote())) == 2, seconds=200)
        ray.kill(stream._learners, no_restart=False)
        with stream.spawn(count_up, 2, [0, COUNT]) as workers:
            workers.join()
        stream.close()
        ray.get(done)
    assert numbers(paths) == Counter(range(2 * COUNT))


@pytest.mark.watchdog(300)
def test_a_learner_that_is_killed(two, tmp_path):
    """The next one on its node goes on with its ring, and so do workers of both nodes. Nothing is lost or doubled."""
    path = tmp_path / "0"
    with RayStream(EXAMPLE, 100) as stream:
        options = {**nodes.on(two[1].id), "max_restarts": 1, "max_task_retries": 1}
        learner = ray.remote(Learning).options(**options).remote(stream, path)
        done = learner.learn.remote(3)
        groups = [stream.spawn(count_up, 1, [first], **on(node)) for node, first in zip(two, (0, COUNT), strict=True)]
        for group in groups:
            group.join()
        stream.close()
        ray.get(done)
    assert numbers([path]) == Counter(range(2 * COUNT))


def fail(client, i):
    """A worker that fails."""
    raise KeyError(f"of worker {i}")


@pytest.mark.watchdog(300)
def test_a_driver_that_learns(two):
    """It can wait for its workers, and hears of one that fails. What is closed stays so."""
    with RayStream(EXAMPLE, 100) as stream:
        workers = stream.spawn(count_up, 2, [0, COUNT])
        samples = stream.dataset_iter(until=workers, drop_last=False)
        assert sorted(n for sample in samples for n in sample.batch.tolist()) == list(range(2 * COUNT))
        assert workers.finished
        with pytest.raises(TypeError, match="unexpected keyword argument 'batch_size'"):
            stream.dataset_iter(batch_size=3)
        stream.spawn(fail, 1)
        with pytest.raises(KeyError, match="of worker 0"):
            list(stream.dataset_iter())
        stream.close()
        with pytest.raises(ConnectionClosedError, match="is closed"):
            stream.learner()
        assert list(stream.dataset_iter()) == []


class Directory(Offers):
    """What a directory knows of publishers, in an actor."""

    def pid(self):
        """Of its process."""
        return os.getpid()


def kill(directory):
    """Kills the process of an actor, and returns when Ray has started another one."""
    before = ask(directory, "pid")
    os.kill(before, signal.SIGKILL)
    until(lambda: ask(directory, "pid") != before, seconds=200)


class Relaying:
    """The relay of a node in an actor of that node, as a shard has it."""

    def __init__(self, name, number, directory):
        self.relay, self.number, self.directory = Relay(f"{name}-{number}", nodes.here()), number, directory

    def report(self):
        """Tells the directory, and follows whom that names."""
        self.relay.follow(ask(self.directory, "report", self.number, self.relay.offer, self.relay.version))
        return self.relay.version

    def stop(self):
        """Removes the weights."""
        self.relay.stop()


@pytest.mark.watchdog(300)
def test_weights(two, name):
    """Each node's relay has what a learner publishes, also after the directory has forgotten it."""
    directory = ray.remote(Directory).options(max_restarts=-1, num_cpus=0).remote()
    relays = [
        ray.remote(Relaying).options(**nodes.on(node.id)).remote(name, i, directory) for i, node in enumerate(two)
    ]
    host = nodes.alive()[nodes.here()]
    with RayPublisher({"w": EXAMPLE}, name, nodes.here(), host, announcing(directory)) as publisher:
        for n in range(1, 3):
            assert publisher.publish({"w": np.int64(n)}) == n
            until(lambda n=n: ray.get([one.report.remote() for one in relays]) == [n, n], seconds=200)
            kill(directory)
        until(lambda: ask(directory, "report", 0, None, 0), seconds=200)  # it has heard of the publisher again
        with pytest.raises(SpecMismatchError, match=r"published before: got .*float64"):
            RayPublisher({"w": np.zeros(1)}, f"{name}-other", nodes.here(), host, announcing(directory))
    for i in range(2):
        with Subscriber(f"{name}-{i}") as subscriber:
            assert subscriber.latest() == {"w": 2}
    ray.get([one.stop.remote() for one in relays])
