"""Leases and early releases: how long the slots of a batch stay taken."""

import threading

import numpy as np
import pytest
from harness.valid import problem_of

from echo_shm import Server


def fill(server, start, n):
    """Submits n numbers from start on."""
    for i in range(start, start + n):
        server.submit(np.int64(i), timeout=5)


def make(batch_size=2, num_buffers=3, **keywords):
    """A ring of plain numbers."""
    return Server(np.zeros((), np.int64), batch_size, num_buffers=num_buffers, **keywords)


def test_several_leases_at_once():
    """Each lease has a batch of its own, all readable together."""
    with make() as server:
        fill(server, 0, 6)
        with server.lease() as a, server.lease() as b, server.lease(timeout=1) as c:
            assert [s.batch.tolist() for s in (a, b, c)] == [[0, 1], [2, 3], [4, 5]]


def test_a_lease_keeps_its_slots_until_it_ends():
    """Neither sample() nor another lease's end touches a lease; the ring stays full until it ends."""
    with make(1, 2) as server:
        fill(server, 0, 2)
        with server.lease() as kept:
            with server.lease() as other:
                assert other.batch.tolist() == [1]
            # The ring is filled in order, and the next batch in order is the kept one.
            with pytest.raises(TimeoutError):
                server.submit(np.int64(2), timeout=0)
            with pytest.raises(TimeoutError):
                server.sample(0)
            assert kept.batch.tolist() == [0]
        fill(server, 2, 2)
        assert server.sample(1).batch.tolist() == [2]


def test_leases_may_end_in_any_order():
    """Batches released out of order are filled again in position order."""
    with make(1, 3) as server:
        fill(server, 0, 3)
        first, second, third = (server.lease(1) for _ in range(3))
        entered = [lease.__enter__().batch.tolist() for lease in (first, second, third)]
        assert entered == [[0], [1], [2]]
        for lease in (third, first, second):
            lease.__exit__(None, None, None)
            assert problem_of(server._ring) is None
        fill(server, 3, 3)
        assert [server.sample(1).batch.tolist() for _ in range(3)] == [[3], [4], [5]]


def test_a_lease_times_out_on_entry():
    """lease() itself waits for nothing; entering it does."""
    with make() as server:
        lease = server.lease(timeout=0)
        with pytest.raises(TimeoutError), lease:
            pytest.fail("entered")


def test_a_lease_is_entered_once_at_a_time():
    """Entering a lease twice is refused; after its end it may be entered for the next batch."""
    with make(1) as server:
        fill(server, 0, 2)
        lease = server.lease(1)
        with lease as sample:
            with pytest.raises(RuntimeError, match="entered already"):
                lease.__enter__()
            assert sample.batch.tolist() == [0]
        with lease as sample:
            assert sample.batch.tolist() == [1]


def test_a_lease_on_a_drained_ring_is_none():
    """At the end of the stream a lease's value is None, as sample()'s."""
    with make() as server:
        server.close()
        with server.lease() as sample:
            assert sample is None


def test_an_exception_ends_the_lease():
    """A block left by an exception releases its batch and lets the exception out."""
    with make(1, 1) as server:
        fill(server, 0, 1)
        with pytest.raises(ZeroDivisionError), server.lease():
            _ = 1 // 0
        fill(server, 1, 1)


def test_release_gives_a_batch_back_early_and_once():
    """release() frees the slots at once; again it does nothing, even when the slots hold a later batch."""
    with make(1, 1) as server:
        fill(server, 0, 1)
        old = server.sample(1)
        old.release()
        old.release()
        fill(server, 1, 1)
        with server.lease(1) as new:
            old.release()
            with pytest.raises(TimeoutError):
                server.submit(np.int64(2), timeout=0)
            assert new.batch.tolist() == [1]


def test_release_inside_a_lease():
    """A lease whose sample was released early ends without touching what came after."""
    with make(1, 1) as server:
        fill(server, 0, 1)
        with server.lease(1) as sample:
            sample.release()
            fill(server, 1, 1)
        assert server.sample(1).batch.tolist() == [1]


def test_release_across_threads_counts_once():
    """Many threads that release one sample at once release it exactly once."""
    with make(1, 2) as server:
        for k in range(50):
            fill(server, k, 1)
            with server.lease(1) as sample:
                barrier = threading.Barrier(4)

                def release(sample=sample, barrier=barrier):
                    barrier.wait()
                    sample.release()

                threads = [threading.Thread(target=release) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert problem_of(server._ring) is None
        assert server.handle is not None
        fill(server, 0, 2)
        with pytest.raises(TimeoutError):
            server.submit(np.int64(2), timeout=0)


def test_release_after_close():
    """A lease that outlives close() can still be read, and ends without an error."""
    with make(2, 2) as server:
        fill(server, 0, 4)
        with server.lease(1) as sample:
            server.close()
            assert sample.batch.tolist() == [0, 1]
            assert server.sample(1).batch.tolist() == [2, 3]
            assert server.sample(1) is None
        assert server.sample(1) is None


def test_a_copied_sample_holds_no_slots():
    """Releasing a copy.copy() of a sample releases nothing: the original holds the lease."""
    import copy

    with make(1, 1) as server:
        fill(server, 0, 1)
        with server.lease(1) as sample:
            copied = copy.copy(sample)
        assert copied.batch is sample.batch
        fill(server, 1, 1)
        sample = server.lease(1).__enter__()
        copy.copy(sample).release()
        with pytest.raises(TimeoutError):
            server.submit(np.int64(2), timeout=0)
        sample.release()
        fill(server, 2, 1)


def test_poison(monkeypatch):
    """With ECHO_SHM_POISON=1 all bits of a released batch are ones; with 0, or unset, it is not changed."""
    for value, poisoned in (("1", True), ("0", False), (None, False)):
        if value is None:
            monkeypatch.delenv("ECHO_SHM_POISON", raising=False)
        else:
            monkeypatch.setenv("ECHO_SHM_POISON", value)
        with Server({"f": np.zeros(3), "i": np.zeros((), np.int16)}, 2) as server:
            for _ in range(4):
                server.submit({"f": np.ones(3), "i": np.int16(1)})
            first, second = server.sample(1), server.sample(1).batch
            kept = first.batch
            first.release()
            assert np.isnan(kept["f"]).all() == poisoned
            assert (kept["i"] == (-1 if poisoned else 1)).all()
            assert (second["f"] == 1).all()
