"""Server: its settings, taking batches, submitting, closing."""

import contextlib
import copy
import inspect
import os
import pickle
import time

import numpy as np
import optree
import pytest
from harness.interrupts import Interrupt, at_opcode, interrupt, run_traced
from harness.valid import problem_of

from echo_shm import ConnectionClosedError, Sample, SegmentError, Server, ShmClient, TcpTransport
from echo_shm import server as server_module
from echo_shm.ring import lockfile, segment

EXAMPLE = {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int64)}


def row(i):
    """Sample number i."""
    return {"obs": np.full(3, i, np.float32), "act": np.asarray(i, np.int64)}


def acts(sample):
    """The numbers of a batch's samples."""
    return sample.batch["act"].tolist()


def test_signature():
    """The constructor has the promised argument names, order and defaults."""
    parameters = inspect.signature(Server).parameters
    assert list(parameters)[:4] == ["example", "batch_size", "transport", "num_buffers"]
    assert (parameters["transport"].default, parameters["num_buffers"].default) == (None, 4)
    keyword_only = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    promised = {"name": None, "max_producers": 1024, "order": "fifo", "detailed_metrics": False, "writable": False}
    assert promised.items() <= keyword_only.items()


def test_what_it_says_of_itself():
    """A server has a name, a handle with that name, a batch size and a capacity."""
    with Server(EXAMPLE, 3, num_buffers=5, name=f"test-itself-{os.getpid()}") as server:
        assert server.name == server.handle.name == f"test-itself-{os.getpid()}"
        assert (server.batch_size, server.capacity) == (3, 15)


def test_made_up_names_differ():
    """Servers without a name have different names."""
    with Server(EXAMPLE, 1) as a, Server(EXAMPLE, 1) as b:
        assert a.name
        assert a.name != b.name


def test_start_without_a_transport_does_nothing():
    """Without a transport start() does nothing, and port raises an error that says why."""
    with Server(EXAMPLE, 1) as server:
        server.start()
        server.start()
        server.submit(row(1))
        assert acts(server.sample(1)) == [1]
        with pytest.raises(RuntimeError, match="no transport"):
            _ = server.port


def test_the_port_before_the_start():
    """A port that the system chooses is unknown before start(), and the error says so; a chosen one is known."""
    with Server(EXAMPLE, 1, TcpTransport(0)) as server:
        with pytest.raises(RuntimeError, match=r"call server\.start\(\) first"):
            _ = server.port
        server.start()
        assert server.port > 0
    with Server(EXAMPLE, 1, TcpTransport(4711)) as server:
        assert server.port == 4711


def test_transport_is_started_with_the_handle_and_shut_down_once():
    """start() hands the transport the handle; close() shuts it down, once."""
    calls = []

    class Fake:
        port = 4711

        def start(self, handle):
            calls.append(handle)

        def shutdown(self):
            calls.append("shutdown")

    with Server(EXAMPLE, 1, Fake()) as server:
        assert calls == []
        server.start()
        assert calls == [server.handle]
        assert server.port == 4711
        server.close()
    assert calls[1:] == ["shutdown"]


def test_an_exception_in_the_block_is_not_hidden(caplog):
    """If a transport fails to shut down after an exception in the block, the failure is logged."""

    class Failing:
        def start(self, handle):
            pass

        def shutdown(self):
            raise OSError("no such wire")

    def work():
        with Server(EXAMPLE, 1, Failing()) as server:
            server.start()
            raise LookupError("the user's own")

    with pytest.raises(LookupError, match="the user's own"):
        work()
    assert "no such wire" in caplog.text
    with pytest.raises(OSError, match="no such wire"), Server(EXAMPLE, 1, Failing()) as server:
        server.start()


def test_a_batch_has_a_leading_batch_dimension():
    """Leaves are (batch_size, *shape) of the leaf's dtype, rows in the order sent, as batch and info."""
    with Server(EXAMPLE, 4) as server:
        for i in range(4):
            server.submit(row(i))
        sample = server.sample(1)
        batch, info = sample
        assert isinstance(sample, Sample)
        assert batch is sample.batch
        assert info.samples_inserted_total == 4
        assert (batch["obs"].shape, batch["obs"].dtype) == ((4, 3), np.float32)
        assert (batch["act"].shape, batch["act"].dtype) == ((4,), np.int64)
        np.testing.assert_array_equal(batch["obs"], np.repeat(np.arange(4.0), 3).reshape(4, 3))


def test_batches_are_views():
    """A batch's arrays own no memory, and two takes of one physical batch lie at one address."""
    with Server(EXAMPLE, 1, num_buffers=2) as server:
        addresses = []
        for i in range(4):
            server.submit(row(i), timeout=5)
            obs = server.sample(1).batch["obs"]
            assert not obs.flags.owndata
            addresses.append(obs.ctypes.data)
        assert addresses[:2] == addresses[2:]
        assert addresses[0] != addresses[1]


@pytest.mark.parametrize("num_buffers", [1, 2, 3, 7])
def test_buffers_are_cycled(num_buffers):
    """Many times more batches than buffers come through whole and in order."""
    with Server(EXAMPLE, 3, num_buffers=num_buffers) as server:
        for k in range(5 * num_buffers + 1):
            for i in range(3 * k, 3 * k + 3):
                server.submit(row(i), timeout=5)
            assert acts(server.sample(5)) == [3 * k, 3 * k + 1, 3 * k + 2]
            assert problem_of(server._ring) is None


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_sample_times_out(timeout):
    """Without a full batch sample() raises TimeoutError, not before its time, and says what is there."""
    with Server(EXAMPLE, 2) as server:
        server.submit(row(0))
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"no batch of 2 .*sent or being written: 1, producers attached: 0"):
            server.sample(timeout)
        assert time.monotonic() - started >= timeout
        server.submit(row(1))
        assert acts(server.sample(0)) == [0, 1]


def test_an_infinite_timeout_is_no_timeout(background):
    """timeout=inf waits, like None."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        waiting = background(server.sample, float("inf"))
        server.submit(row(1))
        assert acts(waiting.result()) == [1]
        sender = background(server.submit, row(2), float("inf"))
        assert acts(server.sample(30)) == [2]
        sender.result()


def test_a_ring_of_one_batch_gives_copies():
    """With num_buffers=1 the arrays are copies. Each batch's space is free at the next call, or with the last array."""
    with Server(EXAMPLE, 1, num_buffers=1) as server:
        server.submit(row(0))
        first = server.sample(1)
        with pytest.raises(TimeoutError, match="stayed full"):
            server.submit(row(1), timeout=0)
        with pytest.raises(TimeoutError, match="no batch"):
            server.sample(0)
        server.submit(row(1), timeout=0)
        second = server.sample(1).batch
        assert (acts(first), second["act"].tolist()) == ([0], [1])
        del second
        server.submit(row(2), timeout=0)


def test_none_once_closed_and_drained():
    """After close() full batches still come, then None forever; a partial batch is no batch."""
    with Server(EXAMPLE, 2) as server:
        for i in range(5):
            server.submit(row(i))
        server.close()
        assert [acts(server.sample(1)) for _ in range(2)] == [[0, 1], [2, 3]]
        assert server.sample(1) is None
        assert server.sample() is None
        assert server.sample(0) is None


def test_close_is_idempotent_and_ends_submit():
    """A second close() does nothing; submit() then says that the ring is closed."""
    server = Server(EXAMPLE, 2)
    server.close()
    server.close()
    with pytest.raises(ConnectionClosedError, match="closed by the learner"):
        server.submit(row(0))


def test_leaving_the_block_closes():
    """A server is a context manager that closes: the segment is gone, and producers get an error."""
    with Server(EXAMPLE, 1) as server:
        client = ShmClient(server.handle)
        assert server.__enter__() is server
    with pytest.raises(ConnectionClosedError):
        client.send(row(0))
    client.close()


def test_an_exception_in_the_block_closes_and_passes():
    """The block's own exception comes out, and the server is closed."""
    with pytest.raises(KeyError, match="mine"), Server(EXAMPLE, 1) as server:
        raise KeyError("mine")
    assert server.sample() is None


@pytest.mark.parametrize("keyword", ["batch_size", "num_buffers", "max_producers"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, True, 2**32, 2**70])
def test_counts_are_checked(keyword, value):
    """A count that is no positive integer is refused by name, before anything is made."""
    with pytest.raises(ValueError, match=f"{keyword}="):
        Server(EXAMPLE, **{"batch_size": 2, keyword: value})


def test_numpy_counts_will_do():
    """numpy integers count as integers."""
    with Server(EXAMPLE, np.int32(2), None, np.uint8(3), max_producers=np.int64(5)) as server:
        assert server.capacity == 6


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"order": "lifo"}, "order='lifo'"),
        ({"reap_interval": 0}, "reap_interval"),
        ({"reap_interval": float("nan")}, "reap_interval"),
        ({"reap_interval": "1"}, "reap_interval"),
        ({"max_producers": 60001}, "at most 60000"),
        ({"batch_size": 2**31}, r"batch_size at most 2\*\*30"),
        ({"batch_size": 2**20, "num_buffers": 2**20}, r"at most 2\*\*32"),
    ],
)
def test_other_settings_are_checked(keywords, message):
    """Impossible settings are refused with what is possible."""
    with pytest.raises(ValueError, match=message):
        Server(EXAMPLE, **{"batch_size": 2, **keywords})


def test_settings_of_id_echo():
    """num_drainers and producer_queue_size are accepted; pin_host_memory is refused, not ignored."""
    with Server(EXAMPLE, 1, num_drainers=8, producer_queue_size=8, pin_host_memory=False) as server:
        server.submit(row(0))
        assert acts(server.sample(1)) == [0]
    with pytest.raises(RuntimeError, match="pin_host_memory"):
        Server(EXAMPLE, 1, pin_host_memory=True)


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_order(order):
    """An open reservation holds up the batches behind it in "fifo" order, and is passed over in "ready" order."""
    with Server(EXAMPLE, 2, order=order) as server, ShmClient(server.handle) as client:
        with client.reserve() as slot:
            slot["obs"][:], slot["act"][...] = 0, 0
            for i in range(1, 4):
                client.send(row(i))
            if order == "ready":
                assert acts(server.sample(5)) == [2, 3]
            else:
                with pytest.raises(TimeoutError):
                    server.sample(0)
        assert acts(server.sample(5)) == [0, 1]
        if order == "fifo":
            assert acts(server.sample(5)) == [2, 3]


def test_submit_does_not_wait_for_itself(monkeypatch):
    """On a full ring, the only thread that could take a batch is told so at once. With another learner it waits."""
    monkeypatch.setattr("echo_shm.ring.stuck.only_thread", lambda: True)  # pytest has threads of its own
    with Server(EXAMPLE, 2, num_buffers=2) as server:
        server.submit_many({"obs": np.zeros((3, 3), np.float32), "act": np.arange(3)})
        with pytest.raises(TimeoutError, match=r"would wait for itself.*; 1 of 2 samples were sent"):
            server.submit_many({"obs": np.zeros((2, 3), np.float32), "act": np.arange(3, 5)})
        with pytest.raises(TimeoutError, match=r"would wait for itself. Call sample\(\) first"):
            server.submit(row(4), timeout=1000)
        assert acts(server.sample()) == [0, 1]
        server.submit_many({"obs": np.zeros((2, 3), np.float32), "act": np.arange(4, 6)})
        with Server.attach(server.handle), pytest.raises(TimeoutError, match=r"stayed full for 0\.05 s"):
            server.submit(row(6), timeout=0.05)


def test_try_sample():
    """A batch, or None at once."""
    with Server(EXAMPLE, 1) as server:
        assert server.try_sample() is None
        server.submit(row(0))
        assert acts(server.try_sample()) == [0]
        assert server.try_sample() is None
        server.close()
        assert server.try_sample() is None


@pytest.mark.parametrize("read", ["sample", "try_sample", "lease", "dataset_iter"])
def test_the_first_reading_call_starts_the_transports(read):
    """A start() that was forgotten is made up for, once; a closed server starts nothing."""

    class Recording:
        def __init__(self):
            self.calls = []

        def start(self, handle):
            self.calls.append("start")

        def shutdown(self):
            self.calls.append("shutdown")

    transport = Recording()
    with Server(EXAMPLE, 1, transport) as server:
        for i in range(2):
            server.submit(row(i))
            if read == "lease":
                with server.lease() as sample:
                    assert acts(sample) == [i]
            elif read == "dataset_iter":
                assert acts(next(server.dataset_iter())) == [i]
            else:
                assert acts(getattr(server, read)()) == [i]
        assert transport.calls == ["start"]
    assert transport.calls == ["start", "shutdown"]
    closed = Recording()
    server = Server(EXAMPLE, 1, closed)
    server.close()
    assert server.sample() is None
    assert closed.calls == []


def test_submit_wants_the_example_exactly():
    """submit() casts nothing, and sends nothing when it raises."""
    with Server(EXAMPLE, 1) as server:
        for wrong in (
            {"obs": np.zeros(3), "act": np.int64(0)},
            {"obs": np.zeros(2, np.float32), "act": np.int64(0)},
            {"obs": np.zeros(3, np.float32)},
            [np.zeros(3, np.float32), np.int64(0)],
        ):
            with pytest.raises(ValueError, match="expected"):
                server.submit(wrong)
        with pytest.raises(TimeoutError):
            server.sample(0)


def test_a_transport_that_fails_to_stop_leaves_nothing():
    """close() ends the ring and unlinks the segment even when the transport's shutdown raises."""

    class Broken:
        def start(self, handle):
            pass

        def shutdown(self):
            raise OSError("stuck")

    server = Server(EXAMPLE, 1, transport=Broken())
    server.start()
    with pytest.raises(OSError, match="stuck"):
        server.close()
    assert repr(server) == f"<Server {server.name!r}, batches of 1, closed>"
    with pytest.raises(SegmentError, match="no segment"):
        ShmClient(server.name)


@pytest.mark.parametrize("transport", ["tcp", 5, TcpTransport, [None, 7]])
def test_a_transport_must_be_one(transport):
    """An object that cannot be started and shut down is refused at once, and so is a class."""
    with pytest.raises(
        TypeError, match=r"a transport (has start\(handle\) and shutdown\(\), got|is an instance: TcpTransport\()"
    ):
        Server(EXAMPLE, 1, transport=transport)


def test_what_belongs_to_a_process_does_not_pickle():
    """Pickling or copying a server or client says what to pass instead; a copied sample has arrays of its own."""
    with Server(EXAMPLE, 1) as server, ShmClient(server.handle) as client:
        for refused in (server, client):
            with pytest.raises(TypeError, match="pickle server"):
                pickle.dumps(refused)
            with pytest.raises(TypeError, match="pickle server"):
                copy.copy(refused)
        assert repr(client) == f"<ShmClient of {server.name!r}, open>"
        server.submit(EXAMPLE)
        kept = copy.deepcopy(server.sample())
        assert optree.tree_all(optree.tree_map(lambda a: a.flags.owndata, kept.batch))
        kept.release()


def test_close_interrupted_anywhere():
    """Wherever Ctrl-C interrupts close(), another close() leaves nothing behind."""
    n, left = 0, [0]
    while left[0] <= 0:
        n += 1
        server = Server(np.zeros(3), 1)
        trace, left = at_opcode(n, interrupt, server_module, segment)
        with contextlib.suppress(Interrupt):
            run_traced(server.close, trace)
        server.close()
        assert server.name not in lockfile.names(), f"interrupted at point {n}"
    assert n > 5
