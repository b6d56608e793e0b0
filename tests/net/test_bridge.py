"""A server with TcpTransport and its clients, on loopback: every sample arrives, or an error says that it did not."""

import itertools
import threading

import numpy as np
import pytest
from harness.peers import EXAMPLE, numbers, raw, said, sample
from harness.processes import in_child
from harness.programs import ECHO_SHM, run, run_python
from harness.waiting import until

from echo_shm import ConnectionClosedError, ShmClient, TcpClient
from echo_shm.net.client import sender
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment


@pytest.mark.parametrize("version", [1, 2])
def test_samples_arrive_in_order(serve, client, version):
    """A client's samples arrive once, whole and in order; wait() returns when all have."""
    server = serve(10, 12, wire_version=version)
    one = client(server)
    for n in range(100):
        one.send(sample(n))
    one.wait()
    assert one._in_flight_count == 0
    assert [numbers(server.sample(timeout=20).batch) for _ in range(10)] == [
        list(range(k, k + 10)) for k in range(0, 100, 10)
    ]


def test_a_lone_sample_does_not_wait_for_others(serve, client):
    """A sample is sent without others to fill its frame, and without wait()."""
    server = serve(1)
    one = client(server)
    for n in range(3):
        one.send(sample(n))
        assert numbers(server.sample(timeout=20).batch) == [n]


def test_what_ends_the_gathering(serve, client, monkeypatch):
    """A sample does not wait for others when its frame is full, or while a thread is in wait()."""
    monkeypatch.setattr(sender, "_GATHER_NS", 60_000_000_000)
    server = serve(1, 5000)
    one = client(server)
    # as if a thread were in wait(); before the sample, as a gathering that has begun goes on for its millisecond
    one._sender._flushing += 1
    one.send(sample(0))
    assert numbers(server.sample(timeout=20).batch) == [0]
    one._sender._flushing -= 1
    frame = one._sender._outbox.size - 1
    one.send_many({"n": np.arange(1, 1 + frame), "x": np.ones((frame, 2, 3), np.float32)})
    for n in range(1, 1 + frame):
        assert server.sample(timeout=20).batch["n"].tolist() == [n]


def test_send_many(serve, client):
    """Stacked samples arrive in order, also when they are more than a frame or the ring holds."""
    server = serve(50, 2)
    one = client(server)
    stacked = {"n": np.arange(10_000), "x": np.repeat(np.arange(10_000, dtype=np.float32), 6).reshape(-1, 2, 3)}
    sender = threading.Thread(target=one.send_many, args=(stacked,))
    sender.start()
    assert [n for _ in range(200) for n in numbers(server.sample(timeout=20).batch)] == list(range(10_000))
    sender.join(20)
    one.wait()


def test_threads_share_a_client(serve, client):
    """Each thread's samples arrive once and in its own order."""
    server = serve(100, 4)
    one = client(server)

    def work(thread):
        for n in range(1000):
            one.send(sample(thread * 1000 + n))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    got = [n for _ in range(40) for n in numbers(server.sample(timeout=20).batch)]
    assert sorted(got) == list(range(4000))
    for t in range(4):
        assert [n for n in got if n // 1000 == t] == list(range(t * 1000, t * 1000 + 1000))


def test_clients_beside_shared_memory(serve, client):
    """Remote and local producers fill the same batches; both are connections, the bridge is none."""
    server = serve(30)
    remote, local = client(server), ShmClient(server.handle)
    for n in range(15):
        remote.send(sample(n))
        local.send(sample(100 + n))
    got = server.sample(timeout=20)
    assert sorted(numbers(got.batch)) == [*range(15), *range(100, 115)]
    assert got.info.active_connections == 2
    local.close()


def test_samples_larger_than_a_frame(serve, client):
    """A sample of several megabytes is a frame of its own."""
    example = {"big": np.zeros(3_000_000, np.uint8)}
    server = serve(2, 2, example)
    one = client(server, example)
    for n in range(8):
        threading.Thread(target=one.send, args=({"big": np.full(3_000_000, n, np.uint8)},)).start()
    got = {int(value) for _ in range(4) for value in server.sample(timeout=20).batch["big"][:, 1_234_567]}
    assert got == set(range(8))


@pytest.mark.parametrize("version", [2])
def test_samples_without_bytes(serve, client, version):
    """Samples of empty leaves only are counted like others."""
    example = np.zeros((0, 3), np.float32)
    server = serve(5, 4, example, wire_version=version)
    one = client(server, example)
    for _ in range(20):
        one.send(example)
    assert server.sample(timeout=20).batch.shape == (5, 0, 3)


def test_a_full_ring_holds_the_client_up(serve, client):
    """While no learner takes, send() waits, and raises after its timeout; nothing is lost."""
    server = serve(4, 2)
    one = client(server, timeout=1.0, max_inflight_msgs=2)
    counter = itertools.count()

    def send_for_ever():
        while True:
            one.send(sample(next(counter)))

    with pytest.raises(TimeoutError, match=r"did not take samples for 1\.0 s"):
        send_for_ever()
    n = next(counter) - 1
    with pytest.raises(TimeoutError, match=r"has not acknowledged \d+ samples within 1.0 s"):
        one.wait()
    got = []
    while len(got) < n - n % 4:
        got += numbers(server.sample(timeout=20).batch)
    assert got == list(range(n - n % 4))


def test_a_wait_counts_once(serve, client):
    """However long a bridge waits for a free slot, the wait is one in push_blocked_count, and its time is counted."""
    server = serve(1, 2)
    view = RingView(Segment.attach(server.name, read_only=True))

    def bridge():
        (found,) = [owner for owner in view.owners() if owner.is_bridge]
        return found

    one, other = client(server), client(server)
    for n in range(4):
        one.send(sample(n))
    until(lambda: bridge().blocked_time > 0.5)
    other.send(sample(9))
    until(lambda: bridge().blocked_time > 0.7)
    assert bridge().waiting
    assert view.snapshot().push_blocked == 1
    info = server.sample(timeout=20).info  # room for one sample: the next one stalls
    assert info.push_blocked_count == 1
    del info
    until(lambda: bridge().blocked == 2)
    for _ in range(4):
        server.sample(timeout=20).release()
    until(lambda: not bridge().waiting)
    assert bridge().blocked <= 4
    assert view.snapshot().push_blocked == bridge().blocked


def test_what_top_shows(serve, client):
    """`echo-shm top` has a line for each remote client, with what came from it, and counts refused connections."""
    server = serve(10, 4)
    one, gone = client(server), client(server)
    for n in range(20):
        one.send(sample(n))
    one.wait()
    gone.send(sample(0))
    gone.wait()
    gone._sender._connection.shutdown()  # as if cut: the client connects again
    gone.send(sample(1))
    gone.wait()
    with raw(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said(sock)
    shown = run(*ECHO_SHM, "top", server.name, "--once", "--interval", "0.2", env={"COLUMNS": "80"})
    lines = [line.split() for line in shown.stdout.splitlines()]
    (figures,) = [line for line in lines if line[:1] == ["MB/s"]]
    assert figures[2:] == ["remote", "2", "refused", "1"]
    rows = {row[3]: row for row in lines if row[-1:] == ["here"]}
    assert set(rows) == {"20", "2"}
    index, peer, rate, samples, *size, frames, _state = rows["20"]
    assert (index, rate, samples) == ("0", "0", "20")
    assert peer.startswith("127.0.0.1:")
    assert 1 <= int(frames) <= 20
    assert float(size[0]) >= 20 * 32
    assert size[1] == "B"
    assert server.sample(timeout=20).info.refused_connections == 1


def test_close_delivers(serve, client):
    """close() delivers what is not sent yet."""
    server = serve(7)
    with TcpClient("127.0.0.1", server.port, EXAMPLE) as one:
        for n in range(7):
            one.send(sample(n))
    assert numbers(server.sample(timeout=20).batch) == list(range(7))
    one.close()
    with pytest.raises(ConnectionClosedError, match="is closed"):
        one.send(sample(0))


def test_a_client_that_exits_delivers(serve):
    """A process that ends without close() delivers what it sent."""
    server = serve(7, 4, np.zeros((), np.int64))
    run_python(
        """
import sys, numpy as np, echo_shm
client = echo_shm.connect(sys.argv[1], np.zeros((), np.int64))
for n in range(7): client.send(np.int64(n))
""",
        f"tcp://127.0.0.1:{server.port}",
    )
    assert server.sample(timeout=20).batch.tolist() == list(range(7))


def test_the_servers_end_reaches_clients(serve, client):
    """After server.close() a client's send() and wait() raise, soon and for good."""
    server = serve(4)
    one = client(server)
    one.send(sample(0))
    server.close()
    assert one._closed.wait(20)
    with pytest.raises(ConnectionClosedError, match="has closed: the server was closed"):
        one.send(sample(1))
    with pytest.raises(ConnectionClosedError):
        one.send_many({"n": np.zeros(2, np.int64), "x": np.zeros((2, 2, 3), np.float32)})


def test_wait_after_a_drop_raises(pretend):
    """When a server is gone without a word, wait() raises after the last try to connect, and does not hang."""
    taken = []

    def play(visit):
        visit.accept()
        taken.append(visit.take())
        visit.host.close()

    one = TcpClient("127.0.0.1", pretend(play).port, EXAMPLE, reconnect=0.5)
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match=r"not made again within 0\.5 s"):
        one.wait()
    with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
        one.close()
    assert taken == [(0, 1)]


def test_forked_clients(serve, client):
    """A forked child cannot use its parent's client, and its end does not disturb the parent's."""
    server = serve(1)
    one = client(server)
    assert in_child(one.wait).startswith("ForkedError")
    one.send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]
