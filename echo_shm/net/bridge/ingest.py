"""What a bridge does with the ring: its clients' entries, and their samples."""

import contextlib
import errno
import time
from collections import deque
from collections.abc import Iterator

from echo_shm._core import ffi, lib
from echo_shm.errors import WireError, error_from
from echo_shm.net import wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import Samples
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Segment

#: How long a bridge may wait in the ring for space, with sockets waiting meanwhile (nanoseconds).
_SPACE_NS = 2_000_000

#: Between two sweeps that clients bring about (seconds).
_MIN_SWEEP = 0.05


class Ingest:
    """Puts clients' samples into a ring, and answers for what is in it.

    Args:
        segment: Attached here, as a producer.

    """

    def __init__(self, segment: Segment) -> None:
        self._attachment = Attachment(segment, lib.ES_ROLE_PRODUCER)
        self._ring = self._attachment.ring
        self._attachment.check(lib.es_bridge_begin(self._ring))
        self._blocked: deque[Connection] = deque()  # clients whose samples wait for space, in turn
        self._sweep_every = segment.geometry.reap_interval
        self._last_sweep = time.monotonic()
        self._evicted = False

    @property
    def has_blocked(self) -> bool:
        """Whether samples wait for space."""
        return bool(self._blocked)

    @property
    def closed(self) -> bool:
        """Whether nothing can be put into the ring any more."""
        return self._evicted or self._attachment.ring_closed()

    # -- clients

    def open_entry(self, connection: Connection, client: bytes, number: int, *, known: bool) -> int:
        """Makes a client of a connection.

        Args:
            connection: Of somebody who may send.
            client: Its id; empty if it cannot come again.
            number: Of its first sample that was not acknowledged, by its own account.
            known: Only if it has an entry.

        Returns:
            Its entry's index, ES_UNSURE if another bridge has the entry, ES_EMPTY if it has none and needs one,
            or another error.

        """
        peer = connection.peer.encode()[: lib.ES_PEER_SIZE - 1]
        index = int(
            lib.es_remote_find(self._ring, client, peer)
            if known
            else lib.es_remote_open(self._ring, client or ffi.NULL, number, peer)
        )
        if index >= 0:
            connection.remote, connection.client = index, client
            connection.acknowledged = lib.es_remote_committed(self._ring, index)
        return index

    def close_entry(self, connection: Connection, *, keep: bool) -> None:
        """Gives up a client's entry; what it has committed is remembered, if it may come again."""
        if connection.remote >= 0:
            lib.es_remote_leave(self._ring, connection.remote, keep and connection.client != b"")
            connection.remote = -1
        with contextlib.suppress(ValueError):
            self._blocked.remove(connection)

    def connected(self) -> int:
        """Clients of this bridge and all others of the ring."""
        snap = ffi.new("es_snapshot *")
        lib.es_observe(self._ring, snap)
        return int(snap.active_remotes)

    def is_known(self, connection: Connection) -> bool:
        """Whether the client had an entry before."""
        return bool(lib.es_remote_known(self._ring, connection.remote))

    def is_wanted_elsewhere(self, connection: Connection) -> bool:
        """Whether the client has come to another bridge since."""
        return bool(lib.es_remote_wanted(self._ring, connection.remote))

    def committed(self, connection: Connection) -> int:
        """The number of the client's first sample that is not in the ring."""
        return int(lib.es_remote_committed(self._ring, connection.remote))

    def count_bytes(self, connection: Connection, n: int) -> None:
        """For people who look on."""
        if connection.remote >= 0:
            lib.es_remote_count(self._ring, connection.remote, n, 0)

    def count_refused(self) -> None:
        """One more connection was ended for what was wrong with it."""
        lib.es_count_refused(self._ring)

    # -- samples

    def put(self, connection: Connection, samples: Samples) -> None:
        """Puts samples into the ring, or has them wait for space.

        Raises:
            WireError: They are not the client's next ones.

        """
        connection.done = 0
        if connection.version == 2:
            committed = self.committed(connection)
            if samples.number > committed:
                raise WireError(f"samples from {samples.number} on, expected from {committed} on")
            connection.done = min(committed - samples.number, samples.length)
        lib.es_remote_count(self._ring, connection.remote, 0, 1)
        connection.samples = samples
        if not self._blocked:
            self._put(connection, 0)
        if connection.samples is not None:
            self._blocked.append(connection)

    def retry_blocked(self) -> Iterator[Connection]:
        """Puts in what waits, each client in its turn, while there is room; yields those that got some in."""
        for turn in range(len(self._blocked)):
            if not self._blocked:  # who was yielded may have left, and others with it
                return
            connection = self._blocked.popleft()
            before = connection.done
            self._put(connection, _SPACE_NS if turn == 0 else 0)
            if connection.samples is not None and connection.done == before:
                self._blocked.appendleft(connection)
                return
            if connection.samples is not None:
                self._blocked.append(connection)
            yield connection

    def _put(self, connection: Connection, timeout_ns: int) -> None:
        samples = connection.samples
        assert samples is not None
        if connection.done < samples.length:
            data = ffi.from_buffer(samples.data)
            rows = connection.version == 1
            code = lib.es_bridge_send(
                self._ring, connection.remote, data, connection.done, samples.length, rows, timeout_ns
            )
            if code > 0:
                connection.done += code
            elif code in (lib.ES_ECLOSED, lib.ES_EEVICTED):
                self._evicted = True
            elif code not in (lib.ES_FULL, lib.ES_TIMEOUT, -errno.EINTR):
                raise error_from(code, self._attachment.what)
        if connection.done == samples.length:
            connection.samples = None

    def acknowledge(self, connection: Connection) -> None:
        """Has a client told what is in the ring, if that is news."""
        if connection.remote < 0:
            return
        committed = self.committed(connection)
        if committed > connection.acknowledged:
            if connection.version == 1:
                connection.out += wire.ACK_1 * (committed - connection.acknowledged)
            else:
                connection.out += wire.ack(committed)
            connection.acknowledged = committed

    # -- as any producer

    def sweep_regularly(self, now: float) -> None:
        """Cleans up after the dead, once a reap interval."""
        if now - self._last_sweep >= self._sweep_every:
            self._last_sweep = now
            self._attachment.reaper.sweep()

    def sweep(self) -> None:
        """Cleans up after the dead, unless that was done just now."""
        if time.monotonic() - self._last_sweep >= min(_MIN_SWEEP, self._sweep_every):
            self._last_sweep = time.monotonic()
            self._attachment.reaper.sweep()

    def detach(self) -> None:
        """Leaves the ring."""
        self._attachment.detach()
