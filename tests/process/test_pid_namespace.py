"""Producers in a PID namespace of their own that share /dev/shm with the learner, as containers may."""

import ctypes
import os

import pytest
import stamped
from actors import die_with_parent, until

from echo_shm import ShmClient

_CLONE_NEWPID = 0x20000000


def _unshare():
    return ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWPID) == 0


@pytest.fixture(autouse=True)
def allowed():
    """Skips where this user may not make PID namespaces."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _unshare() else 1)
    if os.waitpid(pid, 0)[1]:
        pytest.skip("PID namespaces cannot be made here")


def _produce(conn, handle):
    """In a new namespace, sends a sample and dies inside reserve() when told to; says its pid there."""
    assert _unshare()
    first = os.fork()  # pid 1 there: the namespace ends with it
    if first == 0:
        die_with_parent()
        pid = 0
        while True:  # a pid of the namespace that no process out here has
            pid = os.fork()
            if pid == 0:
                if os.path.exists(f"/proc/{os.getpid()}"):
                    os._exit(1)
                try:
                    client = ShmClient(handle)
                    client.send(stamped.stamp(stamped.example(), 1, 0))
                    with client.reserve():
                        conn.send(os.getpid())
                        conn.recv()
                        os.kill(os.getpid(), 9)
                except BaseException as error:
                    conn.send(repr(error))
                os._exit(0)
            if os.waitpid(pid, 0)[1] == 9:
                break
        conn.send("killed")
        conn.recv()
    os.waitpid(first, 0)


def test_a_producer_of_another_namespace_is_reaped(serve, act, owners):
    """It attaches, is seen alive though its pid means nothing here, and its death is noticed."""
    server = serve(2, 2)
    actor = act(_produce, server.handle)
    pid = actor.hear()
    assert isinstance(pid, int), pid
    server._attachment.sweep()
    (owner,) = [o for o in owners(server.name) if o.role == "producer"]
    assert (owner.pid, owner.held) == (pid, 1)
    assert owner.pid_namespace != os.stat("/proc/self/ns/pid").st_ino
    actor.say()
    assert actor.hear() == "killed"

    def reaped():
        server._attachment.sweep()
        return [o.role for o in owners(server.name)] == ["learner"]

    until(reaped, "the producer is reaped")
    with ShmClient(server.handle) as client:
        client.send(stamped.stamp(stamped.example(), 2, 0))
    assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0), (2, 0)]


def _hold_as(conn, handle):
    """As pid 1 of a new namespace."""
    assert _unshare()
    first = os.fork()
    if first == 0:
        die_with_parent()
        client = ShmClient(handle)
        with client.reserve() as slot:
            conn.send((os.getpid(), client._attachment.index))
            conn.recv()
            stamped.stamp(slot, 1, 0)
        conn.send("sent")
        conn.recv()
        os._exit(0)
    os.waitpid(first, 0)


def test_a_pid_that_is_another_process_here(serve, act, owners):
    """Pid 1 there is not pid 1 here: whether that lives says nothing, and the lock alone decides."""
    server = serve(2, 2)
    actor = act(_hold_as, server.handle)
    pid, index = actor.hear()
    assert pid == 1
    server._attachment.sweep()
    assert index in [o.index for o in owners(server.name)]
    actor.say()
    assert actor.hear() == "sent"
    assert index in [o.index for o in owners(server.name)]
    actor.kill()

    def reaped():
        server._attachment.sweep()
        return index not in [o.index for o in owners(server.name)]

    until(reaped, "the producer is reaped, though a process 1 lives here")
