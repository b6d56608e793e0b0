"""How a transport is set up, found, started and ended."""

import contextlib
import signal
import socket
import ssl
import sys
from unittest import mock

import numpy as np
import psutil
import pytest
from harness.peers import EXAMPLE, KEY, greet, numbers, raw, said, sample
from harness.programs import ECHO_SHM, run
from harness.waiting import until

from echo_shm import Replay, Server, TcpClient, TcpTransport, WireError, connect
from echo_shm.cli import main as cli
from echo_shm.net import wire
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.replay import RemoteWriter
from echo_shm.ring.handle import Handle
from echo_shm.ring.segment import Segment
from echo_shm.spec import Spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines"),
        ({"host": "::"}, "can be reached from other machines"),
        ({"host": ""}, "can be reached from other machines"),
        ({"host": "no.such.host.invalid"}, r"no\.such\.host\.invalid"),
        ({"authkey": b"short"}, "authkey has 5 bytes: use at least 16"),
        ({"authkey": "a string of many characters"}, "authkey is of type str"),
        ({"authkey": KEY, "wire_version": 1}, "wire version 1 has no authentication"),
        ({"wire_version": 3}, "wire_version=3: use an integer from 1 to 2"),
        ({"wire_version": 2.0}, "use an integer from 1 to 2"),
        ({"max_connections": 0}, "max_connections=0: use an integer from 1 to"),
        ({"max_connections": 10**9}, "max_connections=1000000000: use an integer"),
        ({"max_connections": "5"}, "max_connections='5'"),
        ({"processes": 0}, "processes=0: use an integer from 1 to 64"),
        ({"port": 65536}, "port=65536: use an integer from 0 to 65535"),
        ({"port": "50051"}, "port='50051'"),
        ({"port": None}, "port=None"),
        ({"host": None}, "host=None: use a name or an address"),
        ({"tls": True}, r"tls=True: use an ssl\.SSLContext\(ssl\.PROTOCOL_TLS_SERVER\)"),
        ({"tls": ssl.create_default_context()}, "tls is not a context for a server"),
        ({"tls": b"what"}, "tls: 4 bytes that are no private key with its certificate, as PEM"),
    ],
)
def test_unsafe_or_impossible_transports(options, message):
    """Impossible options, and a server that is open to everybody, are refused before anything listens."""
    with pytest.raises(ValueError, match=message):
        TcpTransport(**{"port": 0, **options})


def test_beyond_loopback_with_a_key_or_a_word():
    """With a key, or with allow_unauthenticated=True, other addresses are allowed."""
    TcpTransport(0, host="0.0.0.0", authkey=KEY)
    TcpTransport(0, host="::", allow_unauthenticated=True)
    for host in ("localhost", "127.0.0.2", "::1"):
        TcpTransport(0, host=host)


def test_addresses(serve, client):
    """connect() takes tcp:// and shm:// addresses (IPv6 in brackets) for the same code; others are refused."""
    server = serve(1, host="::1")
    for n, address in enumerate((f"tcp://[::1]:{server.port}", f"shm://{server.name}")):
        with connect(address, EXAMPLE) as one:
            one.send(sample(2 * n), timeout=20)
            one.send_many({name: leaf[None] for name, leaf in sample(2 * n + 1).items()}, timeout=20)
            one.wait(timeout=20)
    got = [n for _ in range(4) for n in numbers(server.sample(timeout=20).batch)]
    assert got == [0, 1, 2, 3]
    for address in ("http://x:1", "tcp://host", "tcp://:1", "shm://", "name", "tcp://h:1/path", "tcp://me@h:1"):
        with pytest.raises(ValueError, match="use tcp://host:port or shm://name"):
            connect(address, EXAMPLE)
    with pytest.raises(TypeError, match="needs an example"):
        connect("tcp://127.0.0.1:1")


def test_both_loopbacks(serve, client):
    """A host name with several addresses is served at each of them, on one port."""
    server = serve(1, host="localhost")
    for host in {address[0] for *_, address in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)}:
        client(server, host=host).send(sample(1))
        assert numbers(server.sample(timeout=20).batch) == [1]


def test_a_port_that_is_taken(serve):
    """A port in use is an error of start(), and leaves nothing running."""
    server = serve()
    message = f"cannot listen on host '127.0.0.1', port {server.port}: Address already in use; port=0 takes one"
    with Server(EXAMPLE, 1, transport=TcpTransport(server.port)) as other, pytest.raises(OSError, match=message):
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
    """All transports are started and shut down; when one cannot start, those before it are shut down again."""
    first, second = _Recorded(), _Recorded()
    with Server(EXAMPLE, 1, transport=[first, TcpTransport(0), second]) as server:
        server.start()
        assert server.port > 0
    assert first.calls == second.calls == [server.name, "shutdown"]
    first, second = _Recorded(), _Recorded(fails=True)
    with Server(EXAMPLE, 1, transport=(first, second)) as server, pytest.raises(OSError, match="no such wire"):
        server.start()
    assert first.calls == [server.name, "shutdown"]
    with pytest.raises(TypeError, match="a transport has start"):
        Server(EXAMPLE, 1, transport=[first, object()])


def test_tls(serve, client, tls):
    """Samples go over TLS to a server whose certificate is valid, and to no other."""
    server = serve(100, 12, tls=tls[0])
    one = client(server, tls=tls[1], host="localhost")
    for n in range(1000):
        one.send(sample(n))
    assert [n for _ in range(10) for n in numbers(server.sample(timeout=20).batch)] == list(range(1000))
    peer = f"localhost:{server.port}"
    with pytest.raises(
        ssl.SSLCertVerificationError, match=rf"certificate of {peer}: .*trust it: ssl\.create_default_context\(cafile="
    ) as caught:
        client(server, tls=ssl.create_default_context(), host="localhost")
    assert caught.value.verify_code in (18, 19)
    with pytest.raises(
        ssl.SSLCertVerificationError,
        match=rf"certificate of 0\.0\.0\.0:{server.port}: IP address mismatch.*'0\.0\.0\.0'; .* that names 0\.0\.0\.0",
    ):
        client(server, tls=tls[1], host="0.0.0.0")
    with raw(server) as sock:
        sock.sendall(b"not tls" * 10)
        said(sock)
    one.send(sample(1))
    one.wait()


def test_tls_from_pem(serve, client, tls, certificate):
    """Its bridge is a program of its own: nothing of this process's threads and locks is in it."""
    server = serve(1, tls=b"".join(file.read_bytes() for file in certificate))
    programs = [word for child in psutil.Process().children() for word in child.cmdline()]
    assert f"echo_shm bridge of {server.name}" in programs
    client(server, tls=tls[1], host="localhost").send(sample(3))
    assert server.sample(timeout=20) is not None


def test_tls_that_wants_a_certificate_of_the_client(serve, client, tls, certificate):
    """A server may ask clients for certificates; a client without one is told what it lacks."""
    tls[0].verify_mode = ssl.CERT_REQUIRED
    tls[0].load_verify_locations(certificate[0])
    server = serve(1, tls=tls[0])
    with pytest.raises(WireError, match=rf"localhost:{server.port} ended the TLS connection: .*load_cert_chain"):
        client(server, tls=tls[1], host="localhost")
    tls[1].load_cert_chain(*certificate)
    client(server, tls=tls[1], host="localhost").send(sample(3))
    assert numbers(server.sample(timeout=20).batch) == [3]


def test_tls_keeps_nothing_back(tls, background):
    """Decrypted bytes that a turn's last read leaves inside TLS are read, though no more bytes come."""
    example = np.zeros(1024, np.uint8)
    with Server(example, 64, num_buffers=64) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        bridge = Bridge(Segment.attach(server.name), [listener], Settings(None, 2, 8), tls[0])

        def come():
            sock = socket.create_connection(listener.getsockname())
            sock = tls[1].wrap_socket(sock, server_hostname="localhost")
            greet(server, sock)
            return sock

        coming = background(come)
        while coming.thread.is_alive():
            bridge.run_once(0.01)
        with coming.result() as sock:
            # The first frame fills the bridge's buffer. A turn reads eight TLS records. The frame goes in 72 of them:
            # it ends with a turn's last read. The last record also has the second frame.
            data = wire.samples_header(1024, 0) + bytes(1 << 20)
            size = (len(data) - 64) // 71 + 1
            pieces = [data[at : at + size] for at in range(0, len(data) - 64, size)]
            pieces[-1] = pieces[-1][: len(data) - 64 - 70 * size]
            pieces.append(data[-64:] + wire.samples_header(8, 1024) + bytes(8 * 1024))
            assert (len(pieces), sum(map(len, pieces))) == (72, len(data) + wire.HEADER_BYTES + 8 * 1024)
            background(lambda: [sock.sendall(piece) for piece in pieces]).result()  # into the kernel's buffers
            (client,) = bridge._clients
            for _ in range(12):
                bridge.run_once(0.05)
            assert bridge._ingest.committed(client) == 1032
        while bridge._clients:
            bridge.run_once(0.01)
        bridge.close()


@pytest.fixture
def bridge(program):
    """Runs ``echo-shm bridge`` for a server; returns the program and its port."""

    def run(server, *words):
        running = program(*ECHO_SHM, "bridge", server.name, *words)
        listening = running.wait_for(rf"^{server.name}: listening on 127\.0\.0\.1 port (\d+)\n")
        return running, int(listening.group(1))

    return run


def test_the_command(bridge):
    """`echo-shm bridge` serves an existing ring until that is closed."""
    with Server(EXAMPLE, 5) as server:
        running, port = bridge(server)
        with TcpClient("127.0.0.1", port, EXAMPLE) as one:
            for n in range(5):
                one.send(sample(n))
        assert numbers(server.sample(timeout=20).batch) == list(range(5))
        server.close()
        assert running.result() == 0
        assert running.output.splitlines()[1:] == [f"{server.name}: closed"]


def test_the_command_and_a_replay(program, name):
    """`echo-shm bridge` of a replay feeds its inbox, until the replay is closed."""
    example = {"n": np.zeros((), np.int64)}
    with Replay(example, 10, store="shm", name=name) as replay:
        running = program(*ECHO_SHM, "bridge", name)
        port = int(running.wait_for(rf"^{name}\.inbox: listening on 127\.0\.0\.1 port (\d+)\n").group(1))
        with RemoteWriter("127.0.0.1", port, example) as writer:
            writer.add({"n": 3})
            until(lambda: replay.num_steps == 1)
            writer.flush(30)
        replay.close()
        assert running.result() == 0


def test_the_command_and_another_ring(bridge):
    """The command ends when its ring has ended, also when a new ring has the name."""
    with Server(EXAMPLE, 5) as first:
        running, _ = bridge(first)
        running.send_signal(signal.SIGSTOP)
        for process in psutil.Process(running.pid).children():
            process.kill()
    with Server(EXAMPLE, 5, name=first.name):
        running.send_signal(signal.SIGCONT)
        assert running.result() == 0
        assert running.output.splitlines()[-1] == f"{first.name}: closed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_commands_end(bridge, number):
    """On SIGINT and SIGTERM `echo-shm bridge` tells every client before it ends."""
    with Server(EXAMPLE, 5) as server:
        running, port = bridge(server)
        address = ("127.0.0.1", port)
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(200)]
            for i, sock in enumerate(socks):
                greet(server, sock, bytes([1, i]) * 8)
            running.send_signal(number)
            for sock in socks:
                assert said(sock).endswith(wire.bye(0, "the server was closed"))
        assert running.result() == 130
        assert running.output.splitlines()[1:] == ["echo-shm: interrupted"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-segment"], "no segment is named"),
        (["../../etc/passwd"], "../../etc/passwd"),
        (["x", "--host", "0.0.0.0"], "pass --authkey-file, or --allow-unauthenticated if everybody"),
        (["x", "--authkey-file", "/no/such/file"], "--authkey-file /no/such/file: No such file"),
    ],
)
def test_bad_commands(words, message, capsys):
    """An error of the command is one line on stderr."""
    assert cli.main(["bridge", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_transport_is_one_servers(client):
    """A transport serves the server that started it; another server can neither start nor end it."""
    transport = TcpTransport(0)
    with Server(EXAMPLE, 1, transport=transport) as server:
        server.start()
        with Server(EXAMPLE, 1, transport=transport) as other, pytest.raises(RuntimeError, match="already started"):
            other.start()
        one = client(server)
        one.send(sample(1))
        assert numbers(server.sample(timeout=20).batch) == [1]


def test_what_cannot_be_carried():
    """Samples that a wire version cannot carry are refused when the transport starts, and no port is left open."""
    for example, options, message in (
        (np.zeros((0, 3)), {"wire_version": 1}, "wire version 1 cannot carry samples without bytes"),
        (np.broadcast_to(np.uint8(0), (1 << 32,)), {}, r"samples of 4,294,967,296 bytes: a frame has at most"),
    ):
        transport = TcpTransport(0, **options)
        with mock.patch("echo_shm.net.transport.Segment.attach") as attach:
            attach.return_value.spec = Spec.from_example(example)
            with pytest.raises(ValueError, match=message):
                transport.start(Handle("name", bytes(16), None))
        assert transport._listeners == []


def test_the_current_directory_is_not_imported_from(tmp_path, monkeypatch):
    """A bridge does not import a file of the current directory, whatever its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "psutil.py").write_text("open('imported', 'w')")
    (tmp_path / "user.py").write_text(
        "import sys; sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[1])]\n"
        "import numpy as np, echo_shm\n"
        "with echo_shm.Server(np.zeros(3), 1, transport=echo_shm.TcpTransport(0)) as server:\n"
        "    server.start()\n"
    )
    run(sys.executable, "user.py", str(tmp_path))
    assert not (tmp_path / "imported").exists()


def test_a_key_from_a_file(bridge, tmp_path):
    """The command's key is all bytes of the file, also a newline at the end."""
    key = bytes(range(9, 40)) + b"\n"
    (tmp_path / "key").write_bytes(key)
    with Server(EXAMPLE, 1) as server:
        running, port = bridge(server, "--authkey-file", str(tmp_path / "key"))
        with TcpClient("127.0.0.1", port, EXAMPLE, authkey=key) as one:
            one.send(sample(1))
        assert numbers(server.sample(timeout=20).batch) == [1]
    assert running.result() == 0
