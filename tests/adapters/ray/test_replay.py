"""A replay over several nodes, with workers, learners and deaths."""

import contextlib
import gc
import itertools
import os
import pickle
import signal
import socket
import time
import weakref
from collections import Counter

import numpy as np
import pytest
from harness.packages import need
from harness.ray_cluster import cluster, on
from harness.waiting import until

need("ray")
need("cryptography")

import ray  # noqa: E402

import echo_shm  # noqa: E402
from echo_shm import Table  # noqa: E402
from echo_shm.adapters.ray import RayReplay  # noqa: E402
from echo_shm.adapters.ray import nodes as adapter_nodes  # noqa: E402
from echo_shm.adapters.ray.workers import RayWorkers  # noqa: E402
from echo_shm.errors import ConnectionClosedError, EchoShmError, SegmentError, SpecMismatchError, WorkerError  # noqa: E402
from echo_shm.replay import HotCold, Prioritized, Queue, SampleToInsertRatio, Softmax  # noqa: E402
from echo_shm.ring.batch_names import BatchRing  # noqa: E402
from echo_shm.ring.segment import Segment  # noqa: E402

EXAMPLE = {"worker": np.int64(0), "k": np.int64(0)}


@pytest.fixture(scope="module")
def nodes():
    """Two nodes that no test harms."""
    with cluster(1, num_cpus=4) as made:
        yield made


def numbered(writer, i, n):
    """Writes steps 0 to n - 1."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k)})
    writer.flush()


def pairs(batch):
    """What each item of a batch is."""
    return list(zip(batch.data["worker"].tolist(), batch.data["k"].tolist(), strict=True))


def test_each_sample_comes_once(nodes):
    """Through a queue over two nodes, whose workers fill it; also where a shard's process is killed meanwhile."""
    n, each = 4, 500
    with RayReplay(EXAMPLE, 10_000, [Table("queue", rate_limiter=Queue(200))]) as replay:
        assert len(replay.shards) == 2
        workers = replay.spawn(numbered, n, [each] * n, num_cpus=1)
        came, batches = Counter(), replay.dataset_iter(20, timeout=60)
        for batch in itertools.islice(batches, 20):
            came.update(pairs(batch))
        pid = replay._watching().look.reports[1][0].pid
        os.kill(pid, signal.SIGKILL)
        while came.total() < n * each:
            came.update(pairs(next(batches)))
        workers.join(60)
        batches.close()
        assert came == Counter((i, k) for i in range(n) for k in range(each))
        until(lambda: pid != replay._watching().look.reports[1][0].pid)  # all may have come before it reports
        assert not replay.losses


@pytest.mark.parametrize(("prefetch", "here", "elsewhere"), [(None, 4, 32), (7, 7, 7)])
def test_what_is_drawn_ahead(nodes, prefetch, here, elsewhere):
    """Of a shard on this node, and of one on another node: more batches, for they are small."""
    with RayReplay(EXAMPLE, 1000) as replay:
        on_each(replay, nodes, numbered, 40)
        until(lambda: sum(info.size for info in replay.info().values()) == 80)
        batches = replay.dataset_iter(128, prefetch=prefetch)
        until(lambda: set(next(batches).key["shard"].tolist()) == {0, 1})
        for place in replay._look().roster.places:
            ring = Segment.attach(BatchRing(0, 64).name(replay.shards[place.number]), read_only=True)
            ahead = here if place.node == adapter_nodes.here() else elsewhere
            assert ring.geometry.num_buffers == ahead + 1
        batches.close()


def test_two_threads_that_see_a_worker_end(monkeypatch):
    """A learner's and one that joins: one of them notes it, and the other goes on."""
    workers = RayWorkers.__new__(RayWorkers)
    workers._running, workers._placed = {0: "zero", 1: "one"}, {}

    def meanwhile(running, **_):
        del workers._running[1]
        return running, []

    monkeypatch.setattr(ray, "wait", meanwhile)
    monkeypatch.setattr(ray, "get", lambda running: None)
    workers.check()
    assert workers.finished


@ray.remote(num_cpus=0)
class Learning:
    """A learner in a process of its own."""

    def __init__(self, replay, n):
        self._batches = replay.dataset_iter(n)

    def pid(self):
        """Whom to kill."""
        return os.getpid()

    def next(self):
        """What is in its next batch. It is done with the one before."""
        return pairs(next(self._batches))


@pytest.mark.parametrize("asks", [False, True])
def test_a_killed_learner(nodes, asks):
    """What it had of a queue goes to others: its batch, unless it has asked for the next one, and what came of that."""
    with RayReplay(EXAMPLE, 1000, [Table("queue", rate_limiter=Queue(200))]) as replay:
        on_each(replay, nodes, numbered, 40)
        assert len(replay.shards) == 2
        learner = Learning.options(**on(nodes.nodes[1])).remote(replay, 50)
        pid, came = ray.get(learner.pid.remote()), Counter(ray.get(learner.next.remote()))
        assert came.total() == 50
        if asks:
            waiting = learner.next.remote()
            assert ray.wait([waiting], timeout=2.0) == ([], [waiting])
        else:
            came.clear()
        os.kill(pid, signal.SIGKILL)
        batches = replay.dataset_iter(10, timeout=60)
        for batch in itertools.islice(batches, 3 if asks else 8):
            came.update(pairs(batch))
        batches.close()
        assert came == Counter(dict.fromkeys(itertools.product((0,), range(40)), 2))


def on_each(replay, nodes, fn, n):
    """A worker on each node does n steps; returns when all shards have said that they have them."""
    for group in [replay.spawn(fn, 1, [n], **on(node)) for node in nodes.nodes]:
        group.join(60)
    until(lambda: sizes(replay) == [n] * len(nodes.nodes))


def test_a_shard_whose_process_cannot_start_again(nodes, caplog):
    """Ray gives up an actor whose constructor fails. Another one goes on with the store."""
    with RayReplay(EXAMPLE, 1000, mass_age=0.2) as replay:
        on_each(replay, nodes, numbered, 5)
        place = replay._look().roster.places[1]
        os.kill(replay._watching().look.reports[1][0].pid, signal.SIGKILL)
        with until(lambda: listening(place)):
            until(lambda: "shard 1 has a new process" in caplog.text, seconds=120)
            until(lambda: sizes(replay) == [5, 5])
            batches = replay.dataset_iter(64)
            until(lambda: set(next(batches).key["shard"].tolist()) == {0, 1})
            batches.close()
        assert not replay.losses
        assert replay._look().roster.places[1].port != place.port


def listening(place):
    """A socket that has the port of a shard's bridge; None: the bridge still has it."""
    with contextlib.suppress(OSError):
        return socket.create_server((place.host, place.port))


def calls(replay, keys):
    """What needs an open replay."""
    return [
        lambda: replay.dataset_iter(4),
        lambda: replay.update(keys, np.ones(4)),
        replay.info,
        lambda: replay.spawn(numbered, 1, [1]),
        replay.writer,
        lambda: replay.publisher({}),
    ]


def test_a_closed_replay(nodes):
    """Every call says so, also in a process that did not make it; an iteration ends."""
    with RayReplay(EXAMPLE, 1000, mass_age=0.2) as replay:
        on_each(replay, nodes, numbered, 5)
        other = pickle.loads(pickle.dumps(replay))
        batches = [one.dataset_iter(4) for one in (replay, other)]
        keys, _ = [next(one).key for one in batches]
    for one in batches:
        assert len(list(one)) < 1000
    for call in calls(replay, keys) + calls(other, keys):
        with pytest.raises(ConnectionClosedError, match="is closed"):
            call()
    replay.close()
    other.close()
    unused = weakref.ref(other)
    del one, other, batches, call
    gc.collect()
    assert unused() is None


def prioritized(writer, i, n):
    """Steps whose priority is their number, beginning at 1."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k)}, 1.0 + k)
    writer.flush()


def test_priorities_and_deletions(nodes):
    """They go to the shard that an item is of, and count in the draws of all."""
    with RayReplay(EXAMPLE, 1000, [Table("all", sampler=Prioritized(1.0, 1.0))], mass_age=0.2) as replay:
        on_each(replay, nodes, prioritized, 20)
        batches = replay.dataset_iter(64)
        batch = next(batches)
        assert set(batch.key["shard"].tolist()) == {0, 1}
        chosen = batch.key[:1]
        keys = {tuple(key): key for key in batch.key}
        while len(keys) < 40:
            keys.update((tuple(key), key) for key in next(batches).key)
        assert set(map(tuple, batch.data["k"][:, None])) <= {(k,) for k in range(20)}
        every = np.array(list(keys.values()))
        replay.update(every, (every == chosen[0]) * 7.5)
        gone = chosen[0].item()

        def is_heard_of():
            """By both shards, and in what they report."""
            batch = next(batches)
            return set(batch.key.tolist()) == {gone} and (batch.weight == 1.0).all()

        until(is_heard_of)
        batch = next(batches)
        assert (batch.priority == 7.5).all()
        assert (batch.probability == 1.0).all()
        assert (batch.weight == 1.0).all()
        assert (batch.table_size == 40).all()
        del batch  # it is all of one shard, and so in that one's ring, which has few places
        replay.delete(chosen)
        until(lambda: set(next(batches).table_size.tolist()) == {39})
        # What was drawn before may come still: 32 batches of a shard at most.
        until(lambda: not any(gone in next(batches).key.tolist() for _ in range(40)))
        batches.close()


class Learner:
    """In a process of its own."""

    def run(self, replay, n):
        """Draws, and updates what it drew."""
        batches = replay.dataset_iter(n)
        found = Counter(itertools.chain.from_iterable(batch.key.tolist() for batch in itertools.islice(batches, 5)))
        replay.update(next(batches).key, np.ones(n))
        return Counter(shard for shard, _ in found), repr(replay)


def test_a_learner_in_an_actor(nodes):
    """A replay pickles: whoever gets it draws from the same shards."""
    with RayReplay(EXAMPLE, 1000) as replay:
        on_each(replay, nodes, numbered, 3)
        learner = ray.remote(Learner).options(num_cpus=0).remote()
        found, said = ray.get(learner.run.remote(replay, 64))
        assert found == {0: 3, 1: 3}
        assert said == repr(replay)


def test_limits_hold_for_all(nodes):
    """Where one shard has all workers, it has nearly all of what may be inserted."""
    limiter = SampleToInsertRatio(1.0, 50, 40.0)
    with RayReplay(EXAMPLE, 1000, [Table("t", rate_limiter=limiter)], mass_age=0.2) as replay:
        workers = replay.spawn(numbered, 1, [100_000], num_cpus=1)

        def inserted():
            return sum(one.inserted for one in replay.info().values())

        until(lambda: inserted() >= 85)  # 50 + 40, and each shard keeps some
        for _ in itertools.islice(replay.dataset_iter(5), 40):
            pass
        until(lambda: inserted() >= 200 + 50)  # the samples, and what the learner is not ahead of

        def diff():
            return sum(one.limiter.diff for one in replay.info().values())

        until(lambda: diff() > 80)  # the worker waits again
        assert diff() <= 90
        workers.stop()
        for _ in replay.dataset_iter(5, timeout=2):
            pass
        until(lambda: diff() < 20)
        assert diff() >= 10


def test_a_keeper_that_cannot_look(nodes, monkeypatch, caplog):
    """It says so, and looks again the next time."""

    def alive():
        raise RuntimeError("no head")

    with RayReplay(EXAMPLE, 1000) as replay:
        with monkeypatch.context() as patch:
            patch.setattr(adapter_nodes, "alive", alive)
            until(lambda: "cannot be looked at now: RuntimeError('no head')" in caplog.text)
        assert replay._keeper._thread.is_alive()


def fails(writer, i):
    """One worker cannot work, and the others do nothing for long."""
    if i == 1:
        raise ValueError(f"worker {i} cannot")
    time.sleep(1000)


def test_a_worker_that_fails(nodes):
    """The learner is told what it raised, and so is who waits for all workers, though others go on."""
    with RayReplay(EXAMPLE, 1000) as replay:
        with replay.spawn(fails, 2), pytest.raises(ValueError, match=r"worker 1 cannot"):
            next(replay.dataset_iter(4))
        with replay.spawn(fails, 2) as workers:
            with pytest.raises(ValueError, match=r"worker 1 cannot"):
                workers.join(60)
            assert workers.running == 1
            with pytest.raises(TimeoutError, match=r"1 workers had not ended in 0 s"):
                workers.join(0)


def test_a_worker_that_is_killed(nodes, tmp_path):
    """Ray starts it again, or its learner is told."""
    with RayReplay(EXAMPLE, 1000) as replay:
        for restart in (True, False):
            with replay.spawn(dies_once, 1, [str(tmp_path / str(restart))], restart=restart) as workers:
                if restart:
                    workers.join(60)
                else:
                    with pytest.raises(WorkerError, match="worker 0 died: "):
                        workers.join(60)


def dies_once(writer, i, mark):
    """A worker whose first process is killed."""
    if not os.path.exists(mark):
        open(mark, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (Table("t", replacement=False), "with replacement=True"),
        (Table("t", rate_limiter=Queue(3)), "range of 3.0, and 2 shards need one of 8.0 or more"),
        (Table("t", sampler=HotCold(10)), "one of Uniform, Prioritized, Softmax, Fifo, Lifo, MinHeap, MaxHeap"),
        (Table("t", sampler=Softmax(target_effective=0.5)), "without target_effective"),
    ],
)
def test_tables_that_shards_cannot_have(nodes, table, text):
    """They are refused before anything is made."""
    with pytest.raises(ValueError, match=text):
        RayReplay(EXAMPLE, 1000, [table])


def other(writer, i):
    """A worker with another step than the replay's."""
    writer.add({"worker": np.int64(i), "k": np.float64(0)})


def test_what_differs(nodes, monkeypatch):
    """A step that differs is refused where it is written; another version of the package, before anything is made."""
    with RayReplay(EXAMPLE, 1000) as replay, pytest.raises(SpecMismatchError, match=r"'k'.*float64.*int64"):
        replay.spawn(other, 1).join(60)
    monkeypatch.setattr(echo_shm, "__version__", "0.0.1")
    with pytest.raises(EchoShmError, match=r"node .* has echo_shm .*, and this one 0\.0\.1: install the same version"):
        RayReplay(EXAMPLE, 1000)


def test_bad_arguments(nodes):
    """Each message says what was got, what was expected, and what to do."""
    with pytest.raises(ValueError, match="shards: 'x' is no node that lives: use ids of"):
        RayReplay(EXAMPLE, 1000, shards=["x"])
    with pytest.raises(ValueError, match="shards='all': use 'per_node', or a list of the ids of nodes"):
        RayReplay(EXAMPLE, 1000, shards="all")
    with pytest.raises(SegmentError, match=r"node .* has [\d,]+ bytes of free shared memory in /dev/shm, and"):
        RayReplay({"x": np.zeros(10**6)}, 10**9)
    with pytest.raises(ValueError, match="store='': use the path of a directory that all nodes see"):
        RayReplay(EXAMPLE, 1000, store="")
    with pytest.raises(SegmentError, match=r"make its parent first"):
        RayReplay(EXAMPLE, 1000, store="/proc/nope")
    with RayReplay(EXAMPLE, 1000) as replay:
        with pytest.raises(TypeError, match="per-worker argument 0 is int 5: use a sequence with an entry for each of"):
            replay.spawn(numbered, 2, 5)
        with pytest.raises(ValueError, match="prefetch=0: use an integer, 1 or more"):
            replay.dataset_iter(1, prefetch=0)
        with pytest.raises(ValueError, match="table='x': use one of 'default'"):
            replay.dataset_iter(4, "x")
        with pytest.raises(ValueError, match=r"keys: got .*, expected a batch's key"):
            replay.update(np.zeros(3, np.uint64), [1, 2, 3])
        with pytest.raises(ValueError, match=r"path=None: use a directory"):
            replay.checkpoint()


def follows(writer, i, last):
    """Writes a step with each version of the weights that it sees, until that is the last one."""
    with writer.subscriber({"w": np.zeros(3)}) as weights:
        while weights.version < last:
            weights.wait(weights.version + 1)
            with weights.lease() as params:
                assert set(params["w"].tolist()) == {float(weights.version)}
            writer.add({"worker": np.int64(i), "k": np.int64(weights.version)})
    writer.flush()


def test_weights_reach_workers_of_all_nodes(nodes):
    """From one learner's process; and steps say which version they were made with."""
    with RayReplay(EXAMPLE, 1000) as replay, replay.publisher({"w": np.zeros(3)}) as publisher:
        workers = replay.spawn(follows, 2, [3] * 2, num_cpus=3)
        for version in (1, 2, 3):
            assert publisher.publish({"w": np.full(3, float(version))}) == version
            until(lambda: all(sizes(replay)) or workers.check())  # each worker has seen one, at least
        workers.join(60)
        batch = next(replay.dataset_iter(200))
        assert set(batch.key["shard"].tolist()) == {0, 1}
        assert batch.versions.tolist() == batch.data["k"].tolist()


def sizes(replay):
    """Steps of each shard; 0 of one that has not said anything yet."""
    found = replay.info()
    return [found[number].size if number in found else 0 for number in replay.shards]
