"""Servers with a bridge, clients of theirs, and certificates."""

import contextlib
import ssl
import subprocess

import pytest
from harness.peers import EXAMPLE
from harness.pretender import Pretender

from echo_shm import ConnectionClosedError, Server, TcpClient, TcpTransport
from echo_shm.net.bridge import supervisor


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
def in_bridges(monkeypatch):
    """Lets each new bridge process execute some code before it begins; a bridge that is forked, for TLS, does not."""

    def patch(code):
        program = supervisor._PROGRAM
        assert program.endswith("; main()")
        monkeypatch.setattr(supervisor, "_PROGRAM", program.replace("; main()", f"; {code}; main()"))

    return patch


@pytest.fixture
def client():
    """Makes clients, and closes them; undelivered samples are no error here."""
    made = []

    def make(server, example=EXAMPLE, host="127.0.0.1", **options):
        made.append(TcpClient(host, server.port, example, **options))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(ConnectionClosedError):
            one.close()


@pytest.fixture
def pretend():
    """Makes pretenders, and closes them."""
    with contextlib.ExitStack() as stack:

        def make(play, example=EXAMPLE):
            host = Pretender(example, play)
            stack.callback(host.close)
            return host

        yield make


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key", folder / "cert"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.fixture
def tls(certificate):
    """The server's and the client's context."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    return server, ssl.create_default_context(cafile=certificate[0])
