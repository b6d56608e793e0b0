"""The files of a shard go to whoever has the replay's private key, whole or not at all."""

import socket
import ssl

import pytest
from harness.packages import need

need("ray")
need("cryptography")

from echo_shm.adapters.ray import handing  # noqa: E402
from echo_shm.adapters.ray.keys import Keys  # noqa: E402
from echo_shm.errors import EchoShmError  # noqa: E402


@pytest.fixture(scope="module")
def keys():
    """Of the replay."""
    return Keys.make()


@pytest.fixture
def sending(tmp_path, keys):
    """Two files that are sent."""
    folder = tmp_path / "from"
    (folder / "000001").mkdir(parents=True)
    (folder / "000001" / "steps").write_bytes(bytes(range(256)) * 5000)
    (folder / "000001" / "manifest").write_text("whole")
    made = handing.Sending(folder, "127.0.0.1", keys)
    yield made
    made.close()


def test_files_come_whole(sending, keys, tmp_path):
    """Also after somebody has connected who says nothing of TLS, and more than once."""
    with socket.create_connection(sending.origin[:2]) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
    for name in ("a", "b"):
        handing.receive(sending.origin, tmp_path / name, keys)
        assert handing.files_of(tmp_path / name) == {"000001/steps": 1_280_000, "000001/manifest": 5}
        assert (tmp_path / name / "000001" / "steps").read_bytes() == bytes(range(256)) * 5000


def test_both_sides_prove_who_they_are(sending, keys, tmp_path):
    """A client of the replay has its certificate, and not the private key: it gets nothing."""
    with (
        socket.create_connection(sending.origin[:2]) as plain,
        keys.public().client_context().wrap_socket(plain) as secured,
        pytest.raises(ssl.SSLError, match="certificate required"),
    ):
        assert not secured.recv(1)
    with pytest.raises(EchoShmError, match=r"did not come: .*certificate verify failed"):
        handing.receive(sending.origin, tmp_path / "a", Keys.make())
    assert not (tmp_path / "a").exists()


def test_files_that_are_cut_short(sending, keys, tmp_path):
    """What comes is compared with what was said."""
    origin = sending.origin._replace(files={**sending.origin.files, "000001/more": 7})
    with pytest.raises(EchoShmError, match=r"1 of 3 did not come whole, \['000001/more'\]"):
        handing.receive(origin, tmp_path / "a", keys)
