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
from echo_shm.net.client.backoff import Patience
from echo_shm.net.client.connection import ForgottenError, Link, Options, RefusedError, first_link
from echo_shm.net.client.outbox import Outbox

_log = logging.getLogger("echo_shm")

#: Bytes of samples in a frame, about.
_FRAME = 1 << 20
#: Most samples in a frame.
_MOST_SAMPLES = 4096
#: Frames that the client's own ring holds at most.
_MOST_FRAMES = 8
#: How long a sample waits for others to share its frame (nanoseconds).
_GATHER_NS = 1_000_000
#: A connection that lived longer, with nothing to deliver, was of use (seconds).
_SHORT_LIFE = 1.0
#: Longest that one try may take (seconds).
_LONGEST_TRY = 5.0
#: How long close() waits for its thread, once everything is delivered or given up (seconds). Less when there is
#: no link: then the thread may be in a try to connect, which nothing cuts short, and leaves when that is over.
_END_TIME, _END_TIME_WITHOUT_LINK = 10.0, 0.5


class Pump:
    """From a client's own ring to its server's, with two threads.

    A sample's number is its position in the ring. The sender alone connects and takes from the ring; the reader alone
    reads. What both change, ``acknowledged`` and the link and its state, changes under ``_news``.
    """

    def __init__(self, options: Options, most_unacknowledged: int, grace: float, timeout: float | None) -> None:
        self._options = options
        self._patience = Patience(grace)
        self.acknowledged = 0  # the number of the first sample that the server may not have
        self._next = 0  # the number of the first sample that was not sent, on this link
        self._link = first_link(options, timeout)
        try:
            size = self._frame_samples(self._link.max_frame)
            self._most = size * min(most_unacknowledged, _MOST_FRAMES)
            if self._link.version == 1:  # an acknowledgement a sample
                size, self._most = min(size, most_unacknowledged), most_unacknowledged
            self._outbox = Outbox(options.spec, options.peer, size, self._most)
        except BaseException:
            self._link.close()
            raise
        self.producer = self._outbox.producer
        self._news = threading.Condition()
        # A signal's handler may use both, wherever it cuts into the thread that does.
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closing = threading.RLock()
        self.sleeping = False
        self._flushing = 0
        self._closed = False  # close() has done what it can
        self._stop = False  # nothing more is sent
        self.over = threading.Event()  # and every send() has come to an end
        self._error: Exception | None = None  # why, unless by close()
        self._lost: BaseException | None = None  # why the link is of no use any more
        self._reading: Link | None = None
        self._since = (0, time.monotonic())  # acknowledged, and the time, when the link was made
        self._generation = lib.es_fork_generation()
        self._reader = threading.Thread(target=self._read, name="echo_shm reader", daemon=True)
        self._sender = threading.Thread(target=self._run, name="echo_shm sender", daemon=True)
        try:
            self._reader.start()
            self._sender.start()
        except BaseException:  # no more threads can be had, or Ctrl-C
            self.give_up()
            if not self._sender.is_alive():
                self._goodbye()
            raise

    def _frame_samples(self, max_frame: int) -> int:
        size = self._options.spec.sample_bytes
        return max(1, min(wire.samples_in(min(max_frame, max(_FRAME, size)), size), _MOST_SAMPLES))

    def sent(self) -> int:
        """The number of the sample that send() puts into the ring next."""
        return self._outbox.claimed()

    # -- for the client's threads

    def rouse(self) -> None:
        """Has the sender look again, if it sleeps or is about to."""
        self._calls.put(None)

    def raise_if_over(self) -> None:
        """Raises what ended the connection for good, if something did."""
        error = self.why_over()
        if error is not None:
            raise error from error.__cause__

    def why_over(self) -> ConnectionClosedError | None:
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
        with self._news:
            try:
                self._flushing += 1
                self.rouse()
                self._news.wait_for(
                    lambda: self.acknowledged >= target or self.over.is_set(),
                    None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout,
                )
            finally:
                self._flushing -= 1
            if self.acknowledged >= target:
                return
        if self.over.is_set():
            self.raise_if_over()
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
                    self._link.shut()  # the sender may be in the middle of what nobody takes
            self._sender.join(_END_TIME if self._lost is None else _END_TIME_WITHOUT_LINK)
            self._closed = True
        missing = self.sent() - self.acknowledged
        if missing and not interrupted:
            raise ConnectionClosedError(
                f"TcpClient for {self._options.peer} was closed with {missing} samples not acknowledged: {failure}"
            ) from None

    def give_up(self) -> None:
        """Ends both threads, and delivers nothing more."""
        self._finish(None)
        self._link.shut()

    def _finish(self, error: Exception | None) -> None:
        """Nothing more will be sent; the first call's ``error`` says why. May be cut short, and is then done again."""
        with self._news:
            if not self._stop:
                self._error = error
            self._stop = True
        self.producer.detach()
        self.over.set()
        with self._news:
            self._news.notify_all()
        self.rouse()

    # -- the sender's thread

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._lost is not None:
                    self._reconnect()
                self._take_full()
                count = self._ready()
                if count > 0:
                    self._transmit(count)
        except Exception as error:
            self._lose(self._link, error)  # perhaps in the middle of a frame: no word can follow
            self._finish(error)
        finally:
            self._goodbye()

    def _take_full(self, wait_ns: int = 0) -> None:
        """Leases the batches that are complete: their slots are not used again before they are acknowledged."""
        self._outbox.hold(wait_ns)
        self._outbox.release(self.acknowledged)

    def _ready(self) -> int:
        """Waits for samples, and for more to share their frame: how many to send now. 0: look again at everything."""
        with self._news:
            self._news.wait_for(lambda: self._room() > 0 or self._stop or self._lost is not None)
        count = self._committed()
        if count == 0:
            self._sleep()
            count = self._committed()
        if count == 0 or self._stop or self._lost is not None:
            return 0
        whole = self._outbox.size - self._next % self._outbox.size
        if count < min(whole, self._room()) and not self._flushing:
            self._take_full(_GATHER_NS)
            count = self._committed()
        return min(count, self._room())

    def _room(self) -> int:
        """Samples that may be sent before more are acknowledged."""
        return self._most - (self._next - self.acknowledged)

    def _committed(self) -> int:
        """Samples of one batch that are there and not sent."""
        return self._outbox.committed(self._next)

    def _sleep(self) -> None:
        """Until somebody sends."""
        self.sleeping = True  # before the look: whoever sends after it sees this
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()
        if self._committed() == 0 and not self._stop and self._lost is None:
            self._calls.get()
        self.sleeping = False

    def _transmit(self, count: int) -> None:
        """Sends the next samples; all of one batch."""
        most = self._frame_samples(self._link.max_frame)
        try:
            for at in range(0, count, most):
                n, number = min(most, count - at), self._next
                self._next += n  # first, for the acknowledgement may be faster
                self._link.send_samples(number, n, self._outbox.bytes_of(number, n))
        except OSError as error:
            self._lose(self._link, error)

    def _reconnect(self) -> None:
        """Connects again and sends what is not acknowledged; raises when that cannot be done."""
        lost, old = self._lost, self._link
        with self._news:
            self._news.wait_for(lambda: self._reading is not old)
        old.close()
        if isinstance(lost, EchoShmError) or self._patience.grace <= 0:
            raise ConnectionClosedError(f"connection lost: {lost}") from lost
        acknowledged, made = self._since
        idle = self.acknowledged == self._next and time.monotonic() - made > _SHORT_LIFE
        self._patience.begin(well=idle or old.heard or self.acknowledged > acknowledged)
        _log.warning("TcpClient for %s: connection lost (%s); trying again", self._options.peer, lost)
        in_doubt = self._next - self.acknowledged
        forgotten = ConnectionClosedError(f"the server has forgotten this client: {in_doubt} samples are in doubt")
        try:
            link = self._next_link(lost, old.ring if in_doubt > 0 and old.version == 2 else wire.NO_RING)
        except ForgottenError:
            raise forgotten from None
        try:
            if link.version != old.version:
                raise ConnectionClosedError(
                    f"the server speaks wire version {link.version} now, no longer {old.version}: "
                    f"{in_doubt} samples are in doubt"
                )
            if link.ring == old.ring and not link.known and in_doubt > 0:
                raise forgotten
            self._acknowledge(link.committed)
        except BaseException:
            link.close()
            raise
        self._next = link.committed  # what was sent beyond it is sent again
        with self._news:
            self._link, self._lost = link, None
            self._since = (self.acknowledged, time.monotonic())
            self._news.notify_all()

    def _next_link(self, why: BaseException | None, doubt: bytes) -> Link:
        grace = self._patience.grace
        while True:
            with self._news:
                self._news.wait_for(lambda: self._stop, self._patience.next_pause())
            left = self._patience.left()
            if left <= 0 or self._stop:
                ending = "closed meanwhile" if self._stop else f"not made again within {grace} s"
                raise ConnectionClosedError(f"connection lost, and {ending}: {why}") from why
            try:
                return Link(self._options, self.acknowledged, min(max(left, 0.1), _LONGEST_TRY), doubt)
            except (SpecMismatchError, WireError, RefusedError):
                raise
            except (OSError, EchoShmError) as error:
                why = error

    def _lose(self, link: Link, error: BaseException) -> None:
        with self._news:
            if self._link is link and self._lost is None:
                self._lost = error
            self._news.notify_all()
        link.shut()  # the other thread may be in a call that nothing else would end
        self.rouse()

    def _goodbye(self) -> None:
        with contextlib.suppress(OSError):
            if self._lost is None and self._link.version == 2:
                self._link.send([wire.bye(self._next)])
        self._link.shut()
        if self._reader.is_alive():
            self._reader.join(_END_TIME)
        self._link.close()
        self._outbox.detach()

    # -- the reader's thread

    def _read(self) -> None:
        link: Link | None = None
        while (link := self._next_to_read(link)) is not None:
            try:
                while True:
                    self._acknowledge(link.next_acknowledged(self.acknowledged))
            except ConnectionClosedError as error:  # for good
                self._lose(link, error)
                self._finish(error)
            except (OSError, WireError) as error:
                self._lose(link, error)
            except Exception as error:
                self._lose(link, error)
                self._finish(error)

    def _next_to_read(self, last: Link | None) -> Link | None:
        """Waits for a link that was not read yet, or for the end."""
        with self._news:
            self._reading = None
            self._news.notify_all()
            self._news.wait_for(lambda: self._stop or (self._lost is None and self._link is not last))
            if self._link is not last and self._lost is None:
                self._reading = self._link
            return self._reading

    def _acknowledge(self, number: int) -> None:
        """Every sample below that number is in the server's ring."""
        with self._news:
            if not self.acknowledged <= number <= self._next:
                raise WireError(f"acknowledged {number}, expected {self.acknowledged} to {self._next}")
            self.acknowledged = number
            self._news.notify_all()
        self._outbox.release(number)
