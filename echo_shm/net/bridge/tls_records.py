"""TLS as a bridge speaks it: its records go to the system, and come from it, several at a time."""

import contextlib
import socket
import ssl
from typing import Any

#: Most bytes that one call encrypts, or gets from the system. More of them leave the processor's nearest caches before
#: the system copies them.
_AT_ONCE = 1 << 16

#: Most bytes that one call of :meth:`TlsRecords.send` takes, so that whoever counts what it sends can end in time.
_MOST = 1 << 20

#: Most bytes that may be encrypted and not sent, beyond which nothing is read.
_MOST_UNSENT = 1 << 18

#: What came from the system. One thread has all connections, and decrypts it before it gets more.
_CAME = memoryview(bytearray(_AT_ONCE))


class TlsRecords:
    """The server's side of TLS over a non-blocking socket.

    An :class:`ssl.SSLSocket` gives each record of 16 KiB to the system by itself: each costs a call, and packets of its
    own. This one encrypts some into memory first. Errors are as there: ``SSLWantReadError`` and ``SSLWantWriteError``
    say that nothing can be done before the socket is ready.

    Args:
        sock: A connected socket, which does not block. Whoever has made it closes it.
        context: For the server's side.

    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._came, self._made = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._made, server_side=True)
        self._unsent = memoryview(b"")
        #: Whether there may be whole records that were not read yet. No event of the socket says so.
        self.has_unread = False

    @property
    def has_unsent(self) -> bool:
        """Whether something is encrypted, and not sent yet: the next :meth:`send` does that first."""
        return len(self._unsent) > 0 or self._made.pending > 0

    def do_handshake(self) -> None:
        """Goes on with the handshake, and returns once it is complete.

        Raises:
            ssl.SSLError: The client does not speak TLS in this way. It was told.
            OSError: The connection is lost.

        """
        while True:
            self._flush()
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except ssl.SSLError:
                self._tell_why()
                raise
        self._sends_all()

    def recv_into(self, space: memoryview) -> int:
        """Decrypts what has come: how many bytes; 0 at the end of the connection.

        It asks the system once: whoever sends what is no data, as new keys, does not keep others waiting.
        """
        total, has_asked, self.has_unread = 0, False, False
        while total < len(space):
            try:
                n = self._decrypt(space[total:])
            except ssl.SSLWantReadError:
                if total:
                    return total
                if has_asked:
                    raise
                self._fill()
                has_asked = True
                continue
            except OSError:
                if not total:
                    raise
                n = 0  # what came before it counts, and the next call finds the end
            if not n:
                break
            total += n
        self.has_unread = total > 0
        return total

    def _decrypt(self, space: memoryview) -> int:
        """What there is of one record."""
        try:
            n: Any = self._tls.read(len(space), space)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        except ssl.SSLWantReadError:
            with contextlib.suppress(OSError):  # the connection is lost: the next call that sends says so
                self._sends_all()  # TLS answers by itself, as where keys change
            raise
        except ssl.SSLError:
            self._tell_why()
            raise
        return int(n)

    @property
    def is_backed_up(self) -> bool:
        """Whether the client must read before it is read from: TLS has answered much that it does not take."""
        return len(self._unsent) + self._made.pending > _MOST_UNSENT

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypts as much as the system takes, and little more: how many bytes. The next call sends the rest first."""
        self._flush()
        count = 0
        with memoryview(data) as whole:
            most = min(len(whole), _MOST)
            while count < most and not self.has_unsent:
                end = min(count + _AT_ONCE, most)
                while count < end:
                    count += self._tls.write(whole[count:end])
                self._sends_all()
        return count

    def _fill(self) -> None:
        """Gets what has come from the system."""
        try:
            n = self._sock.recv_into(_CAME)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        if n:
            self._came.write(_CAME[:n])
        else:
            self._came.write_eof()

    def _flush(self) -> None:
        """Sends all that is encrypted."""
        if not self._sends_all():
            raise ssl.SSLWantWriteError

    def _sends_all(self) -> bool:
        """The same as far as the system takes it now. Whether that was all."""
        while self.has_unsent:
            if not self._unsent:
                self._unsent = memoryview(self._made.read())
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    def _tell_why(self) -> None:
        """Sends the alert that says what was wrong with what has come. The connection is of no use any more."""
        with contextlib.suppress(OSError):
            self._flush()
