"""Learners: batches as zero-copy pytrees."""

import contextlib
import numbers
import weakref
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

import numpy as np
import optree

from echo_shm._core import lib
from echo_shm.client import SampleWriter
from echo_shm.errors import ConnectionClosedError
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_reader import BatchReader
from echo_shm.ring.handle import Handle, attach_segment
from echo_shm.ring.protocols import Finishing, Transport
from echo_shm.ring.sample import Lease, Sample
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Spec
from echo_shm.workers.group import WorkerGroup

#: Clients of bridges that a segment has room for, at least.
_REMOTES = 1024


class Server:
    """Creates a segment and takes fixed-size batches out of its ring.

    Args:
        example: Pytree of numpy arrays: structure, dtypes and shapes of one sample.
        batch_size: Samples in a batch.
        transport: Brings in samples of remote hosts: :class:`TcpTransport`, or anything with the methods of
            :class:`Transport`, or several in a list; None for this machine only.
        num_buffers: Batches that the ring holds. One is being read while the others fill.
        name: The segment's name; None makes one up.
        max_producers: Producers that may be attached at a time.
        order: ``"fifo"``: batches come in the order of their positions, so one producer
            that stalls inside a send or reserve holds up what is behind it, once its batch is
            next. ``"ready"``: such a batch is passed over until it is complete. In either order the
            ring stops ``num_buffers - 1`` batches later, when that batch's slots are needed again.
        detailed_metrics: Fill the histograms and claim counters of :class:`SampleInfo`; costs clock readings.
        writable: Batch arrays can be written to. Otherwise they are read-only.
        reap_interval: Seconds after which a waiting learner looks for dead producers, and at
            most which a producer's death holds up the batch that it was writing to.
        num_drainers, producer_queue_size: Accepted for code written for id-echo, and
            ignored: nothing is queued or drained here.
        pin_host_memory: Must be false.

    Raises:
        TypeError: A leaf of the example is not an array, or has no fixed size.
        ValueError: A count or name out of range.
        SegmentError: The name is taken, or shared memory is too small.

    A Server is a context manager: leaving it closes it. One is attached as a learner for as long as it
    is open; if its process is killed, what it had taken is delivered to another learner.
    """

    def __init__(
        self,
        example: Any,
        batch_size: int,
        transport: Transport | Sequence[Transport] | None = None,
        num_buffers: int = 4,
        *,
        name: str | None = None,
        max_producers: int = 1024,
        order: Literal["fifo", "ready"] = "fifo",
        detailed_metrics: bool = False,
        writable: bool = False,
        reap_interval: float = 0.1,
        num_drainers: int | None = None,
        producer_queue_size: int | None = None,
        pin_host_memory: bool = False,
    ) -> None:
        if order not in ("fifo", "ready"):
            raise ValueError(f"order={order!r}: use 'fifo' or 'ready'")
        given = transport if isinstance(transport, list | tuple) else [transport]
        transports = tuple(one for one in given if one is not None)
        for one in transports:
            if isinstance(one, type):
                raise TypeError(f"a transport is an instance: {one.__name__}(...), not the class {one.__name__}")
            if not (hasattr(one, "start") and hasattr(one, "shutdown")):
                raise TypeError(f"a transport has start(handle) and shutdown(), got {type(one).__name__}")
        if pin_host_memory:
            raise RuntimeError("pin_host_memory is not supported: copy batches with pinned staging buffers instead")
        for label, count in (
            ("batch_size", batch_size),
            ("num_buffers", num_buffers),
            ("max_producers", max_producers),
        ):
            if not isinstance(count, numbers.Integral) or isinstance(count, bool) or not 1 <= count < 2**32:
                raise ValueError(f"{label}={count!r}: use an integer of at least 1")
        if not (isinstance(reap_interval, numbers.Real) and 1e-4 <= reap_interval <= 3600):
            raise ValueError(f"reap_interval={reap_interval!r}: use seconds from 0.0001 to 3600")
        spec = Spec.from_example(example)
        geometry = Geometry(
            int(batch_size),
            int(num_buffers),
            int(max_producers),
            order,
            bool(detailed_metrics),
            float(reap_interval),
            max_remotes=max(_REMOTES, sum(getattr(one, "max_connections", 0) for one in transports)),
        )
        segment = Segment.create(name, spec, geometry)
        try:
            self._join(segment, transports, writable)
        except BaseException:
            segment.unlink()
            raise
        # The segment ends when its creator closes it, forgets it, or exits.
        self._end = weakref.finalize(self, _end, self._ring, segment)

    @classmethod
    def attach(cls, name_or_handle: str | Handle, example: Any = None, *, writable: bool = False) -> "Server":
        """Joins an existing ring as a further learner: each batch goes to exactly one.

        What a learner held that was killed is delivered again, to whoever asks next.

        Args:
            name_or_handle: As for :class:`ShmClient`.
            example: As for :class:`ShmClient`.
            writable: As for :class:`Server`.

        Raises:
            SegmentError, SpecMismatchError: As for :class:`ShmClient`.

        """
        segment = attach_segment(name_or_handle, example, caller="Server.attach")
        self = cls.__new__(cls)
        self._join(segment, (), writable)
        return self

    #: Closes the ring and unlinks the segment; None for a further learner.
    _end: "weakref.finalize[Any, Any] | None" = None

    def _join(self, segment: Segment, transports: Sequence[Any], writable: bool) -> None:
        self._segment = segment
        self._transports = transports
        self._started: list[Transport] = []
        self._attachment = Attachment(segment, lib.ES_ROLE_LEARNER)
        self._ring = self._attachment.ring
        self._attachment.reaper.sweep()
        self._writer = SampleWriter(self._attachment, None)
        self._reader = BatchReader(self._attachment, writable)

    # -- what it is

    @property
    def name(self) -> str:
        """The segment's name, for ``ShmClient(name)`` and the command line."""
        return self._segment.name

    @property
    def handle(self) -> Handle:
        """What another process of this user needs to attach; pickles."""
        return Handle(self._segment.name, self._segment.uuid, self._segment.spec.treespec)

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._segment.geometry.batch_size

    @property
    def capacity(self) -> int:
        """Samples that the ring holds: ``batch_size * num_buffers``."""
        return self._segment.geometry.capacity

    @property
    def port(self) -> int:
        """The port that the transport listens on, after :meth:`start`; of several, the first that has one."""
        for transport in self._transports:
            if hasattr(transport, "port"):
                return int(transport.port)
        raise RuntimeError("no transport configured; pass one to Server(transport=...)")

    # -- taking batches

    def sample(self, timeout: float | None = None) -> Sample | None:
        """Waits for a batch and returns it. Releases the batch of the previous call first.

        Other threads run meanwhile, and Ctrl-C gets through. Threads that share a server
        share its previous batch, too: use :meth:`lease` there. What a thread got stays leased
        until any of them calls anew; calls that wait already release nothing more.

        Args:
            timeout: Seconds; None for ever, 0 not at all.

        Returns:
            A :class:`Sample`, or None once the ring is closed and fewer than
            ``batch_size`` samples are left in it.

        Raises:
            TimeoutError: No batch was complete in time.
            ForkedError: Called in a child of the process that attached.

        """
        return self._reader.next_current(timeout, None, True)

    def lease(self, timeout: float | None = None) -> Lease:
        """A context manager over one batch, for holding several at a time::

            with server.lease() as a, server.lease() as b: ...

        Its value is as :meth:`sample` returns it. The batch keeps its slots until the
        block ends. A lease that never ends stops the ring after ``num_buffers - 1`` more batches.

        Args:
            timeout: As for :meth:`sample`.

        """
        return Lease(lambda snap: self._reader.take(snap, timeout, None, drop_last=True), self._reader.give_back)

    def dataset_iter(
        self, copy: bool = False, drop_last: bool = True, until: Finishing | None = None
    ) -> Generator[Sample, None, None]:
        """Yields batches as they become complete; each is released when the next is asked for.

        Ends once the ring is closed and drained. With ``until`` it ends, too, once that
        has finished and no full batch is left.

        Args:
            copy: Yield copies, which stay as they are, and free the slots at once.
            drop_last: At the end, leave out what does not fill a batch (fewer than
                ``batch_size`` samples). Otherwise it comes as one shorter batch, a copy.
            until: A :class:`WorkerGroup`, or anything with ``finished`` and ``check()``.
                If it failed, its exception is raised.

        """
        if until is not None and not (hasattr(until, "check") and hasattr(until, "finished")):
            raise TypeError(f"until is a WorkerGroup, or has finished and check(); got {type(until).__name__}")
        while True:
            self._reader.release_current()
            if until is not None:
                until.check()
            sample = self._reader.next_current(None, until, drop_last)
            if sample is None:
                return
            if copy:
                sample = Sample(optree.tree_map(np.copy, sample.batch), sample.info)
                self._reader.release_current()
            yield sample

    # -- putting samples in

    def submit(self, data: Any, timeout: float | None = None) -> None:
        """Puts one sample into the ring from this process. As :meth:`ShmClient.send`.

        Beware of a full ring: a thread that is the only learner waits for itself here, for ever without ``timeout``.
        """
        self._writer.send(data, timeout)

    def spawn(
        self,
        fn: Callable[..., Any],
        n: int,
        *per_worker_args: Sequence[Any],
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        restart: bool = False,
    ) -> WorkerGroup:
        """Starts n worker processes; worker i runs ``fn(client, args0[i], args1[i], ...)``, attached already.

        Workers never outlive this process, however it ends.

        Args:
            fn: A function that pickles: defined at the top level of a module. What is typed
                into a notebook or an interpreter does not reach a spawned worker.
            n: How many.
            per_worker_args: Sequences of n entries, one a worker.
            context: multiprocessing's start method. "spawn" and "forkserver" import the main
                module anew, which therefore starts its work under ``if __name__ == "__main__":``.
            restart: Start a worker again, from the top of ``fn``, when a signal kills it.

        Returns:
            A :class:`WorkerGroup`; leaving its ``with`` block terminates what still runs.

        """
        if self._attachment.ring_closed():
            raise ConnectionClosedError(f"{self._attachment.what} is closed: workers could not send anything")
        return WorkerGroup(self.handle, fn, n, per_worker_args, context, restart)

    # -- beginning and end

    def start(self) -> None:
        """Starts the transports; when one cannot, none is. Without any there is nothing to start: the ring exists."""
        with contextlib.ExitStack() as undo:
            for transport in self._transports:
                transport.start(self.handle)
                undo.callback(transport.shutdown)
            undo.pop_all()
            self._started += self._transports

    def reset_histograms(self) -> None:
        """Empties the histograms of later :class:`SampleInfo` snapshots. Counters and gauges stay."""
        self._attachment.check(lib.es_reset_histograms(self._ring))

    def close(self) -> None:
        """Ends the stream. Idempotent.

        By the segment's creator: unlinks the segment; producers get
        ConnectionClosedError; what is committed can still be taken, until :meth:`sample`
        returns None. A claim that a producer, or a batch that another
        living learner, holds on to is waited for no longer than a second; one that a dead
        learner held is waited for until it is back.

        By a further learner: releases what it holds and leaves; the ring goes on.
        """
        if self._end is None:
            self._attachment.detach()
            return
        with contextlib.ExitStack() as ending:
            ending.callback(self._reader.release_current)  # nothing is written to a closed ring: what it holds stays
            ending.callback(self._end_stream)
            ending.callback(self._shut_down)

    def _end_stream(self) -> None:
        # The finalizer is not called, for it would be so once only, also when Ctrl-C cuts that short.
        if self._end is not None and self._end.alive:
            _end(self._ring, self._segment)
            self._end.detach()

    def _shut_down(self) -> None:
        """Shuts down what was started, the last first, each once. Ctrl-C leaves the rest to another close()."""
        failures: list[Exception] = []
        while self._started:
            try:
                self._started[-1].shutdown()
            except Exception as error:
                failures.append(error)
            self._started.pop()
        if failures:
            raise failures[0]

    def __repr__(self) -> str:
        state = "open" if self._attachment.attached and not self._attachment.ring_closed() else "closed"
        return f"<Server {self.name!r}, batches of {self.batch_size}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Server belongs to its process: pickle server.handle, and attach there, ShmClient(handle) to send or "
            "Server.attach(handle) to sample"
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(ring: Any, segment: Segment) -> None:
    # A forked child inherits the object, but the segment is its parent's.
    if lib.es_close_stream(ring) != lib.ES_EFORK:
        segment.unlink()
