"""The bridge: it takes samples from connections and puts them into the ring, in a process of its own.

It has one thread and one loop over all sockets, and never waits for a single socket. It claims a slot only when the
sample's bytes have come, so a client that stalls holds nothing, even in the middle of a frame. While the ring is full,
the bridge does not read from clients that send, and TCP slows them down.

A connection is pending until its client is accepted, and again while it is told why it ends. A pending connection
needs only a few hundred bytes, and their number is limited: if too many come, a random one is ended. So a flood of
connections cannot keep others out. A client has an entry in the ring's table of remotes, and memory for one frame.

Beside a replay's inbox, a bridge serves the replay's ring of updates, and learners: see replays.py and learners.py.
"""

import logging
import math
import os
import random
import secrets
import selectors
import socket
import ssl
import time
from typing import NamedTuple

from echo_shm._core import lib
from echo_shm.errors import WireError
from echo_shm.net import learner_wire, tcp, wire
from echo_shm.net.bridge.acceptor import Acceptor, is_exhausted
from echo_shm.net.bridge.connection import MAX_OUT, Connection
from echo_shm.net.bridge.decoder import Bye, Decoder, DecoderV1, Request, Samples
from echo_shm.net.bridge.ingest import Ingest
from echo_shm.net.bridge.replays import ReplaySide
from echo_shm.net.wire import Accept, Greeting, Hello, Refusal
from echo_shm.ring.inbox import step_spec
from echo_shm.ring.segment import Segment

_log = logging.getLogger("echo_shm.bridge")

#: Bytes of samples in the largest frame, approximately.
FRAME = 1 << 20
#: How long a connection may take to say hello (seconds).
_HELLO_TIME = 10.0
#: Most pending connections. A client is one for two round trips.
_MAX_PENDING = 512
#: How long a connection is told why it ends (seconds).
_CLOSE_TIME = 0.5
#: How long the loop waits if there is nothing to do (seconds).
_MAX_SELECT = 0.1
#: The time between two checks of connections that nothing comes from (seconds).
_CHECK_EVERY = 0.25
#: How often one connection is read from, and how many messages are taken from it, before the next one's turn.
_READS, _MESSAGES = 8, 32
#: Most lines that are logged between two checks. Of further refusals, only the number is logged.
_MAX_LINES = 10


class Settings(NamedTuple):
    """What all connections have in common. max_connections: most clients of all bridges of the ring together."""

    authkey: bytes | None
    wire_version: int
    max_connections: int

    def __repr__(self) -> str:
        return "Settings"  # without the key


class Bridge:
    """Serves the clients of one ring.

    Args:
        segment: The ring's segment, mapped with its lock file.
        listeners: Bound and listening sockets.
        settings: What all connections have in common.
        tls: A server-side context, or None.

    """

    def __init__(
        self, segment: Segment, listeners: list[socket.socket], settings: Settings, tls: ssl.SSLContext | None
    ) -> None:
        self._settings, self._tls = settings, tls
        self._uuid, self._spec = segment.uuid, segment.spec
        # What clients send. Those of a replay may know only what a step is, and learn the rest when they are accepted.
        step = step_spec(segment.spec)
        self._replay = None if step is None else ReplaySide(segment)
        self._sent = step or segment.spec
        self._welcome = {wire.spec_hash(one.schema) for one in (self._spec, self._sent)}
        self._max_frame = wire.frame_limit(self._spec.sample_bytes, FRAME)
        self._ingest = Ingest(segment)
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(listeners, self._selector)
        self._pending: dict[Connection, None] = {}  # in the order in which they came
        # The accepted ones, and what puts their samples into a ring; None for learners.
        self._clients: dict[Connection, Ingest | None] = {}
        self._unfinished: set[Connection] = set()  # those with more messages than fitted into their turn
        self._stopping = self._orphaned = False
        self._last_check = self._last_heartbeat = time.monotonic()
        self._refusals = 0  # since the last check

    def watch(self, fd: int) -> None:
        """Makes the bridge stop when a byte comes from that pipe, or its other end is gone: that process has died."""
        self._selector.register(fd, selectors.EVENT_READ)

    def run(self) -> bool:
        """Serves until it is stopped or the ring is closed, and tells the clients. Returns whether the ring is closed.

        After an exception, no client is told. Clients then connect to the bridge that replaces this one. Nor are they
        told if the process that has started the bridge was killed: the next one may serve them on the same port.
        """
        try:
            while not self._stopping and not self._ingest.closed:
                self.run_once(_MAX_SELECT)
        except BaseException:
            if self._replay is not None:
                self._replay.leave()  # otherwise this process, when it ends, would release what learners do not have
            raise
        closed = self._ingest.closed
        if self._orphaned and not closed:
            for client in list(self._clients):
                self._end(client)
        self.close()
        return closed

    def run_once(self, wait: float) -> None:
        """Serves once all sockets that are ready. Waits at most ``wait`` seconds for one."""
        unread, self._unfinished = [*self._unread(), *self._unfinished], set()
        wait = min(wait, self._ingest.nap, math.inf if self._replay is None else self._replay.nap)
        blocked = any(ingest.has_blocked for ingest in self._ingests)
        for key, _ in self._selector.select(0 if blocked or unread else wait):
            if isinstance(key.data, Connection):
                self._serve(key.data)
            elif isinstance(key.fileobj, socket.socket):
                for sock, peer in self._acceptor.accept(key.fileobj):
                    self._accept(sock, peer)
            else:
                self._stopping, self._orphaned = True, os.read(key.fd, 1) == b""
        for connection in unread:
            self._serve(connection)
        for ingest in self._ingests:
            for connection in ingest.retry_blocked():
                self._serve(connection)  # handles the messages behind those samples
        if self._replay is not None:
            self._tell_taken()
            self._send_batches(self._replay)
        self._do_timed_work()

    @property
    def _ingests(self) -> list[Ingest]:
        updates = None if self._replay is None else self._replay.updates
        return [self._ingest] if updates is None else [self._ingest, updates]

    def _unread(self) -> list[Connection]:
        """The connections of which TLS holds bytes that were not read yet."""
        if self._tls is None:
            return []
        return [one for one in (*self._pending, *self._clients) if one.has_unread]

    # -- new connections

    def _accept(self, sock: socket.socket, peer: str) -> None:
        try:
            self._begin(sock, peer)
        except OSError as error:  # the connection is lost already
            _log.debug("%s: %s", peer, error)
            sock.close()

    def _begin(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        tcp.set_options(sock)
        tcp.set_send_timeout(sock)
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        exhausted = is_exhausted(sock)
        if self._pending and (exhausted or len(self._pending) >= _MAX_PENDING):
            victim = random.choice(list(self._pending))
            self._end(victim, "" if victim.closing else "no hello yet, and others wait")
        elif exhausted:
            self._log_refusal(peer, "refused: no descriptors are left; raise the limit (ulimit -n)")
            sock.close()
            return
        kind = DecoderV1 if self._settings.wire_version == 1 else Decoder
        connection = Connection(
            sock, peer, kind(self._spec.sample_bytes, self._max_frame), time.monotonic() + _HELLO_TIME
        )
        if connection.version == 1:
            connection.out += wire.greeting_v1(self._spec)
        else:
            connection.greeting = Greeting(self._settings.authkey is not None, secrets.token_bytes(32))
            connection.out += connection.greeting.to_bytes()
        self._pending[connection] = None
        self._serve(connection)

    def _admit_v1(self, connection: Connection) -> None:
        """Accepts a version 1 client, which does not say hello."""
        assert isinstance(connection.decoder, DecoderV1)
        if self._open_entry(self._ingest, connection, b"", 0) < 0:
            self._end(connection, f"refused: {self._full()}")
            return
        connection.decoder.begin()

    def _admit(self, connection: Connection, hello: Hello) -> None:
        key, greeting = self._settings.authkey, connection.greeting
        assert greeting is not None
        assert isinstance(connection.decoder, Decoder)
        if key is not None and not hello.is_signed(key, greeting):
            self._refuse(connection, Refusal.KEY, "it does not know the authkey")
            return
        ingest = self._ingest if hello.spec in self._welcome else None
        if ingest is None and self._replay is not None and hello.spec in self._replay.welcome:
            ingest = self._replay.open(hello.spec)
            if ingest is None and hello.spec != learner_wire.LEARNER:
                self._refuse(connection, Refusal.CLOSED, "the replay is closed")
                return
        elif ingest is None:
            # Its hello has only a hash of them. The client gets this ring's, and names the first leaf that differs.
            leaves = ", ".join(map(str, self._sent.leaves))
            text = f"its samples are not this ring's ({leaves:.200}); its error names the first leaf that differs"
            self._refuse(connection, Refusal.SPEC, text)
            return
        for other in [one for one in self._clients if one.client == hello.client]:
            self._end(other)
        if ingest is None:
            self._admit_learner(connection, hello)
        else:
            self._admit_sender(connection, hello, ingest)

    def _admit_learner(self, connection: Connection, hello: Hello) -> None:
        assert self._replay is not None
        assert isinstance(connection.decoder, Decoder)
        assert connection.greeting is not None
        if self._connected() >= self._settings.max_connections:
            self._refuse(connection, Refusal.FULL, self._full())
            return
        self._accepted(connection, None)
        self._replay.learners.admit(connection, hello.client)
        connection.decoder.begin_requests()
        accept = Accept(self._uuid, 0, False, self._spec.schema, 0)
        connection.out += accept.to_bytes(self._settings.authkey, connection.greeting, hello)

    def _admit_sender(self, connection: Connection, hello: Hello, ingest: Ingest) -> None:
        assert isinstance(connection.decoder, Decoder)
        assert connection.greeting is not None
        # If samples beyond the client's number may be in this ring, its number cannot start a new entry.
        known = hello.doubt == ingest.uuid
        index = self._open_entry(ingest, connection, hello.client, hello.acknowledged, known=known)
        if index == lib.ES_UNSURE:
            self._refuse(connection, Refusal.BUSY, "another bridge serves it")
            return
        if index == lib.ES_EMPTY:
            self._refuse(connection, Refusal.FORGOTTEN, "it was forgotten, and samples of it may be in the ring")
            return
        if index < 0:
            self._refuse(connection, Refusal.FULL, self._full())
            return
        max_frame = wire.frame_limit(ingest.spec.sample_bytes, FRAME)
        connection.decoder.begin_samples(ingest.spec.sample_bytes, max_frame)
        known = ingest.is_known(connection)
        accept = Accept(ingest.uuid, max_frame, known, ingest.spec.schema, connection.acknowledged)
        connection.out += accept.to_bytes(self._settings.authkey, connection.greeting, hello)

    def _connected(self) -> int:
        """How many clients there are: those of all bridges that send, and the learners of this one."""
        learners = 0 if self._replay is None else len(self._replay.learners)
        return sum(ingest.connected() for ingest in self._ingests) + learners

    def _accepted(self, connection: Connection, ingest: Ingest | None) -> None:
        connection.deadline = None
        self._pending.pop(connection)
        self._clients[connection] = ingest

    def _full(self) -> str:
        return f"too many clients: {self._connected()} are connected"

    def _open_entry(
        self, ingest: Ingest, connection: Connection, client: bytes, number: int, *, known: bool = False
    ) -> int:
        """Makes a pending connection a client's. Returns the entry's index, or a negative result."""
        index = ingest.open_entry(connection, client, number, known=known)
        if index == lib.ES_UNSURE:  # the bridge that has the entry may be dead
            ingest.sweep()
            index = ingest.open_entry(connection, client, number, known=known)
        if index < 0:
            return index
        if self._connected() > self._settings.max_connections:
            ingest.close_entry(connection, keep=ingest.is_known(connection))
            return int(lib.ES_ENOOWNER)
        self._accepted(connection, ingest)
        return index

    # -- the end of a connection

    def _is_open(self, connection: Connection) -> bool:
        return connection in self._clients or connection in self._pending

    def _end(self, connection: Connection, why: str = "", *, keep: bool = True) -> None:
        """Ends a connection. ``why``: what was wrong with it, to be logged."""
        if not self._is_open(connection):
            return
        if why:
            self._log_refusal(connection.peer, why)
        self._leave(connection, keep=keep)
        self._pending.pop(connection, None)
        if connection.watched:
            self._selector.unregister(connection.sock)
        connection.close()

    def _leave(self, connection: Connection, *, keep: bool) -> None:
        """The connection is no client's any more. With ``keep``, the client may come again."""
        ingest = self._clients.pop(connection, None)
        if ingest is not None:
            ingest.close_entry(connection, keep=keep)
        elif self._replay is not None:
            self._replay.learners.lost(connection, keep=keep)

    def _refuse(self, connection: Connection, code: Refusal, text: str) -> None:
        if code is Refusal.BUSY:  # no fault: a client whose bridge died asks until that bridge is reaped
            _log.debug("%s: refused: %s", connection.peer, text)
        else:
            self._log_refusal(connection.peer, f"refused: {text}")
        if connection.version == 1:
            self._end(connection)
        elif connection in self._clients:
            self._say_bye(connection, text)
        elif code is Refusal.SPEC:
            connection.start_closing(wire.refuse_spec(self._spec.schema), time.monotonic() + _CLOSE_TIME)
        else:
            connection.start_closing(wire.refuse(code, text), time.monotonic() + _CLOSE_TIME)

    def _say_bye(self, connection: Connection, text: str) -> None:
        """Tells a client which of its samples are in the ring, and why its connection ends."""
        ingest = self._clients.get(connection)
        number = connection.acknowledged if ingest is None else ingest.committed(connection)
        if connection.is_mid_batch:
            self._end(connection)  # nothing can be said there, and a fault need not be
            return
        self._leave(connection, keep=ingest is not None)
        self._pending[connection] = None
        connection.start_closing(wire.bye(number, text), time.monotonic() + _CLOSE_TIME)

    def _log_refusal(self, peer: str, text: str) -> None:
        self._ingest.count_refused()
        self._refusals += 1
        if self._refusals <= _MAX_LINES:
            _log.warning("%s: %s", peer, text)

    # -- receiving and sending

    def _serve(self, connection: Connection) -> None:
        """Does all that can be done for a connection now."""
        if not self._is_open(connection):
            return
        try:
            if connection.shake_hands():
                self._exchange(connection)
        except WireError as error:
            self._refuse(connection, Refusal.PROTOCOL, str(error))
        except OSError as error:
            if connection.in_handshake:
                self._end(connection, f"no TLS: {error}; the client needs tls=, and must accept this certificate")
            else:
                _log.log(
                    logging.WARNING if connection.decoder.is_mid_message else logging.DEBUG,
                    "%s: connection lost: %s", connection.peer, error,
                )  # fmt: skip
                self._end(connection)
        if connection.version == 2 and len(connection.out) > MAX_OUT + len(self._spec.schema):
            self._end(connection, "it does not read its acknowledgements")
        if self._is_open(connection):
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Makes the selector watch for what the connection can do next."""
        events = connection.events
        if events == connection.watched:
            return
        if connection.watched == 0:
            self._selector.register(connection.sock, events, connection)
        elif events == 0:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.watched = events

    def _exchange(self, connection: Connection) -> None:
        if connection.version == 1 and connection in self._pending:
            self._admit_v1(connection)
        reads, ended = 0, False
        # The first turn of the loop handles messages behind samples that had to wait.
        while not connection.is_backed_up and self._handle_messages(connection) and reads < _READS:
            n = connection.receive()
            if n is None:
                break
            if n == 0:
                ended = True
                break
            reads += 1
            ingest = self._clients.get(connection)
            if ingest is not None:
                ingest.count_bytes(connection, n)
        if self._is_open(connection):
            self._acknowledge(connection)
            connection.send()
        if ended:
            self._end(
                connection, "connection ended in the middle of a frame" if connection.decoder.is_mid_message else ""
            )

    def _handle_messages(self, connection: Connection) -> bool:
        """Handles complete messages, up to the connection's share of a turn. Returns whether more may be read."""
        for _ in range(_MESSAGES):
            if not self._is_open(connection) or connection.samples is not None:
                return False
            if connection.closing:
                return True
            event = connection.decoder.next_event()
            if event is None:
                return True
            if isinstance(event, Samples):
                ingest = self._clients[connection]
                assert ingest is not None
                ingest.put(connection, event)
            elif isinstance(event, Request):
                assert self._replay is not None
                self._replay.learners.handle(connection, event)
            elif isinstance(event, Hello):
                self._admit(connection, event)
            elif isinstance(event, Bye):
                self._acknowledge(connection)
                connection.send()
                self._end(connection, keep=False)  # the client will not connect again
        self._unfinished.add(connection)
        return False

    def _acknowledge(self, connection: Connection) -> None:
        ingest = self._clients.get(connection)
        if ingest is not None:
            ingest.acknowledge(connection)

    def _send_batches(self, replay: ReplaySide) -> None:
        """Sends learners what they have room for, and refuses those whose ring cannot be made."""
        for connection, refusal in replay.learners.pump():
            if connection not in self._clients:
                continue
            if refusal is not None:
                self._log_refusal(connection.peer, f"refused: {refusal}")
                self._leave(connection, keep=False)
                self._pending[connection] = None
                connection.start_closing(wire.refuse(Refusal.OTHER, refusal), time.monotonic() + _CLOSE_TIME)
            self._serve(connection)

    def _tell_taken(self) -> None:
        """Tells the clients of a replay which of their steps it has stored."""
        for client, number in self._ingest.taken(
            one for one, ingest in self._clients.items() if ingest is self._ingest
        ):
            if client in self._clients:
                client.taken = number
                client.out += wire.taken(number)
                self._watch(client)

    # -- timed work, and the end

    def _do_timed_work(self) -> None:
        now = time.monotonic()
        for ingest in self._ingests:
            ingest.sweep_regularly(now)
        if now - self._last_check < _CHECK_EVERY:
            return
        self._last_check = now
        self._acceptor.resume()
        if self._refusals > _MAX_LINES:
            _log.warning("%d more connections were refused or ended", self._refusals - _MAX_LINES)
        self._refusals = 0
        self._end_overdue(now)
        senders = [(one, ingest) for one, ingest in self._clients.items() if ingest is not None]
        for client in [one for one, ingest in senders if ingest.is_wanted_elsewhere(one)]:
            self._end(client)
        for client, text in [] if self._replay is None else self._replay.learners.check(now):
            self._say_bye(client, text)
            self._serve(client)
        if now - self._last_heartbeat >= wire.HEARTBEAT:
            # Writing also shows which connections were reset while their samples waited.
            self._last_heartbeat = now
            for client in [one for one in self._clients if one.version == 2]:
                client.out += wire.ack(client.acknowledged)
                self._watch(client)

    def _end_overdue(self, now: float) -> None:
        for connection in list(self._pending):
            if connection.deadline is not None and connection.deadline < now:
                self._end(connection, "" if connection.closing else f"no hello within {_HELLO_TIME} s")

    def close(self) -> None:
        """Tells every client that the server was closed, and leaves the ring."""
        self._acceptor.close()
        for connection in list(self._pending):
            if not connection.closing:
                self._end(connection)
        if self._replay is not None:
            for client in self._replay.learners.end():
                client.deadline = time.monotonic() + _CLOSE_TIME
                self._pending[client] = None
                self._serve(client)
        for client in [one for one in self._clients if one not in self._pending]:
            if client.version == 1:
                self._end(client)
            else:
                self._say_bye(client, "the server was closed")
                self._serve(client)
        while self._pending:
            for key, _ in self._selector.select(0.05):
                if isinstance(key.data, Connection):
                    self._serve(key.data)
            self._end_overdue(time.monotonic())
        self._selector.close()
        if self._replay is not None:
            self._replay.leave()
        self._ingest.detach()
