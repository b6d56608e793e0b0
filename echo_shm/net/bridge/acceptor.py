"""The acceptor: it accepts connections from listening sockets, as long as there are descriptors for them."""

import errno
import logging
import resource
import selectors
import socket
from collections.abc import Iterator

from echo_shm.net.tcp import format_address

_log = logging.getLogger("echo_shm.bridge")

#: Descriptors that are kept free for other uses than connections.
_SPARE = 16
#: Most connections that are accepted at a time, before other sockets get their turn.
_AT_ONCE = 64


class Acceptor:
    """Accepts connections from some listening sockets.

    Args:
        listeners: Bound and listening sockets; :meth:`close` closes them.
        selector: Watches them while connections are accepted.

    """

    def __init__(self, listeners: list[socket.socket], selector: selectors.BaseSelector) -> None:
        self._listeners, self._selector = listeners, selector
        self._accepting = False
        for listener in listeners:
            listener.setblocking(False)
        self.resume()

    def resume(self) -> None:
        """Accepts connections, again. Idempotent."""
        if not self._accepting:
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)
        self._accepting = True

    def pause(self) -> None:
        """Accepts no connections for now; the kernel queues them."""
        if self._accepting:
            for listener in self._listeners:
                self._selector.unregister(listener)
        self._accepting = False

    def close(self) -> None:
        """Accepts no connections any more, and closes the sockets."""
        self.pause()
        for listener in self._listeners:
            listener.close()

    def accept(self, listener: socket.socket) -> Iterator[tuple[socket.socket, str]]:
        """Yields new connections and their addresses. It pauses if there are no descriptors for more."""
        for _ in range(_AT_ONCE):
            if not self._accepting:
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # the socket was shut down, because the server is closing
                    _log.warning("cannot accept connections for now: %s", error)
                self.pause()
                return
            yield sock, format_address(address[0], address[1])


def is_exhausted(newest: socket.socket) -> bool:
    """Whether the process can have few more descriptors. (The kernel always assigns the lowest free number.)"""
    return newest.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE
