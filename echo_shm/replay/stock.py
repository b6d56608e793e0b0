"""Batches that a learner takes several of before it is done with any: from shared memory, or over TCP.

A learner that makes up one batch of several, of several replays, uses these. What it has not taken goes to another
learner when it leaves, or is killed; and what it has taken and is not done with, when it is killed.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from echo_shm.errors import ConnectionClosedError
from echo_shm.net.client.batches import Batches
from echo_shm.replay.batch import Batch
from echo_shm.ring.batch_source import BatchSource, Lease
from echo_shm.spec import Array


class Stock(Protocol):
    """The batches of one ring, for one thread."""

    def count(self, wanted: int) -> int:
        """How many batches can be taken now: as many as are wanted, or all that there are.

        What is there beyond those goes to others who ask for it.

        Raises:
            ConnectionClosedError, SegmentError: There are none, and no more will come. The message says why.

        """

    @property
    def is_full(self) -> bool:
        """Whether no more come before some of those that are there are taken, and done.

        The ring has no room for more. They are fewer than were wanted, and this learner's share of it; or one of them
        is in the place that is filled next, and others may wait for that, or this learner has fewer than it wants.
        """

    def peek(self) -> Batch | None:
        """The batch that is taken next; None: it has gone to another learner meanwhile."""

    def take(self) -> Batch | None:
        """As :meth:`peek`, and takes it. Its arrays are not to be used any more once it is done."""

    def done(self) -> None:
        """All that was taken is done: none of it comes again."""

    def close(self) -> list[Batch]:
        """The same, and leaves. What was not taken goes to another learner; what cannot any more is returned."""


class LocalStock:
    """Through shared memory.

    Once the replay has shut out whoever sends to it, it may go elsewhere, with all that no learner has leased. So what
    this one has leased is its own from then on, and goes back no more. What it has given back just before is perhaps
    not seen: it takes that again. If the replay has it already, there is nothing to take.

    Args:
        source: The ring.
        build: Makes a batch of the arrays of its leaves.
        check: Called where nothing has come: raises if nothing will.
        is_shut: Says whether the replay has shut out whoever sends to it. It stays so.

    """

    def __init__(
        self,
        source: BatchSource,
        build: Callable[[list[Array]], Batch],
        check: Callable[[], None],
        is_shut: Callable[[], bool],
    ) -> None:
        self._source, self._build, self._check, self._is_shut = source, build, check, is_shut
        self._ready: deque[Lease] = deque()
        self._taken: list[Lease] = []
        self._share, self._is_short = source.num_buffers, False

    def count(self, wanted: int) -> int:
        """How many batches can be taken now."""
        self._source.refuse_in_child()
        if self._is_shut():
            raise ConnectionClosedError("the replay has closed, or goes elsewhere")
        self._is_short = False
        self._give_back_to(wanted)
        if len(self._ready) < wanted:
            self._share = self._source.num_buffers // (1 + self._source.count_others())
            self._give_back_to(max(0, self._share - len(self._taken)))  # there may be more learners than before
        while len(self._ready) < wanted:
            lease = self._source.take() if len(self._ready) + len(self._taken) < max(1, self._share) else None
            if lease is None:
                self._is_short = True
                if not self._ready:
                    self._check_end()
                break
            self._ready.append(lease)
        return len(self._ready)

    def _check_end(self) -> None:
        if self._source.ended:
            raise ConnectionClosedError("the replay has closed its ring of batches")
        self._check()

    def _give_back_to(self, most: int) -> None:
        """Gives back what was not taken, the newest first, until no more than so many are left.

        Whoever moves the replay shuts out senders, then waits for the end of the bridge's process, and only then takes
        what is in the ring. That wait, and no fence, is the partner of the two looks here: what is given back before
        it is over is in the ring in time, and whoever gives back later sees that senders are shut out.
        """
        if len(self._ready) <= most or self._is_shut():
            return
        while len(self._ready) > most:
            self._source.give_back(self._ready.pop())
        while self._is_shut() and (lease := self._source.take()) is not None:
            self._ready.append(lease)

    @property
    def is_full(self) -> bool:
        """Whether no more come before some are taken, and done."""
        held = len(self._ready) + len(self._taken)
        if self._is_short and held >= max(1, self._share):
            return True
        if not held or not (self._is_short or self._source.count_others()):
            return False
        blocking = self._source.next_number - self._source.num_buffers
        return any(lease.number == blocking for lease in (*self._ready, *self._taken))

    def peek(self) -> Batch | None:
        """The batch that is taken next."""
        return self._build(self._source.arrays_of(self._ready[0])) if self._ready else None

    def take(self) -> Batch | None:
        """Takes it."""
        batch = self.peek()
        if batch is not None:
            self._taken.append(self._ready.popleft())
        return batch

    def done(self) -> None:
        """All that was taken is done."""
        for lease in self._taken:
            self._source.release(lease)
        self._taken.clear()

    def close(self) -> list[Batch]:
        """The same, and leaves."""
        self.done()
        self._give_back_to(0)
        own = [self._build([array.copy() for array in self._source.arrays_of(lease)]) for lease in self._ready]
        self._source.detach()
        return own


class RemoteStock:
    """Over TCP.

    Args:
        received: What comes.
        build: Makes a batch of the arrays of its leaves.

    """

    def __init__(self, received: Batches, build: Callable[[list[Array]], Batch]) -> None:
        self._received, self._build = received, build
        self._is_short = False

    def count(self, wanted: int) -> int:
        """How many batches can be taken now."""
        found = self._received.count()
        self._is_short = found < wanted
        if not found and self._received.over:
            raise ConnectionClosedError("the replay, or its server, has closed")
        return found

    @property
    def is_full(self) -> bool:
        """Whether no more come before some are taken, and done."""
        return self._received.is_blocking or (self._is_short and self._received.is_full)

    def peek(self) -> Batch | None:
        """The batch that is taken next."""
        arrays = self._received.peek()
        return None if arrays is None else self._build(arrays)

    def take(self) -> Batch | None:
        """Takes it."""
        arrays = self._received.take()
        return None if arrays is None else self._build(arrays)

    def done(self) -> None:
        """All that was taken is done."""
        self._received.done()

    def close(self) -> list[Batch]:
        """The same, and leaves."""
        self._received.close()
        return []
