"""dataset_iter: the stream of batches, of which nothing is lost at the end."""

import threading

import numpy as np
import optree
import pytest
from harness.valid import problem_of
from harness.waiting import Until

from echo_shm import Server, ShmClient
from echo_shm._core import lib


def make(batch_size=4, num_buffers=4, **keywords):
    """A ring of plain numbers."""
    return Server(np.zeros((), np.int64), batch_size, num_buffers=num_buffers, **keywords)


def numbers(iterator):
    """Every batch as a list."""
    return [sample.batch.tolist() for sample in iterator]


def flat(batches):
    """The samples of several batches."""
    return [number for batch in batches for number in batch]


class Abandoned(Exception):
    """Makes a reservation abort."""


def abort(client):
    """Claims a slot and gives it up."""
    with pytest.raises(Abandoned), client.reserve(timeout=5):
        raise Abandoned


def test_full_batches_then_the_end():
    """After close() every full batch is delivered, then the iterator ends; the remainder is dropped by default."""
    with make() as server:
        for i in range(10):
            server.submit(np.int64(i))
        server.close()
        assert numbers(server.dataset_iter()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert numbers(server.dataset_iter()) == []


def test_the_last_batch_is_shorter():
    """With drop_last=False the committed samples of a partial batch come last, as one shorter batch."""
    with make() as server:
        for i in range(10):
            server.submit(np.int64(i))
        server.close()
        assert numbers(server.dataset_iter(drop_last=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert numbers(server.dataset_iter(drop_last=False)) == []


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_remainder(count, drop_last):
    """For any number of samples, drop_last=False loses none, and drop_last=True gives no short batch."""
    with make() as server:
        for i in range(count):
            server.submit(np.int64(i))
        server.close()
        got = numbers(server.dataset_iter(drop_last=drop_last))
        assert all(len(batch) == 4 for batch in got[:-1])
        assert flat(got) == list(range(count - count % 4 if drop_last else count))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_holes_in_the_middle(order, drop_last):
    """Samples beside aborted reservations are delivered, also when they are more than one batch."""
    with make(order=order) as server, ShmClient(server.handle) as client:
        # Every batch gets one hole: the reservations stay open while the others are sent.
        held, sent = [], []
        for i in range(16):
            if i % 4 == 2:
                reservation = client.reserve()
                reservation.__enter__()
                held.append(reservation)
            else:
                client.send(np.int64(i))
                sent.append(i)
        server.close()
        for reservation in held:
            reservation.__exit__(Abandoned, None, None)
        assert problem_of(server._ring) is None
        got = numbers(server.dataset_iter(drop_last=drop_last))
        assert [len(batch) for batch in got] == [4, 4, 4]
        assert flat(got) == sent


def test_more_leftovers_than_a_batch():
    """What short batches hold together comes as full batches first, then one shorter one."""
    with make() as server, ShmClient(server.handle) as client:
        held, sent = [], []
        for i in range(14):
            if i in (1, 6, 9):
                held.append(client.reserve())
                held[-1].__enter__()
            else:
                client.send(np.int64(i))
                sent.append(i)
        server.close()
        for reservation in held:
            reservation.__exit__(Abandoned, None, None)
        got = numbers(server.dataset_iter(drop_last=False))
        assert [len(batch) for batch in got] == [4, 4, 3]
        assert flat(got) == sent


def test_a_refilled_hole_is_delivered():
    """A hole that was filled again before the close makes a full batch."""
    with make(2, 2) as server, ShmClient(server.handle) as client:
        client.send(np.int64(0))
        abort(client)
        client.send(np.int64(1))
        assert server.sample(1).batch.tolist() == [0, 1]


def test_a_commit_that_comes_after_the_close(background):
    """A reservation that is open at the close and commits soon after is delivered."""
    with make(2, 2) as server, ShmClient(server.handle) as client:
        with client.reserve() as slot:
            client.send(np.int64(1))
            server.close()
            rest = background(lambda: numbers(server.dataset_iter(drop_last=False)))
            slot[...] = 0
        assert rest.result() == [[0, 1]]


@pytest.mark.parametrize("dtype", [">f8", "<i2", "U3", "M8[us]", [("a", "i1"), ("b", ">f8")]])
def test_the_short_batch_keeps_its_dtype(dtype):
    """The leaves of the last, shorter batch have the example's dtype, byte order included, like all batches."""
    example = np.zeros(2, dtype)
    with Server(example, 4) as server:
        for _ in range(5):
            server.submit(example)
        server.close()
        dtypes = [sample.batch.dtype for sample in server.dataset_iter(drop_last=False)]
        assert len(dtypes) == 2
        assert all(d == example.dtype and d.str == example.dtype.str for d in dtypes)


@pytest.mark.parametrize("writable", [False, True])
def test_the_short_batch_is_as_writable_as_the_others(writable):
    """The last, shorter batch is read-only unless the server is writable."""
    with make(writable=writable) as server:
        server.submit(np.int64(0))
        server.close()
        (sample,) = server.dataset_iter(drop_last=False)
        assert sample.batch.flags.writeable == writable


def test_two_batches_are_enough_for_a_loop():
    """A loop refers to one batch at a time: in a ring of two, producers always have the other one."""
    with make(1, 2) as server:
        got = []
        server.submit(np.int64(0))
        for sample in server.dataset_iter():
            got.append(int(sample.batch[0]))
            if len(got) == 5:
                server.close()
                continue
            server.submit(np.int64(len(got)), timeout=5)
            with pytest.raises(TimeoutError):
                server.submit(np.int64(-1), timeout=0)
        assert got == [0, 1, 2, 3, 4]


def test_copies_stay_and_free_the_slots():
    """copy=True gives writable arrays that own their memory; the batch is released at once."""
    with make(1, 1) as server:
        server.submit(np.int64(0))
        kept = []
        for sample in server.dataset_iter(copy=True):
            kept.append(sample)
            if len(kept) == 4:
                server.close()
            else:
                server.submit(np.int64(len(kept)), timeout=5)
        assert [s.batch.tolist() for s in kept] == [[0], [1], [2], [3]]
        assert all(s.batch.flags.owndata and s.batch.flags.writeable for s in kept)
        assert kept[-1].info.samples_inserted_total == 4


def test_copies_keep_structure():
    """copy=True keeps the tree, None and empty containers included."""
    example = {"a": (np.zeros(2), None), "b": [], "c": {"d": np.zeros((), np.bool_)}}
    with Server(example, 1) as server:
        server.submit(example)
        server.close()
        (sample,) = server.dataset_iter(copy=True)
        assert optree.tree_structure(sample.batch) == optree.tree_structure(example)


def test_until_finished():
    """With ``until`` the iterator ends on an open ring: after the full batches, or a short one (drop_last=False)."""
    for drop_last, expected in ((True, [[0, 1, 2, 3]]), (False, [[0, 1, 2, 3], [4, 5]])):
        with make() as server:
            for i in range(6):
                server.submit(np.int64(i))
            done = Until(lambda: True)
            assert numbers(server.dataset_iter(drop_last=drop_last, until=done)) == expected
            assert problem_of(server._ring) is None
            for i in range(10, 14):
                server.submit(np.int64(i), timeout=5)
            assert server.sample(5).batch.tolist()[-1] == (13 if not drop_last else 11)


def test_until_waits_until_it_is_finished(background):
    """The iterator goes on until ``until`` is finished, and takes what is sent meanwhile."""
    over = threading.Event()
    with make(2, 2) as server:
        got = background(lambda: numbers(server.dataset_iter(until=Until(over.is_set), drop_last=False)))
        for i in range(7):
            server.submit(np.int64(i), timeout=5)
        over.set()
        assert got.result() == [[0, 1], [2, 3], [4, 5], [6]]


def test_words_that_do_not_stand_still_are_no_end(monkeypatch):
    """When ``until`` is finished, a look that other processes' changes cut short is repeated."""
    tried = []

    class Restless:
        """A reader, two of whose looks other processes cut short."""

        def __init__(self, reader):
            self.reader, self.held = reader, 0

        def take(self, flags, nanoseconds):
            tried.append(flags)
            # ES_TIMEOUT of a look that may not wait: the words changed each time it looked
            cut_short = None, None, lib.ES_TIMEOUT, False, b""
            return cut_short if len(tried) in (2, 3) else self.reader.take(flags, nanoseconds)

    with make() as server:
        for i in range(2):
            server.submit(np.int64(i))
        monkeypatch.setattr(server._reader, "_reader", Restless(server._reader._reader))
        until = Until(lambda: True)
        assert numbers(server.dataset_iter(until=until, drop_last=False)) == [[0, 1]]
        assert len(tried) > 3


def test_until_that_failed_raises():
    """An exception from until.check() comes out of the iterator."""

    def fail():
        raise LookupError("worker 3")

    failed = Until(lambda: True, check=fail)
    with make(1) as server:
        for drop_last in (True, False):
            with pytest.raises(LookupError, match="worker 3"):
                next(server.dataset_iter(until=failed, drop_last=drop_last))
        server.submit(np.int64(1))
        with pytest.raises(LookupError, match="worker 3"):
            next(server.dataset_iter(until=failed))
        assert server.sample(1).batch.tolist() == [1]
