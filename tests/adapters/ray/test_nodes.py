"""Nodes that are cut off, die, join, and leave."""

import itertools
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from harness import ray_cluster
from harness.packages import need
from harness.ray_cluster import cluster, on
from harness.waiting import until

need("ray")
need("cryptography")

from echo_shm.adapters.ray import RayReplay  # noqa: E402
from echo_shm.adapters.ray.filling import KEY  # noqa: E402
from echo_shm.errors import SegmentError  # noqa: E402
from echo_shm.replay import listing  # noqa: E402

#: Ray takes a silent node for dead after ten seconds: later than a shard is left out.
SLOWLY_DEAD = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}

EXAMPLE = {"worker": np.int64(0), "k": np.int64(0)}


#: Nodes take seconds to start, to die, and to be taken for dead.
pytestmark = pytest.mark.watchdog(240)


@pytest.fixture(scope="module")
def made():
    """A head and two nodes in networks of their own, at the beginning of each test."""
    if why := ray_cluster.why_not():
        pytest.skip(why)
    with cluster(2, isolated=True, num_cpus=2, config=SLOWLY_DEAD) as one:
        yield one


def numbered(writer, i, n):
    """Writes steps 0 to n - 1."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k)})
    writer.flush()


def fill(replay, made, fn=numbered):
    """A worker on each node writes 100 steps."""
    for group in [replay.spawn(fn, 1, [100], **on(node)) for node in made.nodes]:
        group.join(60)


def shards_of(batches, n=20):
    """Of so many batches: the shards of their items."""
    return set(itertools.chain.from_iterable(next(batches).key["shard"].tolist() for _ in range(n)))


def test_a_node_is_cut_off(made, caplog):
    """Its shard is left out, before Ray takes it for dead, and comes back with the link."""
    with RayReplay(EXAMPLE, 3000, mass_age=0.5) as replay:
        fill(replay, made)
        number, node = one_of(made, replay)
        batches = replay.dataset_iter(64)
        until(lambda: shards_of(batches) == {0, 1, 2})
        node.cut()
        until(lambda: shards_of(batches) == {0, 1, 2} - {number})
        assert not replay.losses
        node.restore()
        until(lambda: shards_of(batches) == {0, 1, 2})
        until(lambda: f"shard {number} is there again" in caplog.text)
        assert not replay.losses
        batches.close()


LARGE = EXAMPLE | {"filler": np.zeros(512)}


def large(writer, i, n):
    """Writes steps 0 to n - 1, of 4 KB."""
    for k in range(n):
        writer.add({"worker": np.int64(i), "k": np.int64(k), "filler": np.full(512, float(k))})
    writer.flush()


def test_a_node_that_is_slow(made, caplog):
    """It is waited for: draws are those of all shards, and nothing of it is taken for dead."""
    with RayReplay(LARGE, 3000, mass_age=0.5) as replay:
        fill(replay, made, large)
        number, node = one_of(made, replay)
        batches = replay.dataset_iter(64)
        until(lambda: shards_of(batches) == {0, 1, 2})
        node.delay(rate="4mbit")
        began, slow = time.monotonic(), []
        while time.monotonic() < began + 6.0:
            batch = next(batches)
            slow.append(np.mean(batch.key["shard"] == number))
            assert (batch.data["filler"] == batch.data["k"][:, None]).all()
            assert batch.probability == pytest.approx(1 / 300)
        node.delay()
        # So many bytes cannot come sooner; and a third of the items is of each shard, to five standard deviations.
        assert sum(slow) * 64 * 4096 <= 6.5 * 4e6 / 8 + 8 * 64 * 4096
        assert np.mean(slow) == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / 64 / len(slow)))
        assert "is not heard of" not in caplog.text
        assert not replay.losses
        batches.close()


def test_a_node_dies_and_another_one_joins(made, caplog):
    """What went with it is said; the others go on, and the new one gets a shard and workers."""
    with RayReplay(EXAMPLE, 3000, mass_age=0.5) as replay:
        fill(replay, made)
        number, node = one_of(made, replay)
        batches = replay.dataset_iter(64)
        until(lambda: shards_of(batches) == {0, 1, 2})
        made.kill(node)
        until(lambda: shards_of(batches) == {0, 1, 2} - {number})
        until(lambda: replay.losses)
        (loss,) = replay.losses
        assert (loss.number, loss.node, loss.num_steps, loss.tables) == (number, node.id, 100, {"default": 100})
        said = "its node is gone: it held 100 steps, 100 items of table 'default'; they are lost; 2 other shards go on"
        assert re.search(f"shard {number} on node .* is gone, because {said}", caplog.text)
        until(lambda: set(next(batches).table_size.tolist()) == {200})
        replay.update(np.array([(number, 7)], KEY), [1.0])  # it is gone: ignored

        made.add(num_cpus=2)
        until(lambda: 3 in replay.shards)
        fill(replay, made)
        until(lambda: shards_of(batches) == {0, 1, 2, 3} - {number})
        batches.close()


def test_a_node_without_power_under_a_free_writer(made, background):
    """Nothing closes its connections. The writer goes on with another shard, and so does a wait for weights."""
    shards = [one.id for one in made.nodes[1:]]
    with RayReplay(EXAMPLE, 3000, shards=shards, mass_age=0.5) as replay, replay.writer() as writer:
        publisher = replay.publisher({"w": np.zeros(3)})
        numbered(writer, 0, 100)
        number = writer.shard
        subscribing = background(writer.subscriber)
        subscribing.thread.join(1.0)
        assert subscribing.runs
        made.kill(next(one for one in made.nodes if (number, one.id) in nodes_of(replay)))
        background(numbered, writer, 1, 100).result(45.0)  # TCP would tell of it after 60 s, or never
        assert writer.shard == 1 - number
        publisher.publish({"w": np.ones(3)})
        with subscribing.result() as weights:
            assert weights.latest()["w"].tolist() == [1.0] * 3
        until(lambda: replay.info()[writer.shard].size == 100)
        publisher.close()
    made.add(num_cpus=2)


def nodes_of(replay):
    """The shards' numbers, with the nodes that they are on."""
    return [(one.number, one.node) for one in replay._look().roster.places]


def one_of(made, replay):
    """A shard that is not on the head, and its node."""
    return next((number, node) for number, of in nodes_of(replay) for node in made.nodes[1:] if node.id == of)


OWNER = """
import sys, time
import numpy as np, ray
from echo_shm.adapters.ray import RayReplay
ray.init(sys.argv[1], log_to_driver=False)
RayReplay._patience = 1.0
replay = RayReplay({"x": np.zeros(3)}, 100)
print(*replay.shards.values(), flush=True)
time.sleep(1000)
"""


def test_nothing_is_left_of_an_owner_that_is_killed(made):
    """Ray kills its shards, and the guards remove what they had in shared memory."""
    owner = made.nodes[0].run(sys.executable, "-c", OWNER, made.address, stdout=subprocess.PIPE)
    names = owner.stdout.readline().split()
    assert len(names) == 3 == len([name for name in listing.names() if name in names])
    owner.kill()
    owner.communicate()
    until(lambda: not set(names) & set(listing.names()))


@pytest.mark.parametrize("kind", ["store", "checkpoints"])
def test_a_shard_comes_back_on_another_node(made, kind, tmp_path, caplog):
    """With its items under the same keys, where its store is on a disk that nodes share, or it has a checkpoint.

    So do all of them for the next replay.
    """
    with RayReplay(EXAMPLE, 3000, mass_age=0.5, **{kind: tmp_path}) as replay:
        fill(replay, made)
        if kind == "checkpoints":
            replay.checkpoint()
        batches = replay.dataset_iter(64)
        until(lambda: shards_of(batches) == {0, 1, 2})
        keys = {tuple(key) for _ in range(40) for key in next(batches).key}
        number, node = one_of(made, replay)
        made.kill(node)
        until(lambda: replay.losses and replay.losses[0].restored)
        assert "it goes on elsewhere" in caplog.text
        assert dict(nodes_of(replay))[number] in {one.id for one in made.nodes}
        until(lambda: number in shards_of(batches))
        until(lambda: set(next(batches).table_size.tolist()) == {300})
        again = {tuple(key) for _ in range(40) for key in next(batches).key if key["shard"] == number}
        assert again & keys
        batches.close()
    with RayReplay(EXAMPLE, 3000, mass_age=0.5, **{kind: tmp_path}) as replay:
        batches = replay.dataset_iter(64)
        until(lambda: set(next(batches).table_size.tolist()) == {300})
        batches.close()
        if kind == "store":
            with pytest.raises(SegmentError, match=r"store=.*: a replay of this cluster has it"):
                RayReplay(EXAMPLE, 3000, store=tmp_path)
    made.add(num_cpus=2)
