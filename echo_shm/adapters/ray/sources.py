"""What a learner takes batches of a shard from: shared memory on its own node, and the bridge elsewhere."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

from echo_shm.adapters.ray.directory import Place
from echo_shm.errors import ConnectionClosedError, SegmentError
from echo_shm.net.client.connection import RefusedError
from echo_shm.replay import Batch, ReplayClient
from echo_shm.replay.stock import Stock

_T = TypeVar("_T")

#: How many batches a shard draws ahead. On another node: as many as have ``_FAR_BYTES``, at most ``_FAR_MOST``. They
#: take a while to come, and a few small ones would be used up meanwhile.
PREFETCH, _FAR_BYTES, _FAR_MOST = 4, 1 << 20, 32

#: How many batches a shard has places for of single items, if these have at most ``_STOCK_BYTES``. Places are filled in
#: order, so a learner that still needs the oldest one lets others have all but one of these batches meanwhile.
_STOCK, _STOCK_BYTES = 8, 64 << 20

#: How long a shard may refuse that is there (seconds).
_REFUSED = 10.0

#: How long one look for a batch takes at most: whoever waits must look at other shards, too (seconds).
_PAUSE = 5e-3


class Source(Protocol):
    """One shard, as a learner sees it."""

    def ask(self, n: int) -> None:
        """From now on batches of n items come. What was drawn ahead so far goes to others, or to nobody."""

    def next(self) -> Batch | None:
        """The next batch; None: there is none now."""

    def close(self) -> None:
        """Ends. What was drawn ahead goes to others, or to nobody."""


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


def prefetch_of(batch_bytes: int, is_near: bool) -> int:
    """How many batches of so many bytes a shard draws ahead, on this node or another one."""
    return PREFETCH if is_near else min(max(PREFETCH, _FAR_BYTES // max(1, batch_bytes)), _FAR_MOST)


def stock_of(n: int, item_bytes: int, *, is_alone: bool) -> int:
    """How many single items a shard draws ahead, of which batches of n are made: two at least, or four if alone."""
    least = n * (PREFETCH if is_alone else 2)
    return max(least, min(n * _STOCK, _STOCK_BYTES // max(1, item_bytes))) + 1


class _Shard:
    """A shard, which may move, be started again or be out of reach.

    Args:
        clients: The ways into shards.
        place: Says where the shard is now.

    """

    def __init__(self, clients: Clients, place: Callable[[], Place]) -> None:
        self._clients, self._where = clients, place
        self._place = place()
        self._refused_since: float | None = None

    def has_moved(self) -> bool:
        """Whether it is elsewhere since the last call."""
        before, self._place = self._place, self._where()
        return self._place is not before and self._place != before

    def tried(self, attempt: Callable[[ReplayClient], _T]) -> _T | None:
        """What the attempt returns; None if the shard's process or node, or the link, is gone.

        Raises:
            SegmentError, RefusedError: The shard is there, and has refused for long: the message says why.

        """
        try:
            found = attempt(self._clients.get(self._place))
        except (StopIteration, ConnectionClosedError, OSError) as error:
            self._clients.drop(self._place)
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


class ShardSource:
    """A shard, near or far. The arrays of a near one's batches lie in shared memory, and take their places there.

    Args:
        clients: The ways into shards.
        place: Says where the shard is now.
        table: The table.
        prefetch: How many batches of n items it draws ahead.

    """

    def __init__(
        self, clients: Clients, place: Callable[[], Place], table: str, prefetch: Callable[[int], int]
    ) -> None:
        self._shard, self._table, self._prefetch = _Shard(clients, place), table, prefetch
        self._n = 0
        self._coming: Generator[Batch | None] | None = None

    def ask(self, n: int) -> None:
        """From now on batches of n items come. What was drawn ahead so far goes to others, or to nobody."""
        self.close()
        self._n = n

    def next(self) -> Batch | None:
        """The next batch; None: there is none now.

        Raises:
            SegmentError, RefusedError: The shard is there, and has refused for long: the message says why.

        """
        if self._shard.has_moved():
            self.close()

        def attempt(client: ReplayClient) -> list[Batch | None]:
            if self._coming is None:
                self._coming = client._polled(self._n, self._table, self._prefetch(self._n), _PAUSE)
            return [next(self._coming)]

        found = self._shard.tried(attempt)
        if found is None:
            self._coming = None
            return None
        return found.pop()

    def close(self) -> None:
        """Ends. What was drawn ahead goes to others, or to nobody."""
        coming, self._coming = self._coming, None
        if coming is not None:
            with contextlib.suppress(ConnectionClosedError, OSError):
                coming.close()


class ShardStock:
    """The items of a shard, near or far, of which several are taken before any is done.

    What was taken and is not done goes to another learner if this process is killed; and what was not taken, when it
    leaves. Nothing is there while the shard is out of reach.

    Args:
        clients: The ways into shards.
        place: Says where the shard is now.
        table: The table.
        prefetch: How many items the shard draws ahead, for all learners together, those that are not done included.
        is_settling: Says whether the shard is about to be handed over: what it has drawn cannot stay there.

    """

    def __init__(
        self,
        clients: Clients,
        place: Callable[[], Place],
        table: str,
        prefetch: int,
        is_settling: Callable[[], bool],
    ) -> None:
        self._shard, self._table, self._prefetch = _Shard(clients, place), table, prefetch
        self._is_settling = is_settling
        self._stock: Stock | None = None
        self._own: deque[Batch] = deque()  # what another stock of this shard has left, and no other learner can have

    def count(self, wanted: int) -> int:
        """How many items can be taken now: as many as are wanted, or all that there are.

        Raises:
            SegmentError, RefusedError: The shard is there, and has refused for long: the message says why.

        """
        if self._shard.has_moved():
            self._leave()

        def attempt(client: ReplayClient) -> int:
            self._stock = self._stock or client._stock(self._table, self._prefetch, _PAUSE)
            return 0 if self._stock is None else self._stock.count(wanted)

        found = self._shard.tried(attempt)
        if found is None:
            self._leave()
        return len(self._own) + (found or 0)

    @property
    def is_settling(self) -> bool:
        """Whether what is there is to be taken soon, and done."""
        return self._is_settling()

    @property
    def is_full(self) -> bool:
        """Whether no more come before some of those that are there are taken, and done."""
        return self._stock is not None and self._stock.is_full

    def peek(self) -> Batch | None:
        """The item that is taken next, as a batch of it; None: it is not there any more."""
        if self._own:
            return self._own[0]
        return None if self._stock is None else self._stock.peek()

    def take(self) -> Batch | None:
        """As :meth:`peek`, and takes it. Its arrays are not to be used any more once it is done."""
        if self._own:
            return self._own.popleft()
        return None if self._stock is None else self._stock.take()

    def done(self) -> None:
        """All that was taken is done."""
        if self._stock is not None:
            self._stock.done()

    def _leave(self) -> None:
        stock, self._stock = self._stock, None
        if stock is not None:
            with contextlib.suppress(ConnectionClosedError, OSError):
                self._own += stock.close()

    def close(self) -> list[Batch]:
        """The same, and ends. What was not taken goes back; what cannot any more, for the shard moves, is returned."""
        self._leave()
        own, self._own = list(self._own), deque()
        return own
