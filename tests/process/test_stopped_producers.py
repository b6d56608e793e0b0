"""Producers that are stopped, not dead."""

import os
import signal

import pytest
from harness import stamped
from harness.processes import stop
from harness.waiting import until

from echo_shm import ShmClient
from echo_shm.ring.metrics import RingView


def _in_reserve(conn, handle, incarnation):
    """Holds a reservation until told to go on, then commits it."""
    with ShmClient(handle) as client:
        with client.reserve() as slot:
            conn.send("inside")
            conn.recv()
            stamped.stamp(slot, incarnation, 0)
        conn.send("sent")
        conn.recv()


def _idle(conn, handle):
    with ShmClient(handle):
        conn.send("attached")
        conn.recv()


def _send(client, incarnation, sequences):
    for sequence in sequences:
        client.send(stamped.stamp(stamped.example(), incarnation, sequence))


def _sweep(server):
    """Lets the server's learner wait for a reap interval: it looks for the dead and the stalled."""
    with pytest.raises(TimeoutError):
        server.sample(timeout=0.11)


def _stalled(server, client, count):
    """Waits until so many producers are reported as stalled, also in a batch's info."""
    view = RingView(server._segment)

    def reported():
        _sweep(server)
        return view.snapshot().stalled_producers == count

    until(reported, f"{count} producers are reported as stalled")
    _send(client, 9, range(server.batch_size))
    sample = server.sample(timeout=20)
    assert stamped.stamps(sample.batch) == [(9, i) for i in range(server.batch_size)]
    assert sample.info.stalled_producers == count
    sample.release()


@pytest.mark.parametrize("order", ["fifo", "ready"])
def test_stopped_while_idle(serve, act, owners, order):
    """A stopped producer is reported as stalled, delays nobody and stays registered; SIGCONT ends that."""
    server = serve(2, 2, order=order)
    idle = act(_idle, server.handle)
    idle.hear()
    stop(idle.pid)
    with ShmClient(server.handle) as client:
        _stalled(server, client, 1)
        assert idle.pid in [owner.pid for owner in owners(server.name)]
        os.kill(idle.pid, signal.SIGCONT)
        _stalled(server, client, 0)


def test_stopped_inside_reserve_with_order_ready(serve, act, owners):
    """With order="ready" it keeps its slot, and the batches behind it do not wait."""
    server = serve(2, 5, order="ready")
    holder = act(_in_reserve, server.handle, 1)
    holder.hear()
    stop(holder.pid)
    with ShmClient(server.handle) as client:
        _send(client, 2, [0])  # into the same batch
        _stalled(server, client, 1)
        assert [owner.held for owner in owners(server.name) if owner.pid == holder.pid] == [1]
        holder.kill(signal.SIGCONT)
        holder.say()
        assert holder.hear() == "sent"
        assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0), (2, 0)]
        _stalled(server, client, 0)


def test_stopped_inside_reserve_with_order_fifo(serve, act, owners):
    """With order="fifo" the batches behind it wait, and come in order after SIGCONT; it is never reaped."""
    server = serve(2, 3)
    holder = act(_in_reserve, server.handle, 1)
    holder.hear()
    stop(holder.pid)
    with ShmClient(server.handle) as client:
        _send(client, 2, range(5))  # full
        with pytest.raises(TimeoutError):
            client.send(stamped.example(), timeout=0)
        with pytest.raises(TimeoutError):
            server.sample(timeout=1.5)  # many reap intervals
        assert server._attachment.ring_closed() is False
        assert [owner.held for owner in owners(server.name) if owner.pid == holder.pid] == [1]
        holder.kill(signal.SIGCONT)
        holder.say()
        assert holder.hear() == "sent"
        came = [server.sample(timeout=20) for _ in range(3)]
        assert came[0].info.stalled_producers == 1
        assert came[0].info.dead_producers == 0
        came = [stamped.stamps(sample.batch) for sample in came]
    assert came == [[(1, 0), (2, 0)], [(2, 1), (2, 2)], [(2, 3), (2, 4)]]


def test_killed_while_stopped(serve, act):
    """A stopped producer that is killed is dead: its slot is offered again."""
    server = serve(2, 2)
    holder = act(_in_reserve, server.handle, 1)
    holder.hear()
    stop(holder.pid)
    holder.kill()
    with ShmClient(server.handle) as client:
        _send(client, 2, range(1))

        def reaped():
            _sweep(server)
            return RingView(server._segment).snapshot().dead_producers == 1

        until(reaped, "it is reaped")
        _send(client, 2, range(1, 2))
        assert stamped.stamps(server.sample(timeout=20).batch) == [(2, 1), (2, 0)]


def test_slow_inside_reserve_counts_as_stalled(serve, act):
    """A producer that runs, but keeps a slot for more than a second, is reported as stalled, too."""
    server = serve(2, 3, order="ready")
    holder = act(_in_reserve, server.handle, 1)
    holder.hear()
    with ShmClient(server.handle) as client:
        _send(client, 2, [0])
        _stalled(server, client, 1)
        holder.say()
        holder.hear()
