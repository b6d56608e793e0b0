"""Decoders: they turn the bytes of a connection into messages, without any I/O. TCP may cut the bytes anywhere.

A decoder never holds more than one frame.
"""

from typing import NamedTuple

from echo_shm.errors import WireError
from echo_shm.net import learner_wire, wire
from echo_shm.net.wire import Frame, Header, Hello


class Samples(NamedTuple):
    """Samples whose bytes have come: leaf after leaf in version 2, sample after sample in version 1.

    version: of the weights that they were made with.
    """

    length: int
    number: int
    data: memoryview
    version: int = 0


class Bye(NamedTuple):
    """The client will send no more samples."""

    text: str


class Request(NamedTuple):
    """What a learner asks for or says, or a client of weights."""

    kind: Frame
    length: int
    number: int
    body: bytes


Event = Hello | Samples | Bye | Request


class _Buffer:
    """Bytes that were received and not decoded yet, in one block of memory."""

    def __init__(self, size: int) -> None:
        self._buffer = memoryview(bytearray(size))
        self._start = self._end = 0

    def space(self) -> memoryview:
        """Where to read the next bytes to. It is not empty, if all complete messages were taken before."""
        if self._start:
            rest = self._end - self._start
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        return self._buffer[self._end :]

    def filled(self, n: int) -> None:
        """Notes that n bytes were read."""
        self._end += n

    def discard(self) -> None:
        """Drops all bytes and frees the memory. Nothing more may be read."""
        self._buffer = memoryview(b"")
        self._start = self._end = 0

    def _here(self) -> int:
        return self._end - self._start

    def _look(self, n: int) -> memoryview:
        return self._buffer[self._start : self._start + n]

    def _take(self, n: int) -> memoryview:
        self._start += n
        return self._buffer[self._start - n : self._start]

    @property
    def is_mid_message(self) -> bool:
        """Whether a part of a message has come."""
        return self._end > self._start


class Decoder(_Buffer):
    """Decodes the bytes of a version 2 client.

    Read into :meth:`space`, call :meth:`filled`, then call :meth:`next_event` until it returns None. An event's
    ``data`` is a view of the buffer, and is valid until the next :meth:`space`.
    """

    def __init__(self, sample_bytes: int, max_frame: int) -> None:
        super().__init__(wire.HELLO_BYTES)
        self._sample_bytes = sample_bytes
        self._most = wire.samples_per_frame(max_frame, sample_bytes)
        self._max_frame = max_frame
        self._greeted = self._of_learner = False
        self._version = 0

    def begin(self) -> None:
        """Makes room for a frame, because the hello was accepted. After it, only frames come."""
        self._make_room(max(self._max_frame, wire.MAX_TEXT))

    def begin_samples(self, sample_bytes: int, max_frame: int) -> None:
        """The same, for other samples than those that it was made for."""
        self._sample_bytes, self._max_frame = sample_bytes, max_frame
        self._most = wire.samples_per_frame(max_frame, sample_bytes)
        self.begin()

    def begin_requests(self) -> None:
        """The same, for a learner, which sends no samples."""
        self._of_learner = True
        self._make_room(learner_wire.MAX_ASK)

    def _make_room(self, body: int) -> None:
        rest = bytes(self._look(self._here()))
        super().__init__(wire.HEADER_BYTES + body)
        self._buffer[: len(rest)] = rest
        self._end = len(rest)

    def next_event(self) -> Event | None:
        """The next complete message, or None."""
        if not self._greeted:
            return self._hello()
        while (header := self._next_header()) is not None and header.kind is Frame.VERSION:
            self._version = header.number
            self._take(wire.HEADER_BYTES)
        if header is None:
            return None
        size = header.length if self._of_learner else self._size_of(header)
        if self._here() < wire.HEADER_BYTES + size:
            return None
        body = self._take(wire.HEADER_BYTES + size)[wire.HEADER_BYTES :]
        if header.kind is Frame.SAMPLES:
            return Samples(header.length, header.number, body, self._version)
        if header.kind is Frame.BYE:
            return Bye(wire.printable(bytes(body)))
        return Request(header.kind, header.length, header.number, bytes(body))

    def _next_header(self) -> Header | None:
        if self._here() < wire.HEADER_BYTES:
            return None
        start = self._look(wire.HEADER_BYTES)
        if self._of_learner:
            return learner_wire.read_learner_header(start)
        header = wire.read_header(start)
        if header.kind is Frame.VERSION and header.length > 0:
            raise WireError(f"a client sends no VERSION frame of {header.length} bytes")
        return header

    def _hello(self) -> Hello | None:
        magic = bytes(self._look(min(self._here(), len(wire.MAGIC))))
        if not wire.MAGIC.startswith(magic):
            raise WireError(f"unexpected magic {magic!r}, expected {wire.MAGIC!r}")
        if self._here() < wire.HELLO_BYTES:
            return None
        self._greeted = True
        return Hello.from_bytes(bytes(self._take(wire.HELLO_BYTES)))

    def _size_of(self, header: Header) -> int:
        if header.kind is Frame.SAMPLES:
            if not 1 <= header.length <= self._most:
                raise WireError(f"a frame of {header.length} samples, expected 1 to {self._most}")
            return header.length * self._sample_bytes
        if header.kind is Frame.BYE and header.length <= wire.MAX_TEXT:
            return header.length
        if header.kind in (Frame.SUBSCRIBE, Frame.NEED) and header.length == 0:
            return 0
        raise WireError(f"a client sends no {header.kind.name} frame of {header.length} bytes")


class DecoderV1(_Buffer):
    """Decodes the bytes of a version 1 client: samples only, one after the other."""

    def __init__(self, sample_bytes: int, max_frame: int) -> None:
        super().__init__(0)
        self._sample_bytes, self._max_frame = sample_bytes, max_frame
        self._number = 0

    def begin(self) -> None:
        """Makes room for a frame, because the client was accepted."""
        super().__init__(max(self._max_frame, self._sample_bytes))

    def next_event(self) -> Samples | None:
        """All samples that are complete, or None."""
        count = self._here() // self._sample_bytes
        if count == 0:
            return None
        self._number += count
        return Samples(count, self._number - count, self._take(count * self._sample_bytes))
