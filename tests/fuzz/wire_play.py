"""Peers that lie: how a server takes a client's bytes, and a client a server's.

All choices come from ``below(n)``, a number from 0 to n - 1. It takes them from
a fuzzer's bytes, from Hypothesis or from a random generator.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from fuzz.choices import Below

from echo_shm import EchoShmError, Replay, Server
from echo_shm import Table as QueueTable
from echo_shm.net import learner_wire, weights_wire, wire
from echo_shm.net.bridge.admission import Settings
from echo_shm.net.bridge.bridge import Bridge
from echo_shm.net.bridge.decoder import Bye, Decoder, DecoderV1, Request, Samples
from echo_shm.net.client import connection
from echo_shm.net.client.connection import Connection, Options
from echo_shm.net.client.feed import Feed
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Accept, Greeting, Hello
from echo_shm.replay import Queue
from echo_shm.ring import lockfile
from echo_shm.ring.batch_names import BatchRing, batch_ring
from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment
from echo_shm.spec import Spec

EXAMPLE = {"a": np.zeros((), np.int32), "b": np.zeros(3, np.uint8)}
SPEC = Spec.from_example(EXAMPLE)
SIZE = SPEC.sample_bytes
#: The largest frame of the parser that is tried alone (bytes of samples).
MOST = 5 * SIZE

_NUMBERS = [0, 1, 2, 5, 6, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


# --- making bytes ---------------------------------------------------------------


def _bytes(below: Below, n: int) -> bytes:
    return bytes(below(256) for _ in range(n))


def _number(below: Below, right: int, most: int) -> int:
    if below(6):
        return right & most
    return (_NUMBERS[below(len(_NUMBERS))] + below(3) - 1) & most


def _header(below: Below, kind: int, length: int, number: int) -> bytes:
    return struct.pack(
        "<BBHIQ",
        kind if below(12) else below(22),
        0 if below(30) else below(256),
        0 if below(30) else below(65536),
        _number(below, length, 2**32 - 1),
        _number(below, number, 2**64 - 1),
    )


def _damaged(below: Below, data: bytes) -> bytes:
    """The same bytes in most cases; else a few of them are changed."""
    if below(10) or not data:
        return data
    at = below(len(data))
    return data[:at] + _bytes(below, below(3)) + data[at + below(2) :]


def draw_client(below: Below, client: bytes = b"c" * 16) -> bytes:
    """The bytes of a version 2 client, often with faults."""
    hello = Hello(client, _number(below, 0, 2**64 - 1), b"n" * 32, wire.spec_hash(SPEC.schema))
    if below(20) == 0:
        hello = hello._replace(spec=bytes(32))
    if below(5) == 0:
        hello = hello._replace(doubt=_bytes(below, 16))
    stream, number = _damaged(below, hello.to_bytes()), hello.acknowledged
    for _ in range(below(6)):
        kind, count = below(10), 1 + below(5)
        if kind == 0:
            text = _bytes(below, below(20))
            stream += _header(below, wire.Frame.BYE, len(text), number) + text
        elif kind == 1:
            stream += _bytes(below, below(40))
        elif kind == 2:
            stream += _header(below, wire.Frame.VERSION, 0, below(4))
        elif kind > 7:
            stream += b"" if below(3) else _header(below, wire.Frame.SUBSCRIBE, 0, 0)
            stream += _header(below, wire.Frame.NEED, 0, below(4))
        else:
            stream += _header(below, wire.Frame.SAMPLES, count, number) + _damaged(below, bytes(count * SIZE))
            number += count
    return stream[: below(len(stream) + 1)] if below(4) == 0 else stream


def draw_learner(below: Below, client: bytes = b"c" * 16) -> bytes:
    """The bytes of a replay's learner, often with faults."""
    hello = Hello(client, 0, b"n" * 32, learner_wire.LEARNER if below(20) else wire.spec_hash(SPEC.schema))
    stream = _damaged(below, hello.to_bytes())
    ask = Ask(below(8) // 7, min(1, below(8)), 1 + below(4), bytes(16), tuple(below(9) for _ in range(below(4))))
    if below(20) == 0:
        ask = ask._replace(rank=below(3), world_size=(0, 2, 33)[below(3)])
    frames = [ask.to_bytes()] if below(8) else []
    for _ in range(below(8)):
        kind = below(9)
        if kind == 0:
            frames.append(learner_wire.info())
        elif kind == 1:
            frames.append(_bytes(below, below(40)))
        elif kind == 2:
            frames.append(_header(below, wire.Frame.GIVE_BACK, 0, below(6)))
        elif kind == 3 and below(3) == 0:
            frames.append(wire.bye(0, "over"))
        elif kind == 4 and below(3) == 0:
            frames.append(ask.to_bytes())
        elif kind < 7:
            frames.append(_header(below, wire.Frame.WANT, 0, below(6)))
        else:
            frames.append(_header(below, wire.Frame.DONE, 0, below(6)))
    stream += b"".join(_damaged(below, frame) for frame in frames)
    return stream[: below(len(stream) + 1)] if below(4) == 0 else stream


def draw_weights(below: Below) -> list[bytes]:
    """What a server says of weights to a client that has subscribed, and asks for versions, often with faults."""
    frames, version = [weights_wire.described(SPEC.schema, below(3)) if below(8) else b""], below(3)
    for _ in range(below(6)):
        kind, left = below(8), SIZE
        if kind == 0:
            frames.append((weights_wire.there_are_none("none"), weights_wire.end(version), wire.ack(0))[below(3)])
        elif kind < 3:
            frames.append(weights_wire.news(version + below(2)))
        else:
            version += below(8) > 0
            while left > 0 and below(30):
                n = min(left, below(SIZE + 1) + (below(30) > 0))
                frames.append(_header(below, wire.Frame.PIECE, n, version) + bytes([version]) * n)
                left -= n
    return [_damaged(below, frame) for frame in frames]


def draw_server(below: Below) -> Callable[[bytes], bytes]:
    """The bytes of a server, often with faults, as a function: b"" gives the greeting, a hello the answer."""
    kind, greeting = below(4), Greeting(below(8) == 0, bytes(32))
    ring, known, committed = bytes(16), below(2) == 1, _number(below, below(3), 2**64 - 1)
    schema = _damaged(below, SPEC.schema)
    texts = [_bytes(below, below(30)) for _ in range(2)]
    headers = [_header(below, 1 + below(5), len(text), committed) for text in texts]
    of_weights = b"".join(draw_weights(below)) if below(2) else b""

    def answer(hello: bytes) -> bytes:
        with contextlib.suppress(EchoShmError, struct.error):
            said = Hello.from_bytes(hello)
            if kind == 0:
                accept = Accept(ring, _number(below, MOST, 2**32 - 1), known, schema, committed)
                return _damaged(below, accept.to_bytes(None, greeting, said)) + of_weights + headers[0] + texts[0]
            if kind == 1:
                return wire.refuse_spec(schema)
        return headers[0] + texts[0] + headers[1] + texts[1]

    start = _damaged(below, greeting.to_bytes() if below(8) else wire.greeting_v1(SPEC))
    return lambda hello: start if hello == b"" else answer(hello)


# --- the parser -----------------------------------------------------------------


def _shown(text: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in text.decode(errors="replace"))


def expected(stream: bytes) -> tuple[list[Any], bool]:
    """What WIRE.md says of a client's whole stream: its events, and whether an error comes after them."""
    if not b"ECHO".startswith(stream[:4]):
        return [], True
    if len(stream) < 144:
        return [], False
    if stream[4:8] != b"\x02\0\0\0":
        return [], True
    acknowledged = int.from_bytes(stream[24:32], "little")
    if acknowledged > 2**62:
        return [], True
    events: list[Any] = [
        Hello(stream[8:24], acknowledged, stream[32:64], stream[64:96], stream[96:112], stream[112:144])
    ]
    at, version = 144, 0
    while len(stream) >= at + 16:
        kind, flags, zero, length, number = struct.unpack_from("<BBHIQ", stream, at)
        most = {3: MOST // SIZE, 5: 4096, 16: 0, 17: 0, 19: 0}.get(kind, -1)
        if flags or zero or number > 2**62 or not (kind == 3) <= length <= most:
            return events, True
        if kind == 16:
            version, at = number, at + 16
            continue
        size = length * SIZE if kind == 3 else length
        if len(stream) < at + 16 + size:
            break
        body = stream[at + 16 : at + 16 + size]
        if kind == 5:
            events.append(Bye(_shown(body)))
        else:
            request = Request(wire.Frame(kind), length, number, body)
            events.append((length, number, body, version) if kind == 3 else request)
        at += 16 + size
    return events, False


def expected_of_learner(stream: bytes) -> tuple[list[Any], bool]:
    """The same of what a learner sends after its hello."""
    events: list[Any] = []
    at = 0
    while len(stream) >= at + 16:
        kind, flags, zero, length, number = struct.unpack_from("<BBHIQ", stream, at)
        most = {5: 4096, 7: 0, 8: 65536, 9: 0, 10: 0, 15: 0}.get(kind, -1)
        if flags or zero or number > 2**62 or length > most:
            return events, True
        if len(stream) < at + 16 + length:
            break
        body = stream[at + 16 : at + 16 + length]
        events.append(Bye(_shown(body)) if kind == 5 else Request(wire.Frame(kind), length, number, body))
        at += 16 + length
    return events, False


def feed(decoder: Decoder | DecoderV1, stream: bytes, sizes: Iterator[int], events: list[Any]) -> None:
    """Gives a stream to a parser in pieces of those sizes; adds the parser's events to ``events``."""
    at = 0
    while at < len(stream):
        space = decoder.space()
        n = min(len(space), len(stream) - at, next(sizes, len(stream)))
        assert n > 0
        space[:n] = stream[at : at + n]
        at += n
        decoder.filled(n)
        while (event := decoder.next_event()) is not None:
            if isinstance(event, Hello):
                assert isinstance(decoder, Decoder)
                decoder.begin()
            events.append((*event[:2], bytes(event.data), event.version) if isinstance(event, Samples) else event)


def _sizes(below: Below, most: int) -> Iterator[int]:
    while True:
        yield 1 + below(most)


def parse(stream: bytes, below: Below) -> int:
    """Feeds a stream in pieces; asserts that its events are the expected ones. Returns how many there are."""
    decoder, events, failed = Decoder(SIZE, MOST), [], False
    try:
        feed(decoder, stream, _sizes(below, 200), events)
    except wire.WireError:
        failed = True
    assert (events, failed) == expected(stream)
    assert len(decoder._buffer) <= wire.HEADER_BYTES + wire.MAX_TEXT
    return len(events)


def parse_learner(stream: bytes, below: Below) -> int:
    """The same for a learner; the stream is what follows its hello."""
    decoder, events, failed = Decoder(SIZE, MOST), [], False
    decoder._greeted = True
    decoder.begin_requests()
    try:
        feed(decoder, stream, _sizes(below, 200), events)
    except wire.WireError:
        failed = True
    assert (events, failed) == expected_of_learner(stream)
    assert len(decoder._buffer) <= wire.HEADER_BYTES + learner_wire.MAX_ASK
    return len(events)


def parse_1(stream: bytes, below: Below) -> None:
    """The same for version 1, in which any bytes are samples."""
    decoder, events = DecoderV1(SIZE, MOST), []
    decoder.begin()
    feed(decoder, stream, _sizes(below, 30), events)
    assert b"".join(data for _, _, data, _ in events) == stream[: len(stream) - len(stream) % SIZE]
    assert [number for _, number, _, _ in events] == [sum(n for n, *_ in events[:i]) for i in range(len(events))]
    assert all(len(data) == count * SIZE for count, _, data, _ in events)


# --- a client at such a server ----------------------------------------------------


def connect(said: Callable[[bytes], bytes], key: bytes | None = None) -> bool:
    """Connects a client to a server that says this; returns whether the client accepts the server."""
    near, far = socket.socketpair()
    options = Options("fuzzed", 1, SPEC, b"c" * 16, key, None)
    far.sendall(said(b""))

    class Near:
        """The client's socket. Its peer answers when the hello is sent, and hangs up when it has no more to say."""

        def sendall(self, data: bytes) -> None:
            near.sendall(data)
            far.sendall(said(far.recv(4096)))

        def recv(self, n: int) -> bytes:
            with contextlib.suppress(BlockingIOError):
                return near.recv(n, socket.MSG_DONTWAIT)
            far.shutdown(socket.SHUT_WR)
            return near.recv(n)

        def settimeout(self, seconds: float | None) -> None:
            """Does nothing: no call waits here."""

        def __getattr__(self, name: str) -> Any:
            return getattr(near, name)

    with mock.patch.object(connection, "dial", return_value=Near()), near, far:
        try:
            it = Connection(options, 0, 20)
        except (EchoShmError, OSError):
            return False
        far.shutdown(socket.SHUT_WR)
        it.feed = _subscribed(it.ring)
        acknowledged = 0
        with contextlib.suppress(EchoShmError, OSError):
            while True:
                acknowledged = it.next_acknowledged(acknowledged)
        assert it.max_frame >= SIZE
    return True


def _subscribed(ring: bytes) -> Feed:
    """The feed of a client that has subscribed."""
    feed = Feed("fuzzed", changed := threading.Condition(), lambda: None, lambda: None, lambda version: None)
    feed._is_subscribed = True
    with changed:
        feed.begin(ring)
    feed.note_user()
    return feed


def hear_weights(below: Below) -> int:
    """A client hears what a server says of weights, frame by frame. What comes is whole and in order: how many."""
    feed, came = _subscribed(bytes(16)), [0]
    with contextlib.suppress(wire.WireError):
        for frame in draw_weights(below):
            header, body = wire.read_server_header(frame.ljust(16, b"x")), frame[16:]
            if header.kind is wire.Frame.PIECE:
                spaces = feed.spaces(header)
                assert sum(map(len, spaces)) == header.length
                for space in spaces:
                    space[:] = bytes([header.number % 256]) * len(space)
                feed.filled()
            elif header.kind is not wire.Frame.ACK:
                feed.heard(header, body)
            if feed.held is not None and feed.number != came[-1]:
                assert came[-1] < feed.number <= feed.latest
                data = b"".join(array.tobytes() for array in feed.held.arrays)
                # A server may describe other weights than ours, of another size.
                assert data == bytes([feed.number % 256]) * len(data)
                feed.note_taken(feed.held)
                came.append(feed.number)
    return len(came) - 1


# --- a bridge with such clients -----------------------------------------------------


class _Bridged:
    """A bridge in this process, for clients to connect to."""

    bridge: Bridge

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = self._listener.getsockname()

    def _disturb(self, below: Below, draw: Callable[[Below, bytes], bytes]) -> None:
        """Several clients speak by turns; afterwards the bridge has no connection left."""
        clients = [(self._connect(), draw(below, bytes([65 + below(4)]) * 16)) for _ in range(1 + below(3))]
        ends = [0] * len(clients)
        for _ in range(below(12)):
            who = below(len(clients))
            sock, stream = clients[who]
            at, ends[who] = ends[who], ends[who] + below(150)
            with contextlib.suppress(OSError):
                sock.sendall(stream[at : ends[who]])
            self._turn()
        for sock, _ in clients:
            if below(2):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        self._until_alone()

    def _until_alone(self) -> None:
        while self.bridge._pending or self.bridge._clients:
            self._turn()

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=20)

    def _turn(self) -> None:
        self.bridge.run_once(0)


class ReplayTable(_Bridged):
    """A replay of which each item is handed out once, and its bridge."""

    def __init__(self) -> None:
        super().__init__()
        self._open()

    def _open(self) -> None:
        self.replay = Replay(EXAMPLE, 64, [QueueTable("q", rate_limiter=Queue(64))])
        self.bridge = Bridge(
            Segment.attach(self.replay.handle.inbox.name), [self._listener], Settings(None, 2, 8), None
        )
        self._sent = self._clients = 0
        self._here: set[int] = set()

    def close(self) -> None:
        """Ends the bridge and the replay."""
        self.bridge.close()
        self.replay.close()

    def play(self, below: Below) -> None:
        """Learners speak by turns; afterwards a good one gets what they have not acknowledged."""
        if len(self._rings()) > 1:  # the others take most items
            self.close()
            super().__init__()
            self._open()
        for _ in range(below(4)):
            self._add()
        self._disturb(below, draw_learner)
        assert self.replay.num_steps >= 0  # what is asked for is made in its calls
        self._add()
        self._good_learner()

    def _add(self) -> None:
        if self.replay.info().size < 60:  # type: ignore[union-attr]
            self.replay.add({"a": np.array(self._sent, np.int32), "b": np.full(3, self._sent % 256, np.uint8)})
            self._sent += 1

    def _good_learner(self) -> None:
        """Takes all that there is, and acknowledges it."""
        self._clients += 1
        hello = Hello(struct.pack("<QQ", 1, self._clients), 0, bytes(32), learner_wire.LEARNER)
        said, at, numbers = b"", 0, []
        with self._connect() as sock:
            sock.sendall(hello.to_bytes() + Ask(0, 1, 2).to_bytes() + learner_wire.want(1000))
            sock.setblocking(False)
            deadline = time.monotonic() + 20
            while not self._is_taken():
                assert time.monotonic() < deadline, numbers
                assert self.replay.num_steps >= 0
                self.bridge.run_once(0.001)
                with contextlib.suppress(BlockingIOError):
                    said += sock.recv(4096)
                at, new = self._read(said, at)
                numbers += [int.from_bytes(said[i + 16 : i + 20], "little") for i in new]
                for i in new:
                    sock.sendall(learner_wire.done(int.from_bytes(said[i + 8 : i + 16], "little")))
            assert len(set(numbers)) == len(numbers)
            # One that another learner gave back comes behind those that were drawn meanwhile.
            assert self._sent - 1 in numbers or len(self._rings()) > 1
            sock.sendall(wire.bye(0))
            self._until_alone()

    def _rings(self) -> list[str]:
        """The rings of batches. Most learners ask for the good one's; others take items into theirs."""
        name = self.replay.handle.name
        return [ring for ring in lockfile.names() if batch_ring(name, ring)]

    def _is_taken(self) -> bool:
        """Whether no item is left, in the table or in the good learner's ring."""
        ring = BatchRing(0, 1).name(self.replay.handle.name)
        size = self.replay.info().size  # type: ignore[union-attr]
        return size == 0 and (
            ring not in self._rings() or RingView(Segment.attach(ring, read_only=True)).snapshot().occupancy == 0
        )

    @staticmethod
    def _read(said: bytes, at: int) -> tuple[int, list[int]]:
        """Where the frames end that have come as a whole, and where those start that are batches."""
        at, batches = at or 40, []
        while len(said) >= at + 16:
            kind, _, _, length, _ = struct.unpack_from("<BBHIQ", said, at)
            size = (SIZE + 8 * 8) * length if kind == wire.Frame.BATCH else length
            if len(said) < at + 16 + size:
                break
            batches += [at] if kind == wire.Frame.BATCH else []
            at += 16 + size
        return at, batches


class Table(_Bridged):
    """A ring and its bridge, both in this process, for clients to connect to."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(EXAMPLE, 1, num_buffers=4)
        self._publisher = self.server.publisher(EXAMPLE)
        segment = Segment.attach(self.server.name)
        self.bridge = Bridge(segment, [self._listener], Settings(None, 2, 8), None)
        self._taken = 0

    def close(self) -> None:
        """Ends the bridge and the ring."""
        self.bridge.close()
        self.server.close()

    def play(self, below: Below) -> None:
        """Several clients speak by turns; afterwards the bridge has no connection left, and serves a good client."""
        self._disturb(below, draw_client)
        self._good_client()

    def _turn(self) -> None:
        self.bridge.run_once(0)
        self._publisher.publish(EXAMPLE)
        with contextlib.suppress(TimeoutError):
            while True:
                self.server.sample(timeout=0)

    def _good_client(self) -> None:
        self._taken += 1
        hello = Hello(struct.pack("<QQ", 1, self._taken), 0, bytes(32), wire.spec_hash(SPEC.schema))
        said = b""
        with self._connect() as sock:
            sock.sendall(hello.to_bytes() + wire.samples_header(1, 0) + b"\x07\0\0\0xyz")
            sock.setblocking(False)
            while not said.endswith(wire.ack(1)):
                self.bridge.run_once(0.01)
                with contextlib.suppress(BlockingIOError):
                    said += sock.recv(4096)
            sock.sendall(wire.bye(1))
        batch = self.server.sample(timeout=0).batch
        assert (batch["a"].tolist(), batch["b"].tobytes()) == ([7], b"xyz")
        while self.bridge._pending or self.bridge._clients:
            self._turn()
