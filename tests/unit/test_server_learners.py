"""Several learners on one ring, in one process and in several: each batch goes to one of them."""

import gc

import numpy as np
import pytest
from harness.valid import problem_of

from echo_shm import ConnectionClosedError, SegmentError, Server, ShmClient, SpecMismatchError
from echo_shm._core import ffi, lib

EXAMPLE = np.zeros((), np.int64)


def test_attach_by_name_and_by_handle():
    """A further learner has the same name, sizes and handle as the first, however it attached."""
    with Server(EXAMPLE, 2, num_buffers=3) as server:
        for by in (server.name, server.handle):
            with Server.attach(by) as other:
                assert (other.name, other.batch_size, other.capacity) == (server.name, 2, 6)
                assert other.handle == server.handle


def test_each_batch_goes_to_exactly_one():
    """Two learners that take turns get different batches, and together all of them."""
    with Server(EXAMPLE, 2) as server, Server.attach(server.name) as other:
        got = {id(server): [], id(other): []}
        for k in range(10):
            for i in (2 * k, 2 * k + 1):
                other.submit(np.int64(i), timeout=5)
            learner = (server, other)[k % 3 == 0]
            got[id(learner)].append(learner.sample(1).batch.tolist())
            assert problem_of(server._ring) is None
        assert sorted(batch for batches in got.values() for batch in batches) == [[2 * k, 2 * k + 1] for k in range(10)]
        assert len(got[id(other)]) == 4


def test_both_drain_at_the_end(background):
    """After close() the learners share what is left; once both are done each gets None."""
    with Server(EXAMPLE, 1) as server, Server.attach(server.handle) as other:
        for i in range(4):
            server.submit(np.int64(i))
        server.close()
        got = [int(learner.sample(1).batch[0]) for learner in (server, other, other, server)]
        assert sorted(got) == [0, 1, 2, 3]
        waiting = background(server.sample)  # if the other died, its batch would be delivered again
        assert other.sample() is None
        assert waiting.result() is None


def test_what_comes_back_at_the_last_moment_is_delivered(monkeypatch):
    """A batch that is given back between the last take and the look for the dead is delivered."""
    with Server(EXAMPLE, 2) as server, Server.attach(server.name) as other:
        for i in range(2):
            server.submit(np.int64(i))
        snap = ffi.new("es_snapshot *")
        assert lib.es_api_take(other._ring, 0, 0, snap) == 0
        attachment = server._attachment
        reap_and_check = attachment.reaper.reap_and_check

        def give_back_and_look():
            lib.es_api_give_back(other._ring, snap.batch, snap.round)
            return reap_and_check()

        monkeypatch.setattr(attachment.reaper, "reap_and_check", give_back_and_look)
        server.close()
        assert [sample.batch.tolist() for sample in server.dataset_iter()] == [[0, 1]]


def test_a_further_learner_leaves_the_ring_going():
    """close() of a further learner releases what it holds; the ring goes on."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        other = Server.attach(server.name)
        server.submit(np.int64(0))
        assert other.sample(1).batch[0] == 0
        other.close()
        other.close()
        assert other.sample(1) is None
        with pytest.raises(ConnectionClosedError):
            other.submit(np.int64(9))
        server.submit(np.int64(1), timeout=0)
        assert server.sample(1).batch[0] == 1
        ShmClient(server.name).close()


def test_a_forgotten_learner_leaves():
    """A further learner that is collected without close() releases what it held."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        other = Server.attach(server.name)
        server.submit(np.int64(0))
        other.sample(1)
        del other
        gc.collect()
        server.submit(np.int64(1), timeout=0)


def test_attach_wants_a_name_or_handle():
    """Anything else is a TypeError that says what was got."""
    with pytest.raises(TypeError, match=r"Server.attach takes .* not int 3"):
        Server.attach(3)


def test_attach_to_nothing():
    """An unknown name is a SegmentError that names it and where to look."""
    with pytest.raises(SegmentError, match=r"no segment is named 'test-nowhere'.*echo-shm ls"):
        Server.attach("test-nowhere")


def test_attach_with_an_example():
    """An example that does not fit is refused, and leaves no learner behind."""
    with Server(EXAMPLE, 1) as server:
        with pytest.raises(SpecMismatchError, match=r"got the leaf: int32\[\], expected the leaf: int64\[\]"):
            Server.attach(server.name, np.zeros((), np.int32))
        with Server.attach(server.name, np.ones((), np.int64)) as other:
            server.submit(np.int64(5))
            assert other.sample(1).batch[0] == 5


def test_there_is_room_for_64_learners():
    """The 65th learner gets an error that says that there are 64."""
    with Server(EXAMPLE, 1) as server:
        others = [Server.attach(server.handle) for _ in range(63)]
        with pytest.raises(SegmentError, match="64 are attached"):
            Server.attach(server.handle)
        others.pop().close()
        Server.attach(server.handle).close()
        for other in others:
            other.close()


def test_writable_is_each_learners_own():
    """A further learner's arrays are read-only unless it attached with writable=True."""
    with Server(EXAMPLE, 1, writable=True) as server:
        for writable in (False, True):
            with Server.attach(server.name, writable=writable) as other:
                server.submit(np.int64(0))
                assert other.sample(1).batch.flags.writeable == writable


def _learn(conn, name):
    """Takes to the end, and says what came."""
    learner = Server.attach(name)
    conn.send("attached")
    conn.send([sample.batch.tolist() for sample in learner.dataset_iter()])


def test_several_processes(act):
    """Learners in two processes and this one share the stream: every sample in exactly one of them."""
    with Server(EXAMPLE, 2) as server:
        others = [act(_learn, server.name) for _ in range(2)]
        assert [other.hear() for other in others] == ["attached"] * 2
        for i in range(1000):
            server.submit(np.int64(i), timeout=20)
        server.close()
        got = [sample.batch.tolist() for sample in server.dataset_iter()]
        for other in others:
            got += other.hear()
    assert sorted(number for batch in got for number in batch) == list(range(1000))
    assert all(len(batch) == 2 and batch[0] + 1 == batch[1] for batch in got)
