"""Producers on other hosts: :class:`TcpClient`, and :func:`connect` for either kind.

A client has a ring of its own, in its own memory, with one batch a frame. ``send`` is what it
is for :class:`ShmClient`: a copy into a slot. One thread takes frames out of that ring, full
ones at once and others within a millisecond, and sends them; they stay leased until
the server has them in its own ring, so that after a lost connection they are there to be sent again.
Another thread reads the acknowledgements.
"""

import contextlib
import logging
import secrets
import ssl
import threading
import time
import urllib.parse
import weakref
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.attachment import Attachment
from echo_shm.client import SampleWriter, ShmClient
from echo_shm.errors import ConnectionClosedError, EchoShmError, ForkedError, SpecMismatchError
from echo_shm.net import wire
from echo_shm.net.link import Link, Options
from echo_shm.segment import Geometry, Segment
from echo_shm.spec import Spec

_log = logging.getLogger("echo_shm")

#: Bytes of samples in a frame, about.
_FRAME = 1 << 18
#: Most samples in a frame.
_MOST_SAMPLES = 4096
#: Frames that the client's own ring holds at most.
_MOST_FRAMES = 16
#: How long a sample waits for others to share its frame (nanoseconds).
_GATHER_NS = 1_000_000
#: How long a client tries to reach its server again (seconds).
_GRACE = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: How long close() waits for acknowledgements, without ``timeout`` (seconds).
_CLOSE_WAIT = 10.0


class _Sent(NamedTuple):
    """A frame that is leased until it is acknowledged."""

    batch: int
    round: int
    number: int
    count: int
    runs: tuple[tuple[int, int], ...]  # where its samples lie in the batch: first slot, and how many


class TcpClient:
    """A producer on another host than the learner: sends samples over TCP to a :class:`Server` with a transport.

    When :meth:`send` returns, the sample is the client's to deliver: it is sent within a
    millisecond, and again after a lost connection, until the server has it in its ring, once. :meth:`wait` waits for
    that. Threads may share a client; a forked child may not use its parent's.

    Args:
        host, port: The learner's host, and ``server.port`` there.
        data_sample: Example pytree; must agree with the server's in structure, dtypes and shapes.
        max_inflight_msgs: Frames that may be unacknowledged before :meth:`send` waits. A frame is a
            sample on wire version 1, and up to 256 KiB of samples on version 2.
        authkey: The server's key; both sides prove that they know it.
        tls: A context to talk TLS with; it decides which certificates are good.
        reconnect: After a lost connection, how many seconds to try again; True for 30,
            False not at all. What was not delivered then raises.
        timeout: Seconds that connecting and :meth:`wait` may take, and that :meth:`send`
            waits for a server that does not keep up; None for ever.

    Raises:
        SpecMismatchError: The server's samples are others; names the first leaf that differs.
        WireError: The peer is no such server, or does not know the key. (A ValueError.)
        ConnectionClosedError: The server closed, or refuses more clients.
        OSError: It cannot be reached.

    """

    def __init__(
        self,
        host: str,
        port: int,
        data_sample: Any,
        max_inflight_msgs: int = 32,
        *,
        authkey: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect: bool | float = True,
        timeout: float | None = None,
    ) -> None:
        if max_inflight_msgs < 1:
            raise ValueError(f"max_inflight_msgs={max_inflight_msgs!r}: use at least 1")
        spec = Spec.from_example(data_sample)
        options = Options(host, int(port), spec, secrets.token_bytes(16), authkey, tls)
        grace = _GRACE if reconnect is True else float(reconnect)
        self._timeout = timeout
        self._pump = _Pump(options, max_inflight_msgs, grace, timeout)
        self._writer = SampleWriter(self._pump.producer, None)
        self._send_now = self._writer._send_at_once
        self._peer = options.peer
        # Closes at the interpreter's exit, too: what was sent shall arrive.
        self._end = weakref.finalize(self, self._pump.close, timeout)

    def send(self, data: Any) -> None:
        """Sends one sample; returns when it is copied.

        Raises:
            SpecMismatchError: Structure, dtype or shape differ; nothing was sent.
            ConnectionClosedError: The client or the server was closed, or the connection is lost for good.
            TimeoutError: The server did not keep up for ``timeout`` seconds; nothing was sent.
            ForkedError: Called in a child of the process that connected.

        """
        if not self._send_now(data):
            self._send_slowly(lambda: self._writer.send(data, self._timeout))
        if self._pump.sleeping:
            self._pump.wake.set()

    def send_many(self, data: Any) -> None:
        """Sends n samples, in order: every leaf of ``data`` has a leading n. Raises as :meth:`send` and as ShmClient's."""
        self._send_slowly(lambda: self._writer.send_many(data, self._timeout))
        if self._pump.sleeping:
            self._pump.wake.set()

    def _send_slowly(self, send: Any) -> None:
        self._pump.wake.set()  # a full ring is emptied by nobody else
        try:
            send()
        except SpecMismatchError as error:
            raise SpecMismatchError(f"Payload size or structure != expected: {error}") from None
        except ForkedError:
            raise
        except (ConnectionClosedError, TimeoutError) as error:
            self._pump.raise_if_over()
            if isinstance(error, TimeoutError):
                late = TimeoutError(f"{self._peer} did not take samples for {self._timeout} s")
                late.sent = getattr(error, "sent", 0)  # type: ignore[attr-defined]
                raise late from None
            raise

    def wait(self) -> None:
        """Returns when every sample sent so far is in the server's ring.

        Raises:
            ConnectionClosedError: The connection was lost for good before that.
            TimeoutError: ``timeout`` seconds have passed.

        """
        self._pump.flush(self._timeout)

    def close(self) -> None:
        """Delivers what was sent, then disconnects. Idempotent.

        Raises:
            ConnectionClosedError: Something could not be delivered; says how many samples.

        """
        self._end()

    @property
    def _in_flight_count(self) -> int:
        """Samples sent and not acknowledged."""
        return self._pump.sent() - self._pump.acknowledged

    @property
    def _closed(self) -> threading.Event:
        """Set once nothing can be sent any more."""
        return self._pump.over

    def __repr__(self) -> str:
        return f"<TcpClient for {self._peer}, {'closed' if self._pump.over.is_set() else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TcpClient belongs to its process: connect anew in the other one")

    def __enter__(self) -> "TcpClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pump:
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
        self._next += frame.count
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
            return sum(frame.count for frame in self._frames) + self._learner.segment.geometry.batch_size <= self._most
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
                f"the server has forgotten this client: {self._next - self.acknowledged} samples may have arrived or not"
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
                raise wire.WireError(
                    f"acknowledged {number}, expected {self.acknowledged} to {self._next}"
                )
            self.acknowledged = number
            while self._frames and self._frames[0].number + self._frames[0].count <= number:
                frame = self._frames.popleft()
                lib.es_release_batch(self._ring, frame.batch, frame.round)
            self._news.notify_all()


def connect(address: str, example: Any = None, **options: Any) -> ShmClient | TcpClient:
    """A producer by address: ``tcp://host:port`` for :class:`TcpClient`, ``shm://name`` for :class:`ShmClient`.

    Args:
        address: IPv6 hosts in brackets: ``tcp://[::1]:50051``.
        example: As for either; TcpClient needs one.
        options: Keywords of either.

    """
    parts = urllib.parse.urlsplit(address)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"address {address!r}: use tcp://host:port or shm://name")
    if parts.scheme == "shm" and parts.netloc:
        return ShmClient(parts.netloc, example, **options)
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        if example is None:
            raise TypeError(f"connect({address!r}) needs an example of the samples")
        return TcpClient(parts.hostname, parts.port, example, **options)
    raise ValueError(f"address {address!r}: use tcp://host:port or shm://name")
