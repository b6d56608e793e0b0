"""A learner's batches from a server: a thread receives them ahead, and connects again after a lost connection.

A batch is acknowledged when its user asks for the next one, or says that it is done with all that it has taken. What
was received and not handed out by then is dropped if the connection is lost: the server sends it again, to this learner
or to another one.

With ``early`` all that has come is acknowledged before that, once some of it keeps others waiting. It is this process's
alone from then on, also if the connection is lost: nobody gets what the user has not taken when it ends. That suits
items that may be drawn any number of times.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError, ForkedError, SegmentError, WireError
from echo_shm.net import learner_wire, wire
from echo_shm.net.client.blocks import Blocks
from echo_shm.net.client.connection import Options
from echo_shm.net.client.learner_connection import LearnerConnection
from echo_shm.net.client.reconnect import Reconnector
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Frame, Header
from echo_shm.spec import Array, Spec

_log = logging.getLogger("echo_shm")

#: Most batches, or items if these are more, on their way to a learner, whatever it asks for.
_MOST_BATCHES, _MOST_ITEMS = 256, 1 << 11

#: How long close() waits until the server has heard what was done (seconds).
_END_TIME = 1.0


class Batches:
    """Receives the batches of n items of a table.

    What several threads change (the batches, the connection and its loss) changes under ``_changed``. The receiving
    thread alone connects again and reads. Small frames are sent under ``_changed``, so that they stay in order.

    Args:
        options: Of the connections. ``client`` is this learner's own.
        connection: The first connection.
        ask: What to ask for. ``buffers`` is the most batches that this learner has at a time, the one that its user
            works on included.
        check: Raises if a batch's items, whose spec it gets, are not what this learner expects.
        grace: How many seconds to try to connect again.
        early: Whether to acknowledge what has come once some of it keeps others waiting.

    """

    def __init__(
        self,
        options: Options,
        connection: LearnerConnection,
        ask: Ask,
        check: Callable[[Spec], None],
        grace: float,
        *,
        early: bool = False,
    ) -> None:
        self._options, self._ask, self._check, self._inbox = options, ask, check, connection.ring
        self._early = early
        self._most = min(ask.buffers, max(_MOST_BATCHES, _MOST_ITEMS // ask.n))
        self._changed = threading.Condition()
        self._connection: LearnerConnection | None = None  # None while it is lost
        # What the user has not taken, and works on, by its number. None: it is acknowledged already, see `_note_full`.
        self._ready: deque[tuple[int | None, list[Array]]] = deque()
        self._in_hand: deque[int | None] = deque()
        self._unheard: deque[int] = deque()  # batches that are done, and the server has not said that it heard it
        self._known: set[int] = set()  # all of these
        self._is_full = self._is_blocking = False
        self._received = self._heard = 0  # on this connection: batches, and how many that are done
        self._said = 0  # on this connection: how many that are done
        self._ring: tuple[bytes, bytes] | None = None  # the uuid and the schema of the ring
        self._blocks: Blocks | None = None
        self._closing = self._ended = False
        self._error: Exception | None = None
        self._reconnector = Reconnector(grace, self._changed, lambda: self._closing)
        self._generation = lib.es_api_fork_generation()
        self._thread = threading.Thread(
            target=self._run, args=(connection,), name="echo_shm-learner-receiver", daemon=True
        )
        try:
            self._begin(connection)
            self._thread.start()
        except BaseException:
            connection.close()
            raise

    # -- called by the user's thread

    def next(self, timeout: float | None) -> list[list[Array]]:
        """Acknowledges what was taken, and waits for the next batch: its arrays, in a list; empty at the end.

        Raises:
            ConnectionClosedError: The connection was lost for good, or another replay has come.
            SegmentError: The replay cannot make such batches.
            WireError, SpecMismatchError: The server cannot be trusted.
            ForkedError: Called in a child of the process that connected.

        """
        self._refuse_in_child()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._acknowledge()
            while not self._ready and not self._ended:
                left = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if not self._ready:
                self._raise_error()
                return []
            return [self._hand_out()]

    def count(self) -> int:
        """How many batches can be taken now.

        Raises:
            Exception: None can, and none will: as :meth:`next`.

        """
        self._refuse_in_child()
        with self._changed:
            if not self._ready and self._ended:
                self._raise_error()
            return len(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether no more will come before some of what has come is done: this learner has all that it may have."""
        with self._changed:
            return self._is_full or len(self._ready) + len(self._in_hand) >= self._most

    @property
    def is_blocking(self) -> bool:
        """Whether the replay waits for some of what has come to be done: others may wait for the replay."""
        with self._changed:
            return self._is_blocking

    def peek(self) -> list[Array] | None:
        """The next batch's arrays; None: it is not there any more."""
        with self._changed:
            return self._ready[0][1] if self._ready else None

    def take(self) -> list[Array] | None:
        """As :meth:`peek`, and takes it, beside what was taken before."""
        with self._changed:
            return self._hand_out() if self._ready else None

    def done(self) -> None:
        """Acknowledges all that was taken."""
        with self._changed:
            self._acknowledge()

    def _refuse_in_child(self) -> None:
        if lib.es_api_fork_generation() != self._generation:
            raise ForkedError(f"these batches of {self._options.peer} are the parent process's: iterate anew here")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _hand_out(self) -> list[Array]:
        number, arrays = self._ready.popleft()
        self._in_hand.append(number)
        return arrays

    @property
    def over(self) -> bool:
        """Whether no batch will come any more: the replay has closed."""
        with self._changed:
            return self._ended and not self._ready

    def close(self) -> None:
        """Acknowledges what was taken, and disconnects. What is not acknowledged goes to another learner."""
        if lib.es_api_fork_generation() != self._generation:
            return
        with self._changed:
            self._acknowledge()
            self._say_bye()
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is self._thread:  # the collector has closed the iteration here
            return
        self._thread.join(_END_TIME)
        with self._changed:
            if self._connection is not None:
                self._connection.shutdown()
        if not self._reconnector.trying:
            self._thread.join()

    def _acknowledge(self) -> None:
        """Says that the user is done with what it has taken, and that there is room for as many more."""
        if not self._in_hand:
            return
        done = self._say_done(self._in_hand)
        self._in_hand.clear()
        self._is_full = self._is_blocking = False
        self._send(done + self._want())

    def _say_done(self, batches: Iterable[int | None]) -> bytes:
        """What acknowledges them, but for those that are acknowledged already."""
        numbers = [number for number in batches if number is not None]
        self._said += len(numbers)
        self._unheard += numbers
        return b"".join(map(learner_wire.done, numbers))

    def _want(self) -> bytes:
        # What has come on this connection, and is not dropped, is in `_ready`, in hand, or done.
        return learner_wire.want(self._received + self._most - len(self._ready) - len(self._in_hand))

    def _say_bye(self) -> None:
        self._send(wire.bye(0))

    def _send(self, data: bytes) -> None:
        """Sends, if there is a connection. If it is lost just now, the receiving thread finds out, too."""
        if self._connection is not None:
            try:
                self._connection.send([data])
            except OSError:
                self._connection.shutdown()

    # -- the receiving thread

    def _run(self, connection: LearnerConnection) -> None:
        try:
            while True:
                lost = self._receive_until_lost(connection)
                connection.close()
                if lost is None:
                    return
                connection = self._connect_again(lost)
        except Exception as error:
            self._finish(error)
        finally:
            with self._changed:
                self._connection = None
            connection.close()

    def _finish(self, error: Exception | None) -> None:
        with self._changed:
            self._ended = True
            if not self._closing:
                self._error = error
            self._changed.notify_all()

    def _begin(self, connection: LearnerConnection) -> None:
        """Asks for batches on a new connection, and says what this learner has had."""
        with self._changed:
            self._connection = connection
            self._received = self._heard = 0
            self._said, self._is_full, self._is_blocking = len(self._unheard), False, False
            if self._ring is not None:
                # Enough for all that may be in hand, and as many more; what is older is long released.
                in_hand = [number for number in self._in_hand if number is not None]
                has = (*in_hand, *reversed(self._unheard))[: learner_wire.MAX_HAS]
                self._ask = self._ask._replace(ring=self._ring[0], has=has)
            done = b"".join(map(learner_wire.done, self._unheard))
            self._send(self._ask.to_bytes() + done + self._want())

    def _receive_until_lost(self, connection: LearnerConnection) -> BaseException | None:
        """Receives. Returns what has ended the connection; None if no other one is needed."""
        told = False
        self._reconnector.backoff.restart(useful=True)
        try:
            while True:
                header = connection.receive_header(self._ask.n)
                told = True
                self._handle(connection, header)
        except ConnectionClosedError:
            raise
        except OSError as error:
            if isinstance(error, SegmentError):
                raise
            with self._changed:
                self._connection = None
                self._drop_ready()
                if self._closing or self._ended:
                    return None
            self._reconnector.backoff.restart(useful=told)
            return error

    def _connect_again(self, lost: BaseException) -> LearnerConnection:
        _log.warning("learner for %s: connection lost (%s); trying again", self._options.peer, lost)
        connection = self._reconnector.connect(lambda timeout: LearnerConnection(self._options, timeout), lost)
        if connection.ring != self._inbox:
            connection.close()
            raise ConnectionClosedError(f"{self._options.peer} has another replay now")
        self._begin(connection)
        return connection

    def _handle(self, connection: LearnerConnection, header: Header) -> None:
        """Does what a frame says."""
        if header.kind is Frame.BATCH:
            self._take(connection, header.number)
            return
        body = connection.receive_body(header.length)
        if header.kind is Frame.RECALL:
            self._give_back(header.number)
        elif header.kind is Frame.ACK:
            self._hear(header.number)
        elif header.kind is Frame.RING:
            self._open(body)
        elif header.kind is Frame.FULL:
            self._note_full(header.number, body)
        elif header.kind is Frame.END:
            self._end()
        else:
            text = wire.printable(body)
            if header.kind is Frame.REFUSE:
                raise SegmentError(text)
            if header.kind is Frame.BYE:
                raise ConnectionClosedError(f"{self._options.peer} has closed: {text}")
            raise WireError(f"{self._options.peer} sent {header.kind.name}, which nobody has asked for")

    def _open(self, body: bytes) -> None:
        ring, schema = body[: len(wire.NO_RING)], body[len(wire.NO_RING) :]
        if self._ring is None:
            try:
                spec = Spec.from_schema(schema, "its answer")
            except SegmentError as error:
                raise WireError(f"{self._options.peer}: {wire.printable(str(error).encode())}") from None
            self._check(spec)
            self._blocks, self._ring = Blocks(spec, self._ask.n, self._most + 1), (ring, schema)
        elif self._ring != (ring, schema):
            raise ConnectionClosedError(f"{self._options.peer} has another replay now")

    def _take(self, connection: LearnerConnection, number: int) -> None:
        """Receives a batch."""
        if self._blocks is None:
            raise WireError(f"{self._options.peer} sent a batch, and has not said what is in it")
        with self._changed:
            known, room = number in self._known, self._most - len(self._ready) - len(self._in_hand)
        if known or room <= 0:
            raise WireError(f"{self._options.peer} sent batch {number} {'again' if known else 'without being asked'}")
        spaces, arrays = self._blocks.take()
        connection.receive_into(spaces)
        with self._changed:
            self._received += 1
            self._is_full = self._is_blocking = False
            self._known.add(number)
            self._ready.append((number, arrays))
            self._changed.notify_all()

    def _give_back(self, number: int) -> None:
        """Gives a batch back for another learner, unless the user has it."""
        with self._changed:
            kept = deque(one for one in self._ready if one[0] != number)
            if len(kept) < len(self._ready):
                self._ready = kept
                self._known.discard(number)
                self._send(learner_wire.give_back(number) + self._want())

    def _note_full(self, count: int, why: bytes) -> None:
        """No more will come before some of what has come is done."""
        if why not in learner_wire.WHY_FULL:
            raise WireError(f"{self._options.peer} said FULL for the reason {why!r}")
        with self._changed:
            if count != self._said:  # it did not know of all that is done
                return
            if self._early and why == learner_wire.BLOCKING:
                self._acknowledge_early()
            else:
                self._is_full, self._is_blocking = True, why == learner_wire.BLOCKING

    def _acknowledge_early(self) -> None:
        """Says that all that has come is done. It keeps its room here: no more is wanted before the user has it."""
        done = self._say_done([*self._in_hand, *(number for number, _ in self._ready)])
        self._in_hand = deque(None for _ in self._in_hand)
        self._ready = deque((None, arrays) for _, arrays in self._ready)
        self._send(done)

    def _hear(self, count: int) -> None:
        """The server has heard of so many batches that they are done."""
        with self._changed:
            if not self._heard <= count <= self._said:
                raise WireError(f"acknowledged {count} batches, expected {self._heard} to {self._said}")
            for _ in range(count - self._heard):
                self._known.discard(self._unheard.popleft())
            self._heard = count

    def _drop_ready(self) -> None:
        """Drops what the server sends again, or gives to others."""
        self._known.difference_update(number for number, _ in self._ready if number is not None)
        self._ready = deque(one for one in self._ready if one[0] is None)

    def _end(self) -> None:
        """No more will come. The server waits for what is done, and gives the rest to others."""
        with self._changed:
            self._drop_ready()
            self._acknowledge()
            self._say_bye()
        self._finish(None)
