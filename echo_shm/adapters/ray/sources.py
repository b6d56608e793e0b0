"""What a learner takes batches of a shard from: shared memory on its own node, and the bridge elsewhere."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Protocol

from echo_shm.adapters.ray.directory import Place
from echo_shm.errors import ConnectionClosedError, SegmentError
from echo_shm.net.client.connection import RefusedError
from echo_shm.replay import Batch, ReplayClient

#: How many batches a shard draws ahead.
PREFETCH = 4

#: How long a shard may refuse that is there (seconds).
_REFUSED = 10.0

#: How long one look for a batch takes at most: whoever waits must look at other shards, too (seconds).
_PAUSE = 5e-3


class Source(Protocol):
    """One shard, as a learner sees it."""

    def ask(self, n: int, prefetch: int) -> None:
        """From now on batches of n items come, so many of them drawn ahead. What was drawn ahead so far goes back."""

    def next(self) -> Batch | None:
        """The next batch; None: there is none now."""

    def close(self) -> None:
        """Ends. What was drawn ahead goes back."""


class Clients:
    """This process's ways into shards, one for each. Threads may share it.

    Args:
        connect: Makes a way into a shard.

    """

    def __init__(self, connect: Callable[[Place], ReplayClient]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._clients: dict[Place, ReplayClient] = {}

    def get(self, place: Place) -> ReplayClient:
        """The way into that shard. It is made first if there is none."""
        with self._lock:
            client = self._clients.get(place)
        if client is None:
            made = self._connect(place)  # it may take seconds: other shards are used meanwhile
            with self._lock:
                client = self._clients.setdefault(place, made)
            if client is not made:
                made.close()
        return client

    def drop(self, place: Place) -> None:
        """The way was of no use: another one is made the next time."""
        with self._lock:
            client = self._clients.pop(place, None)
        if client is not None:
            with contextlib.suppress(ConnectionClosedError):  # updates that were on their way to it go with it
                client.close()

    def keep(self, places: tuple[Place, ...]) -> None:
        """Drops the ways into all others."""
        for gone in [one for one in tuple(self._clients) if one not in places]:
            self.drop(gone)

    def close(self) -> None:
        """Leaves all shards."""
        self.keep(())


class ShardSource:
    """A shard, near or far. The arrays of a near one's batches lie in shared memory, and take their places there.

    Args:
        clients: The ways into shards.
        place: Says where the shard is now.
        table: The table.

    """

    def __init__(self, clients: Clients, place: Callable[[], Place], table: str) -> None:
        self._clients, self._where, self._table = clients, place, table
        self._n, self._prefetch = 0, PREFETCH
        self._place = place()
        self._coming: Generator[Batch | None] | None = None
        self._refused_since: float | None = None

    def ask(self, n: int, prefetch: int) -> None:
        """From now on batches of n items come, so many of them drawn ahead. What was drawn ahead so far goes back."""
        self.close()
        self._n, self._prefetch = n, prefetch

    def next(self) -> Batch | None:
        """The next batch; None: there is none now.

        Raises:
            SegmentError, RefusedError: The shard is there, and has refused for long: the message says why.

        """
        if (place := self._where()) is not self._place and place != self._place:
            self.close()
            self._place = place
        try:
            if self._coming is None:
                self._coming = self._clients.get(place)._polled(self._n, self._table, self._prefetch, _PAUSE)
            found = next(self._coming)
        except (StopIteration, ConnectionClosedError, OSError) as error:  # the shard's process or node, or the link
            self._coming = None
            self._clients.drop(place)
            if isinstance(error, SegmentError | RefusedError):
                self._refused(error)
            return None
        self._refused_since = None
        return found

    def _refused(self, error: OSError) -> None:
        """Raises it if that is all that the shard has said for long. One that is being started refuses, too."""
        now = time.monotonic()
        self._refused_since = since = self._refused_since or now
        if now - since > _REFUSED:
            raise error

    def close(self) -> None:
        """Ends. What was drawn ahead goes back."""
        coming, self._coming = self._coming, None
        if coming is not None:
            with contextlib.suppress(ConnectionClosedError, OSError):
                coming.close()
