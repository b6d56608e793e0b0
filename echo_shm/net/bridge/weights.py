"""A bridge's clients that have subscribed to the weights of its ring or replay.

A client asks for the latest version, once it is newer than what it has. It is sent that version whole, in pieces, and
nothing more before it asks again: so a slow client skips versions. Between two pieces its connection, and all others,
do what else there is to do. Clients that ask for the same version share a copy of it.
"""

import math
import time

from echo_shm.errors import EchoShmError, WireError
from echo_shm.net import tcp, weights_wire, wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.copies import Copy, Source
from echo_shm.net.bridge.decoder import Request
from echo_shm.net.bridge.shares import pause
from echo_shm.net.wire import Frame
from echo_shm.ring.inbox import step_spec
from echo_shm.ring.lockfile import INBOX
from echo_shm.ring.segment import Segment
from echo_shm.weights.segment import segment_name


class _Reader:
    """One client that has subscribed.

    Attributes:
        source: What it was told of; None: there was nothing.
        told: The latest version that it was told of.
        needed: The least version that it wants; None: none now.
        sent: The version that was sent last, whole.
        copy: The version that is being sent, if one is; ``at``: how many of its bytes were.
        ended: Whether it was told that no later version will come.

    """

    def __init__(self) -> None:
        self.source: Source | None = None
        self.told = self.sent = self.at = 0
        self.needed: int | None = None
        self.copy: Copy | None = None
        self.ended = False

    def begin(self, copy: Copy) -> None:
        """That version is sent from its first byte on."""
        self.copy, self.at = copy, 0
        copy.readers += 1

    def stop(self) -> None:
        """Sends no more of it."""
        if self.copy is not None:
            self.copy.readers -= 1
            self.copy = None


class Weights:
    """The clients that have subscribed, and the weights.

    Args:
        ring: The segment of the ring, or of the replay's inbox.

    """

    def __init__(self, ring: Segment) -> None:
        self._ring = ring
        self._of_replay = step_spec(ring.spec) is not None
        self._name = ring.name.removesuffix(INBOX) if self._of_replay else ring.name
        self._source: Source | None = None
        self._readers: dict[Connection, _Reader] = {}
        self._look_at, self._since = 0.0, time.monotonic()

    # -- what clients say

    def handle(self, connection: Connection, request: Request) -> None:
        """Does what a client asks for.

        Raises:
            WireError: It must not ask for this.

        """
        reader = self._readers.get(connection)
        if request.kind is Frame.SUBSCRIBE:
            if reader is not None and not reader.ended:
                raise WireError("SUBSCRIBE came twice")
            if reader is not None:
                reader.stop()
            tcp.limit_unsent(connection.sock)
            self._readers[connection] = reader = _Reader()
            why = self._open()
            if why is None:
                self._describe(connection, reader)
            else:
                connection.out += weights_wire.there_are_none(why)
        elif reader is None or reader.source is None:
            raise WireError("NEED came, and no weights were described")
        elif not 1 <= request.number <= weights_wire.MAX_VERSION:
            raise WireError(f"needs version {request.number}, expected 1 to {weights_wire.MAX_VERSION}")
        else:
            reader.needed = request.number if request.number > reader.sent else None

    def lost(self, connection: Connection) -> None:
        """A client's connection has ended, or is about to."""
        reader = self._readers.pop(connection, None)
        if reader is not None:
            reader.stop()

    def most_unsent(self, connection: Connection) -> int:
        """Most bytes that wait to be sent to a client because it has subscribed."""
        reader = self._readers.get(connection)
        if reader is None:
            return 0
        return wire.HEADER_BYTES + wire.MAX_PIECE + (0 if reader.source is None else len(reader.source.schema))

    # -- the weights

    def _open(self) -> str | None:
        """Finds the weights. Returns why there are none, or None."""
        if self._source is not None and not self._source.closed:
            self._source.look()
            if not self._source.closed:
                return None
        try:
            if self._of_replay:
                Segment.attach(self._ring.name, self._ring.uuid, read_only=True)  # it may be another replay's by now
            segment = Segment.attach(segment_name(self._name), None if self._of_replay else self._ring.uuid)
            self._source = Source(segment)
        except EchoShmError as error:
            why = getattr(error, "strerror", None) or error
            return (
                f"{self._name!r} has no weights to subscribe to ({why}): the learner calls publisher(params) before "
                "its workers start"
            )
        return None

    def _describe(self, connection: Connection, reader: _Reader) -> None:
        source = self._source
        assert source is not None
        reader.source, reader.told = source, source.latest
        connection.out += weights_wire.described(source.schema, source.latest)

    # -- sending

    @property
    def nap(self) -> float:
        """The longest time until :meth:`pump` is to be called again (seconds)."""
        if any(reader.copy is not None and not connection.out for connection, reader in self._readers.items()):
            return 0.0
        if not self._readers or self._source is None or self._source.closed:
            return math.inf  # check() finds out what is new
        return max(0.0, self._look_at - time.monotonic())

    def pump(self) -> list[Connection]:
        """Adds to what is to be sent to clients, a piece at most. Returns those with something to send."""
        if not self._readers:
            return []
        now = time.monotonic()
        if self._source is not None and now >= self._look_at:
            if self._source.note_latest():
                self._since = now
            self._look_at = now + pause(now - self._since)
        # What is behind a client's other frames comes once they are sent.
        free = [(connection, reader) for connection, reader in self._readers.items() if not connection.out]
        for connection, reader in free:
            if reader.source is not None:
                self._feed(connection, reader, reader.source)
        return [connection for connection, _ in free if connection.out]

    def _feed(self, connection: Connection, reader: _Reader, source: Source) -> None:
        latest = source.latest
        if latest > reader.told:
            reader.told = latest
            connection.out += weights_wire.news(latest)
        if reader.copy is None and reader.needed is not None and reader.needed <= latest:
            reader.begin(self._copy_for(reader.needed, source))
        if reader.copy is not None:
            self._send_piece(connection, reader, reader.copy)
        elif source.closed and not reader.ended:
            reader.ended = True
            connection.out += weights_wire.end(latest)

    def _copy_for(self, needed: int, source: Source) -> Copy:
        """A copy of the latest version. If there are too many, of an earlier one, or in place of another one."""
        newest, in_use = source.newest, source.in_use
        if newest is not None and newest.version >= (source.latest if in_use is None else needed):
            return newest
        if in_use is not None:
            # Those to whom least was sent begin anew, with what is latest then. So one that has come far gets there.
            far = {copy: max(one.at for one in self._readers.values() if one.copy is copy) for copy in in_use}
            victim = min(in_use, key=far.__getitem__)
            for one in self._readers.values():
                if one.copy is victim:
                    one.stop()
            source.drop(victim)
        return source.copy()

    @staticmethod
    def _send_piece(connection: Connection, reader: _Reader, copy: Copy) -> None:
        data = copy.data[reader.at :][: wire.MAX_PIECE]
        connection.out += weights_wire.piece_header(copy.version, len(data))
        connection.out += data
        reader.at += len(data)
        if reader.at == len(copy.data):
            reader.stop()
            reader.sent, reader.told = copy.version, max(copy.version, reader.told)
            if reader.needed is not None and reader.needed <= copy.version:
                reader.needed = None

    # -- timed work, and the end

    def check(self) -> list[Connection]:
        """To be called a few times a second: are there weights now, and has their publisher closed them?

        Returns connections with something to send.
        """
        used = {reader.source for reader in self._readers.values() if reader.source is not None}
        for source in used:
            source.look()
        without = [(connection, reader) for connection, reader in self._readers.items() if reader.source is None]
        if without and self._open() is None:
            for connection, reader in without:
                self._describe(connection, reader)
            return [connection for connection, _ in without]
        return []

    def leave(self) -> None:
        """Leaves the weights."""
        for reader in self._readers.values():
            reader.stop()
        self._readers.clear()
        if self._source is not None:
            self._source.detach()
