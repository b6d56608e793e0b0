"""Wire version 1 against the real id-echo: its clients at our server, our clients at its server, byte for byte."""

import socket
import threading

import echo
import numpy as np
import pytest
from harness.peers import exactly

import echo_shm
from echo_shm import TcpClient, TcpTransport

EXAMPLE = {"a": np.zeros((), np.int64), "obs": np.zeros((2, 3), np.float32), "u": np.zeros(5, np.uint8)}

CLIENTS = pytest.mark.parametrize("kind", [echo.TcpClient, TcpClient], ids=["theirs", "ours"])


def sample(n):
    """A sample that says which it is, in every leaf."""
    return {
        "a": np.full((), n, np.int64),
        "obs": np.full((2, 3), n, np.float32),
        "u": np.full(5, n % 256, np.uint8),
    }


def numbers(batch):
    """Which samples a batch has; each is whole."""
    assert (batch["obs"] == batch["a"][:, None, None]).all()
    assert (batch["u"] == batch["a"][:, None] % 256).all()
    return batch["a"].tolist()


@pytest.fixture
def ours():
    """A server of ours that speaks version 1."""
    with echo_shm.Server(EXAMPLE, 50, num_buffers=4, transport=TcpTransport(0, wire_version=1)) as server:
        server.start()
        yield server


@pytest.fixture
def theirs():
    """id-echo's own server."""
    server = echo.Server(EXAMPLE, 50, num_buffers=4, transport=echo.TcpTransport(port=0))
    server.start()
    yield server
    server.close()


@pytest.fixture
def both(ours, theirs):
    """A server of either kind."""
    return ours, theirs


@CLIENTS
@pytest.mark.parametrize("where", [0, 1], ids=["at ours", "at theirs"])
def test_samples_arrive(both, kind, where):
    """Samples of several clients arrive once and whole, through any pair of client and server; wait() returns."""
    server = both[where]
    clients = [kind("127.0.0.1", server.port, EXAMPLE) for _ in range(4)]

    def send(who):
        for n in range(500):
            clients[who].send(sample(1000 * who + n))
        clients[who].wait()

    threads = [threading.Thread(target=send, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    got = [n for _ in range(40) for n in numbers(server.sample().batch)]
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for one in clients:
        one.close()
    assert sorted(got) == sorted(1000 * who + n for who in range(4) for n in range(500))
    if where == 0:  # id-echo's server keeps no order: it has several drainers
        for who in range(4):
            assert [n for n in got if n // 1000 == who] == [1000 * who + n for n in range(500)]


def test_greetings_are_the_same(both):
    """Both servers' first bytes are the same for the same samples."""
    said = []
    for server in both:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.settimeout(20)
            said.append(exactly(sock, 5 + 4 + 3 * 8 + (0 + 2 + 1) * 4))
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
    assert said[0] == said[1]


@pytest.fixture
def recorder():
    """A version 1 server that records what a client says; ``hear()`` takes the number of samples to wait for."""
    spec = echo_shm.spec.Spec.from_example(EXAMPLE)
    listener = socket.create_server(("127.0.0.1", 0))

    class Recorder:
        port = listener.getsockname()[1]

        def hear(self, samples):
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(20)
                sock.sendall(echo_shm.net.wire.greeting_v1(spec))
                data = exactly(sock, samples * spec.sample_bytes)
                sock.sendall(b"\x01" * samples)
                assert sock.recv(1) == b""  # it says nothing else, and then closes
            return data

    yield Recorder()
    listener.close()


def test_clients_say_the_same(recorder, background):
    """Both clients' bytes are the same for the same samples."""
    heard = []
    for kind in (echo.TcpClient, TcpClient):
        hearing = background(recorder.hear, 30)
        one = kind("127.0.0.1", recorder.port, EXAMPLE)
        for n in range(30):  # fewer than may be unacknowledged
            one.send(sample(n))
        one.wait()
        one.close()
        heard.append(hearing.result())
    assert heard[0] == heard[1]
    assert heard[0][:8] == bytes(8)


def test_acknowledgements(ours):
    """Each sample is acknowledged with one byte when it is in the ring, and not before."""
    with socket.create_connection(("127.0.0.1", ours.port)) as sock:
        sock.settimeout(20)
        exactly(sock, 5 + 4 + 3 * 8 + 3 * 4)
        payload = b"".join(sample(1)[leaf].tobytes() for leaf in ("a", "obs", "u"))
        sock.sendall(payload * 3 + payload[:-1])
        assert exactly(sock, 3) == b"\x01\x01\x01"
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(20)
        sock.sendall(payload[-1:])
        assert exactly(sock, 1) == b"\x01"


def test_errors_say_the_same(both):
    """A mismatch has the same error type and words with either client at either server."""
    for example in ({"obs": np.zeros(3)}, EXAMPLE | {"u": np.zeros(5, np.int16)}, {"a": np.zeros((), np.int64)}):
        said = set()
        for server in both:
            for kind in (echo.TcpClient, TcpClient):
                with pytest.raises(ValueError, match="Server spec mismatch") as caught:
                    kind("127.0.0.1", server.port, example)
                said.add(str(caught.value))
        assert len(said) == 1


@CLIENTS
def test_after_the_end(both, kind):
    """A client that is closed, or whose server is, cannot send, and says so in the same words."""
    for server in both:
        one = kind("127.0.0.1", server.port, EXAMPLE)
        one.close()
        with pytest.raises(ConnectionError, match=f"TcpClient for 127.0.0.1:{server.port} is closed"):
            one.send(sample(0))
        one.close()
    one = kind("127.0.0.1", both[0].port, EXAMPLE)
    one.send(sample(0))
    one.wait()
    both[0].close()
    assert one._closed.wait(20)
    with pytest.raises(ConnectionError, match="TcpClient for"):
        one.send(sample(0))


def test_a_version_2_server_is_told_apart(background):
    """An id-echo client at a version 2 server gets id-echo's own error, and the server goes on."""
    with echo_shm.Server(EXAMPLE, 1, transport=TcpTransport(0)) as server:
        server.start()
        with pytest.raises(ValueError, match="Unsupported echo wire version 2"):
            echo.TcpClient("127.0.0.1", server.port, EXAMPLE)
        with TcpClient("127.0.0.1", server.port, EXAMPLE) as one:
            one.send(sample(3))
        assert numbers(server.sample(timeout=20).batch) == [3]
