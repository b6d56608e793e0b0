"""TCP options that both ends of a connection use."""

import contextlib
import socket
import struct

#: Bytes that may wait in a connection between two processes of one host. There is no delay that more would fill. What
#: is no more than this is still in the processor's caches when the other end copies it, which takes half of the time.
ON_ONE_HOST = 1 << 18


def format_address(host: str, port: int) -> str:
    """An address in messages. IPv6 addresses are in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_options(sock: socket.socket) -> None:
    """Sends small messages at once, and notices a dead peer within about a minute while nothing is in flight."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        _set(sock, name, value)
    if is_on_one_host(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ON_ONE_HOST)


def is_on_one_host(sock: socket.socket) -> bool:
    """Whether both ends of a connection have the same address. Between two hosts the system sizes the buffers."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except (OSError, IndexError):  # not connected, or not any more; or no address, as of a pair of sockets
        return False


def set_send_timeout(sock: socket.socket) -> None:
    """Notices a dead peer within a minute while data is in flight.

    Not for the end that sends samples: on Linux, the time also counts while a living peer has no room for them.
    """
    _set(sock, "TCP_USER_TIMEOUT", 60_000)


def limit_unsent(sock: socket.socket) -> None:
    """Lets little wait in the system to be sent, so that what is urgent soon follows what is long."""
    _set(sock, "TCP_NOTSENT_LOWAT", ON_ONE_HOST)


def set_time_limits(sock: socket.socket, seconds: float) -> None:
    """Makes calls on a blocking socket raise BlockingIOError if nothing goes on for so long."""
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, name, limit)


def _set(sock: socket.socket, name: str, value: int) -> None:
    """Sets a TCP option on systems that have it."""
    if hasattr(socket, name):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
