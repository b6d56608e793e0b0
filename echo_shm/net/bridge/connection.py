"""A client as a bridge has it: a socket that nobody waits for, what has come from it, and what is to go to it."""

import contextlib
import selectors
import socket
import ssl

from echo_shm.net.bridge.decoder import Decoder, DecoderV1, Samples
from echo_shm.net.wire import Greeting

#: Where bytes go that nobody reads.
_SCRATCH = bytearray(1 << 16)
#: Answers (acknowledgements) that may lie unread by a client (bytes).
MAX_OUT = 1 << 16


class Connection:
    """One client; knows nothing of the ring.

    Attributes:
        peer: Its address, for messages.
        decoder: What has come and was not taken.
        out: What is to be sent.
        deadline: When to end it (on the clock of ``time.monotonic()``), or None.
        greeting: What it was told first, in version 2.
        client: Its id, once it was accepted; empty in version 1.
        remote: Its entry in the ring's table, or -1.
        waiting: Samples that are here and not all in the ring yet; ``done`` of them are.
        acknowledged: What it was told is in the ring.
        leaving: It is only told why it must go; what it sends is thrown away.

    """

    def __init__(self, sock: socket.socket, peer: str, decoder: Decoder | DecoderV1, deadline: float) -> None:
        self.sock = sock
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
        self.closing = False
        self.watched = 0  # what the selector watches for
        self.in_handshake = isinstance(sock, ssl.SSLSocket)
        self._tls_wants = selectors.EVENT_READ if self.in_handshake else 0
        self._ended = False  # nothing more goes out

    @property
    def version(self) -> int:
        """Of the wire."""
        return 1 if isinstance(self.decoder, DecoderV1) else 2

    @property
    def events(self) -> int:
        """What the selector should watch for. Reading stops while samples, or answers, wait: TCP tells the client."""
        if self.in_handshake:
            return self._tls_wants
        events = self._tls_wants
        if self.out:
            events |= selectors.EVENT_WRITE
        if self.samples is None and not self.is_backed_up:
            events |= selectors.EVENT_READ
        return events

    @property
    def is_backed_up(self) -> bool:
        """Whether a version 1 client is to read its acknowledgements, a byte for each sample, before it sends more."""
        return self.version == 1 and len(self.out) > MAX_OUT

    @property
    def has_unread(self) -> bool:
        """Whether TLS has taken bytes from the socket that were not read yet: the selector does not tell."""
        if (
            not isinstance(self.sock, ssl.SSLSocket)
            or self.in_handshake
            or self.samples is not None
            or self.is_backed_up
        ):
            return False
        return self.sock.pending() > 0

    def receive(self) -> int | None:
        """Takes what is here into ``inbound``: how many bytes; 0 at the end, None when nothing is here now."""
        space = memoryview(_SCRATCH) if self.closing else self.decoder.space()
        try:
            n = self.sock.recv_into(space)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self._tls_wants = selectors.EVENT_WRITE
            return None
        self._tls_wants = 0
        if not self.closing:
            self.decoder.filled(n)
        return n

    def send(self) -> None:
        """Sends of ``out`` what the socket takes, and after the last of one that leaves, the end."""
        try:
            while self.out:
                del self.out[: self.sock.send(self.out)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if self.closing and not self._ended:
            # Its own end is waited for: to close with bytes unread would reset the connection, and lose what was sent.
            self._ended = True
            if not isinstance(self.sock, ssl.SSLSocket):
                self.sock.shutdown(socket.SHUT_WR)

    def shake_hands(self) -> bool:
        """Goes on with setting TLS up; whether that is done."""
        if self.in_handshake:
            assert isinstance(self.sock, ssl.SSLSocket)
            try:
                self.sock.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                reading = isinstance(error, ssl.SSLWantReadError)
                self._tls_wants = selectors.EVENT_READ if reading else selectors.EVENT_WRITE
                return False
            self.in_handshake, self._tls_wants = False, 0
        return True

    def start_closing(self, last_words: bytes, deadline: float) -> None:
        """From here on it is only told why; whatever has come or comes is thrown away."""
        self.out += last_words
        self.deadline, self.closing, self.samples = deadline, True, None
        self.decoder.discard()

    def close(self) -> None:
        """Closes the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()
