"""One connection to a server, on the client's side: it connects, shakes hands, sends frames, gets acknowledgements."""

import contextlib
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from echo_shm.errors import ConnectionClosedError, SegmentError, SpecMismatchError, WireError
from echo_shm.net import tcp, wire
from echo_shm.net.client.dialing import dial, time_left
from echo_shm.net.client.feed import Feed
from echo_shm.net.client.tls_stream import TlsStream
from echo_shm.net.wire import Accept, Frame, Greeting, Header, Hello, Refusal
from echo_shm.ring.inbox import inbox_that_takes, step_spec
from echo_shm.spec import Spec

#: Most buffers in one sendmsg. (POSIX guarantees 16, Linux allows 1024.)
_MAX_BUFFERS = 512

#: How long the first connection may take by default, and the pause between two tries for it (seconds).
_FIRST_TIME, _BUSY_PAUSE = 10.0, 0.02

#: Bytes of samples that are sent at a time to a version 1 server, which has no frames.
_FRAME_V1 = 1 << 18


#: Most bytes of small frames that are received at a time.
_CHUNK = 4096

#: The frames of weights, but for their parts.
_OF_WEIGHTS = (Frame.SUBSCRIBE, Frame.REFUSE, Frame.NEWS, Frame.END)

_Made = TypeVar("_Made", bound="Connection")


class Options(NamedTuple):
    """What all connections of a client have in common."""

    host: str
    port: int
    spec: Spec
    client: bytes
    authkey: bytes | None
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"Options for {self.peer}"  # without the key

    @property
    def peer(self) -> str:
        """The server's address in messages."""
        return tcp.format_address(self.host, self.port)


class RefusedError(ConnectionClosedError):
    """The server refuses this client, now and later."""


class ForgottenError(RefusedError):
    """The server has forgotten this client, and may have samples of it that were not acknowledged."""


class BusyError(ConnectionClosedError):
    """Another bridge of the server may still serve this client. It should try again soon."""


class Connection:
    """A connection after its handshake.

    Attributes:
        version: The wire version.
        spec: What the server's samples look like. Of a replay's server that is its inbox's spec, if the client's own is
            that of the steps.
        ring: The uuid of the server's segment; empty in version 1.
        known: Whether the server remembers the client.
        committed: The number of the client's first sample that the server does not have.
        max_frame: Most bytes of samples in a frame.
        taken: All samples below this number were taken out of the ring, as the server has said.
        heard: Whether the server has acknowledged anything on this connection.
        feed: What gets the weights that the server sends; None: it must send none.

    """

    def __init__(self, options: Options, acknowledged: int, timeout: float, doubt: bytes = wire.NO_RING) -> None:
        self._options = options
        self._deadline = time.monotonic() + timeout
        self._sock = dial(options.host, options.port, options.tls, self._deadline)
        self._tls: TlsStream | None = None
        self.spec = options.spec
        self.taken = 0
        try:
            self.version = wire.read_version(self._read, options.peer)
            self.ring, self.known, self.committed, self.max_frame = b"", False, acknowledged, _FRAME_V1
            if self.version == 1:
                self._handshake_v1()
            else:
                self._handshake_v2(acknowledged, doubt)
            self._sock.settimeout(None)
            if isinstance(self._sock, ssl.SSLSocket):
                self._tls = TlsStream(self._sock)
        except BaseException:
            self.close()
            raise
        self._inbox, self._chunk = b"", memoryview(bytearray(_CHUNK))
        self.heard = False
        self.feed: Feed | None = None
        self._bye: str | None = None
        self._weights = 0  # the version that the server takes the next samples' weights for

    def _read(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            self._sock.settimeout(time_left(self._deadline))
            try:
                chunk = self._sock.recv(n - len(data))
            except TimeoutError:
                raise TimeoutError(
                    f"{self._options.peer} accepted the connection, but did not answer as an echo server: "
                    "is it one? Does it want tls=?"
                ) from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                chunk = b""
            except ssl.SSLError as error:  # in TLS 1.3 the server refuses a client after the client's handshake
                raise WireError(
                    f"{self._options.peer} ended the TLS connection: {error}. Does it want a certificate of this "
                    "client? tls= has it then: load_cert_chain()"
                ) from None
            if not chunk:
                raise ConnectionClosedError(
                    f"{self._options.peer} closed the connection during the handshake: does it want tls=?"
                    if self._options.tls is None
                    else f"{self._options.peer} closed the connection during the handshake"
                )
            data += chunk
        return bytes(data)

    def _handshake_v1(self) -> None:
        if self._options.authkey is not None:
            raise WireError(
                f"{self._options.peer} speaks wire version 1, which cannot authenticate; authkey= was given"
            )
        theirs = wire.read_specs_v1(self._read)
        mine = [(leaf.dtype.itemsize, leaf.shape) for leaf in self._options.spec.leaves]
        if theirs != mine:
            raise SpecMismatchError(
                f"Server spec mismatch: shapes={[list(shape) for _, shape in theirs]} vs "
                f"expected={[list(shape) for _, shape in mine]}, "
                f"dtype_sizes={[n for n, _ in theirs]} vs expected={[n for n, _ in mine]}"
            )
        if self._options.spec.sample_bytes == 0:
            raise SpecMismatchError("wire version 1 cannot carry samples without bytes")

    def _handshake_v2(self, acknowledged: int, doubt: bytes) -> None:
        options, key = self._options, self._options.authkey
        greeting = Greeting.from_bytes(wire.MAGIC + b"\x02" + self._read(wire.GREETING_REST))
        if greeting.needs_key and key is None:
            raise WireError(f"{options.peer} asks for a key: pass the server's authkey=")
        if key is not None and not greeting.needs_key:
            raise WireError(f"{options.peer} asks for no key, so it does not know this client's: authkey= was given")
        hello = Hello(options.client, acknowledged, secrets.token_bytes(32), self._sends(), doubt)
        if key is not None:
            hello = hello.signed(key, greeting)
        self._sock.sendall(hello.to_bytes())
        header = wire.read_server_header(self._read(wire.HEADER_BYTES), options.spec.schema)
        body = self._read(header.length)
        if header.kind is Frame.REFUSE:
            raise self._refusal(header.number, body)
        if header.kind is not Frame.ACCEPT:
            raise WireError(f"{options.peer} answered the handshake with {header.kind.name}")
        self._accepted(Accept.from_bytes(header, body, key, greeting, hello))

    def _sends(self) -> bytes:
        """What the hello says of what this client sends."""
        return wire.spec_hash(self._options.spec.schema)

    def _accepted(self, accept: Accept) -> None:
        """Notes what the server has said of itself. Raises if it cannot be used."""
        options = self._options
        if accept.schema != options.spec.schema:
            inbox = inbox_that_takes(options.spec, accept.schema)
            if inbox is None:
                raise self._mismatch(accept.schema)
            self.spec = inbox
        if accept.max_frame < self.spec.sample_bytes:
            raise WireError(f"{options.peer} takes frames of {accept.max_frame} bytes, less than a sample")
        self.ring, self.known, self.committed = accept.ring, accept.known, accept.committed
        self.max_frame = accept.max_frame

    def _refusal(self, code: int, body: bytes) -> Exception:
        if code == Refusal.SPEC:
            return self._mismatch(body)
        text = f"{self._options.peer} refused the connection: {wire.printable(body)}"
        if code == Refusal.BUSY:
            return BusyError(text)
        if code == Refusal.FULL:
            return ConnectionClosedError(text)
        if code == Refusal.FORGOTTEN:
            return ForgottenError(text)
        return WireError(text) if code in (Refusal.KEY, Refusal.PROTOCOL) else RefusedError(text)

    def _mismatch(self, schema: bytes) -> Exception:
        try:
            theirs = Spec.from_schema(schema, "its answer")
            if self._options.spec.about is None:
                theirs = step_spec(theirs) or theirs  # this client has steps for a replay
            self._options.spec.check_same(theirs, self._options.peer)
        except SpecMismatchError as error:
            return SpecMismatchError(f"Server spec mismatch: {wire.printable(str(error).encode())}")
        except SegmentError as error:
            return WireError(f"{self._options.peer}: {wire.printable(str(error).encode())}")
        return WireError(f"{self._options.peer} refused samples that are the same as its own")

    # -- after the handshake

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Sends all buffers. Raises OSError if the connection is lost."""
        if self._tls is not None:
            self._tls.send(b"".join(buffers))
            return
        left = [memoryview(b).cast("B") for b in buffers if len(b)]
        while left:
            sent = self._sock.sendmsg(left[:_MAX_BUFFERS])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def send_samples(self, weights: int, number: int, count: int, columns: Sequence[memoryview]) -> None:
        """Sends ``count`` samples, the first of which has that number. Each column has all values of one leaf.

        ``weights``: the version of the weights that they were made with. It gets lost in version 1 of the wire.
        """
        if self.version == 2:
            said, self._weights = self._weights, weights
            news = [wire.version_header(weights)] if weights != said else []
            self.send([*news, wire.samples_header(count, number), *columns])
            return
        sizes, at = [len(column) // count for column in columns], 0
        rows = np.empty((count, sum(sizes)), np.uint8)
        for column, size in zip(columns, sizes, strict=True):
            rows[:, at : at + size] = np.frombuffer(column, np.uint8).reshape(count, size)
            at += size
        self.send([rows.data])

    def next_acknowledged(self, acknowledged: int) -> int:
        """Waits for an acknowledgement. Returns the number of the first sample that is not acknowledged.

        Raises:
            ConnectionClosedError: The server has closed for good.
            OSError, WireError: The connection is lost, or cannot be trusted.

        """
        if self._bye is not None:
            old = self._weights > 0 and self._bye.startswith("no frame starts with")
            why = ". Its version of echo_shm is older, and knows no versions of weights" if old else ""
            raise ConnectionClosedError(f"{self._options.peer} has closed: {self._bye}{why}")
        chunk = self._receive()
        if not chunk:
            if self.version == 1:
                raise ConnectionClosedError(f"{self._options.peer} closed the connection")
            raise ConnectionResetError(f"{self._options.peer} closed the connection")
        if self.version == 1:
            return acknowledged + chunk.count(wire.ACK_V1)
        self._inbox += chunk
        while len(self._inbox) >= wire.HEADER_BYTES:
            header = wire.read_server_header(self._inbox[: wire.HEADER_BYTES])
            if header.kind is Frame.PIECE and self.feed is not None:
                self._receive_piece(header, self.feed)
                continue
            end = wire.HEADER_BYTES + header.length
            if len(self._inbox) < end:
                break
            if header.kind is Frame.BYE:
                self._bye = wire.printable(self._inbox[wire.HEADER_BYTES : end])
                return header.number
            body, self._inbox = self._inbox[wire.HEADER_BYTES : end], self._inbox[end:]
            if header.kind is Frame.TAKEN:
                self.taken = header.number
            elif header.kind is Frame.ACK:
                acknowledged, self.heard = header.number, True
            elif header.kind in _OF_WEIGHTS and self.feed is not None:
                self.feed.heard(header, body)
            else:
                raise WireError(f"{self._options.peer} sent {header.kind.name} after the handshake")
        return acknowledged

    def _receive_piece(self, header: Header, feed: Feed) -> None:
        """Receives a part of a version of weights, straight to where it belongs."""
        begun = self._inbox[wire.HEADER_BYTES : wire.HEADER_BYTES + header.length]
        self._inbox = self._inbox[wire.HEADER_BYTES + len(begun) :]
        for space in feed.spaces(header):
            n = min(len(space), len(begun))
            space[:n], begun = begun[:n], begun[n:]
            left = space[n:]
            while left:
                got = self._receive_into(left, len(left))
                if got == 0:
                    raise ConnectionResetError(f"{self._options.peer} closed the connection")
                left = left[got:]
        feed.filled()

    def _receive(self) -> bytes:
        """Waits for bytes and returns them; none at the end of the connection."""
        return bytes(self._chunk[: self._receive_into(self._chunk)])

    def _receive_into(self, space: memoryview, expected: int = 0) -> int:
        """Waits for bytes: how many. Times out, because a version 2 server sends something every few seconds.

        ``expected``: as for :meth:`TlsStream.receive_into`.
        """
        silence = wire.SILENCE if self.version == 2 else None
        silent = f"nothing came from {self._options.peer} for {silence} s"
        if self._tls is not None:
            try:
                return self._tls.receive_into(space, silence, expected)
            except TimeoutError:
                raise TimeoutError(silent) from None
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        if not waiting.poll(None if silence is None else silence * 1000):
            raise TimeoutError(silent)
        return self._sock.recv_into(space)

    def shutdown(self) -> None:
        """Makes all calls of other threads end. The descriptor stays open until :meth:`close`."""
        with contextlib.suppress(OSError):
            # SSLSocket's own shutdown() would send later bytes unencrypted.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the descriptor. No other thread may use it then."""
        self._sock.close()


def open_first(make: Callable[[float], _Made], timeout: float | None) -> _Made:
    """A new client's first connection, within ``timeout`` seconds. It tries again while the server is busy.

    ``make`` tries to make it, within so many seconds.
    """
    end = time.monotonic() + (_FIRST_TIME if timeout is None else timeout)
    while True:
        try:
            return make(max(0.01, end - time.monotonic()))
        except BusyError:
            if time.monotonic() > end:
                raise
        time.sleep(_BUSY_PAUSE)  # the other bridge is reaped soon, and nothing tells when
