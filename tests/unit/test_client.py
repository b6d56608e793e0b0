"""ShmClient: attaching, send, send_many, bind, and the end."""

import gc
import os
import pickle
import time

import numpy as np
import pytest
from harness.valid import problem_of
from harness.waiting import until

from echo_shm import ConnectionClosedError, SegmentError, Server, ShmClient, SpecMismatchError
from echo_shm._core import lib
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment

#: Another run of these tests at the same time has another name.
AGAIN = f"test-again-{os.getpid()}"
EXAMPLE = {"x": np.zeros(2, np.float32), "i": np.zeros((), np.int64)}


def row(i):
    """Sample number i."""
    return {"x": np.full(2, i, np.float32), "i": np.asarray(i, np.int64)}


def rows(start, n):
    """Samples start .. start+n, stacked."""
    i = np.arange(start, start + n)
    return {"x": np.repeat(i, 2).reshape(n, 2).astype(np.float32), "i": i}


@pytest.fixture
def server():
    """A ring of two batches of three."""
    with Server(EXAMPLE, 3, num_buffers=2) as server:
        yield server
        assert problem_of(server._ring) is None


def check_next(server, start, n=3):
    """Takes a batch, and asserts that it has samples start .. start+n, whole."""
    batch = server.sample(5).batch
    assert batch["i"].tolist() == list(range(start, start + n))
    np.testing.assert_array_equal(batch["x"], rows(start, n)["x"])


def test_send(server, client):
    """What is sent arrives, whole and in order."""
    for k in range(4):
        for i in range(3 * k, 3 * k + 3):
            client.send(row(i), timeout=5)
        check_next(server, 3 * k)


def test_a_sample_is_copied_on_send(server, client):
    """Arrays may be changed as soon as send() has returned."""
    mine = row(0)
    for i in range(3):
        mine["x"][:], mine["i"][...] = i, i
        client.send(mine)
    check_next(server, 0)


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_a_full_ring_times_out(server, client, timeout):
    """send() raises after its timeout, and has sent nothing; it works again when there is space."""
    client.send_many(rows(0, 6))
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="stayed full"):
        client.send(row(6), timeout)
    assert time.monotonic() - started >= timeout
    check_next(server, 0)
    check_next(server, 3)
    client.send(row(6), timeout)


def test_a_waiting_send_wakes_on_release(server, client, background):
    """A send that sleeps on a full ring goes through when a batch is released."""
    client.send_many(rows(0, 6))
    sender = background(client.send, row(6))
    view = RingView(Segment.attach(server.name, read_only=True))
    until(lambda: view.snapshot().producers_waiting == 1)
    check_next(server, 0)
    check_next(server, 3)
    sender.result()
    client.send_many(rows(7, 2))
    check_next(server, 6)


@pytest.mark.parametrize("n", [0, 1, 3, 5, 6])
def test_send_many(server, client, n):
    """send_many() sends its n rows in order, across batch boundaries; n may be 0."""
    client.send_many(rows(0, n))
    client.send_many(rows(n, 6 - n))
    check_next(server, 0)
    check_next(server, 3)


def test_send_many_through_a_small_ring(server, client, background):
    """More rows than the ring holds go through as the learner releases."""
    sender = background(client.send_many, rows(0, 30))
    for start in range(0, 30, 3):
        check_next(server, start)
    sender.result()


def test_send_many_says_how_many_it_sent(server, client):
    """A timeout midway says, in its message and as .sent, how many rows are in."""
    with pytest.raises(TimeoutError, match="6 of 8 samples were sent") as caught:
        client.send_many(rows(0, 8), timeout=0.01)
    assert caught.value.sent == 6
    check_next(server, 0)
    check_next(server, 3)


def test_send_many_takes_any_layout(server, client):
    """Strided, reversed and broadcast stacks are copied in correctly."""
    wide = rows(0, 12)
    client.send_many({"x": wide["x"][::2][:3], "i": wide["i"][::2][:3]})
    client.send_many({"x": np.broadcast_to(np.float32(7), (3, 2)), "i": wide["i"][2::-1]})
    batch = server.sample(1).batch
    assert batch["i"].tolist() == [0, 2, 4]
    assert batch["x"][:, 0].tolist() == [0, 2, 4]
    batch = server.sample(1).batch
    assert batch["i"].tolist() == [2, 1, 0]
    assert (batch["x"] == 7).all()


def test_send_many_of_unequal_leaves(client):
    """Leaves that disagree on n are named, with both numbers."""
    with pytest.raises(SpecMismatchError, match=r"leaf \['x'\] has 2 samples, and leaf \['i'\] has 3: every leaf"):
        client.send_many({"x": np.zeros((2, 2), np.float32), "i": np.zeros(3, np.int64)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": np.zeros((2, 2), np.float32), "i": np.zeros(3, np.int64)},
        {"x": np.zeros((2, 3), np.float32), "i": np.zeros(2, np.int64)},
        {"x": np.zeros((2, 2), np.float64), "i": np.zeros(2, np.int64)},
        {"x": np.zeros((2, 2), np.float32), "i": np.int64(0)},
        {"x": np.zeros((2, 2), np.float32), "i": np.zeros((), np.int64)},
        {"x": np.zeros((2, 2), np.float32), "i": [0, 0]},
        {"x": np.zeros((2, 2), np.float32)},
        None,
    ],
)
def test_send_many_wants_stacked_leaves(server, client, wrong):
    """Leaves that disagree on n, or are not stacks of the example's, are refused; nothing is sent."""
    with pytest.raises(SpecMismatchError):
        client.send_many(wrong)
    with pytest.raises(TimeoutError, match="sent or being written: 0"):
        server.sample(0)


def test_bind(server, client):
    """Each send of a bound tree sends what its arrays contain at that moment."""
    mine = row(0)
    bound = client.bind(mine)
    for i in range(6):
        mine["x"][:], mine["i"][...] = i, i
        bound.send()
    with pytest.raises(TimeoutError):
        bound.send(timeout=0)
    check_next(server, 0)
    check_next(server, 3)


def test_bind_keeps_its_arrays(server, client):
    """A bound sample keeps its arrays and its client alive."""
    own = ShmClient(server.handle)
    bound = own.bind(row(4))
    del own
    gc.collect()
    for _ in range(3):
        bound.send()
    assert server.sample(1).batch["i"].tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"i": 3}, TypeError, r"bind\(\) keeps the arrays"),
        ({"i": np.int64(3)}, TypeError, "int64"),
        ({"x": np.zeros(4, np.float32)[::2]}, ValueError, r"leaf \['x'\]: the array is not C-contiguous"),
        ({"x": np.zeros(3, np.float32)}, SpecMismatchError, r"float32\[3\].*expected float32\[2\]"),
        ({"x": np.zeros(2)}, SpecMismatchError, "float64"),
        ({"y": np.zeros(2)}, SpecMismatchError, "structure"),
    ],
)
def test_bind_is_strict(client, change, error, message):
    """bind() refuses arrays that it cannot send in place, and says which leaf and why."""
    with pytest.raises(error, match=message):
        client.bind(row(0) | change)


def test_bind_never_binds_a_copy():
    """A strided array of a dtype without a buffer is refused, too: bind() makes no copy."""
    with Server(np.zeros(2, "M8[s]"), 1) as server, pytest.raises(ValueError, match="not C-contiguous"):
        server._writer.bind(np.zeros(4, "M8[s]")[::2])


def test_close(server):
    """A closed client refuses everything that sends, and close() again is harmless."""
    client = ShmClient(server.name)
    bound = client.bind(row(0))
    client.send(row(0))
    client.close()
    client.close()
    for use in (
        lambda: client.send(row(1)),
        lambda: client.send(row(1), timeout=0),
        lambda: client.send_many(rows(1, 1)),
        bound.send,
        client.reserve().__enter__,
    ):
        with pytest.raises(ConnectionClosedError, match=r"this attachment to ring .* is closed"):
            use()
    client.wait()
    server.submit(row(1))
    server.submit(row(2))
    check_next(server, 0)


def test_the_ring_closes_under_a_client(server, client):
    """After the learner's close() every way to send raises ConnectionClosedError."""
    bound = client.bind(row(0))
    server.close()
    for use in (
        lambda: client.send(row(1)),
        lambda: client.send_many(rows(1, 1)),
        bound.send,
        client.reserve().__enter__,
    ):
        with pytest.raises(ConnectionClosedError, match="closed by the learner"):
            use()
    client.wait()


def test_attaching_after_the_close(server):
    """Attaching by the name or handle of a closed server is an error that says so."""
    handle, name = server.handle, server.name
    server.close()
    for by in (handle, name):
        with pytest.raises(SegmentError, match="no segment is named"):
            ShmClient(by)


def test_attaching_just_before_the_name_is_gone(server):
    """A ring that is closed and still has its name refuses a client, and keeps no place for it."""
    lib.es_api_close(server._ring)
    with pytest.raises(ConnectionClosedError, match="closed by the learner"):
        ShmClient(server.name)
    assert RingView(Segment.attach(server.name, read_only=True)).snapshot().active_producers == 0


def test_max_producers(server):
    """One client more than max_producers gets an error with the limit; a place that is left can be taken."""
    with Server(EXAMPLE, 1, max_producers=2) as small:
        one, two = ShmClient(small.name), ShmClient(small.name)
        with pytest.raises(SegmentError, match="max_producers=2"):
            ShmClient(small.name)
        one.close()
        ShmClient(small.name).close()
        del two
        gc.collect()
        ShmClient(small.name).close()


def test_context_manager_and_name(server):
    """A client is a context manager that closes, and knows the segment's name."""
    with ShmClient(server.handle) as client:
        assert client.name == server.name
        assert client.__enter__() is client
    with pytest.raises(ConnectionClosedError):
        client.send(row(0))


def test_wait_returns_at_once(client):
    """wait() returns at once: nothing is on its way."""
    assert client.wait() is None


def test_handles_pickle(server):
    """A handle goes through pickle and attaches."""
    handle = pickle.loads(pickle.dumps(server.handle))
    assert handle == server.handle
    ShmClient(handle).close()


def test_a_handle_of_an_earlier_segment():
    """A handle of a closed segment is refused when a new segment has the name."""
    with Server(EXAMPLE, 1, name=AGAIN) as first:
        old = first.handle
    with Server(EXAMPLE, 1, name=AGAIN) as second:
        assert old != second.handle
        for attach in (ShmClient, Server.attach):
            with pytest.raises(SegmentError, match="is not the handle"):
                attach(old)
        ShmClient(AGAIN).close()


@pytest.mark.parametrize("wrong", [None, 3, b"name", object()])
def test_what_a_client_takes(wrong):
    """Anything but a name or a handle is a TypeError."""
    with pytest.raises(TypeError, match=r"ShmClient takes a segment's name or server\.handle"):
        ShmClient(wrong)


def test_learner_grace():
    """On a full ring without a living learner a send gives up after learner_grace seconds."""
    server = Server(EXAMPLE, 1, num_buffers=1)
    other = ShmClient(server.handle, learner_grace=0.05)
    patient = ShmClient(server.handle, learner_grace=None)
    other.send(row(0))
    server._attachment.detach()
    with pytest.raises(ConnectionClosedError, match=r"no living learner for 0.05 s"):
        other.send(row(1), timeout=20)
    with pytest.raises(TimeoutError):
        patient.send(row(1), timeout=0.1)
    other.close()
    patient.close()
    server.close()
