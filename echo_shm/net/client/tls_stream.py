"""A TLS connection that one thread reads and another writes. Neither delays the other."""

import contextlib
import functools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from echo_shm.net.tcp import ON_ONE_HOST, is_on_one_host

_T = TypeVar("_T")

#: Most bytes that one call gives to TLS.
_PIECE = 1 << 16

#: Most bytes of a record; and of those that are read at a time, during which nothing is sent.
_RECORD, _RECORDS = 1 << 14, 1 << 18

#: A thread that waits for many bytes sleeps until so many have come, for so many seconds at most. Otherwise each packet
#: wakes it, which costs more than the packet does.
_AT_ONCE, _PATIENCE = 1 << 21, 0.02


class TlsStream:
    """A TLS connection after its handshake.

    OpenSSL does not allow two threads to use one connection at once, and a thread that waits inside OpenSSL would
    block the other. So no thread waits there: the socket is non-blocking, and a lock is held during each call only.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()
        self._awaited = 1  # how many bytes wake a thread that waits
        #: The most that it sleeps for. On one host the sender waits for room before more have come.
        self._at_once = ON_ONE_HOST if is_on_one_host(sock) else _AT_ONCE
        # What read_into() has decrypted, and nobody has had.
        self._space = memoryview(bytearray(_RECORD))
        self._read = self._space[:0]

    def send(self, data: bytes) -> None:
        """Sends all of it. Raises OSError if the connection is lost."""
        left = memoryview(data)
        while left:
            left = left[self._do(functools.partial(self._sock.send, left[:_PIECE]), None, None) :]

    def receive(self, most: int, timeout: float | None) -> bytes:
        """Waits for bytes and returns at most ``most`` of them; ``b""`` at the end of the connection.

        Raises:
            TimeoutError: No byte could be decrypted in time. Part of a record may have come.
            OSError: The connection is lost.

        """
        return self._do(functools.partial(self._sock.recv, most), timeout)

    def receive_into(self, space: memoryview, timeout: float | None, expected: int = 0) -> int:
        """As :meth:`receive`, but writes the bytes there. Returns how many; 0 at the end of the connection.

        Args:
            space: Where to.
            timeout: As for :meth:`receive`.
            expected: Bytes that the other side is about to send. If no whole record has come, this waits for many of
                them, for some milliseconds at most.

        """
        return self._do(functools.partial(self._read_records, space[:_RECORDS]), timeout, expected)

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

        The other side is about to send all that they are for.
        What comes in one record is read at once, also where it is for many small spaces.
        """
        if not self._read:
            if len(spaces[0]) >= _RECORD:
                return self.receive_into(spaces[0], timeout, len(spaces[0]))
            self._read = self._space[: self.receive_into(self._space, timeout)]
        total = 0
        for space in spaces:
            n = min(len(space), len(self._read))
            space[:n], self._read = self._read[:n], self._read[n:]
            total += n
            if not self._read:
                break
        return total

    def _do(self, call: Callable[[], _T], timeout: float | None, expected: int | None = 0) -> _T:
        """``expected``: as for :meth:`receive_into`; None if the call does not read."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                with self._lock:
                    return call()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            self._wait(events, end, expected)

    def _wait(self, events: int, end: float | None, expected: int | None) -> None:
        """Waits until the socket is ready. Raises TimeoutError if it is not at the end."""
        waiting = select.poll()
        waiting.register(self._sock, events)
        if events == select.POLLIN and expected is not None:
            more = min(expected - _RECORD, self._at_once)  # OpenSSL may hold a part of a record already
            if more > 1 and _left(end, None) != 0:
                self._await(more)
                if waiting.poll(_left(end, _PATIENCE)):
                    return
            self._await(1)
        if not waiting.poll(_left(end, None)) and end is not None:
            raise TimeoutError

    def _await(self, count: int) -> None:
        """From now on, who waits for bytes is woken by so many. The end of the connection wakes it, too."""
        if count != self._awaited:
            with contextlib.suppress(OSError):  # the connection is lost, which the next call says
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._awaited = count


def _left(end: float | None, most: float | None) -> float | None:
    """How long to wait (milliseconds)."""
    left = None if end is None else max(0.0, end - time.monotonic())
    seconds = most if left is None else left if most is None else min(left, most)
    return None if seconds is None else seconds * 1000
