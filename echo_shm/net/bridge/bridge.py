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
import selectors
import socket
import ssl
import time

from echo_shm.errors import WireError
from echo_shm.net import tcp, wire
from echo_shm.net.bridge.acceptor import Acceptor, is_exhausted
from echo_shm.net.bridge.admission import Admission, Refused, Settings
from echo_shm.net.bridge.connection import MAX_OUT, Connection
from echo_shm.net.bridge.decoder import Bye, Request, Samples
from echo_shm.net.bridge.ingest import Ingest
from echo_shm.net.bridge.refusals import RefusalLog
from echo_shm.net.bridge.replays import ReplaySide
from echo_shm.net.bridge.weights import Weights
from echo_shm.net.wire import Hello, Refusal
from echo_shm.ring.inbox import step_spec
from echo_shm.ring.segment import Segment

_log = logging.getLogger("echo_shm.bridge")

#: How long a connection may take to say hello (seconds).
_HELLO_TIME = 10.0
#: Most pending connections. A client is one for two round trips.
_MAX_PENDING = 512
#: How long a connection is told why it ends (seconds).
_CLOSE_TIME = 0.5
#: How long a learner may take to say what it is done with, once no batch comes any more (seconds).
_LEARNER_TIME = 3.0
#: How long the loop waits if there is nothing to do (seconds).
_MAX_SELECT = 0.1
#: The time between two checks of connections that nothing comes from (seconds).
_CHECK_EVERY = 0.25
#: How often one connection is read from, and how many messages are taken from it, before the next one's turn.
_READS, _MESSAGES = 8, 32


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
        self._tls = tls
        self._spec = segment.spec
        self._replay = None if step_spec(segment.spec) is None else ReplaySide(segment)
        self._ingest = Ingest(segment)
        self._weights = Weights(segment)
        self._admission = Admission(segment, settings, self._ingest, self._replay)
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(listeners, self._selector)
        self._pending: dict[Connection, None] = {}  # in the order in which they came
        # The accepted ones, and what puts their samples into a ring; None for learners.
        self._clients: dict[Connection, Ingest | None] = {}
        self._unfinished: set[Connection] = set()  # those with more messages than fitted into their turn
        self._stopping = self._orphaned = False
        self._last_check = self._last_heartbeat = time.monotonic()
        self._refusals = RefusalLog()

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
        unheard = self._unheard()
        replay_nap = math.inf if self._replay is None else self._replay.nap
        wait = min(wait, self._ingest.nap, self._weights.nap, replay_nap)
        blocked = any(ingest.has_blocked for ingest in self._ingests)
        for key, _ in self._selector.select(0 if blocked or unheard else wait):
            if isinstance(key.data, Connection):
                self._serve(key.data)
            elif isinstance(key.fileobj, socket.socket):
                for sock, peer in self._acceptor.accept(key.fileobj):
                    self._accept(sock, peer)
            else:
                self._stopping, self._orphaned = True, os.read(key.fd, 1) == b""
        for connection in unheard:
            self._serve(connection)
        for ingest in self._ingests:
            for connection in ingest.retry_blocked():
                self._serve(connection)  # handles the messages behind those samples
        if self._replay is not None:
            self._tell_taken()
            self._send_batches(self._replay)
        for connection in self._weights.pump():
            self._serve(connection)
        self._do_timed_work()

    @property
    def _ingests(self) -> list[Ingest]:
        updates = None if self._replay is None else self._replay.updates
        return [self._ingest] if updates is None else [self._ingest, updates]

    def _unheard(self) -> list[Connection]:
        """The connections of which something has come, and no socket says so: in TLS, or beyond a turn's messages."""
        unread = [] if self._tls is None else [one for one in (*self._pending, *self._clients) if one.has_unread]
        unfinished, self._unfinished = self._unfinished, set()
        return [*unread, *unfinished]

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
        exhausted = is_exhausted(sock)
        if self._pending and (exhausted or len(self._pending) >= _MAX_PENDING):
            victim = random.choice(list(self._pending))
            self._end(victim, "" if victim.closing else "no hello yet, and others wait")
        elif exhausted:
            self._log_refusal(peer, "refused: no descriptors are left; raise the limit (ulimit -n)")
            sock.close()
            return
        connection = self._admission.greet(sock, peer, time.monotonic() + _HELLO_TIME, self._tls)
        self._pending[connection] = None
        self._serve(connection)

    def _admit(self, connection: Connection, hello: Hello) -> None:
        judged = self._admission.judge(connection, hello)
        if isinstance(judged, Refused):
            self._refuse(connection, *judged)
            return
        for other in [one for one in self._clients if one.client == hello.client]:
            self._end(other)
        self._answered(connection, judged, self._admission.admit(connection, hello, judged))

    def _answered(self, connection: Connection, ingest: Ingest | None, refused: Refused | None) -> None:
        """A pending connection has become a client's, or was refused."""
        if refused is not None:
            self._refuse(connection, *refused)
            return
        connection.deadline = None
        self._pending.pop(connection)
        self._clients[connection] = ingest

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
        self._weights.lost(connection)
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
            _close_with(connection, wire.refuse_spec(self._spec.schema))
        else:
            _close_with(connection, wire.refuse(code, text))

    def _say_bye(self, connection: Connection, text: str) -> None:
        """Tells a client which of its samples are in the ring, and why its connection ends."""
        ingest = self._clients.get(connection)
        number = connection.acknowledged if ingest is None else ingest.committed(connection)
        if connection.is_mid_batch:
            self._end(connection)  # nothing can be said there, and a fault need not be
            return
        self._leave(connection, keep=ingest is not None)
        self._pending[connection] = None
        _close_with(connection, wire.bye(number, text))

    def _log_refusal(self, peer: str, text: str) -> None:
        self._ingest.count_refused()
        self._refusals.note(peer, text)

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
        most = MAX_OUT + len(self._spec.schema) + self._weights.most_unsent(connection)
        if connection.version == 2 and len(connection.out) > most:
            self._end(connection, "it does not read its acknowledgements")
        if self._is_open(connection):
            connection.watch(self._selector)

    def _exchange(self, connection: Connection) -> None:
        if connection.version == 1 and connection in self._pending:  # such a client does not say hello
            self._answered(connection, self._ingest, self._admission.admit_v1(connection))
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
                self._answer(connection, event)
            elif isinstance(event, Hello):
                self._admit(connection, event)
            elif isinstance(event, Bye):
                self._acknowledge(connection)
                connection.send()
                self._end(connection, keep=False)  # the client will not connect again
        self._unfinished.add(connection)
        return False

    def _answer(self, connection: Connection, request: Request) -> None:
        if self._clients[connection] is not None:
            self._weights.handle(connection, request)
        else:
            assert self._replay is not None
            self._replay.learners.handle(connection, request)

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
                _close_with(connection, wire.refuse(Refusal.OTHER, refusal))
            self._serve(connection)

    def _tell_taken(self) -> None:
        """Tells the clients of a replay which of their steps it has stored."""
        for client, number in self._ingest.taken(
            one for one, ingest in self._clients.items() if ingest is self._ingest
        ):
            if client in self._clients:
                client.taken = number
                client.out += wire.taken(number)
                client.watch(self._selector)

    # -- timed work, and the end

    def _do_timed_work(self) -> None:
        now = time.monotonic()
        for ingest in self._ingests:
            ingest.sweep_regularly(now)
        if now - self._last_check < _CHECK_EVERY:
            return
        self._last_check = now
        self._acceptor.resume()
        self._refusals.sum_up()
        self._end_overdue(now)
        for client in self._weights.check():
            self._serve(client)
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
                client.watch(self._selector)

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
                # What it does not say that it has goes to another learner.
                client.deadline = time.monotonic() + _LEARNER_TIME
                self._pending[client] = None
                self._serve(client)
        for client in [one for one in self._clients if one not in self._pending]:
            if client.version == 1:
                self._end(client)
            else:
                self._say_bye(client, "the server was closed")
                self._serve(client)
        while self._pending:
            unheard = self._unheard()
            ready = [key.data for key, _ in self._selector.select(0 if unheard else 0.05)]
            for connection in [*ready, *unheard]:
                if isinstance(connection, Connection):
                    self._serve(connection)
            self._end_overdue(time.monotonic())
        self._selector.close()
        if self._replay is not None:
            self._replay.leave()
        self._weights.leave()
        self._ingest.detach()


def _close_with(connection: Connection, message: bytes) -> None:
    """Tells a connection why it ends, in time."""
    connection.start_closing(message, time.monotonic() + _CLOSE_TIME)
