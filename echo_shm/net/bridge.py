"""The bridge: a process of its own that takes samples from connections and puts them into the ring.

One thread, one loop over all sockets, none of which it ever waits for. A slot is claimed only when
its bytes are here, so a client that stalls, in the middle of a frame or anywhere, holds nothing.
When the ring is full the bridge stops reading from those who send, and TCP tells them.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import ssl
import time
from collections import deque
from typing import NamedTuple

from echo_shm._core import ffi, lib
from echo_shm.attachment import Attachment
from echo_shm.errors import WireError, error_from
from echo_shm.net import wire
from echo_shm.net.link import keep_alive
from echo_shm.net.wire import Accept, Bye, Greeting, Hello, Inbound, Inbound1, Refusal, Samples
from echo_shm.segment import Segment

_log = logging.getLogger("echo_shm.bridge")

#: Bytes of samples in the largest frame, about.
FRAME = 1 << 20
#: A client that has not said hello by then is dropped (seconds).
_HELLO_TIME = 10.0
#: How long the loop may wait in the ring for space, with sockets waiting meanwhile (nanoseconds).
_SPACE_NS = 2_000_000
#: Between looks at connections that nothing comes from (seconds).
_LOOK_EVERY = 0.25
#: Frames of one connection that are taken before the next one's turn.
_TURN = 8
#: A connection whose answers (acknowledgements) lie unread beyond this is dropped (bytes).
_MOST_OUT = 1 << 16


class Settings(NamedTuple):
    """What every connection has in common."""

    authkey: bytes | None
    wire_version: int
    max_connections: int


class _Connection:
    """One client."""

    def __init__(self, sock: socket.socket, peer: str, inbound: Inbound | Inbound1, deadline: float) -> None:
        self.sock = sock
        self.peer = peer
        self.inbound = inbound
        self.deadline: float | None = deadline  # for its hello
        self.greeting: Greeting | None = None
        self.remote = -1
        self.client = b""
        self.out = bytearray()
        self.waiting: Samples | None = None  # here, and not all in the ring yet
        self.done = 0  # of them
        self.acknowledged = 0
        self.in_handshake = isinstance(sock, ssl.SSLSocket)
        self.mask = selectors.EVENT_READ
        self.leaving = False  # to be closed when everything is sent

    def has_unread(self) -> bool:
        """Whether TLS has taken bytes from the socket that were not read yet."""
        return isinstance(self.sock, ssl.SSLSocket) and not self.in_handshake and self.sock.pending() > 0


class Bridge:
    """Serves the clients of one ring.

    Args:
        segment: Attached, as a producer's.
        listeners: Bound and listening sockets.
        settings: See there.
        tls: A context to talk TLS with, or None.

    """

    def __init__(
        self, segment: Segment, listeners: list[socket.socket], settings: Settings, tls: ssl.SSLContext | None
    ) -> None:
        self._segment, self._settings, self._tls = segment, settings, tls
        self._spec = segment.spec
        self._max_frame = wire.frame_limit(self._spec.sample_bytes, FRAME)
        self._attachment = Attachment(segment, lib.ES_ROLE_PRODUCER)
        self._ring = self._attachment.ring
        self._attachment.check(lib.es_bridge_begin(self._ring))
        self._selector = selectors.DefaultSelector()
        self._listeners = listeners
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._connections: set[_Connection] = set()
        self._pending: deque[_Connection] = deque()
        self._stopping = False
        self._last_sweep = time.monotonic()
        self._last_ages = 0.0

    def stop(self) -> None:
        """Ends :meth:`run`; from a signal handler or another thread."""
        self._stopping = True

    def watch(self, fd: int) -> None:
        """Stops when that descriptor becomes readable: its other end was closed."""
        self._selector.register(fd, selectors.EVENT_READ)

    def run(self) -> None:
        """Serves until :meth:`stop`, or until the ring is closed; then tells every client."""
        try:
            while not self._stopping and not self._attachment.ring_closed():
                unread = self._unread()
                for key, events in self._selector.select(0 if self._pending or unread else 0.1):
                    if isinstance(key.data, _Connection):
                        self._serve(key.data, events)
                    elif key.fileobj in self._listeners:
                        self._accept(key.fileobj)
                    else:
                        self._stopping = True
                for connection in unread:
                    self._serve(connection, selectors.EVENT_READ)
                self._feed()
                self._look_at_the_clock()
        finally:
            self._say_goodbye()

    def _unread(self) -> list[_Connection]:
        """Those of whose bytes TLS has some in hand: the selector, which sees the socket, does not tell."""
        if self._tls is None:
            return []
        return [c for c in self._connections if c.waiting is None and not c.leaving and c.has_unread()]

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors, say
                _log.warning("cannot accept a connection: %s", error)
                time.sleep(0.01)
                return
            peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
            if len(self._connections) >= self._settings.max_connections:
                _log.warning("%s: refused: %d clients are connected", peer, len(self._connections))
                with contextlib.suppress(OSError):
                    sock.setblocking(False)
                    sock.send(Greeting(False, bytes(32)).to_bytes() + wire.refuse(Refusal.FULL, "too many clients"))
                sock.close()
                continue
            self._begin(sock, peer)

    def _begin(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        inbound: Inbound | Inbound1
        if self._settings.wire_version == 1:
            inbound = Inbound1(self._spec.sample_bytes, self._max_frame)
        else:
            inbound = Inbound(self._spec.sample_bytes, self._max_frame)
        connection = _Connection(sock, peer, inbound, time.monotonic() + _HELLO_TIME)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if self._settings.wire_version == 1:
            connection.deadline = time.monotonic() + _HELLO_TIME if connection.in_handshake else None
            self._open(connection, None, 0)
            connection.out += wire.greeting_1(self._spec)
        else:
            connection.greeting = Greeting(self._settings.authkey is not None, secrets.token_bytes(32))
            connection.out += connection.greeting.to_bytes()
        self._flush(connection)

    def _open(self, connection: _Connection, client: bytes | None, number: int) -> int:
        index: int = lib.es_remote_open(
            self._ring, ffi.NULL if client is None else client, number, connection.peer.encode()[:63]
        )
        if index >= 0:
            connection.remote = index
        return index

    def _drop(self, connection: _Connection, why: str = "") -> None:
        """Ends a connection; what it has committed is remembered."""
        if connection not in self._connections:
            return
        if why:
            _log.warning("%s: %s", connection.peer, why)
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        with contextlib.suppress(ValueError):
            self._pending.remove(connection)
        if connection.remote >= 0:
            lib.es_remote_leave(self._ring, connection.remote, connection.client != b"")
        connection.sock.close()

    def _watch_for(self, connection: _Connection) -> None:
        """Reading stops while samples wait for space, writing is waited for while something is to be written."""
        if connection not in self._connections:
            return
        mask = selectors.EVENT_WRITE if connection.out else 0
        if connection.waiting is None and not connection.leaving:
            mask |= selectors.EVENT_READ
        if mask == connection.mask:
            return
        if connection.mask == 0:
            self._selector.register(connection.sock, mask, connection)
        elif mask == 0:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, mask, connection)
        connection.mask = mask

    # -- in and out

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection not in self._connections:
            return
        try:
            if connection.in_handshake:
                connection.sock.do_handshake()  # type: ignore[attr-defined]
                connection.in_handshake = False
                if connection.greeting is None:
                    connection.deadline = None
            if events & selectors.EVENT_WRITE or connection.out:
                self._flush(connection)
            if events & selectors.EVENT_READ and connection in self._connections and connection.waiting is None:
                self._read(connection)
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except ssl.SSLWantWriteError:
            pass
        except WireError as error:
            self._refuse(connection, Refusal.PROTOCOL, str(error))
        except OSError as error:
            self._drop(connection, f"connection lost: {error}" if connection.inbound.in_the_middle else "")

    def _read(self, connection: _Connection) -> None:
        for _ in range(_TURN):
            try:
                n = connection.sock.recv_into(connection.inbound.space())
            except (ssl.SSLWantReadError, BlockingIOError):
                break
            if n == 0:
                self._drop(connection, "gone in the middle of a frame" if connection.inbound.in_the_middle else "")
                return
            connection.inbound.filled(n)
            if connection.remote >= 0:
                lib.es_remote_count(self._ring, connection.remote, n, 0)
            self._take(connection)
            if connection not in self._connections or connection.waiting is not None or connection.leaving:
                break
        self._acknowledge(connection)

    def _take(self, connection: _Connection) -> None:
        """Takes every event that is complete, or until samples have to wait."""
        while connection.waiting is None and not connection.leaving:
            event = connection.inbound.next_event()
            if event is None:
                return
            if isinstance(event, Samples):
                self._samples(connection, event)
            elif isinstance(event, Hello):
                self._hello(connection, event)
            elif isinstance(event, Bye):
                self._acknowledge(connection)
                connection.client = b""  # it will not come again
                self._drop(connection)
                return

    def _hello(self, connection: _Connection, hello: Hello) -> None:
        key, greeting = self._settings.authkey, connection.greeting
        assert greeting is not None
        if key is not None and not hello.is_signed(key, greeting):
            self._refuse(connection, Refusal.KEY, "it does not know the authkey")
            return
        if hello.spec != wire.spec_hash(self._spec.schema):
            self._refuse(connection, Refusal.SPEC, "its samples are others")
            return
        for other in [c for c in self._connections if c.client == hello.client]:
            self._drop(other, "its client has connected again")
        index = self._open(connection, hello.client, hello.acknowledged)
        if index < 0:
            code = Refusal.BUSY if index == lib.ES_UNSURE else Refusal.FULL
            self._refuse(connection, code, "another bridge serves it" if code == Refusal.BUSY else "too many clients")
            return
        connection.client = hello.client
        committed = lib.es_remote_committed(self._ring, index)
        known = lib.es_remote_known(self._ring, index) != 0
        connection.acknowledged = committed
        connection.deadline = None
        connection.inbound.begin()  # type: ignore[union-attr]
        accept = Accept(self._segment.uuid, self._max_frame, known, self._spec.schema, committed)
        connection.out += accept.to_bytes(key, greeting, hello)
        self._flush(connection)

    def _samples(self, connection: _Connection, samples: Samples) -> None:
        if connection.remote < 0:
            raise WireError("samples before a hello")
        if isinstance(connection.inbound, Inbound):
            committed = lib.es_remote_committed(self._ring, connection.remote)
            if not samples.number <= committed:
                raise WireError(f"samples from {samples.number} on, expected from {committed} on")
            connection.done = min(committed - samples.number, samples.length)
        else:
            connection.done = 0
        lib.es_remote_count(self._ring, connection.remote, 0, 1)
        connection.waiting = samples
        if not self._pending:
            self._put(connection, 0)
        if connection.waiting is not None:
            self._pending.append(connection)
            self._watch_for(connection)

    def _put(self, connection: _Connection, timeout_ns: int) -> None:
        """Puts into the ring what there is room for."""
        samples = connection.waiting
        assert samples is not None
        rows = isinstance(connection.inbound, Inbound1)
        if connection.done < samples.length:
            data = ffi.from_buffer(samples.data)
            code = lib.es_bridge_send(
                self._ring, connection.remote, data, connection.done, samples.length, rows, timeout_ns
            )
            if code > 0:
                connection.done += code
            elif code in (lib.ES_ECLOSED, lib.ES_EEVICTED):
                self._stopping = True
            elif code not in (lib.ES_FULL, lib.ES_TIMEOUT, -4):
                raise error_from(code, self._attachment.what)
        if connection.done == samples.length:
            connection.waiting = None

    def _feed(self) -> None:
        """Those whose samples wait, each in its turn, while there is room."""
        for turn in range(len(self._pending)):
            connection = self._pending.popleft()
            before = connection.done
            self._put(connection, _SPACE_NS if turn == 0 else 0)
            if connection.waiting is not None:
                self._pending.append(connection) if connection.done > before else self._pending.appendleft(connection)
                self._acknowledge(connection)
                if connection.done == before:
                    return
                continue
            try:
                self._take(connection)  # what came with it
            except WireError as error:
                self._refuse(connection, Refusal.PROTOCOL, str(error))
                continue
            if connection in self._connections:
                self._acknowledge(connection)
                self._watch_for(connection)

    def _acknowledge(self, connection: _Connection) -> None:
        if connection not in self._connections or connection.remote < 0:
            return
        committed = lib.es_remote_committed(self._ring, connection.remote)
        if committed <= connection.acknowledged:
            return
        if isinstance(connection.inbound, Inbound1):
            connection.out += wire.ACK_1 * (committed - connection.acknowledged)
        else:
            connection.out += wire.ack(committed)
        connection.acknowledged = committed
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            while connection.out and not connection.in_handshake:
                del connection.out[: connection.sock.send(connection.out)]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            pass
        except OSError:
            self._drop(connection)
            return
        if len(connection.out) > _MOST_OUT + len(self._spec.schema):
            self._drop(connection, "it does not read its acknowledgements")
            return
        if connection.leaving and not connection.out:
            self._drop(connection)
            return
        self._watch_for(connection)

    def _refuse(self, connection: _Connection, code: Refusal, text: str) -> None:
        # The client of a bridge that died asks again until that one is cleaned up after.
        _log.log(logging.DEBUG if code is Refusal.BUSY else logging.WARNING, "%s: refused: %s", connection.peer, text)
        if self._settings.wire_version == 1:
            self._drop(connection)
            return
        if connection.client:
            connection.out += wire.bye(connection.acknowledged, text)
        elif code is Refusal.SPEC:
            connection.out += wire.refuse_spec(self._spec.schema)
        else:
            connection.out += wire.refuse(code, text)
        connection.leaving = True
        connection.deadline = time.monotonic() + 1.0
        self._flush(connection)

    # -- the clock, and the end

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now - self._last_sweep >= self._segment.geometry.reap_interval:
            self._last_sweep = now
            self._attachment.sweep()
        if now - self._last_ages >= _LOOK_EVERY:
            self._last_ages = now
            for connection in list(self._connections):
                if connection.deadline is not None and connection.deadline < now:
                    self._drop(connection, "" if connection.leaving else f"no hello within {_HELLO_TIME} s")
                elif connection.client and lib.es_remote_wanted(self._ring, connection.remote):
                    self._drop(connection, "its client has connected to another bridge")

    def _say_goodbye(self) -> None:
        for connection in list(self._connections):
            if connection.client:
                connection.out += wire.bye(connection.acknowledged, "the server was closed")
                connection.leaving = True
                self._flush(connection)
            self._drop(connection)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._attachment.detach()
