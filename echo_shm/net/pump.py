"""A client's own ring, and the threads that take it to the server.

A client has a ring in its own memory, with one batch a frame. ``send`` is what it is for
:class:`ShmClient`: a copy into a slot. One thread takes frames out of that ring, full ones at once and
others within a millisecond, and sends them; they stay leased until the server has them in its own
ring, so that after a lost connection they are there to be sent again. Another reads the acknowledgements.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.attachment import Attachment
from echo_shm.errors import ConnectionClosedError, EchoShmError, ForkedError, SpecMismatchError
from echo_shm.net import wire
from echo_shm.net.link import Link, Options
from echo_shm.segment import Geometry, Segment

_log = logging.getLogger("echo_shm")

#: Bytes of samples in a frame, about.
_FRAME = 1 << 18
#: Most samples in a frame.
_MOST_SAMPLES = 4096
#: Frames that the client's own ring holds at most.
_MOST_FRAMES = 16
#: How long a sample waits for others to share its frame (nanoseconds).
_GATHER_NS = 1_000_000
#: Between tries to reach the server again (seconds).
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: How long close() waits for acknowledgements, without ``timeout`` (seconds).
_CLOSE_WAIT = 10.0


class _Sent(NamedTuple):
    """A frame that is leased until it is acknowledged."""

    batch: int
    round: int
    number: int
    length: int
    runs: tuple[tuple[int, int], ...]  # where its samples lie in the batch: first slot, and how many


class Pump:
    """From a client's own ring to its server's, with two threads.

    The sender alone takes from the ring and connects; the reader alone reads. ``_frames`` and
    ``acknowledged`` change under ``_news``.
    """

    def __init__(self, options: Options, most_frames: int, grace: float, timeout: float | None) -> None:
        self._options = options
        self._grace = grace
        self.acknowledged = 0  # the number of the first sample that the server may not have
        self._last_sent = 0
        self._next = 0  # the number of the next sample that is taken from the ring
        self._link = Link(options, 0, timeout)
        per_frame = self._frame_samples(self._link.max_frame)
        if self._link.version == 1:
            per_frame, self._most = min(per_frame, most_frames), most_frames
        else:
            self._most = most_frames
        geometry = Geometry(per_frame, max(3, min(most_frames, _MOST_FRAMES) + 1), 1, "fifo", False, 0.1)
        segment = Segment.private(f"to {options.peer}", options.spec, geometry)
        self.producer = Attachment(segment, lib.ES_ROLE_PRODUCER)
        self._learner = Attachment(segment, lib.ES_ROLE_LEARNER)
        self._ring = self._learner.ring
        self._columns = [
            segment.array(
                lib.es_leaf_offset(self._ring, i),
                (geometry.num_batches, per_frame * leaf.nbytes),
                np.dtype(np.uint8),
                writable=False,
            )
            for i, leaf in enumerate(options.spec.leaves)
        ]
        self._frames: deque[_Sent] = deque()
        self._news = threading.Condition()
        self.wake = threading.Event()
        self.sleeping = False
        self._flushing = 0
        self._stop = False
        self.over = threading.Event()
        self._error: Exception | None = None
        self._lost: BaseException | None = None  # why the link is of no use any more
        self._generation = lib.es_fork_generation()
        self._reader = self._start_reader()
        self._sender = threading.Thread(target=self._run, name="echo_shm sender", daemon=True)
        self._sender.start()

    def _frame_samples(self, max_frame: int) -> int:
        size = self._options.spec.sample_bytes
        return max(1, min(wire.samples_in(min(max_frame, max(_FRAME, size)), size), _MOST_SAMPLES))

    def sent(self) -> int:
        """Samples that send() has put into the ring."""
        info = ffi.new("es_owner_info *")
        if lib.es_next_owner(self._ring, self.producer.index, info) == self.producer.index:
            self._last_sent = int(info.samples)
        return self._last_sent

    # -- for the client's threads

    def raise_if_over(self) -> None:
        """Raises what ended the connection for good, if something did."""
        if self.over.is_set():
            if self._error is None:
                raise ConnectionClosedError(f"TcpClient for {self._options.peer} is closed")
            raise ConnectionClosedError(f"TcpClient for {self._options.peer}: {self._error}") from self._error

    def flush(self, timeout: float | None) -> None:
        """Waits until everything sent so far is acknowledged."""
        if lib.es_fork_generation() != self._generation:
            raise ForkedError(f"this TcpClient for {self._options.peer} was inherited through a fork: connect anew")
        target = self.sent()
        with self._news:
            self._flushing += 1
            self.wake.set()
            try:
                done = self._news.wait_for(lambda: self.acknowledged >= target or self.over.is_set(), timeout)
            finally:
                self._flushing -= 1
            if self.acknowledged >= target:
                return
        if done:
            self.raise_if_over()
        raise TimeoutError(
            f"{self._options.peer} has not acknowledged {target - self.acknowledged} samples within {timeout} s"
        )

    def close(self, timeout: float | None) -> None:
        """Delivers, says goodbye, and ends both threads."""
        if lib.es_fork_generation() != self._generation:
            return  # a forked child: the threads and the connection are its parent's
        failure: Exception | None = None
        try:
            if not self.over.is_set():
                self.flush(_CLOSE_WAIT if timeout is None else timeout)
        except (EchoShmError, TimeoutError) as error:
            failure = error
        self._finish(None)
        missing = self.sent() - self.acknowledged
        self._sender.join(_CLOSE_WAIT)
        if failure is not None or missing:
            raise ConnectionClosedError(
                f"TcpClient for {self._options.peer} was closed with {missing} samples not acknowledged: "
                f"{failure or self._error}"
            ) from None

    def _finish(self, error: Exception | None) -> None:
        """Nothing more will be sent."""
        with self._news:
            if not self.over.is_set():
                self._error = error
                self.over.set()
            self._stop = True
            self._news.notify_all()
        lib.es_close_stream(self._ring)  # whoever waits in send() gets an error
        self.wake.set()

    # -- the sender's thread

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._lost is not None:
                    self._reconnect()
                frame = self._take()
                if frame is not None:
                    self._transmit(frame)
        except Exception as error:
            self._finish(error)
        finally:
            self._goodbye()

    def _take(self) -> _Sent | None:
        """Takes the next frame out of the ring, which waits for one. None: look again at everything."""
        with self._news:
            self._news.wait_for(lambda: self._room() or self._stop or self._lost is not None)
            if self._stop or self._lost is not None:
                return None
        snap = ffi.new("es_snapshot *")
        index = lib.es_take(self._ring, 0, 0, snap)
        if index < 0:
            index = self._take_some(snap)
        if index < 0:
            return None
        frame = _Sent(index, snap.round, self._next, snap.length, self._runs(index, snap))
        with self._news:
            self._frames.append(frame)
        self._next += frame.length
        return frame

    def _runs(self, index: int, snap: Any) -> tuple[tuple[int, int], ...]:
        """Where the samples of a leased batch lie. Sends that crossed the take of a part of it leave gaps."""
        size = self._learner.segment.geometry.batch_size
        if snap.length == size:
            return ((0, size),)
        mask = np.zeros(size + 2, np.int8)
        lib.es_committed_mask(self._ring, index, snap.round, ffi.from_buffer("uint8_t[]", mask[1:-1]))
        edges = np.flatnonzero(np.diff(mask)).reshape(-1, 2).tolist()
        return tuple((first, last - first) for first, last in edges)

    def _room(self) -> bool:
        if self._link.version == 1:
            return sum(frame.length for frame in self._frames) + self._learner.segment.geometry.batch_size <= self._most
        return len(self._frames) < min(self._most, self._learner.segment.geometry.num_batches - 1)

    def _take_some(self, snap: Any) -> int:
        """A frame that is not full: at once if somebody waits for it, else after the time to gather more."""
        some = lib.ES_TAKE_ANY_ORDER | lib.ES_TAKE_SHORT
        if not self._flushing:
            self.sleeping = True  # before the look: whoever sends after it sees this
            self.wake.clear()
            if self._is_empty() and not self._stop and self._lost is None and not self._flushing:
                self.wake.wait()
            self.sleeping = False
            if self._stop or self._lost is not None:
                return -1
            index = int(lib.es_take(self._ring, 0, _GATHER_NS, snap))
            if index >= 0:
                return index
        index = int(lib.es_take(self._ring, some, 0, snap))
        if index < 0 and self._flushing:
            self.wake.clear()
            if self._is_empty():
                self.wake.wait(0.1)
            else:
                time.sleep(_GATHER_NS / 1e9)  # a claim is under way
        return index

    def _is_empty(self) -> bool:
        return self.sent() <= self._next

    def _transmit(self, frame: _Sent, skip: int = 0) -> None:
        """Sends a frame but for its first ``skip`` samples."""
        most, number = self._frame_samples(self._link.max_frame), frame.number
        try:
            for start, length in frame.runs:
                first, end, number = start + min(skip, length), start + length, number + min(skip, length)
                skip -= min(skip, length)
                for at in range(first, end, most):
                    count = min(most, end - at)
                    self._link.send_samples(number, count, self._part(frame.batch, at, count))
                    number += count
        except OSError as error:
            self._lose(self._link, error)

    def _part(self, batch: int, first: int, count: int) -> list[memoryview]:
        """The bytes of some neighbouring samples of a leased batch, leaf by leaf."""
        return [
            column[batch, first * leaf.nbytes : (first + count) * leaf.nbytes].data
            for column, leaf in zip(self._columns, self._options.spec.leaves, strict=True)
        ]

    def _reconnect(self) -> None:
        """Connects again and sends what is not acknowledged; raises when that cannot be done."""
        lost, started, pause = self._lost, time.monotonic(), _FIRST_PAUSE
        self._link.shut()
        self._reader.join()
        old = self._link
        old.close()
        if isinstance(lost, EchoShmError) or self._grace <= 0:
            raise ConnectionClosedError(f"connection lost: {lost}") from lost
        _log.warning("TcpClient for %s: connection lost (%s); trying again", self._options.peer, lost)
        while True:
            try:
                link = Link(self._options, self.acknowledged, max(0.1, self._grace - (time.monotonic() - started)))
                break
            except (SpecMismatchError, wire.WireError):
                raise
            except (OSError, EchoShmError) as error:
                if time.monotonic() - started > self._grace:
                    raise ConnectionClosedError(
                        f"connection lost, and not made again within {self._grace} s: {error}"
                    ) from error
            if self._stop:
                raise ConnectionClosedError("closed while the connection was lost") from lost
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if link.version != old.version or (link.ring == old.ring and not link.known and self._next > self.acknowledged):
            link.close()
            raise ConnectionClosedError(
                f"the server has forgotten this client: {self._next - self.acknowledged} samples are in doubt"
            )
        self._resume(link)

    def _resume(self, link: Link) -> None:
        with self._news:
            self._link, self._lost = link, None
        self._acknowledge(link.committed)
        self._reader = self._start_reader()
        for frame in list(self._frames):
            self._transmit(frame, max(0, link.committed - frame.number))

    def _lose(self, link: Link, error: BaseException) -> None:
        with self._news:
            if self._link is link and self._lost is None:
                self._lost = error
            self._news.notify_all()
        self.wake.set()

    def _goodbye(self) -> None:
        with contextlib.suppress(OSError):
            if self._lost is None and self._link.version == 2:
                self._link.send([wire.bye(self._next)])
        self._link.shut()
        self._reader.join(_CLOSE_WAIT)
        self._link.close()
        self.producer.detach()
        self._learner.detach()

    # -- the reader's thread

    def _start_reader(self) -> threading.Thread:
        reader = threading.Thread(target=self._read, args=(self._link,), name="echo_shm reader", daemon=True)
        reader.start()
        return reader

    def _read(self, link: Link) -> None:
        try:
            while True:
                self._acknowledge(link.next_acknowledged(self.acknowledged))
        except ConnectionClosedError as error:  # for good
            self._lose(link, error)
            if not self._stop:
                self._finish(error)
        except (OSError, wire.WireError) as error:
            self._lose(link, error)

    def _acknowledge(self, number: int) -> None:
        """Every sample below that number is in the server's ring."""
        with self._news:
            if not self.acknowledged <= number <= self._next:
                raise wire.WireError(f"acknowledged {number}, expected {self.acknowledged} to {self._next}")
            self.acknowledged = number
            while self._frames and self._frames[0].number + self._frames[0].length <= number:
                frame = self._frames.popleft()
                lib.es_release_batch(self._ring, frame.batch, frame.round)
            self._news.notify_all()
