"""A connection to a client, as a bridge has it: a non-blocking socket, its decoder, and the bytes to send."""

import contextlib
import selectors
import socket
import ssl
from collections import deque

from echo_shm.net.bridge.decoder import Decoder, DecoderV1, Samples
from echo_shm.net.bridge.tls_records import TlsRecords
from echo_shm.net.wire import Greeting

#: Where bytes are read to that nobody uses.
_SCRATCH = bytearray(1 << 16)
#: Most bytes of acknowledgements that a client may leave unread.
MAX_OUT = 1 << 16
#: Most bytes of batches that are sent at a time, before other connections get their turn, and most buffers at once.
_MAX_BURST, _MAX_BUFFERS = 8 << 20, 512
#: Most bytes of small buffers that are joined for TLS.
_TLS_JOINED = 1 << 15


class Connection:
    """One connection. It knows nothing of the ring.

    Attributes:
        peer: The client's address, for messages.
        decoder: The bytes that were received and not decoded yet.
        out: The bytes to send, but for batches.
        batch_bytes: How many bytes of batches are to be sent.
        is_mid_batch: Whether a part of a batch was sent. Nothing can be said before the rest of it.
        deadline: When to end the connection, on the clock of ``time.monotonic()``, or None.
        greeting: What was sent first; None in version 1.
        client: The client's id once it is accepted; empty in version 1.
        remote: The index of the client's entry in its ring's table of remotes, or -1.
        samples: Samples that were received and are not all in the ring yet; ``done`` of them are.
        acknowledged: The last number that was acknowledged; of a learner how many batches are done.
        taken: The last number below which all samples were said to be taken out of the ring.
        closing: The connection only sends why it ends. What the client sends is dropped.
        watched: The events that the selector watches for.

    """

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        decoder: Decoder | DecoderV1,
        deadline: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = sock
        self._tls = None if tls is None else TlsRecords(sock, tls)
        self.peer = peer
        self.decoder = decoder
        self.out = bytearray()
        self.deadline: float | None = deadline
        self.greeting: Greeting | None = None
        self.client = b""
        self.remote = -1
        self.samples: Samples | None = None
        self.done = 0
        self.acknowledged = 0
        self.taken = 0
        self.closing = False
        self.watched = 0
        self.in_handshake = tls is not None
        self._handshake_wants = selectors.EVENT_READ
        self._end_sent = False
        # Batches to send: the number of each, and what is left of it. The first one may have been sent in part.
        self._batches: deque[tuple[int, list[memoryview]]] = deque()
        self.is_mid_batch = False
        self.batch_bytes = 0

    @property
    def version(self) -> int:
        """The wire version."""
        return 1 if isinstance(self.decoder, DecoderV1) else 2

    @property
    def events(self) -> int:
        """The events to watch for. While samples wait or a client does not read, nothing is read: TCP slows it down."""
        if self.in_handshake:
            return self._handshake_wants
        events = 0
        if self._has_unsent:
            events |= selectors.EVENT_WRITE
        if self._reads:
            events |= selectors.EVENT_READ
        return events

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Makes the selector watch for what the connection can do next."""
        events = self.events
        if events == self.watched:
            return
        if self.watched == 0:
            selector.register(self.sock, events, self)
        elif events == 0:
            selector.unregister(self.sock)
        else:
            selector.modify(self.sock, events, self)
        self.watched = events

    @property
    def is_backed_up(self) -> bool:
        """Whether a version 1 client must read its acknowledgements, a byte for each sample, before it sends more."""
        return self.version == 1 and len(self.out) > MAX_OUT

    @property
    def has_unread(self) -> bool:
        """Whether TLS holds bytes that were not read yet. The selector cannot see them."""
        return not self.in_handshake and self._reads and self._tls is not None and self._tls.has_unread

    @property
    def _reads(self) -> bool:
        """Whether what the client sends is read."""
        return self.samples is None and not self.is_backed_up and not (self._tls is not None and self._tls.is_backed_up)

    @property
    def _has_unsent(self) -> bool:
        return bool(self.out or self._batches) or (self._tls is not None and self._tls.has_unsent)

    def receive(self) -> int | None:
        """Reads what is available. Returns the number of bytes; 0 at the end; None if nothing is available now."""
        if self._tls is not None and self._tls.is_backed_up:
            return None
        space = memoryview(_SCRATCH) if self.closing else self.decoder.space()
        try:
            n = (self._tls or self.sock).recv_into(space)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        if not self.closing:
            self.decoder.filled(n)
        return n

    def add_batch(self, number: int, views: list[memoryview]) -> None:
        """Sends a batch behind those that were added before. The memory must stay as it is until it is sent."""
        left = [view for view in views if len(view)]
        self._batches.append((number, left))
        self.batch_bytes += sum(map(len, left))

    def is_sending(self, number: int) -> bool:
        """Whether that batch is still to be sent, or a part of it."""
        return any(one == number for one, _ in self._batches)

    def drop_batches(self) -> None:
        """Sends no more batches, but for the rest of one that was sent in part."""
        while len(self._batches) > self.is_mid_batch:
            self.batch_bytes -= sum(map(len, self._batches.pop()[1]))

    def send(self) -> None:
        """Sends as much as the socket takes. If the connection is closing, ends it after the last byte."""
        try:
            burst = 0
            while self._has_unsent and burst < _MAX_BURST:
                if self._batches and (self.is_mid_batch or not self.out):
                    burst += self._send_batch()
                else:  # perhaps of nothing: then what is encrypted already is sent
                    del self.out[: (self._tls or self.sock).send(self.out)]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return
        if self._has_unsent:
            return
        if self.closing and not self._end_sent:
            # The client ends the connection. Closing it with bytes unread would reset it, and lose what was sent.
            self._end_sent = True
            if self._tls is None:
                self.sock.shutdown(socket.SHUT_WR)

    def _send_batch(self) -> int:
        """Sends a part of the first batch: how many bytes."""
        left = self._batches[0][1]
        if self._tls is not None:
            _join(left)
            sent = self._tls.send(left[0])
        else:
            sent = self.sock.sendmsg(left[:_MAX_BUFFERS])
        rest, self.is_mid_batch = sent, True
        self.batch_bytes -= sent
        while left and rest >= len(left[0]):
            rest -= len(left.pop(0))
        if left:
            left[0] = left[0][rest:]
        else:
            self._batches.popleft()
            self.is_mid_batch = False
        return sent

    def shake_hands(self) -> bool:
        """Goes on with the TLS handshake. Returns whether it is complete, or not needed."""
        if self.in_handshake:
            assert self._tls is not None
            try:
                self._tls.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                reading = isinstance(error, ssl.SSLWantReadError)
                self._handshake_wants = selectors.EVENT_READ if reading else selectors.EVENT_WRITE
                return False
            self.in_handshake = False
        return True

    def start_closing(self, last_bytes: bytes, deadline: float) -> None:
        """Sends ``last_bytes``, and drops everything else that comes or has come."""
        self.out += last_bytes
        self.deadline, self.closing, self.samples = deadline, True, None
        self.decoder.discard()
        self.drop_batches()

    def close(self) -> None:
        """Closes the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()


def _join(left: list[memoryview]) -> None:
    """Joins the buffers at the front if they are small: each that TLS gets is a record, and wakes the other side."""
    count = size = 0
    while count < len(left) and size + len(left[count]) <= _TLS_JOINED:
        size += len(left[count])
        count += 1
    if count > 1:
        left[:count] = [memoryview(b"".join(left[:count]))]
