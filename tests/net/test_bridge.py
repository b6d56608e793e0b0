"""A server with TcpTransport and its clients, on loopback: what arrives, and what is refused."""

import contextlib
import itertools
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import echo_shm
from echo_shm import (
    ConnectionClosedError,
    Server,
    ShmClient,
    SpecMismatchError,
    TcpClient,
    TcpTransport,
    WireError,
    connect,
)
from echo_shm.net import wire
from echo_shm.net.wire import Hello

EXAMPLE = {"n": np.zeros((), np.int64), "x": np.zeros((2, 3), np.float32)}
KEY = b"k" * 16


def sample(n):
    """A sample that says which it is, in both leaves."""
    return {"n": np.full((), n, np.int64), "x": np.full((2, 3), n, np.float32)}


def numbers(batch):
    """Which samples a batch has; each is whole."""
    assert (batch["x"] == batch["n"][:, None, None]).all()
    return batch["n"].tolist()


@pytest.fixture
def serve():
    """Makes started servers, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(batch_size=10, num_buffers=4, example=EXAMPLE, **options):
            server = stack.enter_context(
                Server(example, batch_size, num_buffers=num_buffers, transport=TcpTransport(0, **options))
            )
            server.start()
            return server

        yield make


@pytest.fixture
def client():
    """Makes clients, and closes them; what they could not deliver is no error here."""
    made = []

    def make(server, example=EXAMPLE, host="127.0.0.1", **options):
        made.append(TcpClient(host, server.port, example, **options))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ConnectionClosedError):
            one.close()


def raw(server):
    """A bare connection."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    sock.settimeout(20)
    return sock


def said(sock):
    """Everything that comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            data += chunk
    return data


@pytest.mark.parametrize("version", [1, 2])
def test_samples_arrive_in_order(serve, client, version):
    """A client's samples arrive once, whole, and in the order of their sends; wait() says that they have."""
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
    """A sample is sent without another to fill its frame, and without wait()."""
    server = serve(1)
    one = client(server)
    for n in range(3):
        one.send(sample(n))
        assert numbers(server.sample(timeout=20).batch) == [n]


def test_send_many(serve, client):
    """Stacked samples arrive in order, be they more than a frame or than the ring."""
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
    """Samples whose every leaf is empty are counted all the same."""
    example = np.zeros((0, 3), np.float32)
    server = serve(5, 4, example, wire_version=version)
    one = client(server, example)
    for _ in range(20):
        one.send(example)
    assert server.sample(timeout=20).batch.shape == (5, 0, 3)


def test_a_full_ring_holds_the_client_up(serve, client):
    """When nobody takes, send() waits, and says so after its timeout; nothing is lost by that."""
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


def test_close_delivers(serve, client):
    """close() sends what was not sent yet."""
    server = serve(7)
    with TcpClient("127.0.0.1", server.port, EXAMPLE) as one:
        for n in range(7):
            one.send(sample(n))
    assert numbers(server.sample(timeout=20).batch) == list(range(7))
    one.close()
    with pytest.raises(ConnectionClosedError, match="is closed"):
        one.send(sample(0))


def test_a_client_that_exits_delivers(serve, run_python):
    """A process that ends without close() delivers what it sent."""
    server = serve(7)
    run_python(
        """
import sys, numpy as np, echo_shm
client = echo_shm.connect(sys.argv[1], np.zeros((), np.int64))
for n in range(7): client.send(np.int64(n))
""",
        f"tcp://127.0.0.1:{serve(7, 4, np.zeros((), np.int64)).port}",
    )
    assert server.port


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


def test_wait_after_a_drop_raises():
    """wait() for a server that is gone without a word raises when the tries are over, and does not hang."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(EXAMPLE, 4)
    taken = []

    def pretend():
        sock, _ = listener.accept()
        listener.close()
        greeting = wire.Greeting(False, bytes(32))
        sock.sendall(greeting.to_bytes())
        hello = Hello.from_bytes(sock.recv(wire.HELLO_BYTES, socket.MSG_WAITALL))
        schema = server._segment.spec.schema
        sock.sendall(wire.Accept(bytes(16), 4096, False, schema, 0).to_bytes(None, greeting, hello))
        taken.append(sock.recv(4096))
        sock.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    one = TcpClient("127.0.0.1", listener.getsockname()[1], EXAMPLE, reconnect=0.5)
    one.send(sample(0))
    with pytest.raises(ConnectionClosedError, match=r"not made again within 0\.5 s"):
        one.wait()
    with pytest.raises(ConnectionClosedError, match="1 samples not acknowledged"):
        one.close()
    thread.join(20)
    assert taken
    server.close()


# --- what is refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            sample(0) | {"x": np.zeros((2, 3), np.int32)},
            r"got \['x'\]: int32\[2, 3\], expected \['x'\]: float32\[2, 3\]",
        ),
        (sample(0) | {"x": np.zeros((3, 2), np.float32)}, r"got \['x'\]: float32\[3, 2\]"),
        ({"n": np.zeros((), np.int64)}, "got 1 leaves, expected 2"),
        ([np.zeros((), np.int64), np.zeros((2, 3), np.float32)], "Server spec mismatch"),
    ],
)
def test_other_samples(serve, example, message):
    """An example that is not the server's is refused, with the first leaf that differs."""
    server = serve()
    with pytest.raises(SpecMismatchError, match=message):
        TcpClient("127.0.0.1", server.port, example)


def test_a_sample_that_does_not_fit(serve, client):
    """A sample of another shape raises in send(), as id-echo's words have it, and the client goes on."""
    server = serve(1)
    one = client(server)
    with pytest.raises(ValueError, match="Payload size"):
        one.send({"n": np.zeros((), np.int64), "x": np.zeros(2, np.float32)})
    one.send(sample(5))
    assert numbers(server.sample(timeout=20).batch) == [5]


def test_keys(serve, client):
    """Only who knows the key gets in, and only to a server that knows it, too."""
    server = serve(1, authkey=KEY)
    one = client(server, authkey=KEY)
    one.send(sample(3))
    assert numbers(server.sample(timeout=20).batch) == [3]
    with pytest.raises(WireError, match="asks for a key"):
        client(server)
    with pytest.raises(WireError, match="it does not know the authkey"):
        client(server, authkey=b"x" * 16)
    with pytest.raises(WireError, match="the server does not know the authkey"):
        client(serve(1), authkey=KEY)


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


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 200,
        b"ECHO\x01" + b"\x00" * 200,
        b"ECHO\x02" + b"\xff" * 200,
    ],
)
def test_garbage(serve, client, data):
    """What does not speak the protocol is told so and closed; others do not notice."""
    server = serve(1)
    one = client(server)
    with raw(server) as sock:
        sock.sendall(data)
        assert said(sock).startswith(b"ECHO\x02")
    one.send(sample(4))
    assert numbers(server.sample(timeout=20).batch) == [4]


def _exactly(sock, n):
    data = b""
    while len(data) < n:
        data += sock.recv(n - len(data))
    return data


def _hello(server, sock):
    """A raw client's handshake."""
    _exactly(sock, wire.GREETING_REST + 5)
    hello = Hello(b"i" * 16, 0, b"n" * 32, wire.spec_hash(server._segment.spec.schema))
    sock.sendall(hello.to_bytes())
    header = wire.read_server_header(_exactly(sock, wire.HEADER_BYTES))
    _exactly(sock, header.length)


@pytest.mark.parametrize(
    "frame",
    [
        wire.samples_header(2**31, 0),
        wire.samples_header(1, 99) + bytes(32),
        wire.ack(1),
        b"\xff" * 16,
    ],
)
def test_bad_frames(serve, client, frame):
    """A frame that is too long, not the next one, or none at all ends the connection; what came before it counts."""
    server = serve(1)
    one = client(server)
    with raw(server) as sock:
        _hello(server, sock)
        sock.sendall(wire.samples_header(1, 0) + struct.pack("<q6f", 7, *[7.0] * 6) + frame)
        assert said(sock)
    assert numbers(server.sample(timeout=20).batch) == [7]
    one.send(sample(4))
    assert numbers(server.sample(timeout=20).batch) == [4]


def test_half_a_frame_holds_nothing(serve, client):
    """A client that stalls or vanishes in the middle of a frame claims no slot and delays nobody."""
    server = serve(2, 1)
    stalled, vanishing = raw(server), raw(server)
    for sock in (stalled, vanishing):
        _hello(server, sock)
        sock.sendall(wire.samples_header(2, 0) + bytes(33))
    vanishing.close()
    one = client(server)
    for n in range(6):
        one.send(sample(n))
    assert [numbers(server.sample(timeout=20).batch) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    stalled.close()


def test_silent_connections_are_dropped(serve, client, monkeypatch):
    """Who says no hello does not keep a place for ever; who connects meanwhile is refused when there is none."""
    server = serve(1, max_connections=3)
    one = client(server)
    silent = [raw(server) for _ in range(2)]
    with pytest.raises(ConnectionClosedError, match="too many clients"):
        client(server)
    for sock in silent:
        started = time.monotonic()
        said(sock)
        assert time.monotonic() - started < 18
    client(server).send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]
    one.send(sample(2))
    assert numbers(server.sample(timeout=20).batch) == [2]


def test_a_flood_of_connects(serve, client):
    """Hundreds of connections that come and go leave nothing behind and hold nobody up."""
    server = serve(1, max_connections=50)
    one = client(server)
    for turn in range(5):
        socks = [raw(server) for _ in range(100)]
        one.send(sample(turn))
        assert numbers(server.sample(timeout=20).batch) == [turn]
        for sock in socks:
            sock.close()


# --- the rest ------------------------------------------------------------------


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


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate for localhost."""
    key, cert = tmp_path / "key", tmp_path / "cert"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def test_tls(serve, client, certificate):
    """Samples go over TLS, to a server whose certificate is good, and not otherwise."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    server = serve(100, 12, tls=server_side)
    one = client(server, tls=ssl.create_default_context(cafile=certificate[0]), host="localhost")
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


def test_tls_keeps_nothing_back(serve, certificate):
    """What TLS has decrypted beyond a frame, when the ring is full and nothing comes after it, is read in the end."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    server = serve(8, 2, np.zeros(1024, np.uint8), tls=server_side)
    context = ssl.create_default_context(cafile=certificate[0])
    with raw(server) as bare, context.wrap_socket(bare, server_hostname="localhost") as sock:
        _hello(server, sock)
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


def test_forked_clients(serve, client):
    """A forked child cannot use its parent's client, and its end does not disturb the parent's."""
    server = serve(1)
    one = client(server)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(echo_shm.ForkedError):
            try:
                one.wait()
            except echo_shm.ForkedError:
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one.send(sample(1))
    assert numbers(server.sample(timeout=20).batch) == [1]


def test_refusals_are_logged(serve, capfd):
    """The bridge's log has a line for whom it refuses, and why."""
    server = serve(1)
    with raw(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" * 20)
        said(sock)
    server.close()
    assert "refused: unexpected magic b'GET ', expected b'ECHO'" in capfd.readouterr().err
