"""What both ends of a connection ask of TCP."""

import contextlib
import socket
from typing import Any


def format_address(host: str, port: int) -> str:
    """An address for messages; IPv6 ones in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def set_options(sock: socket.socket) -> None:
    """Sends what is small at once.

    Has the kernel notice a peer that is gone without a word while nothing is on its way: within about a minute.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        _set(sock, name, value)


def set_send_timeout(sock: socket.socket) -> None:
    """The same while something is on its way.

    Not for who sends samples: on Linux the time counts while a peer that is alive has no room for them.
    """
    _set(sock, "TCP_USER_TIMEOUT", 60_000)


def _set(sock: socket.socket, name: str, value: Any) -> None:
    """Sets an option of TCP, on systems that have it."""
    if hasattr(socket, name):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
