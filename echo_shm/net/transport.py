"""A Server's transport over TCP: the listening sockets, and the bridge processes that serve them."""

import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import threading
import time
import weakref
from typing import Any, TypeAlias

from echo_shm.net import validation
from echo_shm.net.bridge.process import BridgeConfig
from echo_shm.net.bridge.supervisor import Supervisor, forking_a_bridge
from echo_shm.ring.handle import Handle
from echo_shm.ring.segment import Segment
from echo_shm.timeouts import check_timeout

_log = logging.getLogger("echo_shm")

#: One result of getaddrinfo().
_Address: TypeAlias = tuple[Any, Any, int, str, Any]

#: The largest ``max_connections`` and ``processes``.
_MAX_CONNECTIONS, _MAX_PROCESSES = 1 << 20, 64
#: The largest sample (bytes): a frame's length has four bytes.
_MAX_SAMPLE = (1 << 32) - 1


class TcpTransport:
    """Receives samples from other hosts: ``Server(example, batch_size, transport=TcpTransport(port))``.

    The listening sockets belong to this process and outlive the bridge processes that serve them. If a bridge is
    killed, another one is started on the same port, and its clients continue where they were.

    That of a :class:`Replay` also serves ``ReplayClient("tcp://host:port")``: batches go to it, and updates and
    deletions come from it.

    Args:
        port: Port to listen on. 0: any free port; :attr:`port` tells which, after ``server.start()``.
        num_threads: Accepted for code written for id-echo, and ignored: a bridge has one thread.
        host: Address or name to listen on. A name means all its addresses. Any but a loopback address needs
            ``authkey`` or ``allow_unauthenticated``.
        authkey: A key of at least 16 bytes. Clients and server prove to each other that they know it, and never
            send it. It does not encrypt what is sent: use ``tls`` for that.
        tls: A server-side context; or a certificate and its private key, without a password, as PEM. Of a context the
            bridge is a forked child, because nothing else can take one along: a process with many threads, as one of
            Ray's, should give PEM.
        wire_version: 2, or 1 for clients of id-echo. Version 1 has no dtypes, no keys and no reconnection.
        max_connections: How many clients may be connected to all bridges of the ring. More are refused. A
            :class:`ReplayClient` counts as one, and so does each of its iterations, at the bridge that serves it.
        processes: How many bridge processes share the port.
        allow_unauthenticated: Listen on other than loopback addresses without a key. Everybody who can connect can
            then write samples; with a replay also read, change and delete its items.

    Raises:
        ValueError: An argument is out of range, or the combination is not possible or not safe.

    """

    def __init__(
        self,
        port: int,
        num_threads: int = 8,
        *,
        host: str = "127.0.0.1",
        authkey: bytes | None = None,
        tls: ssl.SSLContext | bytes | None = None,
        wire_version: int = 2,
        max_connections: int = 1024,
        processes: int = 1,
        allow_unauthenticated: bool = False,
    ) -> None:
        validation.integer("num_threads", num_threads, 1, 1 << 16)
        self._wanted_port = validation.integer("port", port, 0, 65535)
        self._wire_version = validation.integer("wire_version", wire_version, 1, 2)
        self._authkey = validation.key(authkey)
        self._certificate = validation.certificate(tls) if isinstance(tls, bytes) else None
        self._tls = None if isinstance(tls, bytes) else validation.tls_context(tls, server_side=True)
        self._host = validation.host(host)
        self.max_connections = validation.integer("max_connections", max_connections, 1, _MAX_CONNECTIONS)
        self._processes = validation.integer("processes", processes, 1, _MAX_PROCESSES)
        if authkey is not None and wire_version == 1:
            raise ValueError("wire version 1 has no authentication: use wire_version=2 with an authkey")
        self._allow_unauthenticated = bool(allow_unauthenticated)
        self._check_exposure(_addresses(host))
        self._lock = threading.RLock()  # held by start() and shutdown()
        self._listeners: list[socket.socket] = []
        self._supervisors: list[Supervisor] = []
        _transports.add(self)

    @property
    def port(self) -> int:
        """The port that clients connect to. Before :meth:`start`, the port that was asked for."""
        if not self._listeners:
            return self._wanted_port
        return int(self._listeners[0].getsockname()[1])

    def start(self, handle: Handle) -> None:
        """Listens, and starts the bridge processes. ``server.start()`` calls it.

        Raises:
            OSError: It cannot listen on the address.
            RuntimeError: It was started already.
            ValueError: This wire version cannot carry such samples.
            EchoShmError: A bridge process could not start.

        """
        with self._lock:
            self._start(handle)

    def _start(self, handle: Handle) -> None:
        if self._listeners or self._supervisors:
            raise RuntimeError("TCP server already started")
        self._check_samples(handle)
        addresses = _addresses(self._host)
        self._check_exposure(addresses)  # the name may have other addresses now
        self._listeners = _listen(addresses, self._wanted_port, self._host)
        config: BridgeConfig = {
            "name": handle.name,
            "uuid": handle.uuid.hex(),
            "authkey": None if self._authkey is None else self._authkey.hex(),
            "wire_version": self._wire_version,
            "max_connections": self.max_connections,
            "certificate": None if self._certificate is None else self._certificate.decode("ascii"),
            "listeners": [listener.fileno() for listener in self._listeners],
            "log_level": _log.getEffectiveLevel(),
            "parent": os.getpid(),
        }
        try:
            for _ in range(self._processes):
                self._supervisors.append(Supervisor(config, self._tls))
                self._supervisors[-1].start()
            for supervisor in self._supervisors:
                supervisor.wait_until_ready()
        except BaseException:
            self.shutdown()
            raise

    def _check_exposure(self, addresses: list[_Address]) -> None:
        if self._authkey is not None or self._allow_unauthenticated:
            return
        if not all(ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback for *_, address in addresses):
            raise ValueError(
                f"host={self._host!r} can be reached from other machines: pass authkey=, or "
                "allow_unauthenticated=True if everybody who can connect may write samples"
            )

    def _check_samples(self, handle: Handle) -> None:
        spec = Segment.attach(handle.name, handle.uuid, read_only=True).spec
        size = spec.sample_bytes
        if size > _MAX_SAMPLE:
            raise ValueError(f"samples of {size:,} bytes: a frame has at most {_MAX_SAMPLE:,}")
        if spec.about is not None and self._wire_version == 1:
            raise ValueError("wire version 1 cannot tell clients what a replay needs: use wire_version=2")
        if size == 0 and self._wire_version == 1:
            raise ValueError("wire version 1 cannot carry samples without bytes: use wire_version=2")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the creator closes the ring. Returns False if that takes longer than ``timeout`` seconds.

        Raises:
            ValueError: ``timeout`` is not a number of seconds.
            EchoShmError: A bridge cannot be kept running.

        """
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(
            supervisor.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for supervisor in self._supervisors
        )

    def shutdown(self) -> None:
        """Tells every client, stops the bridges, and frees the port. Idempotent."""
        with self._lock:
            try:
                for supervisor in self._supervisors:
                    supervisor.stop()
                for supervisor in self._supervisors:
                    supervisor.join()
            finally:
                for listener in self._listeners:
                    with contextlib.suppress(OSError):
                        listener.shutdown(socket.SHUT_RDWR)  # also in any other process that has inherited it
                    listener.close()
            self._forget()  # not after Ctrl-C: then another shutdown() continues with the bridges that are left

    def _forget(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._supervisors, self._listeners = [], []


def _addresses(host: str) -> list[_Address]:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ValueError(f"host={host!r}: {error.strerror}") from None
    return list(dict.fromkeys(found))


def _listen(addresses: list[_Address], port: int, host: str) -> list[socket.socket]:
    """One listening socket for each address, all on the same port."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(1024)
    except OSError as error:
        for sock in sockets:
            sock.close()
        hint = "; port=0 takes one that is free" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"cannot listen on host {host!r}, port {port}: {error.strerror}{hint}") from None
    return sockets


_transports: "weakref.WeakSet[TcpTransport]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: closes the sockets, so that the port is free when the parent has closed them."""
    if not forking_a_bridge():
        for transport in list(_transports):
            transport._lock = threading.RLock()  # another thread of the parent may have held it
            transport._forget()


os.register_at_fork(after_in_child=_leave_to_parent)
