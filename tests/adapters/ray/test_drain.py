"""Nodes that drain hand their shard over, and writers go on."""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
from harness.packages import need
from harness.ray_cluster import cluster, on
from harness.waiting import LONG, until

need("ray")
need("cryptography")

import ray  # noqa: E402
from ray._raylet import GcsClient  # noqa: E402

from echo_shm import Table  # noqa: E402
from echo_shm.adapters.ray import RayReplay, guard, handing, keeper, nodes, shards  # noqa: E402
from echo_shm.replay import Fifo, Prioritized, Queue, Sequence, listing  # noqa: E402
from echo_shm.replay.untaken import UNTAKEN  # noqa: E402
from echo_shm.ring import lockfile  # noqa: E402
from echo_shm.ring.batch_names import BatchRing  # noqa: E402

EXAMPLE = {"worker": np.int64(0), "k": np.int64(0)}

#: DRAIN_NODE_REASON_PREEMPTION, of Ray's autoscaler.proto.
_PREEMPTION = 2


def drain(made, node):
    """Has Ray drain a node, which has an hour for it."""
    deadline = int((time.time() + 3600) * 1000)
    accepted, why = GcsClient(address=made.address).drain_node(node.id, _PREEMPTION, "a test", deadline)
    assert accepted, why


def place_of(replay, number):
    """Where a shard is."""
    return next(one for one in replay._look().roster.places if one.number == number)


def numbered(writer, i, n):
    """Writes steps 0 to n - 1."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k)})
    writer.flush()


def pairs(batch):
    """What each item of a batch is; of several steps, what its first one is."""
    columns = [batch.data[name].reshape(len(batch.key), -1)[:, 0].tolist() for name in ("worker", "k")]
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def made():
    """Three nodes. The tests that harm them come last."""
    with cluster(2, num_cpus=4) as cluster_of_tests:
        yield cluster_of_tests


@pytest.fixture
def draining(monkeypatch):
    """The nodes that the keeper, which is in this process, takes for drained ones, and when they end."""
    found = {}
    monkeypatch.setattr(nodes, "draining", lambda: dict(found))
    return found


def test_keys_and_priorities_move(made, draining, caplog):
    """A shard keeps its number, and its items their keys and priorities; a key of before is good for an update."""
    first, second, third = made.nodes
    tables = [Table("all", sampler=Prioritized(1.0, 1.0))]
    with RayReplay(EXAMPLE, 1000, tables, shards=[first.id, second.id], mass_age=0.2) as replay:
        replay.spawn(numbered, 1, [20], **on(second)).join(60)
        batches = replay.dataset_iter(64)
        batch = next(batches)
        assert set(batch.key["shard"].tolist()) == {1}
        chosen = batch.key[batch.data["k"] == batch.data["k"][0]][:1]
        replay.update(chosen, [7.0])
        draining[second.id] = math.inf
        until(lambda: place_of(replay, 1).incarnation == 1)
        assert place_of(replay, 1).node == third.id
        batch = next(one for one in batches if chosen[0] in one.key)
        assert set(batch.priority[batch.key == chosen[0]].tolist()) == {7.0}
        assert set(batch.table_size.tolist()) == {20}
        replay.update(chosen, [0.0])
        until(lambda: chosen[0] not in next(batches).key)
        batches.close()
        draining.update({first.id: math.inf, third.id: math.inf})
        until(lambda: "there is no other node: its shard 1 stays" in caplog.text)
        assert place_of(replay, 1).incarnation == 1
        assert not replay.losses


@contextlib.contextmanager
def two_queues(made, length=1, store=None):
    """A replay of queues on two nodes, a learner that has had its first batch, and which items that had.

    Each shard was given 200 steps, by a worker of its number. An item has one or two of them.
    """
    first, second, _ = made.nodes
    queue = Table("q", rate_limiter=Queue(800))
    windows = Table("q", item=Sequence(2), sampler=Fifo(), max_times_sampled=1)  # its limiter limits nothing
    tables = [queue if length == 1 else windows]
    with RayReplay(EXAMPLE, 1000, tables, shards=[first.id, second.id], store=store) as replay:
        for i, node in ((1, second), (0, first)):  # the last one has most room
            replay.spawn(numbered_as, 1, [i], [200], **on(node)).join(60)
        batches = replay.dataset_iter(16 // length, timeout=LONG)
        yield replay, batches, pairs(next(batches))
        batches.close()


def numbered_as(writer, _, i, n):
    """As numbered(), of another number."""
    numbered(writer, i, n)


def is_settling(replay, number):
    """Whether a shard waits for learners, before it is handed over."""
    return replay._look().reports[number][0].settling


def test_a_learner_that_pauses(made, draining):
    """A shard is handed over when learners have what it has drawn. The others go on meanwhile."""
    with two_queues(made) as (replay, batches, came):
        draining[made.nodes[1].id] = math.inf
        until(lambda: is_settling(replay, 1))
        replay.spawn(numbered_as, 1, [2], [112], **on(made.nodes[0])).join(60)
        assert (place_of(replay, 1).incarnation, is_settling(replay, 1)) == (0, True)
        while len(came) < 512:
            came += pairs(next(batches))
        until(lambda: place_of(replay, 1).incarnation == 1)
        each = [(i, k) for i in range(2) for k in range(200)] + [(2, k) for k in range(112)]
        assert Counter(came) == Counter(each)


@pytest.mark.parametrize("why", ["it does not drain after all", "the other nodes drain, too"])
def test_a_shard_stays(made, draining, why):
    """Nothing is handed over, and it goes on."""
    with two_queues(made) as (replay, batches, came):
        draining[made.nodes[1].id] = math.inf
        until(lambda: is_settling(replay, 1))
        if why == "it does not drain after all":
            draining.clear()
        else:
            draining.update({one.id: math.inf for one in made.nodes})
        until(lambda: not is_settling(replay, 1))
        while len(came) < 400:
            came += pairs(next(batches))
        assert len(set(came)) == 400
        assert place_of(replay, 1).incarnation == 0


def test_a_shard_is_killed_while_it_waits(made, draining):
    """The actor that goes on with its store waits as well, and is handed over: nothing comes twice."""
    with two_queues(made) as (replay, batches, came):
        draining[made.nodes[1].id] = math.inf
        until(lambda: is_settling(replay, 1))
        before = replay._look().reports[1][0].pid
        os.kill(before, signal.SIGKILL)
        until(lambda: replay._look().reports[1][0].pid != before and is_settling(replay, 1))
        while len(came) < 400:
            came += pairs(next(batches))
        until(lambda: place_of(replay, 1).incarnation == 1)
        assert Counter(came) == Counter((i, k) for i in range(2) for k in range(200))


#: All items that such a replay is given.
ALL = [(i, k) for i in range(2) for k in range(200)]

#: Which of the two shards is drained, as the learner sees it, and where shards have their stores.
WAYS = pytest.mark.parametrize("shard", [0, 1], ids=["near-in-memory", "far-in-files"])


def store_of(tmp_path, shard):
    """The store of a replay whose shard of that number is drained."""
    return tmp_path if shard == 1 else None


def rest_of(batches, came, most=400):
    """What came, and what comes until so many items have come."""
    for batch in batches:
        came += pairs(batch)
        if len(came) >= most:
            break
    return came


@WAYS
def test_a_learner_that_pauses_for_too_long(made, draining, tmp_path, shard):
    """The shard is handed over while there is time. What no learner has taken comes from there, and nothing twice."""
    with two_queues(made, store=store_of(tmp_path, shard)) as (replay, batches, came):
        draining[made.nodes[shard].id] = time.time() + 2
        until(lambda: place_of(replay, shard).incarnation == 1)
        assert sorted(rest_of(batches, came)) == ALL


@pytest.mark.parametrize("length", [1, 2])
def test_nobody_iterates(made, draining, tmp_path, length):
    """The shard is handed over at once. Its new process first gives what the old one had drawn, in that order."""
    with two_queues(made, length, tmp_path if length == 2 else None) as (replay, batches, came):
        batches.close()
        draining[made.nodes[1].id] = math.inf
        until(lambda: place_of(replay, 1).incarnation == 1)
        with contextlib.closing(replay.dataset_iter(16 // length, timeout=LONG)) as again:
            rest_of(again, came, 400 // length)
        assert sorted(came) == ALL[::length]
        assert [k for i, k in came if i == 1] == list(range(0, 200, length))
        until(lambda: [replay.info()[number].sampled for number in (0, 1)] == [200 // length] * 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_replay_is_closed_at_once(monkeypatch, tmp_path, is_known):
    """A shard that is known has what was drawn before: the next replay of that store does not get it once more."""
    file, shard = tmp_path / UNTAKEN, shards.Shard.__new__(shards.Shard)
    file.touch()
    shard._refusal = shard._untaken = None
    shard._folder, shard._has_file = str(tmp_path), True
    shard._ended, shard._bounding, shard._leaving = threading.Event(), threading.Lock(), contextlib.ExitStack()
    shard._relay, shard._replay = mock.Mock(), mock.Mock()
    monkeypatch.setattr(shards.Shard, "_is_known", lambda _: is_known)
    shard.close()
    assert file.exists() != is_known
    shard._replay.close.assert_called_once()


@WAYS
def test_no_node_takes_over_what_was_drawn(made, draining, monkeypatch, caplog, tmp_path, shard):
    """The shard, which was ready for that, goes on with it."""
    make = keeper.Keeper._make
    monkeypatch.setattr(keeper.Keeper, "_make", lambda self, place, *rest: not place.incarnation and make(self, place))
    with two_queues(made, store=store_of(tmp_path, shard)) as (_, batches, came):
        draining[made.nodes[shard].id] = time.time() + 2
        until(lambda: "no other node could take it over" in caplog.text)
        assert sorted(rest_of(batches, came)) == ALL


@WAYS
def test_the_new_process_is_killed_at_once(made, draining, tmp_path, shard):
    """The one that goes on has what was drawn before, all of it once."""
    with two_queues(made, store=store_of(tmp_path, shard)) as (replay, batches, came):
        draining[made.nodes[shard].id] = time.time() + 2
        until(lambda: place_of(replay, shard).incarnation == 1)
        pid = until(lambda: (found := replay._look().reports.get(shard)) and found[0].incarnation and found[0].pid)
        os.kill(pid, signal.SIGKILL)
        assert sorted(rest_of(batches, came)) == ALL


LARGE = {"worker": np.int64(0), "k": np.int64(0), "filler": np.zeros(2048)}


def large(writer, i, n):
    """Writes steps 0 to n - 1, of 16 KB."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k), "filler": np.full(2048, float(k))})
    writer.flush()


def folders_of(store):
    """Where a shard's files lie meanwhile."""
    return [Path(one) for one in guard.folders(handing.prefix_of(store))]


def files_of(store):
    """What is in there."""
    return [file for folder in folders_of(store) for file in folder.glob("*")]


def shard_processes():
    """The processes of all shards."""
    return {one for one in psutil.process_iter(["name"]) if (one.info["name"] or "").startswith("ray::Shard")}


def kill_it(actor, store, _):
    """While it receives, and for good."""
    until(lambda: files_of(store))
    ray.kill(actor)


def kill_its_process(_, store, before):
    """Once it has its store, and puts what was drawn into a ring. Ray starts it again."""
    (process,) = until(lambda: shard_processes() - before)  # it has no children yet
    until(lambda: BatchRing(0, 1).name(store) in lockfile.names())
    process.kill()


@pytest.mark.parametrize("kill", [kill_it, kill_its_process])
def test_the_destination_is_killed(made, draining, monkeypatch, caplog, kill):
    """The old shard goes on, with all that it had, and takes more; nothing is left of the new one."""
    _, second, third = made.nodes
    monkeypatch.setattr(RayReplay, "_patience", 1.0)
    started = []

    class Keeper(keeper.Keeper):
        def _start(self, place, origin=None):
            before = shard_processes()
            super()._start(place, origin)
            if origin is not None:
                new = self._actors[place.number], self._setup.store_of(place)
                started.append(new[1])
                threading.Thread(target=kill, args=(*new, before)).start()
            return place

    monkeypatch.setattr("echo_shm.adapters.ray.replay.Keeper", Keeper)
    tables = [Table("q", rate_limiter=Queue(10_000))]
    with RayReplay(LARGE, 10_000, tables, shards=[second.id]) as replay, replay.writer() as writer:
        large(writer, 0, 3000)
        with contextlib.closing(replay.dataset_iter(100, timeout=LONG)) as batches:
            came = pairs(next(batches))
        draining.update({second.id: time.time() + 2, third.id: math.inf})
        large(writer, 1, 300)  # beyond the bridge: what is on its way when the shard takes no more goes back to it
        until(lambda: "no other node could take it over" in caplog.text)
        (name,) = started
        large(writer, 2, 10)
        assert place_of(replay, 0).incarnation == 0
        assert place_of(replay, 0).node == second.id
        with contextlib.closing(replay.dataset_iter(10, timeout=LONG)) as batches:
            rest_of(batches, came, 3310)
        assert sorted(came) == [(i, k) for i, n in enumerate((3000, 300, 10)) for k in range(n)]
        until(lambda: not folders_of(name) and name not in listing.names())
        assert not folders_of(replay.shards[0])


def test_a_free_writer_goes_on(made):
    """Where the node of its shard dies, and so does its subscriber. What that shard had is lost, and said."""
    _, second, third = made.nodes
    with contextlib.ExitStack() as stack:
        shards = [second.id, third.id]
        replay = stack.enter_context(RayReplay(EXAMPLE, 20_000, shards=shards, mass_age=0.2))
        publisher = stack.enter_context(replay.publisher({"w": np.zeros(3)}))
        publisher.publish({"w": np.ones(3)})
        writer = stack.enter_context(replay.writer())
        weights = stack.enter_context(writer.subscriber())
        assert weights.latest()["w"].tolist() == [1.0] * 3
        numbered(writer, 0, 100)
        until(lambda: sorted(one.size for one in replay.info().values()) == [0, 100])
        (number,) = (number for number, one in replay.info().items() if one.size)
        assert writer.shard == number
        made.kill(second if place_of(replay, number).node == second.id else third)
        numbered(writer, 1, 100)
        assert writer.shard == 1 - number
        assert not weights.poll()
        assert weights.version == 1
        publisher.publish({"w": np.full(3, 2.0)})
        assert weights.wait(2, 60) == 2
        assert weights.poll()
        with weights.lease() as params:
            assert params["w"].tolist() == [2.0] * 3
        until(lambda: replay.losses)
        (loss,) = replay.losses
        assert (loss.number, loss.num_steps, loss.restored) == (number, 100, False)
        until(lambda: replay.info()[1 - number].size == 100)
        assert set(next(replay.dataset_iter(64)).data["worker"].tolist()) == {1}


def test_a_node_drains_under_writing_workers(made):
    """Each number of each worker comes once; those of the node write on into another shard."""
    each, (first, second) = 600, made.nodes
    tables = [Table("q", rate_limiter=Queue(200))]
    with RayReplay(EXAMPLE, 20_000, tables, shards=[first.id, second.id]) as replay:
        workers = [replay.spawn(numbered, 2, [each] * 2, **on(node)) for node in made.nodes]
        came, batches = Counter(), replay.dataset_iter(20, timeout=60)
        for batch in itertools.islice(batches, 20):
            came.update(pairs(batch))
        drain(made, second)
        while came.total() < 2 * 2 * each:
            came.update(pairs(next(batches)))
        batches.close()
        for group in workers:
            group.join(60)
        assert came == Counter({(i, k): 2 for i in range(2) for k in range(each)})
        until(lambda: place_of(replay, 1).incarnation == 1)
        assert place_of(replay, 1).node != second.id
        assert not replay.losses
