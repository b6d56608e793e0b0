"""TLS with one thread that reads and another that writes, of which neither holds the other up."""

import functools
import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Bytes given to TLS at a time.
_PIECE = 1 << 16


class TlsStream:
    """A TLS connection whose handshake is over.

    OpenSSL does not promise to bear two threads at one connection, and who waits in it would keep the other out. So
    nobody ever waits in it: the socket does not block, and each call is made alone.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Sends all of it; OSError when the connection is lost."""
        left = memoryview(data)
        while left:
            left = left[self._do(functools.partial(self._sock.send, left[:_PIECE]), None) :]

    def receive(self, most: int, timeout: float | None) -> bytes:
        """What is here, waiting for the first byte of it; nothing at the end.

        Raises:
            TimeoutError: Nothing came that could be read, perhaps half a record.
            OSError: The connection is lost.

        """
        return self._do(functools.partial(self._sock.recv, most), timeout)

    def _do(self, call: Callable[[], _T], timeout: float | None) -> _T:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                with self._lock:
                    return call()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            waiting = select.poll()
            waiting.register(self._sock, events)
            if not waiting.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000) and end is not None:
                raise TimeoutError
