"""What a Server needs to be reached over TCP: sockets that listen, and bridge processes that serve them."""

import contextlib
import ipaddress
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from typing import Any

from echo_shm.errors import EchoShmError
from echo_shm.handle import Handle

_log = logging.getLogger("echo_shm")

#: How long a bridge may take to begin, and to end (seconds).
_BEGIN_TIME, _END_TIME = 60.0, 5.0
#: A bridge that has not lived this long is started again only after a pause (seconds).
_SHORT_LIFE, _PAUSE = 1.0, 0.5


class TcpTransport:
    """Brings in the samples of remote hosts: ``Server(example, batch_size, transport=TcpTransport(port))``.

    The sockets are this process's and outlive the bridge processes that serve them: a bridge that is
    killed is started again, on the same port, and its clients go on where they were.

    Args:
        port: To listen on; 0 for any that is free, which :attr:`port` says after ``server.start()``.
        num_threads: Accepted for code written for id-echo, and ignored: a bridge has one thread.
        host: Address or name to listen on; every address that it stands for. Anything but this machine's own
            loopback needs ``authkey`` or ``allow_unauthenticated``.
        authkey: Clients must know it, and know that the server does. At least 16 bytes; it is never sent. It
            says who connects, not who listens in: that takes ``tls``.
        tls: A server-side context.
        wire_version: 2, or 1 for clients of id-echo, which has no dtypes, no keys and no second try.
        max_connections: Clients at a time; more are refused.
        processes: Bridge processes, which share the port.
        allow_unauthenticated: Listen beyond loopback without a key. Whoever can connect can then write samples.

    Raises:
        ValueError: What the arguments ask for is not possible, or not safe.

    """

    def __init__(
        self,
        port: int,
        num_threads: int = 8,
        *,
        host: str = "127.0.0.1",
        authkey: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        wire_version: int = 2,
        max_connections: int = 1024,
        processes: int = 1,
        allow_unauthenticated: bool = False,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: use 0 to 65535")
        if wire_version not in (1, 2):
            raise ValueError(f"wire_version={wire_version!r}: use 1 (id-echo's) or 2")
        if authkey is not None and (not isinstance(authkey, bytes) or len(authkey) < 16):
            raise ValueError("authkey: use at least 16 bytes, for instance secrets.token_bytes(32)")
        if authkey is not None and wire_version == 1:
            raise ValueError("wire version 1 has no authentication: use wire_version=2 with an authkey")
        if max_connections < 1 or processes < 1:
            raise ValueError(f"max_connections={max_connections!r}, processes={processes!r}: use at least 1")
        if authkey is None and not allow_unauthenticated and not _is_loopback(host):
            raise ValueError(
                f"host={host!r} can be reached from other machines: pass authkey=, or allow_unauthenticated=True "
                "if everybody there may write samples"
            )
        self.max_connections = max_connections
        self._wanted_port, self._host, self._authkey, self._tls = port, host, authkey, tls
        self._wire_version, self._processes = wire_version, processes
        self._listeners: list[socket.socket] = []
        self._keepers: list[_Keeper] = []

    @property
    def port(self) -> int:
        """The port that clients connect to, once started."""
        if not self._listeners:
            return self._wanted_port
        return int(self._listeners[0].getsockname()[1])

    def start(self, handle: Handle) -> None:
        """Listens, and starts the bridge processes. Called by ``server.start()``.

        Raises:
            OSError: The address cannot be listened on.
            RuntimeError: Started already.
            EchoShmError: A bridge process could not begin.

        """
        if self._listeners:
            raise RuntimeError("TCP server already started")
        self._listeners = _listen(self._host, self._wanted_port)
        told = {
            "name": handle.name,
            "uuid": handle.uuid.hex(),
            "authkey": None if self._authkey is None else self._authkey.hex(),
            "wire_version": self._wire_version,
            "max_connections": self.max_connections,
            "listeners": [listener.fileno() for listener in self._listeners],
            "log_level": _log.getEffectiveLevel(),
            "parent": os.getpid(),
        }
        try:
            for _ in range(self._processes):
                self._keepers.append(_Keeper(told, self._tls))
            for keeper in self._keepers:
                keeper.wait_until_ready()
        except BaseException:
            self.shutdown()
            raise

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the ring is closed by its creator, or a bridge cannot be kept running: whether that was so."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(
            keeper.wait(None if deadline is None else max(0.0, deadline - time.monotonic())) for keeper in self._keepers
        )

    def shutdown(self) -> None:
        """Tells every client, ends the bridges, and gives up the port. Idempotent."""
        for keeper in self._keepers:
            keeper.stop()
        for keeper in self._keepers:
            keeper.join()
        for listener in self._listeners:
            listener.close()
        self._keepers, self._listeners = [], []


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ValueError(f"host={host!r}: {error}") from None
    return all(ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback for *_, address in found)


def _listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address; all on the same port."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(1024)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class _Process:
    """One bridge process: ends when :meth:`let_go` closes its control pipe, or this process ends."""

    def __init__(self, told: dict[str, Any], tls: ssl.SSLContext | None) -> None:
        # An ssl.SSLContext cannot be handed to another program. A fork has it.
        self._popen: subprocess.Popen[bytes] | None = None
        if tls is None:
            self._start(told)
        else:
            self._fork(told, tls)

    def _start(self, told: dict[str, Any]) -> None:
        self._popen = popen = subprocess.Popen(
            [sys.executable, "-m", "echo_shm.net"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=told["listeners"],
        )
        self.pid = popen.pid
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._control, self._ready = os.dup(popen.stdin.fileno()), os.dup(popen.stdout.fileno())
        popen.stdin.close()
        popen.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, json.dumps(told).encode() + b"\n")

    def _fork(self, told: dict[str, Any], tls: ssl.SSLContext) -> None:
        control_read, self._control = os.pipe()
        self._ready, ready_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._control)
                from echo_shm.net.__main__ import serve

                serve(told, control_read, ready_write, tls)
                code = 0
            finally:
                os._exit(code)
        os.close(control_read)
        os.close(ready_write)

    def is_ready(self) -> bool:
        """Waits until it serves; False when it ended instead."""
        said = os.read(self._ready, 16)
        os.close(self._ready)
        return said == b"ready\n"

    def let_go(self) -> None:
        """Tells it to end."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        if self._popen is not None:
            return self._popen.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Ends it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class _Keeper:
    """Keeps one bridge process running, in a thread of its own, until told to stop."""

    def __init__(self, told: dict[str, Any], tls: ssl.SSLContext | None) -> None:
        self._told, self._tls = told, tls
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="echo_shm bridge keeper", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Returns when the first bridge serves."""
        if not self._first.wait(_BEGIN_TIME):
            raise EchoShmError(f"the bridge process did not begin within {_BEGIN_TIME} s")
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout: float | None) -> bool:
        """Whether it has ended, in so many seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def pid(self) -> int:
        """Of the bridge that runs now."""
        with self._lock:
            return -1 if self._process is None else self._process.pid

    def stop(self) -> None:
        """Has the bridge tell its clients and end."""
        self._stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.let_go()

    def join(self) -> None:
        """Waits for its end; a bridge that takes too long is killed."""
        self._thread.join(_END_TIME)
        if self._thread.is_alive():
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._serve_once()
        except Exception as error:
            self._failure = error
            _log.exception("the bridge cannot be kept running")
        finally:
            self._first.set()

    def _serve_once(self) -> None:
        started = time.monotonic()
        with self._lock:
            if self._stopping.is_set():
                return
            process = self._process = _Process(self._told, self._tls)
        ready = process.is_ready()
        if ready:
            self._first.set()
        status = process.wait()
        with self._lock:
            self._process = None
        process.let_go()
        if self._stopping.is_set():
            return
        if not self._first.is_set():
            self._failure = EchoShmError(f"the bridge process ended with status {status} before it began; see its log")
            self._stopping.set()
        elif status == 0:
            self._stopping.set()  # the ring was closed
        else:
            _log.warning("the bridge process %d ended with status %d; starting another", process.pid, status)
            if time.monotonic() - started < _SHORT_LIFE:
                self._stopping.wait(_PAUSE)
