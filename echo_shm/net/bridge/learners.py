"""A replay's learners on other hosts, as a bridge serves them.

A batch is leased from its ring for one learner, sent out of the ring's own memory, and released when that learner says
DONE. If the connection is lost before that, the lease stays for a moment: the learner may come again, and then gets the
batch that it does not have. After that the batch is given back, and goes to whoever is next. If the bridge dies, it is
reaped, and the batches that it had leased are delivered again by the next one.

Learners that share a ring must not take it all: one that waits for another, as in synchronous training, would wait
forever. So each has its share, and a batch ahead is called back once more learners come than were there before.

A learner that comes again says which batches it has had. So a batch that it is working on, or is done with, is not
sent to anybody again, even by another bridge.
"""

import errno
import json
import math
import time
from collections.abc import Callable

from echo_shm._core import lib
from echo_shm.errors import SegmentError, WireError
from echo_shm.net import learner_wire, wire
from echo_shm.net.bridge.connection import Connection
from echo_shm.net.bridge.decoder import Request
from echo_shm.net.bridge.shares import Learner, Source, pause
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Frame
from echo_shm.ring import ranks
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.batch_source import BatchSource
from echo_shm.ring.board import made_or_refused, read_board
from echo_shm.ring.inbox import tables_of
from echo_shm.ring.lockfile import CREATOR_BYTE, INBOX
from echo_shm.ring.segment import Segment

#: How long the batches of a learner whose connection was lost are kept for it (seconds).
_AWAY = 1.0

#: How often the replay is asked for a ring again: the one that was asked may be dead (seconds).
_ASK_AGAIN = 1.0

#: How long a learner waits for its rank while another one has it (seconds). That one may have lost its connection, or
#: its bridge may be closing.
_TAKEN = _AWAY + 1.0

#: How many bytes of batches may wait in a connection before one more is taken for it.
_AHEAD = 1 << 20

#: How long learners wait for the next replay if theirs was killed (seconds).
_GRACE = 30.0


def _ring_of(ask: Ask) -> BatchRing:
    """The ring that a learner asks for."""
    return BatchRing(ask.table, ask.n, ask.rank, ask.world_size)


class Learners:
    """All learners of a bridge.

    Args:
        inbox: The segment of the replay's inbox.
        ask: Asks the replay for a ring of batches, which is to hold so many. It returns whether the replay can have
            heard it.

    """

    def __init__(self, inbox: Segment, ask: Callable[[BatchRing, int], bool]) -> None:
        self._inbox = inbox
        self._name = inbox.name.removesuffix(INBOX)
        self._ask = ask
        self._num_tables = len(tables_of(inbox.spec) or ())
        self._by_client: dict[bytes, Learner] = {}
        self._by_connection: dict[Connection, Learner] = {}
        self._sources: dict[BatchRing, Source] = {}
        self._opening: list[Learner] = []  # those whose ring was not found yet
        self._look_at, self._asked_since = math.inf, 0.0
        self._alone_since: float | None = None
        self._ending = False

    def __len__(self) -> int:
        """How many are connected."""
        return len(self._by_connection)

    def __contains__(self, connection: Connection) -> bool:
        """Whether a connection is a learner's."""
        return connection in self._by_connection

    # -- connections

    def admit(self, connection: Connection, client: bytes) -> None:
        """A learner has connected."""
        learner = self._by_client.setdefault(client, Learner())
        learner.connect(connection)
        connection.client = client
        self._by_connection[connection] = learner

    def lost(self, connection: Connection, *, keep: bool) -> None:
        """A learner's connection has ended. Without ``keep``, it will not come again."""
        learner = self._by_connection.pop(connection, None)
        if learner is None:
            return
        learner.connection = None
        learner.forget_at = time.monotonic() + _AWAY
        if learner in self._opening:
            self._opening.remove(learner)
        if not keep or learner.source is None:
            self._forget(connection.client, learner)

    def _forget(self, client: bytes, learner: Learner) -> None:
        del self._by_client[client]
        source, learner.source = learner.source, None
        if source is None:
            return
        for lease in learner.leased.values():
            source.ring.give_back(lease)
        learner.leased.clear()
        source.claims = {number: one for number, one in source.claims.items() if one is not learner}
        source.learners.remove(learner)
        if not source.learners:
            self._sources = {key: one for key, one in self._sources.items() if one is not source}
            source.ring.detach()

    # -- what learners say

    def handle(self, connection: Connection, request: Request) -> None:
        """Does what a learner asks for.

        Raises:
            WireError: It must not ask for this.

        """
        learner = self._by_connection[connection]
        if request.kind is Frame.INFO:
            connection.out += learner_wire.info(self._info())
        elif request.kind is Frame.ASK:
            self._asked(learner, connection, Ask.from_bytes(request.number, request.body))
        elif learner.ask is None:
            raise WireError(f"{request.kind.name} before ASK")
        elif request.kind is Frame.WANT:
            learner.wanted = max(learner.wanted, request.number)
        elif request.kind is Frame.DONE:
            self._done(learner, connection, request.number)
        else:
            self._given_back(learner, request.number)

    def _info(self) -> bytes:
        """The tables' figures; empty if there is no such replay any more."""
        try:
            text = json.dumps(read_board(self._name).get("tables", {}), separators=(",", ":")).encode()
        except SegmentError:
            return b""
        return text if len(text) <= learner_wire.MAX_INFO else b""

    def _asked(self, learner: Learner, connection: Connection, ask: Ask) -> None:
        if learner.ask is not None:
            raise WireError("ASK came twice")
        if ask.table >= self._num_tables:
            raise WireError(f"asked for batches of table {ask.table}, expected a table below {self._num_tables}")
        if ask.world_size > lib.ES_MAX_OUTBOXES:
            raise WireError(f"asked as one of {ask.world_size} ranks, expected at most {lib.ES_MAX_OUTBOXES}")
        learner.ask = ask
        source = learner.source
        if source is None:
            self._opening.append(learner)
            self._look_at = 0.0
            self._asked_since = learner.opening_since = time.monotonic()
        elif self._sources.get(_ring_of(ask)) is source:
            self._begin(learner, connection, ask, source)
        else:
            raise WireError(f"asked for batches of {ask.n} items of table {ask.table}, and before for others")

    def _begin(self, learner: Learner, connection: Connection, ask: Ask, source: Source) -> None:
        """Tells a learner what comes, and finds out what it does not have of what was sent to it before."""
        connection.out += learner_wire.ring(source.ring.uuid, source.ring.schema)
        has = set(ask.has) if ask.ring == source.ring.uuid else set()
        learner.unsent.extend(number for number in sorted(learner.leased) if number not in has)
        for number in has - learner.leased.keys():
            if source.claims.get(number, learner) is not None:
                source.claim(number, None if number in learner.early else learner)
        learner.early.clear()

    def _done(self, learner: Learner, connection: Connection, number: int) -> None:
        source, lease = learner.source, learner.leased.get(number)
        if lease is not None and (number in learner.unsent or connection.is_sending(number)):
            raise WireError(f"is done with batch {number}, which it does not have")
        if lease is not None and source is not None:
            del learner.leased[number]
            source.ring.release(lease)
        elif source is None and learner.ask is not None and number in learner.ask.has:
            learner.early.add(number)
        elif source is not None and source.claims.get(number) is learner:
            source.claim(number, None)
        learner.done += 1
        connection.acknowledged = learner.done
        connection.out += wire.ack(learner.done)

    def _given_back(self, learner: Learner, number: int) -> None:
        if number not in learner.recalled:
            raise WireError(f"gave back batch {number}, which was not called back")
        lease = learner.leased.pop(number, None)
        if lease is not None and learner.source is not None:
            learner.source.ring.give_back(lease)
            learner.source.look_at = 0.0

    # -- batches

    @property
    def nap(self) -> float:
        """The longest time until :meth:`pump` is to be called again (seconds)."""
        if any(one.batch_bytes < _AHEAD for source in self._sources.values() for one in source.busy):
            return 0.0  # so much was sent that there is room, and no event of the socket says so
        looks = [one.look_at for one in self._sources.values() if one.hungry]
        soonest = min([*looks, self._look_at] if self._opening else looks, default=math.inf)
        return max(0.0, soonest - time.monotonic())

    def pump(self) -> list[tuple[Connection, str | None]]:
        """Gives learners the batches that they have room for.

        Returns:
            Connections with something to send, and None; or those that must be refused, and why.

        """
        now, told = time.monotonic(), []
        if self._opening and now >= self._look_at:
            told += self._open_rings(now)
        for source in self._sources.values():
            told += self._feed(source, now)
        return told

    def _open_rings(self, now: float) -> list[tuple[Connection, str | None]]:
        told: list[tuple[Connection, str | None]] = []
        for learner in list(self._opening):
            connection, ask = learner.connection, learner.ask
            assert connection is not None
            assert ask is not None
            source = self._source_of(learner, ask, now)
            if isinstance(source, Source):
                self._sources[_ring_of(ask)] = learner.source = source
                source.learners.append(learner)
                self._begin(learner, connection, ask, source)
            if source is not None:
                self._opening.remove(learner)
                told.append((connection, source if isinstance(source, str) else None))
        self._look_at = now + pause(now - self._asked_since)
        return told

    def _source_of(self, learner: Learner, ask: Ask, now: float) -> Source | str | None:
        """The ring that a learner has asked for, or why it cannot have it. None: it is not known yet."""
        one = _ring_of(ask)
        source = self._sources.get(one)
        if source is None:
            return self._open(learner, ask, now)
        if not one.world_size:
            return source
        connection = source.learners[0].connection
        who = "one that may connect again" if connection is None else f"the learner at {connection.peer}"
        return self._taken(one, learner, who, now)

    def _taken(self, one: BatchRing, learner: Learner, who: str, now: float) -> str | None:
        """Why a learner cannot have its rank; None: that may pass."""
        return None if now - learner.opening_since < _TAKEN else ranks.why_taken(self._name, one, who)

    def _open(self, learner: Learner, ask: Ask, now: float) -> Source | str | None:
        """As :meth:`_source_of`, for a ring that this bridge is not attached to."""
        one = _ring_of(ask)
        ring = one.name(self._name)
        made, refusal = made_or_refused(self._name, ring)
        if made:
            try:
                return self._join(one, learner, now)
            except SegmentError as error:
                return None if error.errno == errno.ENOENT else str(error)
        if refusal is not None and learner.asked_at is not None:
            return refusal
        if (learner.asked_at is None or now - learner.asked_at >= _ASK_AGAIN) and self._ask(one, ask.buffers):
            learner.asked_at = now
        return None

    def _join(self, one: BatchRing, learner: Learner, now: float) -> Source | str | None:
        Segment.attach(self._inbox.name, self._inbox.uuid, read_only=True)  # the name may be another replay's by now
        segment = Segment.attach(one.name(self._name))
        if not one.world_size:
            return Source(BatchSource(segment))
        assert segment.lockfile is not None
        if not ranks.take(segment.lockfile):
            return self._taken(one, learner, ranks.taken_by(segment.lockfile), now)
        try:
            return Source(BatchSource(segment, is_rank=True))
        except BaseException:
            ranks.leave(segment.lockfile)
            raise

    def _feed(self, source: Source, now: float) -> list[tuple[Connection, str | None]]:
        """Takes batches for the learners of a ring in turn, until all have enough or there is none."""
        told: list[tuple[Connection, str | None]] = [(one, None) for one in source.recall()]
        source.busy.clear()
        source.hungry, share, fed = False, source.share(), not self._ending
        while fed:
            fed = False
            for _ in range(len(source.learners)):
                learner = source.learners[0]
                source.learners.rotate(-1)
                number = self._next_for(learner, source, share, now)
                if number is not None and learner.connection is not None:
                    learner.sent += 1
                    header = memoryview(learner_wire.batch_header(source.ring.n, number))
                    learner.connection.add_batch(number, [header, *source.ring.bytes_of(learner.leased[number])])
                    told.append((learner.connection, None))
                    fed = True
        told += [(one, None) for one in source.tell_full()]
        if source.ring.ended:
            told += [(one, None) for one in map(self._end_one, source.learners) if one is not None]
        return told

    def _next_for(self, learner: Learner, source: Source, share: int, now: float) -> int | None:
        """The number of the batch that a learner gets now; None: none."""
        connection = learner.connection
        if connection is None or learner.ask is None or learner.ended or learner.sent >= learner.wanted:
            return None
        if connection.batch_bytes >= _AHEAD:
            source.busy.append(connection)
            return None
        if learner.unsent:
            return learner.unsent.popleft()
        lease = source.take(now) if len(learner.leased) < share else None
        if lease is None:
            return None
        learner.leased[lease.number] = lease
        return lease.number

    # -- timed work, and the end

    def check(self, now: float) -> list[tuple[Connection, str]]:
        """To be called a few times a second. Returns connections that must be ended, and what they are to be told."""
        for client, learner in list(self._by_client.items()):
            if learner.connection is None and learner.forget_at <= now:
                self._forget(client, learner)
        for source in self._sources.values():
            source.others = source.ring.count_others()
        asking = [connection for connection, learner in self._by_connection.items() if learner.ask is not None]
        assert self._inbox.lockfile is not None
        if not asking or lib.es_segment_locks_held(self._inbox.lockfile.locks, CREATOR_BYTE) != 0:
            self._alone_since = None
            return []
        self._alone_since = self._alone_since or now
        if now - self._alone_since < _GRACE:
            return []
        return [(one, f"the replay was killed, and no other one came for {_GRACE} s") for one in asking]

    def end(self) -> list[Connection]:
        """Sends no more batches, and tells the learners so. They may still say what they are done with."""
        self._ending = True
        return [one for one in map(self._end_one, self._by_connection.values()) if one is not None]

    def _end_one(self, learner: Learner) -> Connection | None:
        """Tells a learner that no more batches will come, behind one that is on its way. None: it knows, or is away."""
        connection = learner.connection
        if connection is None or learner.ended:
            return None
        learner.ended = True
        connection.drop_batches()
        connection.out += learner_wire.end()
        return connection

    def leave(self) -> None:
        """Gives back all batches, and leaves the rings."""
        for client, learner in list(self._by_client.items()):
            self._forget(client, learner)
