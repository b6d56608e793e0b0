"""A TLS connection that one thread reads and another writes. Neither delays the other."""

import functools
import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Most bytes that one call gives to TLS.
_PIECE = 1 << 16


class TlsStream:
    """A TLS connection after its handshake.

    OpenSSL does not allow two threads to use one connection at once, and a thread that waits inside OpenSSL would
    block the other. So no thread waits there: the socket is non-blocking, and a lock is held during each call only.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Sends all of it. Raises OSError if the connection is lost."""
        left = memoryview(data)
        while left:
            left = left[self._do(functools.partial(self._sock.send, left[:_PIECE]), None) :]

    def receive(self, most: int, timeout: float | None) -> bytes:
        """Waits for bytes and returns at most ``most`` of them; ``b""`` at the end of the connection.

        Raises:
            TimeoutError: No byte could be decrypted in time. Part of a record may have come.
            OSError: The connection is lost.

        """
        return self._do(functools.partial(self._sock.recv, most), timeout)

    def receive_into(self, space: memoryview, timeout: float | None) -> int:
        """As :meth:`receive`, but writes the bytes there. Returns how many; 0 at the end of the connection."""
        return self._do(functools.partial(self._sock.recv_into, space), timeout)

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
