"""Learners that are killed, and several learners on one ring."""

import random
import time

import pytest
from harness import stamped
from harness.actors import LastWords
from harness.valid import problem_of
from harness.waiting import Until, until
from stress import learner_storm

from echo_shm import Server, ShmClient
from echo_shm._core import ffi, lib


def _send(client, incarnation, sequences):
    for sequence in sequences:
        client.send(stamped.stamp(stamped.example(), incarnation, sequence))


def _hold(conn, handle):
    """Takes a batch, says what is in it, and keeps it until told to release it."""
    with Server.attach(handle) as server:
        sample = server.sample()
        conn.send(stamped.stamps(sample.batch))
        conn.recv()
        sample.release()
        conn.send("released")
        conn.recv()


def _take_one(conn, handle):
    with Server.attach(handle) as server:
        conn.send("attached")
        conn.send(stamped.stamps(server.sample().batch))
        conn.recv()


def _take_all(conn, handle):
    with Server.attach(handle) as server:
        conn.send("attached")
        conn.recv()
        conn.send([stamped.stamps(sample.batch) for sample in server.dataset_iter()])


def _take_what_is_there(conn, handle):
    with Server.attach(handle) as server:
        conn.send("attached")
        conn.recv()
        finished = Until(lambda: True)
        conn.send([stamped.stamps(sample.batch) for sample in server.dataset_iter(until=finished)])


def _stop_in_a_reap(conn, handle):
    """Finds a dead learner, and stops in the reap with the learner's lock byte locked."""
    with ShmClient(handle) as client:
        dead = ffi.new("es_identity *")
        until(lambda: lib.es_sweep_next_dead(client._ring, 0, dead) >= 0, "a learner's lock is free")
        conn.send(dead.role == lib.ES_ROLE_LEARNER)
        conn.recv()


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_a_dead_learners_batch_goes_to_another(serve, act, order):
    """A batch that a killed learner held is delivered again, before later samples."""
    server = serve(2, 3, order=order)
    with ShmClient(server.handle) as client:
        _send(client, 1, range(4))
        holder = act(_hold, server.handle)
        assert holder.hear() == [(1, 0), (1, 1)]
        holder.kill()
        came = [stamped.stamps(server.sample(timeout=20).batch) for _ in range(2)]
        assert sorted(came) == [[(1, 0), (1, 1)], [(1, 2), (1, 3)]]
        _send(client, 1, range(4, 6))
        assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 4), (1, 5)]


def test_a_dead_learners_batch_goes_to_one_that_waits(serve, act):
    """A learner that already waits gets the batch of a killed one."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        _send(client, 1, range(2))
        holder = act(_hold, server.handle)
        batch = holder.hear()
        waiter = act(_take_one, server.handle)
        assert waiter.hear() == "attached"
        assert waiter.is_silent()
        holder.kill()
        assert waiter.hear() == batch


def test_a_dead_learners_batch_goes_to_one_attached_later(serve, act):
    """A learner that attaches after the death gets the batch."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        _send(client, 1, range(2))
        holder = act(_hold, server.handle)
        batch = holder.hear()
        holder.kill()
        late = act(_take_one, server.handle)
        assert [late.hear(), late.hear()] == ["attached", batch]


def test_a_batch_on_its_way_back_is_waited_for_at_the_end(serve, act):
    """A stream of a closed ring, or of finished workers, does not end while another process is in a learner's reap."""
    scenes = []
    for take in (_take_all, _take_what_is_there):
        server = serve(2, 2)
        waiter = act(take, server.handle)
        assert waiter.hear() == "attached"
        with ShmClient(server.handle) as client:
            _send(client, 1, range(2))
        holder = act(_hold, server.handle)
        batch = holder.hear()
        holder.kill()
        reaper = act(_stop_in_a_reap, server.handle)
        assert reaper.hear()
        if take is _take_all:
            server.close()
        waiter.say()
        scenes.append((waiter, reaper, batch))
    time.sleep(4.5)  # the end waits 1 s for a living learner's batch, and 3 s for damaged words
    for waiter, reaper, batch in scenes:
        assert waiter.is_silent()
        reaper.kill()
        assert waiter.hear() == [batch]


def test_a_released_batch_never_comes_again(serve, act):
    """A learner killed after its release leaves nothing to deliver again."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        _send(client, 1, range(2))
        holder = act(_hold, server.handle)
        holder.hear()
        holder.say()
        assert holder.hear() == "released"
        holder.kill()
        with pytest.raises(TimeoutError):
            server.sample(timeout=0.3)
        _send(client, 1, range(2, 4))
        assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 2), (1, 3)]


def test_a_stopped_learner_keeps_its_batch(serve, act, owners):
    """A learner that is stopped is alive: no other learner gets its batch."""
    server = serve(2, 3)
    with ShmClient(server.handle) as client:
        _send(client, 1, range(4))
        holder = act(_hold, server.handle)
        holder.hear()
        holder.kill(19)
        assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 2), (1, 3)]
        with pytest.raises(TimeoutError):
            server.sample(timeout=0.5)
        assert holder.pid in [owner.pid for owner in owners(server.name)]
        holder.kill(18)
        holder.say()
        assert holder.hear() == "released"


def _run(serve, act, tmp_path, kills, at_a_time, pause, batch_size, **options):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    server, log = serve(batch_size, 6, **options), tmp_path / "log"
    feeders = [act(learner_storm.feed, server.handle, i) for i in range(2)]
    master = act(learner_storm.master, server.handle, log, seed, kills, at_a_time, pause)
    learners = master.hear(60)
    for feeder in feeders:
        feeder.say("enough")
    rest, sent = [], LastWords(feeders)
    for sample in server.dataset_iter(until=sent, drop_last=False):
        rest += stamped.stamps(sample.batch)
    figures = learner_storm.settle(log, batch_size, rest, sent.said)
    print(f"{learners} learners killed: {figures}")
    assert learners >= kills
    assert problem_of(server._ring) is None


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_a_hundred_killed_learners_lose_nothing(serve, act, tmp_path, order):
    """Each sample is delivered to a learner, and after a learner has released it, never again."""
    _run(serve, act, tmp_path, kills=100, at_a_time=3, pause=0.015, batch_size=8, order=order)


def test_each_batch_to_exactly_one_learner(serve, act, tmp_path):
    """Three learners side by side share the batches."""
    _run(serve, act, tmp_path, kills=3, at_a_time=3, pause=0.5, batch_size=4)


def test_learners_leave_no_owner_behind(serve, act, owners):
    """After a sweep a killed learner's place is free again."""
    server = serve(2, 2)
    holder = act(_take_one, server.handle)
    holder.hear()
    assert len(owners(server.name)) == 2
    holder.kill()

    def swept():
        with pytest.raises(TimeoutError):
            server.sample(timeout=0.11)
        return len(owners(server.name)) == 1

    until(swept, "the dead learner is reaped")
