"""What a forked child inherits, and what it does not."""

import gc
import os
import threading

import pytest
from harness import stamped
from harness.actors import LastWords
from harness.processes import in_child
from harness.waiting import until

from echo_shm import Server, ShmClient
from echo_shm._core import lib
from echo_shm.ring import lockfile, segment


def _forks(conn, handle, name):
    """Holds a reservation, and does what it is told to do, which could drop this process's locks."""
    client = ShmClient(handle)
    with client.reserve() as slot:
        conn.send("inside")
        while (what := conn.recv()) != "commit":
            if what == "child exits":
                conn.send(in_child(lambda: None))
            elif what == "child attaches":
                conn.send(in_child(lambda: ShmClient(handle).close()))
            elif what == "child attaches, and lets go":
                conn.send(in_child(lambda: ShmClient(handle)))
            elif what == "listing":
                segment.listing(name)
                conn.send("")
            elif what == "collect":
                conn.send("" if not lockfile.collect(name) else "collected")
            elif what == "second client":
                ShmClient(handle).close()
                ShmClient(name).close()
                conn.send("")
            elif what == "second learner":
                Server.attach(name).close()
                conn.send("")
        stamped.stamp(slot, 1, 0)
    conn.send("sent")
    conn.recv()


@pytest.mark.parametrize(
    "what",
    [
        "child exits",
        "child attaches",
        "child attaches, and lets go",
        "listing",
        "collect",
        "second client",
        "second learner",
    ],
)
def test_locks_outlast(serve, act, owners, what):
    """An owner counts as alive after its process has closed another attachment or a lock file, in whatever way."""
    server = serve(2, 2)
    actor = act(_forks, server.handle, server.name)
    assert actor.hear() == "inside"
    actor.say(what)
    assert actor.hear() == ""
    (owner,) = [owner for owner in owners(server.name) if owner.role == "producer"]
    assert (owner.pid, owner.held) == (actor.pid, 1)
    # not only the PID lives: another process finds the byte locked
    assert lib.es_segment_locks_held(server._segment.lockfile.locks, owner.index) == 1
    server._attachment.reaper.sweep()
    actor.say("commit")
    assert actor.hear() == "sent"
    with ShmClient(server.handle) as client:
        client.send(stamped.stamp(stamped.example(), 2, 0))
        sample = server.sample(timeout=20)
        assert stamped.stamps(sample.batch) == [(1, 0), (2, 0)]
        assert sample.info.dead_producers == 0


def _child_owner(conn, handle):
    """Holds a client, and in a child a reservation; says both PIDs."""
    parent = ShmClient(handle)
    parent.send(stamped.stamp(stamped.example(), 1, 0))
    pid = os.fork()
    if pid == 0:
        with ShmClient(handle) as client, client.reserve():
            # what the child inherited is collected; its own locks are on the same file
            del parent
            gc.collect()
            conn.send((os.getppid(), os.getpid()))
            conn.recv()
        os._exit(0)
    os.waitpid(pid, 0)
    conn.send("collected")
    conn.recv()
    parent.send(stamped.stamp(stamped.example(), 1, 1))
    conn.recv()


def test_a_child_that_attaches_is_an_owner_of_its_own(serve, act, owners):
    """The child's death is noticed while its parent lives, and is not taken for the parent's."""
    server = serve(2, 2)
    actor = act(_child_owner, server.handle)
    parent, child = actor.hear()
    assert sorted(o.pid for o in owners(server.name) if o.role == "producer") == sorted([parent, child])
    server._attachment.reaper.sweep()
    locked = [lib.es_segment_locks_held(server._segment.lockfile.locks, o.index) for o in owners(server.name)]
    assert locked == [1, 1, 1]
    os.kill(child, 9)
    assert actor.hear() == "collected"

    def reaped():
        server._attachment.reaper.sweep()
        return [o.pid for o in owners(server.name) if o.role == "producer"] == [parent]

    until(reaped, "the child is reaped")
    actor.say()
    assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0), (1, 1)]


def _fork_under_load(conn, handle):
    """Forks 100 times while four threads send through one client."""
    client, over = ShmClient(handle), threading.Event()
    sent = [0] * 4

    def send(i):
        sample = stamped.example()
        while not over.is_set():
            client.send(stamped.stamp(sample, i, sent[i]))
            sent[i] += 1

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    raised = [in_child(lambda: client.send(stamped.example())) for _ in range(50)]

    def once_more(i):
        with ShmClient(handle) as own:
            own.send(stamped.stamp(stamped.example(), 100 + i, 0))

    raised += [in_child(lambda i=i: once_more(i)) for i in range(50)]
    over.set()
    for thread in threads:
        thread.join()
    conn.send((raised, sent))


def test_forks_while_threads_send(serve, act):
    """No child hangs. Children cannot send through what they inherited, but can attach and send; nothing is lost."""
    server = serve(8, 4)
    actor = act(_fork_under_load, server.handle)
    ended = LastWords([actor])
    came = [s for b in server.dataset_iter(until=ended, drop_last=False) for s in stamped.stamps(b.batch)]
    raised, sent = ended.said[0]
    assert all(text.startswith("ForkedError") for text in raised[:50]), raised[:50]
    assert raised[50:] == [""] * 50
    expected = [(i, s) for i in range(4) for s in range(sent[i])] + [(100 + i, 0) for i in range(50)]
    assert sorted(came) == expected


def _fork_while_attaching(conn, handle, name):
    """Forks children that attach, while a thread lists a segment and attaches."""
    over = threading.Event()

    def look():
        while not over.is_set():
            segment.listing(name)
            ShmClient(handle).close()

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(150):
        pid = os.fork()
        if pid == 0:
            ShmClient(handle).close()
            os._exit(0)
        conn.send(pid)
        assert os.waitpid(pid, 0)[1] == 0, i
    over.set()
    thread.join()
    conn.send("done")


def test_forks_while_threads_attach(serve, act):
    """A child can attach whatever its parent's other threads did when it was forked."""
    server = serve(2, 2)
    actor = act(_fork_while_attaching, server.handle, server.name)
    pid = None
    while actor.conn.poll(10) and (said := actor.hear()) != "done":
        pid, said = said, None
    hung = said != "done"
    if hung:
        os.kill(pid, 9)
    assert not hung, "a forked child hung as it attached"
