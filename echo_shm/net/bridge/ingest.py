"""What a bridge does with the ring: it keeps its clients' entries, and puts their samples into the ring."""

import contextlib
import errno
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator

from echo_shm._core import ffi, lib
from echo_shm.errors import WireError, error_from
from echo_shm.net import wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import Samples
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array

#: How long a bridge may wait for a free slot while its sockets wait for it (nanoseconds).
_SPACE_NS = 2_000_000

#: The time between two looks whether samples were taken: at first, and at most (seconds).
_SOONEST, _LATEST = 0.0005, 0.02

#: The shortest time between two sweeps that clients cause (seconds).
_MIN_SWEEP = 0.05


class Ingest:
    """Puts clients' samples into a ring, and tells what is in it.

    Args:
        segment: The ring's segment. It is attached here, as a producer.

    Attributes:
        uuid: The segment's.
        spec: What the ring's samples look like.

    """

    def __init__(self, segment: Segment) -> None:
        self.uuid, self.spec = segment.uuid, segment.spec
        self._attachment = Attachment(segment, lib.ES_ROLE_PRODUCER, prefault=True)
        self._ring = self._attachment.ring
        self._attachment.check(lib.es_bridge_begin(self._ring))
        self._blocked: deque[Connection] = deque()  # clients whose samples wait for free slots, in turn
        self._sweep_every = segment.geometry.reap_interval
        self._last_sweep = time.monotonic()
        self._evicted = False
        # A position, and for some clients a number: once nothing is committed before the one, all below the other is
        # taken. And when to look again, and whether a client has more in the ring than before.
        self._mark: tuple[int, list[tuple[Connection, int]]] | None = None
        self._look_at, self._pause, self._has_news = math.inf, _SOONEST, False

    @property
    def has_blocked(self) -> bool:
        """Whether samples wait for free slots."""
        return bool(self._blocked)

    @property
    def closed(self) -> bool:
        """Whether nothing more can be put into the ring."""
        return self._evicted or self._attachment.ring_closed()

    # -- clients

    def open_entry(self, connection: Connection, client: bytes, number: int, *, known: bool) -> int:
        """Opens the entry of a client in the ring's table of remotes.

        Args:
            connection: The client's connection.
            client: The client's id; empty if it cannot connect again.
            number: The number of its first sample that was not acknowledged, as the client says.
            known: Open the entry only if it exists.

        Returns:
            The entry's index; ES_UNSURE if another bridge has the entry; ES_EMPTY if it must exist and does not; or
            another error.

        """
        peer = connection.peer.encode()[: lib.ES_PEER_SIZE - 1]
        index = int(
            lib.es_bridge_find(self._ring, client, peer)
            if known
            else lib.es_bridge_open(self._ring, client or ffi.NULL, number, peer)
        )
        if index >= 0:
            connection.remote, connection.client = index, client
            connection.acknowledged = lib.es_bridge_committed(self._ring, index)
            self._has_news = True
        return index

    def close_entry(self, connection: Connection, *, keep: bool) -> None:
        """Closes a client's entry. With ``keep``, the ring remembers what a client that can connect again has sent."""
        if connection.remote >= 0:
            lib.es_bridge_leave(self._ring, connection.remote, keep and connection.client != b"")
            connection.remote = -1
        with contextlib.suppress(ValueError):
            self._blocked.remove(connection)

    def connected(self) -> int:
        """How many clients all bridges of the ring have."""
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(self._ring, snap)
        return int(snap.active_remotes)

    def is_known(self, connection: Connection) -> bool:
        """Whether the client had an entry before this connection."""
        return bool(lib.es_bridge_known(self._ring, connection.remote))

    def is_wanted_elsewhere(self, connection: Connection) -> bool:
        """Whether the client has connected to another bridge since."""
        return bool(lib.es_bridge_wanted(self._ring, connection.remote))

    def committed(self, connection: Connection) -> int:
        """The number of the client's first sample that is not in the ring."""
        return int(lib.es_bridge_committed(self._ring, connection.remote))

    def count_bytes(self, connection: Connection, n: int) -> None:
        """Counts received bytes, for those who look at the ring."""
        if connection.remote >= 0:
            lib.es_bridge_count(self._ring, connection.remote, n, 0)

    def count_refused(self) -> None:
        """Counts a connection that was refused or ended because of a fault."""
        lib.es_bridge_count_refused(self._ring)

    # -- samples

    def put(self, connection: Connection, samples: Samples) -> None:
        """Puts samples into the ring, now or once slots are free.

        Raises:
            WireError: They are not the client's next samples.

        """
        connection.done = 0
        if connection.version == 2:
            committed = self.committed(connection)
            if samples.number > committed:
                raise WireError(f"samples from {samples.number} on, expected from {committed} on")
            connection.done = min(committed - samples.number, samples.length)
        lib.es_bridge_count(self._ring, connection.remote, 0, 1)
        connection.samples = samples
        if not self._blocked:
            self._put(connection, 0)
        if connection.samples is not None:
            self._blocked.append(connection)

    def retry_blocked(self) -> Iterator[Connection]:
        """Puts waiting samples into the ring, each client in turn, while slots are free. Yields those with progress."""
        for turn in range(len(self._blocked)):
            if not self._blocked:  # the caller may have closed entries after a yield
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
                self._ring,
                connection.remote,
                data,
                connection.done,
                samples.length,
                rows,
                samples.version,
                timeout_ns,
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
        """Acknowledges what is in the ring, if that has changed."""
        if connection.remote < 0:
            return
        committed = self.committed(connection)
        if committed > connection.acknowledged:
            if connection.version == 1:
                connection.out += wire.ACK_V1 * (committed - connection.acknowledged)
            else:
                connection.out += wire.ack(committed)
            connection.acknowledged = committed
            self._has_news = True

    def put_own(self, sample: Array) -> bool:
        """Puts a sample of the bridge's own into a ring of one leaf. False: it is full, or closed."""
        return bool(lib.es_api_send(self._ring, ffi.new("void *[]", [ffi.from_buffer(sample)])) == lib.ES_OK)

    # -- what was taken

    @property
    def nap(self) -> float:
        """The longest time until :meth:`taken` is to be called again (seconds)."""
        return max(0.0, self._look_at - time.monotonic())

    def taken(self, clients: Iterable[Connection]) -> list[tuple[Connection, int]]:
        """Some clients of which more samples were taken out of the ring than they were told, and up to which number.

        It looks at the ring itself: whoever takes samples wakes no producer as long as there is room. So it looks
        rarely if nothing is taken for long.
        """
        if self._mark is None and not self._has_news:
            self._look_at = math.inf
            return []
        now = time.monotonic()
        if self._mark is None:
            self._has_news = False
            behind = [(one, one.acknowledged) for one in clients if one.acknowledged > one.taken]
            # After the numbers: what is acknowledged was put into slots that are claimed by now.
            self._mark = lib.es_api_claimed(self._ring), behind
            self._look_at, self._pause = now, _SOONEST
        if now < self._look_at:
            return []
        if lib.es_monitor_committed_before(self._ring, self._mark[0]):
            self._pause = min(2 * self._pause, _LATEST)
            self._look_at = now + self._pause
            return []
        (_, told), self._mark = self._mark, None
        self._look_at = now  # more may have come meanwhile
        return told

    # -- as every producer

    def sweep_regularly(self, now: float) -> None:
        """Reaps dead owners, once a reap interval."""
        if now - self._last_sweep >= self._sweep_every:
            self._last_sweep = now
            self._attachment.reaper.sweep()

    def sweep(self) -> None:
        """Reaps dead owners, unless that was done just before."""
        if time.monotonic() - self._last_sweep >= min(_MIN_SWEEP, self._sweep_every):
            self._last_sweep = time.monotonic()
            self._attachment.reaper.sweep()

    def detach(self) -> None:
        """Leaves the ring."""
        self._attachment.detach()
