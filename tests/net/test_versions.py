"""Samples from other hosts carry the version of the weights that they were made with."""

import numpy as np
import pytest
from harness.peers import EXAMPLE, exactly, numbers, sample
from harness.waiting import until

from echo_shm import ConnectionClosedError, ShmClient, TcpClient
from echo_shm.net import wire
from echo_shm.net.client.outbox import Outbox
from echo_shm.sending import SampleWriter
from echo_shm.spec import Spec


def came(server):
    """The numbers and the versions of the next batch."""
    batch, versions = (taken := server.sample(timeout=20)).batch, taken.versions
    return list(zip(numbers(batch), versions.tolist(), strict=True))


def test_each_sample_has_its_own(serve, client):
    """A frame's samples may have several versions: each keeps the one that it was sent with, however it was sent."""
    server = serve(8, 4)
    one = client(server)
    assert one.version == 0
    one.send(sample(0))
    one.version = 2**62
    one.send(sample(1))
    one.send(sample(2))
    one.version = 7
    one.send_many({"n": np.arange(3, 6), "x": np.repeat(np.arange(3, 6, dtype=np.float32), 6).reshape(3, 2, 3)})
    one.version = 0
    one.send(sample(6))
    one.version = 9
    one.send(sample(7))
    one.version = 1  # of what comes later
    assert came(server) == [(0, 0), (1, 2**62), (2, 2**62), (3, 7), (4, 7), (5, 7), (6, 0), (7, 9)]


def test_runs_of_a_frame():
    """A frame is sent in runs of the same version, also where it is sent in pieces."""
    outbox = Outbox(Spec.from_example(EXAMPLE), "nobody", 8, 8)
    writer = SampleWriter(outbox.producer, None)
    for n, version in enumerate([0, 0, 5, 3, 3, 3, 0, 1, 1]):
        writer.version = version
        writer.send(sample(n))
    assert list(outbox.runs(0, 8)) == [(0, 0, 2), (5, 2, 1), (3, 3, 3), (0, 6, 1), (1, 7, 1)]
    assert list(outbox.runs(4, 2)) == [(3, 4, 2)]
    assert list(outbox.runs(8, 1)) == [(1, 8, 1)]
    outbox.detach()


def test_clients_of_one_bridge(serve, client):
    """The versions of clients do not mix, nor with those of this machine."""
    server = serve(1, 12)
    one, other = client(server), client(server)
    with ShmClient(server.name) as near:
        for version, each in enumerate([one, other, near], 4):
            each.version = version
        for n in range(4):
            for each in (one, other, near):
                each.send(sample(n))
                each.wait()
        for n in range(4):
            assert [came(server) for _ in range(3)] == [[(n, 4)], [(n, 5)], [(n, 6)]]


def test_what_is_sent_again_keeps_its_version(pretend):
    """After a lost connection a sample carries the version that it had, not the client's by then."""
    said, cut = [], []

    def play(visit):
        visit.accept(known=visit.number > 0)
        version, count = 0, 0
        while count < 3:
            header = wire.read_header(exactly(visit.sock, wire.HEADER_BYTES))
            if header.kind is wire.Frame.VERSION:
                version = header.number
                continue
            exactly(visit.sock, header.length * visit.host.spec.sample_bytes)
            said.append((visit.number, header.number, header.length, version))
            count += header.length
        if visit.number == 0:
            until(lambda: cut, "the client has another version")
            return  # hangs up, and has acknowledged nothing
        visit.sock.sendall(wire.ack(3))
        visit.acknowledge_all()

    with TcpClient("127.0.0.1", pretend(play).port, EXAMPLE) as client:
        for version in (3, 5, 0):
            client.version = version
            client.send(sample(version))
        until(lambda: sum(length for *_, length, _ in said) == 3, "the first connection has all")
        client.version = 8
        cut.append(True)
        client.wait(20)
    for visit in (0, 1):
        mine = [(number + i, version) for which, number, n, version in said if which == visit for i in range(n)]
        assert mine == [(0, 3), (1, 5), (2, 0)]


def test_samples_without_weights_need_no_new_server(pretend):
    """A client whose samples have version 0 never says so: a server that knows no versions takes them."""
    kinds = []

    def play(visit):
        visit.accept()
        header = wire.read_header(exactly(visit.sock, wire.HEADER_BYTES))
        kinds.append(header.kind)
        exactly(visit.sock, header.length * visit.host.spec.sample_bytes)
        visit.sock.sendall(wire.ack(1))
        visit.acknowledge_all()

    with TcpClient("127.0.0.1", pretend(play).port, EXAMPLE) as client:
        client.send(sample(0))
        client.wait(20)
    assert kinds == [wire.Frame.SAMPLES]


def test_an_older_server_is_named(pretend, client):
    """A server that knows no versions ends the connection. The client says why."""

    def play(visit):
        visit.accept()
        head = exactly(visit.sock, wire.HEADER_BYTES)
        visit.sock.sendall(wire.bye(0, f"no frame starts with {head!r}"))
        exactly(visit.sock, 1 << 20)

    one = client(pretend(play))
    one.version = 1
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match="knows no versions of weights"):
        one.wait(20)


def test_version_1_of_the_wire_has_none(serve, client):
    """Samples that come as id-echo sends them carry 0."""
    server = serve(1, 2, wire_version=1)
    one = client(server)
    one.version = 3
    one.send(sample(0))
    assert came(server) == [(0, 0)]


@pytest.mark.parametrize("wrong", [-1, 2**62 + 1, 1.5])
def test_no_version(serve, client, wrong):
    """What is no version is refused."""
    with pytest.raises(ValueError, match="use an integer from 0"):
        client(serve(1), EXAMPLE).version = wrong
