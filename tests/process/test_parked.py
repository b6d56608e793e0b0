"""Each event wakes the processes that wait for it.

Python's waits last one reap interval at most, and would hide a lost wake-up. The
waits here sleep in the core for longer than the test may take.
"""

from harness import stamped
from harness.processes import until_asleep
from harness.waiting import until

from echo_shm import Server, ShmClient
from echo_shm._core import ffi, lib

_ENDLESS = 10**12  # nanoseconds
_PROMPT = 20.0  # seconds: far below that, far above a wake-up


def _take(conn, handle):
    """Sleeps for a batch in one call."""
    with Server.attach(handle) as server:
        snap = ffi.new("es_snapshot *")
        conn.send("attached")
        conn.send(lib.es_api_take(server._ring, 0, _ENDLESS, snap) >= 0)
        conn.recv()


def _reserve(conn, handle):
    """Sleeps for a slot in one call, and commits it."""
    with ShmClient(handle) as client:
        conn.send("attached")
        position = ffi.new("int64_t *")
        code = lib.es_api_reserve(client._ring, _ENDLESS, position)
        conn.send(lib.es_api_commit(client._ring, position[0]) == 0 if code == 0 else code)
        conn.recv()


def _hold_batch(conn, handle):
    with Server.attach(handle) as server, server.lease() as sample:
        conn.send(len(sample.batch["sequence"]))
        conn.recv()


def _hold_slot(conn, handle):
    with ShmClient(handle) as client, client.reserve():
        conn.send("inside")
        conn.recv()


def _fill(client, n):
    for sequence in range(n):
        client.send(stamped.stamp(stamped.example(), 1, sequence), timeout=0)


def _parked(act, fn, handle, n=1):
    actors = [act(fn, handle) for _ in range(n)]
    for actor in actors:
        assert actor.hear() == "attached"
        until_asleep(actor.pid)
        assert actor.is_silent()
    return actors


def test_a_commit_wakes_learners(serve, act):
    """The commit that completes a batch wakes a learner that waits for one."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        (learner,) = _parked(act, _take, server.handle)
        _fill(client, 1)
        until_asleep(learner.pid)
        assert learner.is_silent()
        _fill(client, 1)
        assert learner.hear(_PROMPT) is True


def test_two_batches_wake_two_learners(serve, act):
    """Two learners that sleep at the same time both get a batch."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        learners = _parked(act, _take, server.handle, 2)
        _fill(client, 4)
        assert [learner.hear(_PROMPT) for learner in learners] == [True, True]


def test_a_release_wakes_all_producers(serve, act):
    """The release of one batch wakes all producers that wait for space."""
    server = serve(4, 1)
    with ShmClient(server.handle) as client:
        _fill(client, 4)
        producers = _parked(act, _reserve, server.handle, 4)
        with server.lease(timeout=20):
            assert all(producer.is_silent() for producer in producers)
        assert [producer.hear(_PROMPT) for producer in producers] == [True] * 4


def test_a_reaped_learner_wakes_learners(serve, act):
    """A batch given back by a dead learner's reaper wakes another learner that sleeps."""
    server = serve(2, 2)
    with ShmClient(server.handle) as client:
        _fill(client, 2)
        holder = act(_hold_batch, server.handle)
        holder.hear()
        (waiter,) = _parked(act, _take, server.handle)
        holder.kill()
        server._attachment.reaper.sweep()
        assert waiter.hear(_PROMPT) is True


def test_a_reaped_producer_wakes_producers(serve, act):
    """A slot re-opened by a dead producer's reaper wakes a producer that sleeps on a full ring."""
    server = serve(2, 1)
    holder = act(_hold_slot, server.handle)
    holder.hear()
    with ShmClient(server.handle) as client:
        _fill(client, 1)
        (waiter,) = _parked(act, _reserve, server.handle)
        holder.kill()
        server._attachment.reaper.sweep()
        assert waiter.hear(_PROMPT) is True


def test_an_abort_wakes_producers(serve, act):
    """An aborted slot wakes a producer that sleeps on a full ring."""
    server = serve(2, 1)
    with ShmClient(server.handle) as client:
        reservation = client.reserve()
        reservation.__enter__()
        _fill(client, 1)
        (waiter,) = _parked(act, _reserve, server.handle)
        reservation.__exit__(ZeroDivisionError, None, None)
        assert waiter.hear(_PROMPT) is True


def test_a_producer_that_leaves_wakes_producers(serve, act):
    """Closing a client with an open reservation offers the slot again, and wakes a producer that sleeps."""
    server = serve(2, 1)
    client, other = ShmClient(server.handle), ShmClient(server.handle)
    client.reserve().__enter__()
    _fill(other, 1)
    (waiter,) = _parked(act, _reserve, server.handle)
    client.close()
    assert waiter.hear(_PROMPT) is True
    other.close()


def test_close_wakes_producers_and_learners(serve, act):
    """Closing the ring wakes all learners and producers."""
    server = serve(2, 1)
    (learner,) = _parked(act, _take, server.handle)
    server.close()
    assert learner.hear(_PROMPT) is False
    server = serve(2, 1)
    with ShmClient(server.handle) as client:
        _fill(client, 2)
        producers = _parked(act, _reserve, server.handle, 2)
        server.close()
        assert [producer.hear(_PROMPT) for producer in producers] == [lib.ES_ECLOSED] * 2


def test_a_learner_that_leaves_gives_its_batch_up(serve, act):
    """A further learner leaves once it is closed and drops its last batch. That wakes producers."""
    server = serve(2, 1)
    heir = Server.attach(server.handle)
    with ShmClient(server.handle) as client:
        _fill(client, 2)
        kept = heir.sample(timeout=20)
        assert kept is not None
        (producer,) = _parked(act, _reserve, server.handle)
        heir.close()
        assert producer.is_silent()
        del kept
        assert producer.hear(_PROMPT) is True
    until(lambda: server._attachment.attached, "the ring goes on")
