"""Whom a bridge accepts: it greets connections, judges hellos, and opens the entries of clients."""

import secrets
import socket
import ssl
from typing import NamedTuple

from echo_shm._core import lib
from echo_shm.net import learner_wire, wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import Decoder, DecoderV1
from echo_shm.net.bridge.ingest import Ingest
from echo_shm.net.bridge.replays import ReplaySide
from echo_shm.net.wire import Accept, Greeting, Hello, Refusal
from echo_shm.ring.inbox import step_spec
from echo_shm.ring.segment import Segment

#: Bytes of samples in the largest frame, approximately.
FRAME = 1 << 20


class Settings(NamedTuple):
    """What all connections have in common. max_connections: most clients of all bridges of the ring together."""

    authkey: bytes | None
    wire_version: int
    max_connections: int

    def __repr__(self) -> str:
        return "Settings"  # without the key


class Refused(NamedTuple):
    """A client is not accepted."""

    code: Refusal
    text: str


class Admission:
    """Decides who becomes a client of one ring, or of the replay that it is the inbox of.

    Args:
        segment: The ring's segment.
        settings: What all connections have in common.
        ingest: Puts samples into the ring.
        replay: What is served beside the inbox of a replay; None if the ring is none.

    """

    def __init__(self, segment: Segment, settings: Settings, ingest: Ingest, replay: ReplaySide | None) -> None:
        self._settings, self._ingest, self._replay = settings, ingest, replay
        self._uuid, self._spec = segment.uuid, segment.spec
        # What clients send. Those of a replay may know only what a step is, and learn the rest when they are accepted.
        self._sent = step_spec(segment.spec) or segment.spec
        self._welcome = {wire.spec_hash(one.schema) for one in (self._spec, self._sent)}
        self._max_frame = wire.frame_limit(self._spec.sample_bytes, FRAME)

    def greet(self, sock: socket.socket, peer: str, deadline: float, tls: ssl.SSLContext | None) -> Connection:
        """A new connection, with the greeting in what it is to send."""
        kind = DecoderV1 if self._settings.wire_version == 1 else Decoder
        connection = Connection(sock, peer, kind(self._spec.sample_bytes, self._max_frame), deadline, tls)
        if connection.version == 1:
            connection.out += wire.greeting_v1(self._spec)
        else:
            connection.greeting = Greeting(self._settings.authkey is not None, secrets.token_bytes(32))
            connection.out += connection.greeting.to_bytes()
        return connection

    def judge(self, connection: Connection, hello: Hello) -> Ingest | Refused | None:
        """What puts a client's samples into a ring, None for a learner, or why it is refused."""
        key, greeting = self._settings.authkey, connection.greeting
        assert greeting is not None
        if key is not None and not hello.is_signed(key, greeting):
            return Refused(Refusal.KEY, "it does not know the authkey")
        if hello.spec in self._welcome:
            return self._ingest
        if self._replay is not None and hello.spec in self._replay.welcome:
            ingest = self._replay.open(hello.spec)
            if ingest is None and hello.spec != learner_wire.LEARNER:
                return Refused(Refusal.CLOSED, "the replay is closed")
            return ingest
        # Its hello has only a hash of them. The client gets this ring's, and names the first leaf that differs.
        leaves = ", ".join(map(str, self._sent.leaves))
        text = f"its samples are not this ring's ({leaves:.200}); its error names the first leaf that differs"
        return Refused(Refusal.SPEC, text)

    def admit_v1(self, connection: Connection) -> Refused | None:
        """Accepts a version 1 client, which does not say hello. Returns why not, or None."""
        assert isinstance(connection.decoder, DecoderV1)
        if self._open_entry(self._ingest, connection, b"", 0) < 0:
            return self._full()
        connection.decoder.begin()
        return None

    def admit(self, connection: Connection, hello: Hello, ingest: Ingest | None) -> Refused | None:
        """Accepts a client, for whose samples :meth:`judge` has returned ``ingest``. Returns why not, or None."""
        if ingest is None:
            return self._admit_learner(connection, hello)
        return self._admit_sender(connection, hello, ingest)

    def _admit_learner(self, connection: Connection, hello: Hello) -> Refused | None:
        assert self._replay is not None
        assert isinstance(connection.decoder, Decoder)
        assert connection.greeting is not None
        if self._connected() >= self._settings.max_connections:
            return self._full()
        self._replay.learners.admit(connection, hello.client)
        connection.decoder.begin_requests()
        accept = Accept(self._uuid, 0, False, self._spec.schema, 0)
        connection.out += accept.to_bytes(self._settings.authkey, connection.greeting, hello)
        return None

    def _admit_sender(self, connection: Connection, hello: Hello, ingest: Ingest) -> Refused | None:
        assert isinstance(connection.decoder, Decoder)
        assert connection.greeting is not None
        # If samples beyond the client's number may be in this ring, its number cannot start a new entry.
        known = hello.doubt == ingest.uuid
        index = self._open_entry(ingest, connection, hello.client, hello.acknowledged, known=known)
        if index == lib.ES_UNSURE:
            return Refused(Refusal.BUSY, "another bridge serves it")
        if index == lib.ES_EMPTY:
            return Refused(Refusal.FORGOTTEN, "it was forgotten, and samples of it may be in the ring")
        if index < 0:
            return self._full()
        max_frame = wire.frame_limit(ingest.spec.sample_bytes, FRAME)
        connection.decoder.begin_samples(ingest.spec.sample_bytes, max_frame)
        known = ingest.is_known(connection)
        accept = Accept(ingest.uuid, max_frame, known, ingest.spec.schema, connection.acknowledged)
        connection.out += accept.to_bytes(self._settings.authkey, connection.greeting, hello)
        return None

    def _open_entry(
        self, ingest: Ingest, connection: Connection, client: bytes, number: int, *, known: bool = False
    ) -> int:
        """Opens the entry of a client that sends. Returns its index, or a negative result."""
        index = ingest.open_entry(connection, client, number, known=known)
        if index == lib.ES_UNSURE:  # the bridge that has the entry may be dead
            ingest.sweep()
            index = ingest.open_entry(connection, client, number, known=known)
        if index >= 0 and self._connected() > self._settings.max_connections:
            ingest.close_entry(connection, keep=ingest.is_known(connection))
            return int(lib.ES_ENOOWNER)
        return index

    def _connected(self) -> int:
        """How many clients there are: those of all bridges that send, and the learners of this one."""
        if self._replay is None:
            return self._ingest.connected()
        updates = self._replay.updates
        senders = self._ingest.connected() + (0 if updates is None else updates.connected())
        return senders + len(self._replay.learners)

    def _full(self) -> Refused:
        return Refused(Refusal.FULL, f"too many clients: {self._connected()} are connected")
