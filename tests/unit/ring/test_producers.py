"""The producers of a process are stopped, one or all of them."""

import numpy as np
import pytest
from harness.programs import run_python
from harness.waiting import until

from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm.ring.metrics import RingView

EXAMPLE = np.zeros((), np.int64)
STOPPED = "this worker was stopped"


@pytest.fixture
def server():
    """A ring of four batches of one."""
    with Server(EXAMPLE, 1, num_buffers=4) as server:
        yield server


def test_every_way_to_send_is_refused(server, client):
    """Each says that the worker was stopped. What was sent before is delivered. Another producer goes on."""
    bound = client.bind(np.array(7))
    bound.send()
    client._attachment.stop()
    for send in (bound.send, lambda: client.send(np.array(1)), lambda: client.reserve().__enter__()):
        with pytest.raises(ConnectionClosedError, match=STOPPED):
            send()
    with pytest.raises(ConnectionClosedError, match=rf"{STOPPED}.*0 of 2 samples") as caught:
        client.send_many(np.arange(2))
    assert caught.value.sent == 0
    with ShmClient(server.handle) as other:
        other.send(np.array(8))
    assert [server.sample(5).batch.item() for _ in range(2)] == [7, 8]


@pytest.mark.parametrize("fails", [False, True])
def test_an_open_reservation_ends(server, client, fails):
    """It commits, or aborts after an exception, as if nothing had happened."""
    try:
        with client.reserve() as slot:
            slot[...] = 5
            client._attachment.stop()
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert RingView(server._segment).snapshot().reopened_slots == 1
    else:
        assert server.sample(5).batch.item() == 5


@pytest.mark.parametrize("how", ["send", "send_many", "reserve"])
def test_a_call_that_waits_is_refused(server, client, background, how):
    """A thread that waits on the full ring gets the exception, without a timeout of its own."""
    client.send_many(np.arange(4))
    use = {
        "send": lambda: client.send(EXAMPLE),
        "send_many": lambda: client.send_many(np.arange(4)),
        "reserve": lambda: client.reserve().__enter__(),
    }[how]
    waiting = background(use)
    until(lambda: RingView(server._segment).snapshot().producers_waiting, "it waits")
    client._attachment.stop()
    with pytest.raises(ConnectionClosedError, match=STOPPED):
        waiting.result()


def test_a_stopped_client_closes(client):
    """close() works as ever, and so does a second stop. A client that was closed before says that."""
    client._attachment.stop()
    client._attachment.stop()
    with pytest.raises(ConnectionClosedError, match=STOPPED):
        client.send(EXAMPLE)
    client.close()
    client._attachment.stop()
    with pytest.raises(ConnectionClosedError, match=r"this attachment to ring .* is closed"):
        client.send(EXAMPLE)


def test_all_producers_of_a_process():
    """Those of every ring, and those that come later, but no learner: a process that is stopped can still take."""
    script = """
import numpy as np
from echo_shm import ConnectionClosedError, Server, ShmClient
from echo_shm.ring import producers

with Server(np.zeros(()), 1) as one, Server(np.zeros(()), 1) as two:
    clients = [ShmClient(one.handle), ShmClient(two.name)]
    forgotten = ShmClient(one.handle)
    del forgotten
    clients[0].send(np.float64(1))
    producers.stop_all()
    for use in (*(client.send for client in clients), lambda _: ShmClient(one.handle), lambda _: ShmClient("nothing")):
        try:
            use(np.float64(2))
        except ConnectionClosedError as error:
            print(error)
    print(one.sample(5).batch)
    one.submit(np.float64(3))
    print(one.sample(5).batch)
"""
    lines = run_python(script).stdout.splitlines()
    assert [STOPPED in line for line in lines] == [True] * 4 + [False] * 2
    assert lines[3] == "cannot join ring 'nothing': this worker was stopped, its group wants no more samples"
    assert lines[4:] == ["[1.]", "[3.]"]
