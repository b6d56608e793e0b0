"""One learner on another host, and one ring of batches with the learners that share it."""

import math
import time
from collections import deque

from echo_shm.net import learner_wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.learner_wire import Ask
from echo_shm.ring.batch_source import BatchSource, Lease

#: Times between two looks for a batch, or for a ring that was asked for (seconds): at first, and at most. In between it
#: is a share of the time that has been waited for already.
_SOONEST, _LATEST, _SHARE = 0.0005, 0.01, 1 / 16

#: Most batches that a learner has said to be done and that were not seen in the ring yet; of each ring.
_MOST_CLAIMS = 1 << 14


def pause(waited: float) -> float:
    """Seconds until the next look, after so many seconds of waiting."""
    return min(max(_SHARE * waited, _SOONEST), _LATEST)


class Learner:
    """What is known of one learner. It outlives a connection.

    Attributes:
        connection: Its connection, or None.
        ask: What it has asked for on this connection.
        opening_since: When it has done so.
        leased: The batches that it has, or that are on their way to it, by their numbers.
        unsent: The numbers of those that are not on their way yet.
        wanted, sent: How many batches may be sent on this connection, and how many were.
        done: How many batches it has said to be done on this connection.
        recalled: The batches that were called back on this connection.
        told_full: What ``done`` and ``sent`` were when it was last told that no more come, and why.
        early: What it has said to be done before its ring was found.
        ended: Whether it was told on this connection that no more will come.
        forget_at: When its batches are given back if it does not come again.

    """

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.source: Source | None = None
        self.ask: Ask | None = None
        self.opening_since = 0.0
        self.asked_at: float | None = None
        self.leased: dict[int, Lease] = {}
        self.unsent: deque[int] = deque()
        self.wanted = self.sent = self.done = 0
        self.early: set[int] = set()
        self.recalled: set[int] = set()
        self.told_full: tuple[int, int, bytes] | None = None
        self.ended = False
        self.forget_at = math.inf

    def connect(self, connection: Connection) -> None:
        """It has come, again or for the first time."""
        self.connection, self.forget_at = connection, math.inf
        self.ask = self.asked_at = None
        self.wanted = self.sent = self.done = 0
        self.ended = False
        self.unsent.clear()
        self.early.clear()
        self.recalled.clear()
        self.told_full = None

    @property
    def has_all(self) -> bool:
        """Whether it is here and has batches, and all that was leased for it is sent."""
        here = self.connection is not None and self.connection.batch_bytes == 0
        return here and bool(self.leased) and not self.unsent

    def tell_full(self, why: bytes) -> Connection | None:
        """Says that no more come before it is done with some. Returns its connection, or None if it knows that."""
        now = self.done, self.sent, why
        if self.connection is None or self.told_full == now:
            return None
        self.told_full = now
        self.connection.out += learner_wire.full(self.done, why)
        return self.connection


class Source:
    """A ring of batches, with the learners that it serves, the next one first.

    Attributes:
        claims: Batches that may come again, as another bridge has sent them: the learner that has each, or None if the
            batch is done.
        hungry: Whether a learner has room for a batch and there was none.
        look_at: When to look for one again.
        others: How many other learners the ring had when it was last looked at.
        busy: Connections that had so much to send that they got no batch.

    """

    def __init__(self, ring: BatchSource) -> None:
        self.ring = ring
        self.learners: deque[Learner] = deque()
        self.claims: dict[int, Learner | None] = {}
        self.others = ring.count_others()
        self.busy: list[Connection] = []
        self.hungry, self.look_at, self._since = False, 0.0, time.monotonic()

    def take(self, now: float) -> Lease | None:
        """A batch that nobody has had yet. None: there is none now."""
        while now >= self.look_at and (lease := self.ring.take()) is not None:
            self._since = now
            if lease.number not in self.claims:
                return lease
            learner = self.claims.pop(lease.number)
            if learner is None:
                self.ring.release(lease)
            else:
                learner.leased[lease.number] = lease
        self.hungry = True
        if now >= self.look_at:
            self.look_at = now + pause(now - self._since)
        return None

    def claim(self, number: int, learner: Learner | None) -> None:
        """Notes whose a batch is if it comes, or that it is done."""
        self.claims.pop(number, None)
        self.claims[number] = learner
        if len(self.claims) > _MOST_CLAIMS:
            del self.claims[next(iter(self.claims))]

    def share(self) -> int:
        """How many batches one learner may have, so that there is one for each. A rank has the whole ring."""
        if self.ring.is_rank:
            return self.ring.num_buffers
        here = sum(one.connection is not None for one in self.learners)
        return max(1, self.ring.num_buffers // max(1, here + self.others))

    def tell_full(self) -> list[Connection]:
        """Tells learners if only they can make room. Returns connections with news."""
        share, told = self.share(), []
        # Others, whom this bridge does not know, may wait for it.
        blocking = self.ring.next_number - self.ring.num_buffers if self.others or len(self.learners) > 1 else None
        for learner in self.learners:
            if learner.ended or not learner.has_all:
                continue
            if blocking in learner.leased:
                told.append(learner.tell_full(learner_wire.BLOCKING))
            elif learner.sent < learner.wanted and len(learner.leased) >= share:
                told.append(learner.tell_full(learner_wire.SHARE))
        return [one for one in told if one is not None]

    def recall(self) -> list[Connection]:
        """Calls back what learners have beyond their share, the newest first. Returns connections with news."""
        share, told = self.share(), []
        for learner in self.learners:
            if (
                learner.connection is None
                or len(learner.leased) - len(learner.recalled & learner.leased.keys()) <= share
            ):
                continue
            for number in sorted(learner.leased)[share:]:
                if number not in learner.recalled:
                    learner.recalled.add(number)
                    learner.connection.out += learner_wire.recall(number)
            told.append(learner.connection)
        return told
