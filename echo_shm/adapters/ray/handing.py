"""How a shard's checkpoint goes from its node to another one, from actor to actor.

The old shard's actor listens. The new one's connects to it, and gets a tar archive of the checkpoint's files. Each side
proves to the other that it has the private key of the replay, and TLS encrypts what is sent. Ray hands out where the
old shard listens, and what its files are, but not their bytes.

The files lie in a directory of this machine's for temporary files on each side, whose name begins with the shard's. An
actor that was killed leaves it behind, and the next one of that shard removes it; or the guard of its store does.
"""

import contextlib
import os
import shutil
import socket
import ssl
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from echo_shm.adapters.ray import guard
from echo_shm.adapters.ray.keys import Keys
from echo_shm.errors import EchoShmError

#: How long nothing may come, or go, before the other side is given up (seconds).
_SILENCE = 30.0


class Origin(NamedTuple):
    """Where a shard's files are to be had.

    Attributes:
        host, port: Where the old shard's actor listens.
        files: The bytes of each file, by its path.

    """

    host: str
    port: int
    files: dict[str, int]


def prefix_of(name: str) -> str:
    """How the directories' paths begin in which files of the shard with that store lie meanwhile, on each side."""
    return os.path.join(tempfile.gettempdir(), f"echo_shm-{name}.")


@contextlib.contextmanager
def new_folder(name: str) -> Iterator[Path]:
    """An empty directory, for this user alone. It is removed in the end."""
    start = Path(prefix_of(name))
    folder = Path(tempfile.mkdtemp(prefix=start.name, dir=start.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_all(name: str) -> None:
    """Removes what killed actors of that shard have left."""
    for folder in guard.folders(prefix_of(name)):
        shutil.rmtree(folder, ignore_errors=True)


def files_of(folder: Path) -> dict[str, int]:
    """The bytes of each file there, by its path."""
    found = {}
    for inner, _, files in os.walk(folder):
        for file in files:
            path = Path(inner, file)
            found[str(path.relative_to(folder))] = path.stat().st_size
    return found


class Sending:
    """Sends the files of a directory to whoever proves to have the replay's private key, until it is closed.

    Args:
        folder: The directory.
        host: The address to listen at.
        keys: The replay's.

    """

    def __init__(self, folder: Path, host: str, keys: Keys) -> None:
        self._folder, self._context = folder, keys.mutual_context(server_side=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.origin = Origin(host, self._listener.getsockname()[1], files_of(folder))
        self._current: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="echo_shm-handing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                accepted, _ = self._listener.accept()
                self._current = accepted
                with contextlib.suppress(OSError), accepted:  # it has ended, or is somebody else: the next one
                    self._send(accepted)

    def _send(self, accepted: socket.socket) -> None:
        accepted.settimeout(_SILENCE)
        with (
            self._context.wrap_socket(accepted, server_side=True) as secured,
            secured.makefile("wb") as stream,
            tarfile.open(fileobj=stream, mode="w|") as archive,
        ):
            archive.add(self._folder, ".")

    def close(self) -> None:
        """Ends it, also in the middle. Idempotent."""
        for one in (self._listener, self._current):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._thread.join()


def receive(origin: Origin, folder: Path, keys: Keys) -> None:
    """Gets the files.

    Args:
        origin: Where they are to be had.
        folder: Where they go.
        keys: The replay's.

    Raises:
        EchoShmError: They did not come, or not all of them.

    """
    where = f"shard files at {origin.host}:{origin.port}"
    try:
        with (
            socket.create_connection((origin.host, origin.port), _SILENCE) as plain,
            keys.mutual_context(server_side=False).wrap_socket(plain) as secured,
            secured.makefile("rb") as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError, ssl.SSLError) as error:
        raise EchoShmError(f"{where}: they did not come: {error}") from None
    found = files_of(folder)
    if found != origin.files:
        missing = sorted(path for path, size in origin.files.items() if found.get(path) != size)
        raise EchoShmError(f"{where}: {len(missing)} of {len(origin.files)} did not come whole, {missing[:3]}")
