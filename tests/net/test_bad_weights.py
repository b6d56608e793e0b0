"""Peers that say what they must not say of weights: their connection ends, with a reason. Others notice nothing."""

import contextlib
import time

import numpy as np
import pytest
from harness.peers import exactly, greet, raw, said, sample
from harness.waiting import LONG, until

from echo_shm import ConnectionClosedError, SpecMismatchError, WireError
from echo_shm.net import weights_wire, wire
from echo_shm.net.wire import Frame, Header
from echo_shm.spec import Spec

PARAMS = {"w": np.zeros(4, np.float32)}
SCHEMA = Spec.from_example(PARAMS).schema
SIZE = 16


def weights(version):
    """As many bytes as a version has."""
    return np.full(4, version, np.float32).tobytes()


def piece(version, data):
    """A frame with a part of a version."""
    return weights_wire.piece_header(version, len(data)) + data


@pytest.fixture
def server(serve):
    """Has published version 1."""
    server = serve()
    server.publisher(PARAMS).publish({"w": np.full(4, 1, np.float32)})
    return server


@pytest.fixture
def join(server):
    """Makes raw clients after their handshake."""
    socks = []

    def make():
        socks.append(raw(server))
        greet(server, socks[-1], client=bytes([len(socks)]) * 16)
        return socks[-1]

    yield make
    for sock in socks:
        sock.close()


def frames(sock, last):
    """The frames that come, up to one of that kind: header and body. Acknowledgements are left out."""
    found = []
    while not found or found[-1][0].kind is not last:
        header = wire.read_header(exactly(sock, wire.HEADER_BYTES))
        body = exactly(sock, header.length)
        found += [(header, body)] if header.kind is not Frame.ACK else []
    return found


# --- clients ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (weights_wire.need(1), "NEED came, and no weights were described"),
        (weights_wire.subscribe() * 2, "SUBSCRIBE came twice"),
        (weights_wire.subscribe() + weights_wire.need(0), "needs version 0, expected 1 to"),
        (weights_wire.subscribe() + weights_wire.need(1 << 48), "needs version 281474976710656, expected 1 to"),
        (Header(Frame.SUBSCRIBE, 1, 0).to_bytes() + b"x", "sends no SUBSCRIBE frame of 1 bytes"),
        (Header(Frame.NEED, 8, 1).to_bytes() + bytes(8), "sends no NEED frame of 8 bytes"),
        (weights_wire.news(1), "sends no NEWS frame of 0 bytes"),
        (piece(1, weights(1)), "sends no PIECE frame of 16 bytes"),
        (weights_wire.end(1), "sends no END frame of 0 bytes"),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_bad_clients(server, join, client, stream, why):
    """A client that must not ask for this is told so, and counted; another one goes on."""
    subscriber = client(server).subscriber()
    sock = join()
    sock.sendall(stream)
    assert why in frames(sock, Frame.BYE)[-1][1].decode()
    assert said(sock) == b""
    assert subscriber.latest()["w"].tolist() == [1] * 4


def test_asking_again_and_again(server, join):
    """However often a client asks for a version, it is sent once; and later ones are not sent unasked."""
    sock = join()
    sock.sendall(weights_wire.subscribe() + weights_wire.need(2) + weights_wire.need(1) * 1000)
    assert frames(sock, Frame.PIECE) == [
        (Header(Frame.SUBSCRIBE, len(SCHEMA), 1), SCHEMA),
        (Header(Frame.PIECE, SIZE, 1), weights(1)),
    ]
    server._publisher.publish({"w": np.full(4, 2, np.float32)})
    assert frames(sock, Frame.NEWS) == [(Header(Frame.NEWS, 0, 2), b"")]
    server._publisher.publish({"w": np.full(4, 3, np.float32)})
    assert frames(sock, Frame.NEWS) == [(Header(Frame.NEWS, 0, 3), b"")]
    sock.sendall(weights_wire.need(2))
    assert frames(sock, Frame.PIECE) == [(Header(Frame.PIECE, SIZE, 3), weights(3))]
    server._publisher.publish({"w": np.full(4, 4, np.float32)})
    assert frames(sock, Frame.NEWS) == [(Header(Frame.NEWS, 0, 4), b"")]
    sock.sendall(weights_wire.need(3) + wire.bye(0))
    assert said(sock) == b""


def test_acknowledgements_pass_versions(serve):
    """What else there is to say to a client that is being sent a long version is said between its parts."""
    server, long = serve(), {"w": np.zeros(16 << 20, np.float32)}
    server.publisher(long).publish(long)
    with raw(server) as sock:
        greet(server, sock)
        sock.sendall(weights_wire.subscribe() + weights_wire.need(1))
        frames(sock, Frame.PIECE)
        sock.sendall(wire.samples_header(1, 0) + sample(7)["n"].tobytes() + sample(7)["x"].tobytes())
        came = 0
        while (header := wire.read_header(exactly(sock, wire.HEADER_BYTES))) != Header(Frame.ACK, 0, 1):
            assert header.kind is Frame.PIECE or header.number == 0
            came += len(exactly(sock, header.length))
        assert came < long["w"].nbytes / 2


# --- servers ------------------------------------------------------------------


def _describe(visit, schema=SCHEMA, latest=1):
    """Accepts a client that subscribes, and describes the weights."""
    visit.accept()
    assert exactly(visit.sock, 16) == weights_wire.subscribe()
    visit.sock.sendall(weights_wire.described(schema, latest))


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (piece(1, weights(1)) + piece(1, weights(1)), "sent a part of version 1, which nobody"),
        (piece(2, weights(2)) + piece(1, weights(1)), "sent a part of version 1, which nobody"),
        (piece(5, bytes(4)) + piece(4, bytes(12)), "sent a part of version 4 after version 5"),
        (piece(0, weights(0)), "sent a part of version 0 after version 0"),
        (piece(1, bytes(17)), "sent 17 bytes of version 1, expected 1 to 16"),
        (piece(1, bytes(9)) + piece(1, bytes(8)), "sent 8 bytes of version 1, expected 1 to 7"),
        (piece(1, b""), "sent 0 bytes of version 1, expected 1 to 16"),
        (piece(1 << 48, weights(1)), "PIECE of version 281474976710656, expected at most"),
        (Header(Frame.PIECE, wire.MAX_PIECE + 1, 1).to_bytes(), "sends no PIECE frame of 262145 bytes"),
        (weights_wire.news(0), "said that version 0 is the latest, after 1"),
        (weights_wire.news(3) + weights_wire.end(2), "said that version 2 is the latest, after 3"),
        (weights_wire.end(1) * 2, "sent END, which nobody has asked for"),
        (weights_wire.described(SCHEMA, 1), "sent SUBSCRIBE, which nobody has asked for"),
        (weights_wire.there_are_none("?"), "sent REFUSE, which nobody has asked for"),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_bad_servers(pretend, client, stream, why):
    """A client believes no version that is not whole, asked for and later than the last one. It says what was wrong."""

    def play(visit):
        _describe(visit)
        assert exactly(visit.sock, 16) == weights_wire.need(1)
        visit.sock.sendall(stream)
        time.sleep(LONG)

    one = client(pretend(play))
    with contextlib.suppress(ConnectionClosedError):
        one.subscriber()
    until(one._closed.is_set, "the client has noticed")
    with pytest.raises(ConnectionClosedError, match=why) as caught:
        one.subscriber()
    assert isinstance(caught.value.__cause__.__cause__, WireError)


def test_weights_that_nobody_asked_for(pretend, client):
    """A client that has not subscribed takes no weights."""
    for stream in (weights_wire.described(SCHEMA, 1), weights_wire.news(1), piece(1, weights(1)), weights_wire.end(1)):

        def play(visit, stream=stream):
            visit.accept()
            visit.sock.sendall(stream)
            time.sleep(LONG)

        one = client(pretend(play))
        until(one._closed.is_set, "the client has noticed")
        with pytest.raises(ConnectionClosedError, match="which nobody has asked for"):
            one.subscriber()


@pytest.mark.parametrize("schema", [b"", b"{}", b'{"leaves":[],"tree":"leaf"}', SCHEMA[:-1]])
def test_bad_schemas(pretend, client, schema):
    """A schema that is none ends the connection."""
    with pytest.raises(ConnectionClosedError, match="its schema is damaged"):
        client(pretend(lambda visit: (_describe(visit, schema), time.sleep(LONG)))).subscriber()


def test_a_schema_that_is_not_the_examples(pretend, client):
    """The weights differ from the example: nothing is asked for, and the client's samples go on."""

    def play(visit):
        _describe(visit)
        visit.acknowledge_all()

    one = client(pretend(play))
    with pytest.raises(SpecMismatchError, match=r"got \['w'\]: float64\[4\], expected \['w'\]: float32\[4\]"):
        one.subscriber({"w": np.zeros(4)})
    one.send(sample(0))
    one.wait(LONG)


def test_other_weights_after_a_loss(pretend, client):
    """The weights are others after a lost connection: who has subscribed is told, and can subscribe anew."""

    def play(visit):
        _describe(visit, SCHEMA if visit.number == 0 else Spec.from_example({"v": np.zeros(3)}).schema)
        exactly(visit.sock, 16)
        if visit.number:
            visit.sock.sendall(piece(1, np.ones(3).tobytes()))
            time.sleep(LONG)

    one = client(pretend(play))
    subscriber = one.subscriber()
    with pytest.raises(SpecMismatchError, match="are others now"):
        subscriber.wait(1, LONG)
    with pytest.raises(SpecMismatchError, match="are others now"):
        subscriber.poll()
    assert one.subscriber().latest()["v"].tolist() == [1] * 3


def test_a_version_that_is_given_up(pretend, client):
    """A server may begin a later version in the middle of one; what came of the first is forgotten."""

    def play(visit):
        _describe(visit)
        exactly(visit.sock, 16)
        visit.sock.sendall(
            piece(1, weights(1)[:12]) + wire.ack(0) + piece(3, weights(3)[:5]) + piece(3, weights(3)[5:])
        )
        time.sleep(LONG)

    subscriber = client(pretend(play)).subscriber()
    assert subscriber.wait(1, LONG) == 3
    assert subscriber.latest()["w"].tolist() == [3] * 4


# --- servers that say little --------------------------------------------------


def test_a_version_that_does_not_come(pretend, client):
    """The server is lost before a version that it has told of: meanwhile the client has the one before it."""

    def play(visit):
        if visit.number:
            visit.refuse()
            return
        _describe(visit)
        exactly(visit.sock, 16)
        visit.sock.sendall(piece(1, weights(1)) + weights_wire.news(2))

    one = client(pretend(play))
    subscriber = one.subscriber()
    until(lambda: one._sender._loss is not None and subscriber.latest_version == 2, "the server is lost")
    assert subscriber.latest()["w"].tolist() == [1] * 4
    assert subscriber.version == 1


def test_asking_while_no_more_samples_may_be_sent(pretend, client):
    """A client whose samples are not acknowledged, and that may send no more of them, can ask for weights."""

    def play(visit):
        visit.accept()
        left = visit.host.spec.sample_bytes * 4096
        while left:
            header = wire.read_header(exactly(visit.sock, wire.HEADER_BYTES))
            exactly(visit.sock, header.length * visit.host.spec.sample_bytes)
            left -= header.length * visit.host.spec.sample_bytes
        if exactly(visit.sock, 16) == weights_wire.subscribe():
            visit.sock.sendall(weights_wire.described(SCHEMA, 0))
            time.sleep(LONG)

    one = client(pretend(play), max_inflight_msgs=1, close_timeout=0.1)
    one.send_many({"n": np.zeros(4096, np.int64), "x": np.zeros((4096, 2, 3), np.float32)})
    until(lambda: one._sender._window() == 0, "all of them are sent")
    assert one.subscriber().latest_version == 0
