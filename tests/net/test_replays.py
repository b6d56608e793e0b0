"""A replay and writers on other hosts: what they send is stored once, whatever is cut or killed on the way."""

import contextlib
import os
import signal
import socket
import threading

import numpy as np
import pytest
from harness.actors import cast
from harness.peers import KEY, exactly, greet
from harness.pretender import Pretender
from harness.programs import ECHO_SHM, Program, free_port
from harness.proxy import Proxy
from harness.waiting import LONG, until

from echo_shm import (
    ConnectionClosedError,
    Replay,
    ReplayClient,
    Server,
    SpecMismatchError,
    Table,
    TcpClient,
    TcpTransport,
    WireError,
    connect,
)
from echo_shm.net import wire
from echo_shm.replay import Fifo, NStep, Prioritized, Queue, RemoteWriter, Writer, listing
from echo_shm.ring.inbox import inbox_spec
from echo_shm.spec import Spec

CAPACITY = 100_000
EXAMPLE = {"obs": np.zeros(3, np.float32), "who": np.array(0, np.int64), "number": np.array(0, np.int64)}
HOST = "127.0.0.1"


def step(who, number):
    """A step that says where it comes from."""
    return {"obs": np.full(3, who * 1000 + number, np.float32), "who": who, "number": number}


def block(who, numbers):
    """The same steps as one tree for extend()."""
    obs = np.repeat((who * 1000 + numbers).astype(np.float32)[:, None], 3, axis=1)
    return {"obs": obs, "who": np.full(len(numbers), who), "number": numbers}


def write(writer, who, first, last):
    """Steps from first to last - 1, one by one and in blocks of seven; an episode has 10."""
    at = first
    while at < last:
        if at % 3 or last - at < 7:
            writer.add(step(who, at), at + 1.0, terminated=at % 10 == 9)
            at += 1
        else:
            numbers = np.arange(at, at + 7)
            writer.extend(block(who, numbers), numbers + 1.0, truncated=numbers % 10 == 9)
            at += 7


def once(name="all"):
    """A table that hands out everything in order, and keeps it."""
    return Table(name, sampler=Fifo(), replacement=False)


def contents(replay, count):
    """Everything that is stored: (who, number). Each step is whole, and has its priority.

    They are sorted: a step may be taken before its neighbours while all of them are being put into the inbox.
    """
    until(lambda: len(replay) >= count)
    batch = replay.sample(len(replay), timeout=0)
    assert (batch.data["obs"] == (batch.data["who"] * 1000 + batch.data["number"])[:, None]).all()
    assert (batch.priority == batch.data["number"] + 1.0).all()
    return sorted(zip(batch.data["who"].tolist(), batch.data["number"].tolist(), strict=True))


def bridge(replay):
    """What keeps the replay's bridge running."""
    return replay._rings._transports[0]._supervisors[0]


@pytest.fixture
def replay():
    """A replay that stores what comes in a thread, and has a bridge."""
    with Replay(EXAMPLE, CAPACITY, [once()], thread=True, transport=TcpTransport(0, authkey=KEY)) as made:
        yield made


def test_steps_from_other_hosts(replay):
    """Each writer's steps are there, with their priorities and episodes; flush() waits until they are."""
    writers = [RemoteWriter(HOST, replay.port, EXAMPLE, authkey=KEY) for _ in range(2)]
    with writers[0], writers[1], Writer(replay.handle) as local:
        threads = [
            threading.Thread(target=write, args=(one, who, 0, 1000)) for who, one in enumerate([*writers, local])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in [*writers, local]:
            one.flush(30)
        assert replay.info().inserted == 3000
        writers[0].end_episode()  # the last step has ended one
        writers[0].add(step(0, 1000), 1001.0)
        writers[0].end_episode()
        writers[0].add(step(0, 1001), 1002.0)
        writers[0].flush(30)
        assert replay.info().episodes == 302
    assert contents(replay, 3002) == [(who, n) for who in range(3) for n in range(1002 if who == 0 else 1000)]


def test_vectors_and_finals_from_other_hosts():
    """Each environment's episodes are its own, and end with what is known of their ends."""
    table = Table("a", Fifo(), max_times_sampled=1, item=NStep(2, 0.5, ["obs"], "gain"))
    example = {"obs": np.zeros(1, np.float32), "gain": np.zeros((), np.float32)}
    with (
        Replay(example, 1000, [table], transport=TcpTransport(0)) as replay,
        RemoteWriter(HOST, replay.port, example) as writer,
    ):
        for t in range(8):  # rows are episodes of 4 and of 2 steps
            rows = {"obs": np.array([[t], [100 + t]], np.float32), "gain": np.ones(2, np.float32)}
            ends = np.array([t % 4 == 3, t % 2 == 1])
            writer.add_vector(rows, ends, ~ends & False, "disabled", final={"obs": rows["obs"] + 0.5})
        writer.add(
            {"obs": np.full(1, -1, np.float32), "gain": 1}, truncated=True, final={"obs": np.zeros(1, np.float32)}
        )
        until(lambda: replay.info().inserted == 17)
        batch = replay.sample(17).data
        seen = {
            float(obs): (float(following), float(discount), int(n))
            for obs, following, discount, n in zip(
                batch["obs"][:, 0], batch["next"]["obs"][:, 0], batch["discount"], batch["n"], strict=True
            )
        }
        expected = {-1.0: (0.0, 0.5, 1)}
        for t in range(8):
            for row, length in ((0, 4), (100, 2)):
                left = length - t % length
                following = t + min(left, 2) if left > 2 else t + left - 1 + 0.5
                expected[row + t] = (row + following, 0.25 if left > 2 else 0.0, min(left, 2))
        assert seen == expected


@pytest.mark.parametrize(
    "make", [TcpClient, lambda host, port, *rest, **more: connect(f"tcp://{host}:{port}", *rest, **more)]
)
def test_a_plain_client(replay, make):
    """A client that knows only samples sends steps; errors name the steps' own leaves."""
    with make(HOST, replay.port, EXAMPLE, authkey=KEY) as client:
        for number in range(20):
            client.send(step(1, number))
        client.send_many(block(1, np.arange(20, 200)))
        with pytest.raises(SpecMismatchError, match=r"leaf \['obs'\]: got an array of float64\[3\]"):
            client.send({**step(1, 0), "obs": np.zeros(3)})
        with pytest.raises(SpecMismatchError, match=r"\['who'\] is missing"):
            client.send({"obs": np.zeros(3, np.float32), "number": 1})
        assert client._writer._heads.one(0, (0.0,)).view("<u8")[1] == 200  # the next step's number in its stream
        client.wait(30)
    until(lambda: len(replay) == 200)
    batch = replay.sample(200, timeout=0)
    assert sorted(batch.data["number"].tolist()) == list(range(200))
    assert (batch.priority == 1.0).all()
    assert replay.info().episodes == 1


def test_what_flush_waits_for():
    """It returns when the steps are stored. A replay that makes no calls has them in its inbox, and flush() says so."""
    with Replay(EXAMPLE, 100, transport=TcpTransport(0)) as replay, RemoteWriter(HOST, replay.port, EXAMPLE) as writer:
        writer.flush(5)  # nothing was sent
        for number in range(5):
            writer.add(step(1, number))
        with pytest.raises(TimeoutError, match="has 5 steps in its inbox, and has not stored them"):
            writer.flush(0.3)
        assert replay.num_steps == 5
        writer.flush(30)
        writer.add(step(1, 5))
        writer._client.wait(30)
        assert replay._core.num_steps() == 5  # it is not stored by itself
        replay.close()
        with pytest.raises(ConnectionClosedError, match="the server was closed"):
            writer.flush(30)
        with pytest.raises(ConnectionClosedError, match="the server was closed"):
            writer.add(step(1, 6))
        assert writer.ring_closed


def test_closed_as_soon_as_it_says_so(monkeypatch):
    """Between the error that ends it and its last sample nobody takes it for open."""
    with Replay(EXAMPLE, 100, transport=TcpTransport(0)) as replay, RemoteWriter(HOST, replay.port, EXAMPLE) as writer:
        sender, seen = writer._client._sender, []
        detach = sender.producer.detach

        def look():
            with contextlib.suppress(ConnectionClosedError):
                sender.raise_if_ended()
                seen.append("open")
            seen.append(writer.ring_closed)
            detach()

        monkeypatch.setattr(sender.producer, "detach", look)
        assert not writer.ring_closed
        sender.give_up(ConnectionClosedError("gone"))
        assert seen[0] is True


def test_a_full_inbox():
    """A writer waits while a limiter lets nobody insert, and its TimeoutError says what it can know."""
    with (
        Replay(EXAMPLE, 40, [Table("q", rate_limiter=Queue(2))], thread=True, transport=TcpTransport(0)) as replay,
        RemoteWriter(HOST, replay.port, EXAMPLE, max_inflight_msgs=1) as writer,
    ):
        with pytest.raises(TimeoutError, match="of the samples were sent: its inbox is full: a rate limiter") as caught:
            writer.extend(block(1, np.arange(100_000)), timeout=0.3)
        sent = caught.value.sent
        with pytest.raises(TimeoutError, match="its inbox is full: a rate limiter may let nobody insert"):
            writer.add(step(1, sent), timeout=0)
        assert sorted(int(replay.sample(1, timeout=30).data["number"][0]) for _ in range(sent)) == list(range(sent))
        writer.flush(30)
        assert replay.info().inserted == sent


def test_who_is_refused(replay):
    """Other steps, priorities that no table can have, an unknown table, wire version 1, and a server that is none."""
    other = {**EXAMPLE, "obs": np.zeros(4, np.float32)}
    for kind in (RemoteWriter, TcpClient):
        with pytest.raises(SpecMismatchError, match=r"got \['obs'\]: float32\[4\], expected \['obs'\]: float32\[3\]"):
            kind(HOST, replay.port, other, authkey=KEY)
    with pytest.raises(WireError, match="asks for a key"):
        RemoteWriter(HOST, replay.port, EXAMPLE)
    with pytest.raises(ValueError, match="wire version 1 cannot tell clients what a replay needs"):
        Replay(EXAMPLE, 10, transport=TcpTransport(0, wire_version=1))
    with pytest.raises(OSError, match=f"cannot listen on host '127.0.0.1', port {replay.port}"):
        Replay(EXAMPLE, 10, transport=TcpTransport(replay.port))
    with Server(EXAMPLE, 1, TcpTransport(0)) as server:
        server.start()
        with pytest.raises(SpecMismatchError, match="is no replay: use TcpClient"):
            RemoteWriter(HOST, server.port, EXAMPLE)
    tables = [Table("a"), Table("b", Prioritized(alpha=4.0))]
    with (
        Replay(EXAMPLE, 10, tables, transport=TcpTransport(0)) as two,
        RemoteWriter(HOST, two.port, EXAMPLE) as writer,
    ):
        for priority, text in [(-1.0, "finite"), ({"c": 1.0}, "no table 'c'"), (1e300, "'b'")]:
            with pytest.raises(ValueError, match=text):
                writer.add(step(1, 0), priority)
        writer.add(step(1, 0), {"a": 3.0})
        writer._client.wait(30)
        assert (two.info("a").size, two.info("b").size) == (1, 0)


@pytest.mark.watchdog(120)
def test_cut_connections(replay):
    """Connections are reset at any byte, in both directions: every step is stored once, in its stream and episode."""
    proxy = Proxy(replay.port)
    done = threading.Event()

    def cut():
        while not done.wait(0.03):
            proxy.cut()

    cutter = threading.Thread(target=cut)
    with RemoteWriter(HOST, proxy.port, EXAMPLE, authkey=KEY) as writer:
        cutter.start()  # only now: a first connection that is cut is an error, and not tried again
        at = 0
        while proxy.cuts < 20:
            write(writer, 1, at, at + 50)
            at += 50
            if at % 250 == 0:
                writer.flush(60)
        print(at, "steps")
        done.set()
        cutter.join()
        writer.flush(60)
        assert replay.info().inserted == at
    proxy.close()
    assert contents(replay, at) == [(1, number) for number in range(at)]
    assert replay.info().episodes == at // 10


def test_killed_bridges(replay):
    """Another bridge goes on: every step is stored once, and flush() hears of it from the next one."""
    with RemoteWriter(HOST, replay.port, EXAMPLE, authkey=KEY) as writer:
        for turn in range(4):
            write(writer, 1, 500 * turn, 500 * turn + 250)
            pid = until(lambda: max(0, bridge(replay).pid))
            os.kill(pid, signal.SIGKILL)
            write(writer, 1, 500 * turn + 250, 500 * turn + 500)
            until(lambda pid=pid: bridge(replay).pid not in (pid, -1))
        writer.flush(30)
        assert contents(replay, 2000) == [(1, number) for number in range(2000)]
        assert replay.info().episodes == 200


def test_what_the_next_bridge_says():
    """Nothing more is sent to it: it says all the same what the replay has stored."""
    with Replay(EXAMPLE, 100, transport=TcpTransport(0)) as replay, RemoteWriter(HOST, replay.port, EXAMPLE) as writer:
        writer.extend(block(1, np.arange(5)))
        writer._client.wait(30)
        os.kill(bridge(replay).pid, signal.SIGKILL)
        assert replay.num_steps == 5
        writer.flush(30)


# --- a replay that is killed ------------------------------------------------------


def run_replay(conn, name, port, thread):
    """An actor: holds a replay; without a thread it stores nothing."""
    store = {} if name is None else {"store": "shm", "name": name}
    replay = Replay(EXAMPLE, CAPACITY, [once()], **store, thread=thread, transport=TcpTransport(port))
    conn.send(replay.port)
    conn.send(replay.handle)
    conn.recv()


@pytest.mark.parametrize("thread", [True, False])
def test_a_killed_replay(name, thread):
    """The next one on the same port goes on with its store and its inbox: every step is there once."""
    with cast() as make:
        first = make(run_replay, name, free_port(), thread)
        port = first.hear()
        with RemoteWriter(HOST, port, EXAMPLE) as writer:
            write(writer, 1, 0, 900)
            writer._client.wait(30)  # they are in the inbox, if not stored
            first.kill()
            write(writer, 1, 900, 1500)
            with Replay.attach(name, thread=True, transport=TcpTransport(port)) as second:
                writer.flush(30)
                write(writer, 1, 1500, 1600)
                writer.flush(30)
                assert contents(second, 1600) == [(1, number) for number in range(1600)]
                assert second.info().episodes == 160


def test_another_replay_at_the_address():
    """What the inbox of the first one had is gone with it. flush() says how many steps that may be, once."""
    with cast() as make:
        first = make(run_replay, None, free_port(), False)
        port, handle = first.hear(), first.hear()
        with RemoteWriter(HOST, port, EXAMPLE) as writer:
            write(writer, 1, 0, 30)
            writer._client.wait(30)
            first.kill()
            until(lambda: writer._client._sender._loss is not None)  # its bridge dies with it
            listing.remove(handle.name)
            with Replay(EXAMPLE, CAPACITY, [once()], thread=True, transport=TcpTransport(port)) as second:
                write(writer, 1, 30, 50)
                with pytest.raises(ConnectionClosedError, match="may not have stored the last 30 steps"):
                    writer.flush(30)
                writer.flush(30)
                assert contents(second, 20) == [(1, number) for number in range(30, 50)]


# --- the wire ---------------------------------------------------------------------


def test_only_a_replays_clients_hear_what_was_taken():
    """Other clients may not know the frame. They get acknowledgements only."""
    with Server(np.zeros(1), 1, TcpTransport(0)) as server:
        server.start()
        with socket.create_connection((HOST, server.port), timeout=20) as sock:
            greet(server, sock)
            for number in range(3):
                sock.sendall(wire.samples_header(1, number) + bytes(8))
                assert exactly(sock, wire.HEADER_BYTES) == wire.ack(number + 1)
                assert server.sample(20) is not None


@pytest.mark.parametrize("number", [2, 1 << 61])
def test_a_server_that_has_taken_what_was_not_sent(number):
    """It is not believed: flush() does not return because of it."""

    def play(visit):
        visit.accept()
        visit.take()
        visit.sock.sendall(wire.ack(1) + wire.taken(number))
        visit.sock.recv(1)

    host = Pretender(EXAMPLE, play)
    host.spec = inbox_spec(Spec.from_example(EXAMPLE), (("all", (), (), None),))
    writer = RemoteWriter(HOST, host.port, EXAMPLE, reconnect=False)
    writer.add(step(1, 0))
    with pytest.raises(ConnectionClosedError, match=f"said that {number} were taken, and acknowledged 1"):
        writer.flush(20)
    with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
        writer.close()
    host.close()


def test_a_served_replay_with_tls(tmp_path, name, certificate, tls):
    """``echo-shm replay``: the files of the certificate and of the key stand in the configuration."""
    cert, key = certificate
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "run.toml").write_text(
        f"name = {name!r}\ncapacity = 10\n[example]\nx = {{ dtype = 'int64' }}\n[transport]\nport = 0\n"
        f"authkey_file = 'key'\ntls = {{ certfile = {str(cert)!r}, keyfile = {str(key)!r} }}\n"
    )
    program = Program(*ECHO_SHM, "replay", str(tmp_path / "run.toml"))
    try:
        port = int(program.wait_for(r"port (\d+)\n")[1])
        with RemoteWriter("localhost", port, {"x": np.array(0)}, authkey=KEY, tls=tls[1]) as writer:
            writer.add({"x": 3})
            writer.flush(timeout=LONG)
        with ReplayClient(name) as replay:
            assert next(replay.dataset_iter(1, timeout=LONG)).data["x"] == [3]
        program.send_signal(signal.SIGTERM)
        assert program.result() == 0
    finally:
        program.discard()
