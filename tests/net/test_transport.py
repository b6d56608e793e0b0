"""How a transport is set up, found, started and ended."""

import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest
from remote import EXAMPLE, KEY, greet, numbers, raw, said, sample

from echo_shm import Server, TcpClient, TcpTransport, connect
from echo_shm.net import wire


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines"),
        ({"host": "::"}, "can be reached from other machines"),
        ({"host": ""}, "can be reached from other machines"),
        ({"host": "no.such.host.invalid"}, r"no\.such\.host\.invalid"),
        ({"authkey": b"short"}, "at least 16 bytes"),
        ({"authkey": "a string of many characters"}, "at least 16 bytes"),
        ({"authkey": KEY, "wire_version": 1}, "wire version 1 has no authentication"),
        ({"wire_version": 3}, "use 1"),
        ({"max_connections": 0}, "at least 1"),
        ({"processes": 0}, "at least 1"),
        ({"port": 65536}, "use 0 to 65535"),
    ],
)
def test_unsafe_or_impossible_transports(options, message):
    """What cannot be, or would be open to everybody, is refused before anything listens."""
    with pytest.raises(ValueError, match=message):
        TcpTransport(**{"port": 0, **options})


def test_beyond_loopback_with_a_key_or_a_word():
    """A key, or saying so, allows other addresses."""
    TcpTransport(0, host="0.0.0.0", authkey=KEY)
    TcpTransport(0, host="::", allow_unauthenticated=True)
    for host in ("localhost", "127.0.0.2", "::1"):
        TcpTransport(0, host=host)


def test_addresses(serve, client):
    """connect() goes by address: tcp and shm, IPv6 in brackets; what is neither says so."""
    server = serve(1, host="::1")
    with connect(f"tcp://[::1]:{server.port}", EXAMPLE) as one:
        one.send(sample(1))
    with connect(f"shm://{server.name}") as one:
        one.send(sample(2))
    assert sorted(numbers(server.sample(timeout=20).batch) + numbers(server.sample(timeout=20).batch)) == [1, 2]
    for address in ("http://x:1", "tcp://host", "tcp://:1", "shm://", "name", "tcp://h:1/path", "tcp://me@h:1"):
        with pytest.raises(ValueError, match="use tcp://host:port or shm://name"):
            connect(address, EXAMPLE)
    with pytest.raises(TypeError, match="needs an example"):
        connect("tcp://127.0.0.1:1")


def test_both_loopbacks(serve, client):
    """A name that stands for several addresses is listened to on each, on one port."""
    server = serve(1, host="localhost")
    for host in {address[0] for *_, address in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)}:
        client(server, host=host).send(sample(1))
        assert numbers(server.sample(timeout=20).batch) == [1]


def test_a_port_that_is_taken(serve):
    """A port in use is an error of start(), and leaves nothing running."""
    server = serve()
    with Server(EXAMPLE, 1, transport=TcpTransport(server.port)) as other, pytest.raises(OSError, match="in use"):
        other.start()


class _Recorded:
    """A transport that only notes its calls."""

    def __init__(self, fails=False):
        self.calls, self.fails = [], fails

    def start(self, handle):
        self.calls.append(handle.name)
        if self.fails:
            raise OSError("no such wire")

    def shutdown(self):
        self.calls.append("shutdown")


def test_several_transports():
    """All are started and shut down; when one cannot start, those before it are shut down again."""
    first, second = _Recorded(), _Recorded()
    with Server(EXAMPLE, 1, transport=[first, TcpTransport(0), second]) as server:
        server.start()
        assert server.port > 0
    assert first.calls == second.calls == [server.name, "shutdown"]
    first, second = _Recorded(), _Recorded(fails=True)
    with Server(EXAMPLE, 1, transport=(first, second)) as server, pytest.raises(OSError, match="no such wire"):
        server.start()
    assert first.calls == [server.name, "shutdown", "shutdown"]
    with pytest.raises(TypeError, match="a transport has start"):
        Server(EXAMPLE, 1, transport=[first, object()])


def test_tls(serve, client, tls):
    """Samples go over TLS, to a server whose certificate is good, and not otherwise."""
    server = serve(100, 12, tls=tls[0])
    one = client(server, tls=tls[1], host="localhost")
    for n in range(1000):
        one.send(sample(n))
    assert [n for _ in range(10) for n in numbers(server.sample(timeout=20).batch)] == list(range(1000))
    with pytest.raises(ssl.SSLCertVerificationError):
        client(server, tls=ssl.create_default_context(), host="localhost")
    with raw(server) as sock:
        sock.sendall(b"not tls" * 10)
        said(sock)
    one.send(sample(1))
    one.wait()


def test_tls_keeps_nothing_back(serve, tls):
    """What TLS has decrypted beyond a frame, when the ring is full and nothing comes after it, is read in the end."""
    server = serve(8, 2, np.zeros(1024, np.uint8), tls=tls[0])
    with raw(server) as bare, tls[1].wrap_socket(bare, server_hostname="localhost") as sock:
        greet(server, sock)
        # The first frame fills the bridge's buffer to its last byte; the second lies in the same TLS record as that.
        data = wire.samples_header(1024, 0) + bytes(1024 * 1024) + wire.samples_header(8, 1024) + bytes(8 * 1024)
        sock.sendall(data)
        time.sleep(0.5)
        assert [server.sample(timeout=10).batch.shape for _ in range(129)] == [(8, 1024)] * 129


def test_the_command(client):
    """`echo-shm bridge` serves a ring that runs already, until that is closed."""
    with Server(EXAMPLE, 5) as server:
        command = [sys.executable, "-m", "echo_shm", "bridge", server.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said = process.stdout.readline()
            assert said.startswith(f"{server.name}: listening on 127.0.0.1 port ")
            with TcpClient("127.0.0.1", int(said.split()[-1]), EXAMPLE) as one:
                for n in range(5):
                    one.send(sample(n))
            assert numbers(server.sample(timeout=20).batch) == list(range(5))
            server.close()
            assert process.wait(20) == 0
            assert process.stdout.read() == f"{server.name}: closed\n"
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-segment"], "no segment is named"),
        (["x", "--host", "0.0.0.0"], "can be reached from other machines"),
        (["x", "--authkey-file", "/no/such/file"], "No such file"),
    ],
)
def test_bad_commands(words, message):
    """What the command cannot do is one line on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "echo_shm", "bridge", *words], capture_output=True, text=True, timeout=50
    )
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
