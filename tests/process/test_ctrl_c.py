"""Ctrl-C interrupts every wait."""

import signal
import time

import pytest
from harness import stamped
from harness.processes import until_asleep

from echo_shm import Server, ShmClient
from echo_shm.ring.metrics import RingView

#: A wait looks for signals at least every 0.1 s; the rest is for a busy machine (seconds).
PROMPT = 20.0


def _sample(conn, handle, timeout):
    with Server.attach(handle) as server:
        conn.send("waits")
        try:
            server.sample(timeout=timeout)
        except KeyboardInterrupt:
            conn.send(time.monotonic())
        # it can still take
        conn.send(stamped.stamps(server.sample(timeout=20).batch))
        conn.recv()


def _iterate(conn, handle, timeout):
    with Server.attach(handle) as server:
        conn.send("waits")
        try:
            next(server.dataset_iter())
        except KeyboardInterrupt:
            conn.send(time.monotonic())
        conn.send(stamped.stamps(server.sample(timeout=20).batch))
        conn.recv()


@pytest.mark.parametrize(("fn", "timeout"), [(_sample, None), (_sample, 60), (_iterate, None)])
def test_a_learner_that_waits(serve, act, fn, timeout):
    """Ctrl-C raises KeyboardInterrupt in a learner that waits; the learner can go on."""
    server = serve(2, 2)
    learner = act(fn, server.handle, timeout)
    assert learner.hear() == "waits"
    until_asleep(learner.pid)
    sent = time.monotonic()
    learner.kill(signal.SIGINT)
    assert learner.hear() - sent < PROMPT
    with ShmClient(server.handle) as client:
        for sequence in range(2):
            client.send(stamped.stamp(stamped.example(), 1, sequence))
    assert learner.hear() == [(1, 0), (1, 1)]


def _produce(conn, handle, how):
    with ShmClient(handle, learner_grace=None) as client:
        sample = stamped.stamp(stamped.example(), 1, 0)
        use = {
            "send": lambda: client.send(sample),
            "bind": client.bind(sample).send,
            "send_many": lambda: client.send_many(stamped.stamp_many(stamped.examples(1), 1, 0)),
            "reserve": lambda: client.reserve().__enter__(),
        }[how]
        conn.send("waits")
        try:
            use()
        except KeyboardInterrupt:
            conn.send(time.monotonic())
        client.send(sample)
        conn.send("sent")
        conn.recv()


@pytest.mark.parametrize("how", ["send", "bind", "send_many", "reserve"])
def test_a_producer_that_waits(serve, act, how):
    """The same for a producer on a full ring: an interrupted sample is not sent, a later one is."""
    server = serve(1, 1)
    server.submit(stamped.stamp(stamped.example(), 9, 0))
    producer = act(_produce, server.handle, how)
    assert producer.hear() == "waits"
    until_asleep(producer.pid)
    sent = time.monotonic()
    producer.kill(signal.SIGINT)
    assert producer.hear() - sent < PROMPT
    assert stamped.stamps(server.sample(timeout=20).batch) == [(9, 0)]
    assert stamped.stamps(server.sample(timeout=20).batch) == [(1, 0)]
    assert producer.hear() == "sent"
    assert RingView(server._segment).snapshot().store_size == 0


def _take_between_alarms(conn, handle):
    """Takes batches until it is told to stop. A timer interrupts it again and again; it goes on each time."""
    came, interrupts, armed = 0, 0, False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    with Server.attach(handle) as server:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.00037)
        while not conn.poll(0):
            try:
                armed = True
                server.sample(timeout=0.1)
                armed = False
                came += 1
            except KeyboardInterrupt:
                interrupts += 1
            except TimeoutError:
                armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        conn.send((came, interrupts))


def test_an_interrupted_learner_leaks_no_lease(serve, act):
    """However often sample() is interrupted, a learner that goes on keeps no batch that stops the ring."""
    server = serve(1, 3)
    learner = act(_take_between_alarms, server.handle)
    with ShmClient(server.handle) as client:
        sequence = 0
        try:
            for sequence in range(10_000):
                client.send(stamped.stamp(stamped.example(), 1, sequence), timeout=3)
        except TimeoutError as error:
            raise AssertionError(f"the ring stands still after {sequence} samples") from error
    learner.say("enough")
    came, interrupts = learner.hear()
    print(f"{came} batches came, {interrupts} interrupts")
