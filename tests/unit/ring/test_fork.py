"""fork: a child cannot use what it inherited, harms nothing by trying, and can attach by itself."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from harness.processes import in_child
from harness.programs import run_python
from harness.waiting import until

from echo_shm import Server, ShmClient, TcpTransport

EXAMPLE = np.zeros((), np.int64)


def is_refused(use):
    """Whether a forked child that calls it gets a ForkedError that says what to do."""
    raised = in_child(use)
    return raised.startswith("ForkedError: ") and "attach again in the child" in raised


@pytest.fixture
def server():
    """A ring of four numbers."""
    with Server(EXAMPLE, 1, num_buffers=4, detailed_metrics=True) as server:
        yield server


USES = {
    "send": lambda server, client, bound: client.send(EXAMPLE),
    "send without waiting": lambda server, client, bound: client.send(EXAMPLE, timeout=0),
    "send a scalar": lambda server, client, bound: client.send(np.int64(3)),
    "send_many": lambda server, client, bound: client.send_many(np.zeros(2, np.int64)),
    "bind": lambda server, client, bound: bound.send(),
    "reserve": lambda server, client, bound: client.reserve().__enter__(),
    "sample": lambda server, client, bound: server.sample(),
    "sample without waiting": lambda server, client, bound: server.sample(0),
    "lease": lambda server, client, bound: server.lease().__enter__(),
    "dataset_iter": lambda server, client, bound: next(server.dataset_iter()),
    "submit": lambda server, client, bound: server.submit(EXAMPLE),
    "reset_histograms": lambda server, client, bound: server.reset_histograms(),
    "start": lambda server, client, bound: server.start(),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("use", USES)
def test_inherited_objects_are_refused(server, use, full):
    """Every use of an inherited client, bound sample or server raises ForkedError, the ring full or not."""
    with ShmClient(server.handle) as client:
        bound = client.bind(EXAMPLE.copy())
        if full:
            client.send_many(np.arange(4))
        assert is_refused(lambda: USES[use](server, client, bound))
        if not full:
            client.send_many(np.arange(4))
        assert [int(server.sample(1).batch[0]) for _ in range(4)] == [0, 1, 2, 3]


def test_an_inherited_server_starts_no_transport():
    """A child that reads, as a data loader's worker does, is refused before anything listens in its name."""
    with Server(EXAMPLE, 1, transport=TcpTransport(0)) as server:

        def read():
            try:
                next(server.dataset_iter())
            finally:
                assert server._started == []

        assert is_refused(read)
        server.start()


def test_an_inherited_reservation(server):
    """The child can neither commit nor abort its parent's reservation; the parent commits it."""
    with ShmClient(server.handle) as client:
        reservation = client.reserve()
        with reservation as slot:
            assert is_refused(lambda: reservation.__exit__(None, None, None))
            assert in_child(lambda: reservation.__exit__(KeyError, KeyError(), None)) == ""
            slot[...] = 7
        assert server.sample(1).batch.tolist() == [7]


def test_the_child_can_attach_anew(server):
    """A forked child can attach by itself as producer and learner, by name and by handle."""
    with ShmClient(server.handle):

        def use():
            with ShmClient(server.handle) as mine, ShmClient(server.name) as other:
                mine.send(np.int64(1))
                other.send(np.int64(2))
            with Server.attach(server.name) as learner:
                assert learner.sample(1).batch.tolist() == [1]
            server.close()

        assert in_child(use) == ""
        server.submit(np.int64(3))
        assert [server.sample(1).batch.tolist() for _ in range(2)] == [[2], [3]]


def test_closing_in_the_child_closes_nothing(server):
    """Closing or collecting inherited objects in the child does not affect the parent's."""
    client = ShmClient(server.handle)
    objects = [client, server]

    def close():
        import gc

        objects[0].close()
        objects[1].close()
        objects.clear()
        gc.collect()
        client.send(EXAMPLE)

    assert is_refused(close)
    client.send(np.int64(5))
    assert server.sample(1).batch.tolist() == [5]
    assert server.sample.__self__ is server
    ShmClient(server.name).close()
    client.close()


def _fork_and_die(conn, name):
    """Holds a reservation, forks a child that lives on, says the child's PID, and is killed."""
    client = ShmClient(name)
    client.reserve().__enter__()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    conn.send(pid)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_the_child_inherits_does_not_keep_locks(act):
    """A child that lives on does not make its dead parent's client look alive."""
    with Server(EXAMPLE, 1, reap_interval=0.01) as server:
        parent = act(_fork_and_die, server.name)
        child = parent.hear()
        assert parent.end() == -signal.SIGKILL
        try:
            server.submit(np.int64(2))

            def reaped():
                server._attachment.reaper.sweep()
                server.submit(np.int64(1), timeout=0)
                return server.sample(1).info.dead_producers == 1

            until(reaped, "the dead producer is reaped")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_exits_normally():
    """A forked child that ends normally, with its exit handlers, neither unlinks nor detaches what is its parent's."""
    run_python("""
import os, sys, numpy as np
from echo_shm import Server, ShmClient
s = Server(np.zeros((), np.int64), 1)
c = ShmClient(s.name)
s.submit(np.int64(1)); held = s.sample()
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
c.send(np.int64(2)); ShmClient(s.name).close()
assert held.batch[0] == 1
assert s.sample(1).batch[0] == 2 and s.sample.__self__._attachment.attached
assert ShmClient(s.handle).name == s.name and s._segment.is_linked()
# The kernel still holds our locks: another process sees us alive, and reaps nobody.
import subprocess
out = subprocess.run([sys.executable, "-c", "import sys; from echo_shm import Server; l = Server.attach(sys.argv[1]);"
    " l.submit(3); i = l.sample(5).info; print(i.dead_producers, i.active_connections)", s.name],
    capture_output=True, text=True, check=True).stdout
assert out == "0 1\\n", out
""")


def test_a_grandchild_is_a_stranger_too(server):
    """What a child has attached cannot be used in a grandchild."""

    def child():
        mine = ShmClient(server.handle)
        assert is_refused(lambda: mine.send(EXAMPLE))
        mine.send(np.int64(3))

    assert in_child(child) == ""
    assert server.sample(1).batch.tolist() == [3]
    assert Path(f"/dev/shm/echo_shm.{server.name}").exists()
