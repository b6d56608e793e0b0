"""Where connections come in: sockets that listen, while there are descriptors for what they accept."""

import errno
import logging
import resource
import selectors
import socket
from collections.abc import Iterator

from echo_shm.net.tcp import format_address

_log = logging.getLogger("echo_shm.bridge")

#: Descriptors that stay free for other things than connections.
_SPARE = 16
#: Connections that are accepted before others are looked at.
_AT_ONCE = 64


class Acceptor:
    """Some listening sockets.

    Args:
        listeners: Bound and listening; closed by :meth:`close`.
        selector: Told of them while the door is open.

    """

    def __init__(self, listeners: list[socket.socket], selector: selectors.BaseSelector) -> None:
        self._listeners, self._selector = listeners, selector
        self._accepting = False
        for listener in listeners:
            listener.setblocking(False)
        self.resume()

    def resume(self) -> None:
        """Lets connections in, again. Idempotent."""
        if not self._accepting:
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)
        self._accepting = True

    def pause(self) -> None:
        """Leaves connections outside for now."""
        if self._accepting:
            for listener in self._listeners:
                self._selector.unregister(listener)
        self._accepting = False

    def close(self) -> None:
        """Shuts, for good."""
        self.pause()
        for listener in self._listeners:
            listener.close()

    def accept(self, listener: socket.socket) -> Iterator[tuple[socket.socket, str]]:
        """Those who have come, and their addresses; shuts when there are no descriptors for them."""
        for _ in range(_AT_ONCE):
            if not self._accepting:
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # nobody listens any more: it is closing time
                    _log.warning("cannot accept connections for now: %s", error)
                self.pause()
                return
            yield sock, format_address(address[0], address[1])


def is_exhausted(newest: socket.socket) -> bool:
    """Whether, with this socket, there are as many as there may be. (The kernel gives out the lowest number free.)"""
    return newest.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE
