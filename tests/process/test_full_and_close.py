"""A full ring, and a ring that is closed while producers send."""

import contextlib
import random
import signal
import time

import pytest
from harness import stamped
from harness.processes import stop, until_asleep

from echo_shm import ConnectionClosedError, ShmClient


def _send(conn, handle, incarnation):
    """Sends until the ring is closed; says how many sends returned."""
    client, sample, sent = ShmClient(handle), stamped.example(), 0
    conn.send("attached")
    try:
        while True:
            client.send(stamped.stamp(sample, incarnation, sent))
            sent += 1
    except ConnectionClosedError:
        conn.send(sent)
        conn.recv()


def _send_one(conn, handle, incarnation):
    with ShmClient(handle) as client:
        conn.send("attached")
        client.send(stamped.stamp(stamped.example(), incarnation, 0))
        conn.send("sent")
        conn.recv()


def _fill(server):
    with ShmClient(server.handle) as client:
        for sequence in range(server.capacity):
            client.send(stamped.stamp(stamped.example(), 99, sequence), timeout=0)


def test_producers_block_and_all_go_on(serve, act):
    """On a full ring no send returns. Each released batch lets as many sends return as it has slots."""
    server = serve(4, 1)
    _fill(server)
    producers = [act(_send_one, server.handle, i) for i in range(8)]
    for producer in producers:
        assert producer.hear() == "attached"
        until_asleep(producer.pid)
    assert all(producer.is_silent() for producer in producers)
    came = []
    for _ in range(3):
        came += stamped.stamps(server.sample(timeout=20).batch)
    assert [producer.hear() for producer in producers] == ["sent"] * 8
    assert sorted(came) == [(i, 0) for i in range(8)] + [(99, i) for i in range(4)]


def test_close_wakes_blocked_producers(serve, act):
    """Producers that wait on a full ring get ConnectionClosedError as soon as it is closed."""
    server = serve(4, 1)
    producers = [act(_send, server.handle, i) for i in range(3)]
    for producer in producers:
        assert producer.hear() == "attached"
        until_asleep(producer.pid)
    server.close()
    sent = [producer.hear() for producer in producers]
    came = [s for b in server.dataset_iter(drop_last=False) for s in stamped.stamps(b.batch)]
    assert sorted(came) == [(i, s) for i in range(3) for s in range(sent[i])]
    assert len(came) == 4


def _hold(conn, handle):
    with ShmClient(handle) as client:
        try:
            with client.reserve() as slot:
                conn.send("inside")
                conn.recv()
                stamped.stamp(slot, 1, 0)
            conn.send("sent")
        except ConnectionClosedError as error:
            conn.send(str(error))
        conn.recv()


def test_a_reservation_does_not_hold_up_the_end(serve, act):
    """About a second after close() an open slot is taken away: the rest is delivered, and the producer is told."""
    server = serve(4, 2)
    holder = act(_hold, server.handle)
    assert holder.hear() == "inside"
    with ShmClient(server.handle) as client:
        client.send(stamped.stamp(stamped.example(), 2, 0))
    started = time.monotonic()
    server.close()
    came = [s for b in server.dataset_iter(drop_last=False) for s in stamped.stamps(b.batch)]
    took = time.monotonic() - started
    assert came == [(2, 0)]
    assert 0.9 < took < 20
    holder.say()
    assert "was not sent" in holder.hear()


def test_a_reservation_in_time_is_delivered(serve, act):
    """A reservation that is committed within the second is delivered."""
    server = serve(4, 2)
    holder = act(_hold, server.handle)
    assert holder.hear() == "inside"
    server.close()
    holder.say()
    assert holder.hear() == "sent"
    assert [stamped.stamps(b.batch) for b in server.dataset_iter(drop_last=False)] == [[(1, 0)]]


def test_a_producer_killed_inside_reserve_does_not_hold_up_the_end(serve, act):
    """A producer killed inside reserve() leaves an empty slot; what the others sent is delivered."""
    server = serve(4, 2)
    holder = act(_hold, server.handle)
    assert holder.hear() == "inside"
    with ShmClient(server.handle) as client:
        client.send(stamped.stamp(stamped.example(), 2, 0))
    holder.kill()
    server.close()
    assert [stamped.stamps(b.batch) for b in server.dataset_iter(drop_last=False)] == [[(2, 0)]]


def _hammer(conn, mode):
    """Sends to one ring after the other, each until it is closed; says how many sends returned."""
    sample, many = stamped.example(), stamped.examples(3)
    while True:
        handle, incarnation = conn.recv()
        sent = 0
        try:
            with ShmClient(handle) as client:
                conn.send("attached")
                while True:
                    if mode == "send":
                        client.send(stamped.stamp(sample, incarnation, sent))
                    elif mode == "reserve":
                        with client.reserve() as slot:
                            stamped.stamp(slot, incarnation, sent)
                    else:
                        client.send_many(stamped.stamp_many(many, incarnation, sent))
                        sent += 2
                    sent += 1
        except ConnectionClosedError:
            conn.send(sent)


@pytest.mark.parametrize(
    ("modes", "beyond"),
    [(("send", "reserve", "send"), 0), (("many", "send", "many"), 2)],
    ids=["one by one", "send_many"],
)
def test_close_at_any_moment(serve, act, modes, beyond):
    """Samples whose send returned are delivered, and none whose send raised; of a send_many that raised, not all."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    producers = [act(_hammer, mode) for mode in modes]
    for _ in range(120):
        server = serve(rng.choice([1, 2, 5]), rng.choice([1, 2, 3]), order=rng.choice(["fifo", "ready"]))
        for incarnation, producer in enumerate(producers):
            producer.say((server.handle, incarnation))
        for producer in producers:
            assert producer.hear() == "attached"
        came = []
        for _ in range(rng.randrange(12)):
            came += stamped.stamps(server.sample(timeout=20).batch)
        spin = time.perf_counter() + rng.random() * 0.001
        while time.perf_counter() < spin:  # the close's moment
            pass
        server.close()
        for sample in server.dataset_iter(drop_last=False):
            came += stamped.stamps(sample.batch)
        sent = [producer.hear() for producer in producers]
        for incarnation, count in enumerate(sent):
            mine = sorted(sequence for i, sequence in came if i == incarnation)
            more = beyond if modes[incarnation] == "many" else 0
            assert mine == list(range(len(mine))), f"{modes[incarnation]}: {mine[-5:]}"
            assert count <= len(mine) <= count + more, f"{modes[incarnation]}: {count} sent, {len(mine)} came"


def test_close_with_a_stopped_producer(serve, act):
    """A producer that is stopped between sends cannot hold up the end; all it reports as sent was delivered."""
    server = serve(2, 2)
    producers = [act(_send, server.handle, i) for i in range(2)]
    for producer in producers:
        assert producer.hear() == "attached"
    came = stamped.stamps(server.sample(timeout=20).batch)
    stop(producers[0].pid)
    with contextlib.suppress(TimeoutError):  # it may hold the next batch's first slot
        came += stamped.stamps(server.sample(timeout=1).batch)
    server.close()
    came += [s for b in server.dataset_iter(drop_last=False) for s in stamped.stamps(b.batch)]
    producers[0].kill(signal.SIGCONT)
    for incarnation, producer in enumerate(producers):
        sent = producer.hear()
        assert sorted(s for i, s in came if i == incarnation) == list(range(sent))
