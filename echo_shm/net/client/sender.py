"""The sender: two threads that deliver a client's samples to its server.

A client has a ring in its own memory, whose batches are frames. ``send`` copies a sample into a slot of it, as
:class:`ShmClient` does. The send thread takes frames out of that ring and sends them: full frames at once, others
within a millisecond. A frame stays leased until it is in the server's ring, so that it can be sent again after a lost
connection. The receive thread reads the acknowledgements.
"""

import contextlib
import logging
import math
import queue
import threading
import time

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError, EchoShmError, ForkedError, WireError
from echo_shm.net import wire
from echo_shm.net.client.connection import Connection, Options, open_first
from echo_shm.net.client.feed import Feed
from echo_shm.net.client.outbox import Outbox, frame_samples
from echo_shm.net.client.reconnect import Reconnector, resume
from echo_shm.net.client.taken import Taken
from echo_shm.spec import Array, Spec

_log = logging.getLogger("echo_shm")

#: Most frames in the client's own ring.
_MAX_FRAMES = 8
#: How long a sample waits for others to fill its frame (nanoseconds).
_GATHER_NS = 1_000_000
#: A connection that lived longer than this, with nothing to deliver, was useful (seconds).
_SHORT_LIFE = 1.0
#: How long close() waits for the send thread, once everything is delivered or dropped (seconds). It does not wait for a
#: try to connect, which cannot be interrupted: the thread ends after that.
_END_TIME = 10.0


class Sender:
    """Delivers the samples of a client's own ring, with two threads.

    A sample's number is its position in the ring. Only the send thread connects and takes from the ring, and only the
    receive thread reads. The state that both change (``acknowledged``, the connection and its loss) changes under
    ``_changed``.
    """

    def __init__(self, options: Options, most_unacknowledged: int, grace: float, timeout: float | None) -> None:
        self.acknowledged = 0  # the number of the first sample that may not be in the server's ring
        self._next = 0  # the number of the first sample that was not sent on this connection
        self._connection = open_first(lambda timeout: Connection(options, 0, timeout), timeout)
        self._options = options = options._replace(spec=self._connection.spec)
        try:
            size = frame_samples(options.spec, self._connection.max_frame)
            self._max_unacknowledged = size * min(most_unacknowledged, _MAX_FRAMES)
            if self._connection.version == 1:  # each sample is acknowledged on its own
                size, self._max_unacknowledged = min(size, most_unacknowledged), most_unacknowledged
            self._outbox = Outbox(options.spec, options.peer, size, self._max_unacknowledged)
        except BaseException:
            self._connection.close()
            raise
        self.producer = self._outbox.producer
        self._changed = threading.Condition()
        self.taken = Taken(options.peer, self._changed)
        self.feed = Feed(options.peer, self._changed, self.wake, self.end_reason, self._stamp)
        # A signal handler may use these two while the thread that it interrupts does.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closing = threading.RLock()
        self.sleeping = False
        self._flushing = 0
        self._closed = False  # close() has finished
        self._closer: int | None = None  # the thread that is in close()
        self._stop = False  # nothing more is sent
        self.ended = threading.Event()  # set after _stop, when no send() can add a sample any more
        self._reconnector = Reconnector(grace, self._changed, self.ended.is_set)
        self._error: Exception | None = None  # why it stopped; None after close()
        self._loss: BaseException | None = None  # why the connection cannot be used any more
        self._receiving: Connection | None = None
        self._since = (0, time.monotonic())  # when the connection was made: what was acknowledged, and the time
        self.heard_at = time.monotonic()  # when the server said something last; it does so every few seconds
        self._generation = lib.es_api_fork_generation()
        self._feed_from(self._connection)
        self._receive_thread = threading.Thread(target=self._receive, name="echo_shm-client-receiver", daemon=True)
        self._send_thread = threading.Thread(target=self._run, name="echo_shm-client-sender", daemon=True)
        try:
            self._receive_thread.start()
            self._send_thread.start()
        except BaseException:  # no thread can be started, or Ctrl-C
            self.abandon()
            if not self._send_thread.is_alive():
                self._disconnect()
            raise

    @property
    def spec(self) -> Spec:
        """What the server's samples look like; see :class:`Connection`."""
        return self._options.spec

    @property
    def peer(self) -> str:
        """The server's address, for messages."""
        return self._options.peer

    def sent(self) -> int:
        """The number of the sample that the next send() puts into the ring."""
        return self._outbox.claimed()

    def undelivered(self) -> list[Array]:
        """Copies of the samples that were sent and are not acknowledged, leaf by leaf. Once all has ended."""
        return self._outbox.copies(self.acknowledged, self.sent())

    # -- called by the client's threads

    def wake(self) -> None:
        """Wakes the send thread if it sleeps or is about to."""
        self._wakeups.put(None)

    def raise_if_ended(self) -> None:
        """Raises what ended delivery for good, if anything did."""
        error = self.end_reason()
        if error is not None:
            raise error from error.__cause__

    def end_reason(self) -> ConnectionClosedError | None:
        """What ended delivery for good, if anything did."""
        if self._error is not None:
            error = ConnectionClosedError(f"TcpClient for {self._options.peer}: {self._error}")
            error.__cause__ = self._error
            return error
        if self._stop or not self.producer.attached:
            return ConnectionClosedError(f"TcpClient for {self._options.peer} is closed")
        return None

    def raise_if_forked(self) -> None:
        """Raises ForkedError in a child of the process that connected."""
        if lib.es_api_fork_generation() != self._generation:
            raise ForkedError(
                f"this TcpClient for {self._options.peer} was inherited through a fork: make a new one in the child"
            )

    def subscribe(self) -> Spec:
        """As :meth:`Feed.subscribe`, of a server that can have weights."""
        self.raise_if_forked()
        if self._connection.version == 1:
            raise WireError(f"{self.peer} speaks wire version 1, which has no weights")
        return self.feed.subscribe()

    def flush(self, timeout: float | None, patience: float | None = None) -> None:
        """Waits until all samples sent so far are acknowledged.

        Args:
            timeout: Seconds to wait in all; None: no limit.
            patience: Seconds to wait while nothing at all is acknowledged; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError, ForkedError: As :meth:`TcpClient.wait`.

        """
        self.raise_if_forked()
        target = self.sent()
        with self._changed:
            try:
                self._flushing += 1
                self.wake()
                late = self._await(target, timeout, patience)
            finally:
                self._flushing -= 1
            if self.acknowledged >= target:
                return
        if self.ended.is_set():
            self.raise_if_ended()
        lost = self._loss
        why = "" if lost is None else f"; the connection is lost, and not made again yet: {lost}"
        missing = target - self.acknowledged
        raise TimeoutError(f"{self._options.peer} has not acknowledged {missing} samples {late}{why}")

    def flush_taken(self, timeout: float | None) -> None:
        """Waits until all samples sent so far were taken out of the ring. Only a replay's server says so.

        Raises:
            TimeoutError, ForkedError: As :meth:`flush`.
            ConnectionClosedError: As :meth:`flush`; or another replay is there now, and the one before it may not have
                taken them.

        """
        started = time.monotonic()
        self.flush(timeout)
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
        if not self.taken.wait(self.acknowledged, left, self.ended.is_set):
            self.raise_if_ended()

    def _await(self, target: int, timeout: float | None, patience: float | None) -> str:
        """Waits with the lock held, until the sample is acknowledged or all has ended. Otherwise says what was late."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        step = math.inf if patience is None else patience
        last, since = self.acknowledged, time.monotonic()
        while self.acknowledged < target and not self.ended.is_set():
            now = time.monotonic()
            if self.acknowledged != last:
                last, since = self.acknowledged, now
            if now >= since + step:
                reason = ": the learner takes no batches, so its ring stays full, or it is gone"
                return f"for {patience} s{reason if self._loss is None else ''}"
            if now >= end:
                return f"within {timeout} s"
            left = min(since + step, end) - now
            self._changed.wait(None if left > threading.TIMEOUT_MAX else left)
        return ""

    def close(self, timeout: float | None, patience: float | None) -> None:
        """Delivers the samples, sends BYE, and ends both threads. The times are those of :meth:`flush`.

        Raises:
            ConnectionClosedError: Some samples were not delivered, or another thread is still closing.

        """
        if lib.es_api_fork_generation() != self._generation:
            return  # in a forked child: the threads and the connection are its parent's
        with self._changed:
            left = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            others = self._closer not in (None, threading.get_ident())
            if others and not self._changed.wait_for(lambda: self._closer is None, left):
                raise ConnectionClosedError(
                    f"TcpClient for {self._options.peer}: another thread is closing it, and has not finished within "
                    f"{timeout} s"
                )
        with self._closing:
            try:
                self._closer = threading.get_ident()
                self._close(timeout, patience)
            finally:
                with self._changed:
                    self._closer = None
                    self._changed.notify_all()

    def _close(self, timeout: float | None, patience: float | None) -> None:
        if self._closed:
            return
        failure: Exception | None = None
        # Ctrl-C interrupted an earlier close(), which dropped them.
        interrupted = self._stop and self._error is None
        try:
            self.producer.detach()  # ends every send(): nothing is added after this
            self.flush(timeout, patience)
        except (EchoShmError, TimeoutError) as error:
            failure = error
        finally:
            self._finish(None)
            if self.acknowledged < self.sent():
                self._connection.shutdown()  # the send thread may wait for a server that does not read
        if not self._reconnector.trying:
            self._send_thread.join(_END_TIME)
        self._closed = True
        missing = self.sent() - self.acknowledged
        if missing and not interrupted:
            raise ConnectionClosedError(
                f"TcpClient for {self._options.peer} was closed with {missing} samples not acknowledged: {failure}"
            ) from None

    def give_up(self, why: Exception) -> None:
        """Ends delivery for good: somebody knows that the server is gone. All calls raise ConnectionClosedError."""
        self._lose(self._connection, why)
        self._finish(why)

    def abandon(self) -> None:
        """Ends both threads without delivering anything more."""
        self._finish(None)
        self._connection.shutdown()

    def _finish(self, error: Exception | None) -> None:
        """Stops sending. The first call's ``error`` says why. If Ctrl-C interrupts it, it can be called again."""
        with self._changed:
            if not self._stop:
                self._error = error
            self._stop = True
        self.producer.detach()
        self.ended.set()
        with self._changed:
            self._changed.notify_all()
        self.wake()

    # -- the send thread

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._loss is not None:
                    self._reconnect()
                self._lease_full()
                self._send_requests()
                count = self._samples_to_send()
                if count > 0:
                    self._transmit(count)
        except Exception as error:
            self._lose(self._connection, error)  # perhaps in the middle of a frame, so nothing more can be sent
            self._finish(error)
        finally:
            self._disconnect()

    def _lease_full(self, wait_ns: int = 0) -> None:
        """Leases the full batches, so that their slots are not reused before they are acknowledged."""
        self._outbox.lease_full(wait_ns)
        self._outbox.release(self.acknowledged)

    def _samples_to_send(self) -> int:
        """Waits for samples, and for more to fill their frame. Returns how many to send; 0: check the state again."""
        with self._changed:
            self._changed.wait_for(lambda: self._window() > 0 or self._is_called)
        count = self._committed()
        if count == 0:
            self._sleep()
            count = self._committed()
        if count == 0 or self._is_called:
            return 0
        whole = self._outbox.size - self._next % self._outbox.size
        if count < min(whole, self._window()) and not self._flushing:
            self._lease_full(_GATHER_NS)
            count = self._committed()
        return min(count, self._window())

    @property
    def _is_called(self) -> bool:
        """Whether there is something else to do than to send samples."""
        return self._stop or self._loss is not None or self.feed.requests != b""

    def _window(self) -> int:
        """How many samples may be sent before more are acknowledged."""
        return self._max_unacknowledged - (self._next - self.acknowledged)

    def _committed(self) -> int:
        """How many samples of one batch are committed and not sent."""
        return self._outbox.committed(self._next)

    def _sleep(self) -> None:
        """Sleeps until a thread sends."""
        self.sleeping = True  # before the check below: a thread that sends after it sees this and wakes the sender
        with contextlib.suppress(queue.Empty):
            while True:
                self._wakeups.get_nowait()
        if self._committed() == 0 and not self._is_called:
            self._wakeups.get()
        self.sleeping = False

    def _transmit(self, count: int) -> None:
        """Sends the next ``count`` samples, which are all of one batch."""
        most = frame_samples(self._options.spec, self._connection.max_frame)
        try:
            for at in range(0, count, most):
                for version, number, n in self._outbox.runs(self._next, min(most, count - at)):
                    self._next += n  # before sending, because the acknowledgement may come before the next line
                    self._connection.send_samples(version, number, n, self._outbox.bytes_of(number, n))
        except OSError as error:
            self._lose(self._connection, error)

    def _send_requests(self) -> None:
        """Sends what is to be said of weights."""
        with self._changed:
            data = self.feed.take_requests()
        try:
            if data:
                self._connection.send([data])
        except OSError as error:
            self._lose(self._connection, error)

    def _stamp(self, version: int) -> None:
        lib.es_age_set_version(self.producer.ring, version, 0)

    def _feed_from(self, connection: Connection) -> None:
        """The weights come over that connection. Nobody reads from it yet."""
        connection.feed = self.feed
        self.feed.begin(connection.ring)

    def _reconnect(self) -> None:
        """Connects again, to send again what is not acknowledged. Raises if that cannot be done."""
        lost, old = self._loss, self._connection
        with self._changed:
            self._changed.wait_for(lambda: self._receiving is not old)
        old.close()
        if isinstance(lost, EchoShmError) or self._reconnector.backoff.grace <= 0:
            raise ConnectionClosedError(f"connection lost: {lost}") from lost
        acknowledged, made = self._since
        idle = self.acknowledged == self._next and time.monotonic() - made > _SHORT_LIFE
        self._reconnector.backoff.restart(useful=idle or old.heard or self.acknowledged > acknowledged)
        _log.warning("TcpClient for %s: connection lost (%s); trying again", self._options.peer, lost)
        connection = resume(
            self._reconnector, self._options, old, self.acknowledged, self._next - self.acknowledged, lost
        )
        try:
            if connection.ring != old.ring and self._options.spec.about is not None:
                with self._changed:
                    self.taken.leave_ring(self.acknowledged)
            self._acknowledge(connection.committed)
        except BaseException:
            connection.close()
            raise
        self._next = connection.committed  # samples from here on are sent again
        with self._changed:
            self._feed_from(connection)
            self._connection, self._loss = connection, None
            self._since = (self.acknowledged, time.monotonic())
            self.heard_at = self._since[1]
            self._changed.notify_all()

    def _lose(self, connection: Connection, error: BaseException) -> None:
        with self._changed:
            if self._connection is connection and self._loss is None:
                self._loss = error
                self.feed.lost()
            self._changed.notify_all()
        connection.shutdown()  # ends the calls of the other thread
        self.wake()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):
            if self._loss is None and self._connection.version == 2:
                self._connection.send([wire.bye(self._next)])
        self._connection.shutdown()
        if self._receive_thread.is_alive():
            self._receive_thread.join(_END_TIME)
        self._connection.close()
        self._outbox.detach()

    # -- the receive thread

    def _receive(self) -> None:
        connection: Connection | None = None
        while (connection := self._next_to_receive(connection)) is not None:
            try:
                while True:
                    acknowledged = connection.next_acknowledged(self.acknowledged)
                    self.heard_at = time.monotonic()
                    self._acknowledge(acknowledged, connection.taken)
            except ConnectionClosedError as error:  # the server has closed for good
                self._lose(connection, error)
                self._finish(error)
            except (OSError, WireError) as error:
                self._lose(connection, error)
            except Exception as error:
                self._lose(connection, error)
                self._finish(error)

    def _next_to_receive(self, last: Connection | None) -> Connection | None:
        """Waits for a connection that was not read yet. Returns None at the end."""
        with self._changed:
            self._receiving = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stop or (self._loss is None and self._connection is not last))
            if self._connection is not last and self._loss is None:
                self._receiving = self._connection
            return self._receiving

    def _acknowledge(self, number: int, taken: int = 0) -> None:
        """Notes that all samples below this number are in the server's ring, and those below ``taken`` no longer."""
        with self._changed:
            if not self.acknowledged <= number <= self._next:
                raise WireError(f"acknowledged {number}, expected {self.acknowledged} to {self._next}")
            self.taken.note(taken, number)
            self.acknowledged = number
            self._changed.notify_all()
        self._outbox.release(number)
