"""A client's own ring, and the threads that take it to the server.

A client has a ring in its own memory, with one batch a frame. ``send`` is what it is for
:class:`ShmClient`: a copy into a slot. One thread takes frames out of that ring, full ones at once and
others within a millisecond, and sends them; they stay leased until the server has them in its own
ring, so that after a lost connection they are there to be sent again. Another reads the acknowledgements.
"""

import contextlib
import logging
import queue
import threading
import time

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError, EchoShmError, ForkedError, SpecMismatchError, WireError
from echo_shm.net import wire
from echo_shm.net.client.backoff import Backoff
from echo_shm.net.client.connection import Connection, ForgottenError, Options, RefusedError, open_first
from echo_shm.net.client.outbox import Outbox

_log = logging.getLogger("echo_shm")

#: Bytes of samples in a frame, about.
_FRAME = 1 << 20
#: Most samples in a frame.
_MAX_FRAME_SAMPLES = 4096
#: Frames that the client's own ring holds at most.
_MAX_FRAMES = 8
#: How long a sample waits for others to share its frame (nanoseconds).
_GATHER_NS = 1_000_000
#: A connection that lived longer, with nothing to deliver, was of use (seconds).
_SHORT_LIFE = 1.0
#: Longest that one try may take (seconds).
_LONGEST_TRY = 5.0
#: How long close() waits for its thread, once everything is delivered or given up (seconds). Less when there is
#: no connection: then the thread may be in a try to connect, which nothing cuts short, and leaves when that is over.
_END_TIME, _END_TIME_UNCONNECTED = 10.0, 0.5


class Sender:
    """From a client's own ring to its server's, with two threads.

    A sample's number is its position in the ring. The sender alone connects and takes from the ring; the reader alone
    reads. What both change, ``acknowledged`` and the link and its state, changes under ``_changed``.
    """

    def __init__(self, options: Options, most_unacknowledged: int, grace: float, timeout: float | None) -> None:
        self._options = options
        self._backoff = Backoff(grace)
        self.acknowledged = 0  # the number of the first sample that the server may not have
        self._next = 0  # the number of the first sample that was not sent, on this link
        self._connection = open_first(options, timeout)
        try:
            size = self._frame_samples(self._connection.max_frame)
            self._max_unacknowledged = size * min(most_unacknowledged, _MAX_FRAMES)
            if self._connection.version == 1:  # an acknowledgement a sample
                size, self._max_unacknowledged = min(size, most_unacknowledged), most_unacknowledged
            self._outbox = Outbox(options.spec, options.peer, size, self._max_unacknowledged)
        except BaseException:
            self._connection.close()
            raise
        self.producer = self._outbox.producer
        self._changed = threading.Condition()
        # A signal's handler may use both, wherever it cuts into the thread that does.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closing = threading.RLock()
        self.sleeping = False
        self._flushing = 0
        self._closed = False  # close() has done what it can
        self._stop = False  # nothing more is sent
        self.ended = threading.Event()  # and every send() has come to an end
        self._error: Exception | None = None  # why, unless by close()
        self._loss: BaseException | None = None  # why the connection is of no use any more
        self._receiving: Connection | None = None
        self._since = (0, time.monotonic())  # acknowledged, and the time, when the connection was made
        self._generation = lib.es_fork_generation()
        self._receive_thread = threading.Thread(target=self._receive, name="echo_shm-client-receiver", daemon=True)
        self._send_thread = threading.Thread(target=self._run, name="echo_shm-client-sender", daemon=True)
        try:
            self._receive_thread.start()
            self._send_thread.start()
        except BaseException:  # no more threads can be had, or Ctrl-C
            self.abandon()
            if not self._send_thread.is_alive():
                self._disconnect()
            raise

    def _frame_samples(self, max_frame: int) -> int:
        size = self._options.spec.sample_bytes
        return max(1, min(wire.samples_in(min(max_frame, max(_FRAME, size)), size), _MAX_FRAME_SAMPLES))

    def sent(self) -> int:
        """The number of the sample that send() puts into the ring next."""
        return self._outbox.claimed()

    # -- for the client's threads

    def wake(self) -> None:
        """Has the sender look again, if it sleeps or is about to."""
        self._wakeups.put(None)

    def raise_if_ended(self) -> None:
        """Raises what ended the connection for good, if something did."""
        error = self.end_reason()
        if error is not None:
            raise error from error.__cause__

    def end_reason(self) -> ConnectionClosedError | None:
        """What ended the connection for good, if something did."""
        if self._error is not None:
            error = ConnectionClosedError(f"TcpClient for {self._options.peer}: {self._error}")
            error.__cause__ = self._error
            return error
        if self._stop or not self.producer.attached:
            return ConnectionClosedError(f"TcpClient for {self._options.peer} is closed")
        return None

    def raise_if_forked(self) -> None:
        """Raises ForkedError in a child of the process that connected."""
        if lib.es_fork_generation() != self._generation:
            raise ForkedError(f"this TcpClient for {self._options.peer} was inherited through a fork: connect anew")

    def flush(self, timeout: float | None) -> None:
        """Waits until everything sent so far is acknowledged.

        Raises:
            TimeoutError, ConnectionClosedError, ForkedError: As :meth:`TcpClient.wait`.

        """
        self.raise_if_forked()
        target = self.sent()
        with self._changed:
            try:
                self._flushing += 1
                self.wake()
                self._changed.wait_for(
                    lambda: self.acknowledged >= target or self.ended.is_set(),
                    None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout,
                )
            finally:
                self._flushing -= 1
            if self.acknowledged >= target:
                return
        if self.ended.is_set():
            self.raise_if_ended()
        raise TimeoutError(
            f"{self._options.peer} has not acknowledged {target - self.acknowledged} samples within {timeout} s"
        )

    def close(self, timeout: float | None) -> None:
        """Delivers, says goodbye, and ends both threads.

        Raises:
            ConnectionClosedError: Samples are missing.

        """
        if lib.es_fork_generation() != self._generation:
            return  # a forked child: the threads and the connection are its parent's
        failure: Exception | None = None
        with self._closing:
            if self._closed:
                return
            interrupted = self._stop and self._error is None  # by Ctrl-C: that gave up what was not delivered
            try:
                self.producer.detach()  # whoever is in send() comes to its end: nothing is added after this
                self.flush(timeout)
            except (EchoShmError, TimeoutError) as error:
                failure = error
            finally:
                self._finish(None)
                if self.acknowledged < self.sent():
                    self._connection.shut()  # the sender may be in the middle of what nobody takes
            self._send_thread.join(_END_TIME if self._loss is None else _END_TIME_UNCONNECTED)
            self._closed = True
        missing = self.sent() - self.acknowledged
        if missing and not interrupted:
            raise ConnectionClosedError(
                f"TcpClient for {self._options.peer} was closed with {missing} samples not acknowledged: {failure}"
            ) from None

    def abandon(self) -> None:
        """Ends both threads, and delivers nothing more."""
        self._finish(None)
        self._connection.shut()

    def _finish(self, error: Exception | None) -> None:
        """Nothing more will be sent; the first call's ``error`` says why. May be cut short, and is then done again."""
        with self._changed:
            if not self._stop:
                self._error = error
            self._stop = True
        self.producer.detach()
        self.ended.set()
        with self._changed:
            self._changed.notify_all()
        self.wake()

    # -- the sender's thread

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._loss is not None:
                    self._reconnect()
                self._lease_full()
                count = self._samples_to_send()
                if count > 0:
                    self._transmit(count)
        except Exception as error:
            self._lose(self._connection, error)  # perhaps in the middle of a frame: no word can follow
            self._finish(error)
        finally:
            self._disconnect()

    def _lease_full(self, wait_ns: int = 0) -> None:
        """Leases the batches that are complete: their slots are not used again before they are acknowledged."""
        self._outbox.lease_full(wait_ns)
        self._outbox.release(self.acknowledged)

    def _samples_to_send(self) -> int:
        """Waits for samples, and for more to share their frame: how many to send now. 0: look again at everything."""
        with self._changed:
            self._changed.wait_for(lambda: self._window() > 0 or self._stop or self._loss is not None)
        count = self._committed()
        if count == 0:
            self._sleep()
            count = self._committed()
        if count == 0 or self._stop or self._loss is not None:
            return 0
        whole = self._outbox.size - self._next % self._outbox.size
        if count < min(whole, self._window()) and not self._flushing:
            self._lease_full(_GATHER_NS)
            count = self._committed()
        return min(count, self._window())

    def _window(self) -> int:
        """Samples that may be sent before more are acknowledged."""
        return self._max_unacknowledged - (self._next - self.acknowledged)

    def _committed(self) -> int:
        """Samples of one batch that are there and not sent."""
        return self._outbox.committed(self._next)

    def _sleep(self) -> None:
        """Until somebody sends."""
        self.sleeping = True  # before the look: whoever sends after it sees this
        with contextlib.suppress(queue.Empty):
            while True:
                self._wakeups.get_nowait()
        if self._committed() == 0 and not self._stop and self._loss is None:
            self._wakeups.get()
        self.sleeping = False

    def _transmit(self, count: int) -> None:
        """Sends the next samples; all of one batch."""
        most = self._frame_samples(self._connection.max_frame)
        try:
            for at in range(0, count, most):
                n, number = min(most, count - at), self._next
                self._next += n  # first, for the acknowledgement may be faster
                self._connection.send_samples(number, n, self._outbox.bytes_of(number, n))
        except OSError as error:
            self._lose(self._connection, error)

    def _reconnect(self) -> None:
        """Connects again and sends what is not acknowledged; raises when that cannot be done."""
        lost, old = self._loss, self._connection
        with self._changed:
            self._changed.wait_for(lambda: self._receiving is not old)
        old.close()
        if isinstance(lost, EchoShmError) or self._backoff.grace <= 0:
            raise ConnectionClosedError(f"connection lost: {lost}") from lost
        acknowledged, made = self._since
        idle = self.acknowledged == self._next and time.monotonic() - made > _SHORT_LIFE
        self._backoff.restart(useful=idle or old.heard or self.acknowledged > acknowledged)
        _log.warning("TcpClient for %s: connection lost (%s); trying again", self._options.peer, lost)
        in_doubt = self._next - self.acknowledged
        forgotten = ConnectionClosedError(f"the server has forgotten this client: {in_doubt} samples are in doubt")
        try:
            connection = self._next_connection(lost, old.ring if in_doubt > 0 and old.version == 2 else wire.NO_RING)
        except ForgottenError:
            raise forgotten from None
        try:
            if connection.version != old.version:
                raise ConnectionClosedError(
                    f"the server speaks wire version {connection.version} now, no longer {old.version}: "
                    f"{in_doubt} samples are in doubt"
                )
            if connection.ring == old.ring and not connection.known and in_doubt > 0:
                raise forgotten
            self._acknowledge(connection.committed)
        except BaseException:
            connection.close()
            raise
        self._next = connection.committed  # what was sent beyond it is sent again
        with self._changed:
            self._connection, self._loss = connection, None
            self._since = (self.acknowledged, time.monotonic())
            self._changed.notify_all()

    def _next_connection(self, why: BaseException | None, doubt: bytes) -> Connection:
        grace = self._backoff.grace
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stop, self._backoff.next_delay())
            left = self._backoff.time_left()
            if left <= 0 or self._stop:
                ending = "closed meanwhile" if self._stop else f"not made again within {grace} s"
                raise ConnectionClosedError(f"connection lost, and {ending}: {why}") from why
            try:
                return Connection(self._options, self.acknowledged, min(max(left, 0.1), _LONGEST_TRY), doubt)
            except (SpecMismatchError, WireError, RefusedError):
                raise
            except (OSError, EchoShmError) as error:
                why = error

    def _lose(self, connection: Connection, error: BaseException) -> None:
        with self._changed:
            if self._connection is connection and self._loss is None:
                self._loss = error
            self._changed.notify_all()
        connection.shut()  # the other thread may be in a call that nothing else would end
        self.wake()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):
            if self._loss is None and self._connection.version == 2:
                self._connection.send([wire.bye(self._next)])
        self._connection.shut()
        if self._receive_thread.is_alive():
            self._receive_thread.join(_END_TIME)
        self._connection.close()
        self._outbox.detach()

    # -- the reader's thread

    def _receive(self) -> None:
        connection: Connection | None = None
        while (connection := self._next_to_receive(connection)) is not None:
            try:
                while True:
                    self._acknowledge(connection.next_acknowledged(self.acknowledged))
            except ConnectionClosedError as error:  # for good
                self._lose(connection, error)
                self._finish(error)
            except (OSError, WireError) as error:
                self._lose(connection, error)
            except Exception as error:
                self._lose(connection, error)
                self._finish(error)

    def _next_to_receive(self, last: Connection | None) -> Connection | None:
        """Waits for a connection that was not read yet, or for the end."""
        with self._changed:
            self._receiving = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stop or (self._loss is None and self._connection is not last))
            if self._connection is not last and self._loss is None:
                self._receiving = self._connection
            return self._receiving

    def _acknowledge(self, number: int) -> None:
        """Every sample below that number is in the server's ring."""
        with self._changed:
            if not self.acknowledged <= number <= self._next:
                raise WireError(f"acknowledged {number}, expected {self.acknowledged} to {self._next}")
            self.acknowledged = number
            self._changed.notify_all()
        self._outbox.release(number)
