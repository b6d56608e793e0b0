"""A TLS connection that one thread reads and another writes. Neither delays the other."""

import functools
import select
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: Most bytes that one call gives to TLS.
_PIECE = 1 << 16

#: Most bytes of a record; and of those that are read at a time, during which nothing is sent.
_RECORD, _RECORDS = 1 << 14, 1 << 18


class TlsStream:
    """A TLS connection after its handshake.

    OpenSSL does not allow two threads to use one connection at once, and a thread that waits inside OpenSSL would
    block the other. So no thread waits there: the socket is non-blocking, and a lock is held during each call only.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()
        # What read_into() has decrypted, and nobody has had.
        self._space = memoryview(bytearray(_RECORD))
        self._read = self._space[:0]

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
        return self._do(functools.partial(self._read_records, space[:_RECORDS]), timeout)

    def _read_records(self, space: memoryview) -> int:
        """What has come: OpenSSL gives one record at a time."""
        total = self._sock.recv_into(space)
        try:
            while 0 < total < len(space) and (n := self._sock.recv_into(space[total:])):
                total += n
        except OSError:  # it has not come yet; or the next call finds out, too
            pass
        return total

    def read_into(self, spaces: Sequence[memoryview], timeout: float | None) -> int:
        """As :meth:`receive_into`, into several spaces in turn, of which none is empty. One thread calls it.

        What comes in one record is read at once, also where it is for many small spaces.
        """
        if not self._read:
            if len(spaces[0]) >= _RECORD:
                return self.receive_into(spaces[0], timeout)
            self._read = self._space[: self.receive_into(self._space, timeout)]
        total = 0
        for space in spaces:
            n = min(len(space), len(self._read))
            space[:n], self._read = self._read[:n], self._read[n:]
            total += n
            if not self._read:
                break
        return total

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
