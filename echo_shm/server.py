"""Learners: batches as zero-copy pytrees."""

import errno
import numbers
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import optree

from echo_shm._core import ffi, lib
from echo_shm.attachment import Attachment
from echo_shm.client import Handle, SampleWriter, attach_segment
from echo_shm.fast_path import compile_tree
from echo_shm.metrics import SampleInfo
from echo_shm.protocols import Finishing, Transport
from echo_shm.sample import Lease, Rest, Sample
from echo_shm.segment import Geometry, Segment
from echo_shm.spawn import WorkerGroup
from echo_shm.spec import Spec

_NOTHING_YET = (lib.ES_EMPTY, lib.ES_TIMEOUT, -errno.EINTR)


class Server:
    """Creates a segment and takes fixed-size batches out of its ring.

    Args:
        example: Pytree of numpy arrays: structure, dtypes and shapes of one sample.
        batch_size: Samples in a batch.
        transport: Brings in samples of remote hosts; None for this machine only.
        num_buffers: Batches that the ring holds. One is being read while the others fill.
        name: The segment's name; None makes one up.
        max_producers: Producers that may be attached at a time.
        order: ``"fifo"``: batches come in the order of their positions, so one producer
            that stalls inside a send or reserve holds up what is behind it, once its batch is
            next. ``"ready"``: such a batch is passed over until it is complete.
        detailed_metrics: Fill the histograms and claim counters of :class:`SampleInfo`; costs clock readings.
        writable: Batch arrays can be written to. Otherwise they are read-only.
        reap_interval: Seconds after which a waiting learner looks for dead producers, and at
            most which a producer's death holds up the batch that it was writing to.
        num_drainers, producer_queue_size: Accepted for code written for id-echo, and ignored: nothing is queued or drained here.
        pin_host_memory: Must be false.

    Raises:
        TypeError: A leaf of the example is not an array, or has no fixed size.
        ValueError: A count or name out of range.
        SegmentError: The name is taken, or shared memory is too small.

    A Server is a context manager: leaving it closes it. One is attached as a learner for as long as it
    is open; if its process is killed, what it had taken is delivered to another learner.
    """  # noqa: E501

    def __init__(
        self,
        example: Any,
        batch_size: int,
        transport: Transport | None = None,
        num_buffers: int = 4,
        *,
        name: str | None = None,
        max_producers: int = 1024,
        order: str = "fifo",
        detailed_metrics: bool = False,
        writable: bool = False,
        reap_interval: float = 0.1,
        num_drainers: int | None = None,
        producer_queue_size: int | None = None,
        pin_host_memory: bool = False,
    ) -> None:
        if order not in ("fifo", "ready"):
            raise ValueError(f"order={order!r}: use 'fifo' or 'ready'")
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
            int(batch_size), int(num_buffers), int(max_producers), order, bool(detailed_metrics), float(reap_interval)
        )
        segment = Segment.create(name, spec, geometry)
        try:
            self._join(segment, transport, writable)
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
        self._join(segment, None, writable)
        return self

    #: Closes the ring and unlinks the segment; None for a further learner.
    _end: "weakref.finalize[Any, Any] | None" = None

    def _join(self, segment: Segment, transport: Transport | None, writable: bool) -> None:
        self._segment = segment
        self._transport = transport
        self._attachment = Attachment(segment, lib.ES_ROLE_LEARNER)
        self._ring = self._attachment.ring
        self._attachment.sweep()
        self._spec = segment.spec
        self._writer = SampleWriter(self._attachment, None)
        geometry = segment.geometry
        self._batches = [
            segment.array(
                lib.es_leaf_offset(self._ring, i),
                (geometry.num_batches, geometry.batch_size, *leaf.shape),
                leaf.dtype,
                writable=writable,
            )
            for i, leaf in enumerate(self._spec.leaves)
        ]
        self._unflatten = self._spec.treespec.unflatten
        self._tree = compile_tree(self._spec, self._batches)
        self._batch_size = geometry.batch_size
        self._current: Sample | None = None
        self._swapping = threading.Lock()
        self._rest = Rest(self._ring, self._batches, self._batch_size, self._unflatten)

    # -- what it is

    @property
    def name(self) -> str:
        """The segment's name, for ``ShmClient(name)`` and the command line."""
        return self._segment.name

    @property
    def handle(self) -> Handle:
        """What another process of this user needs to attach; pickles."""
        return Handle(self._segment.name, self._segment.uuid, self._spec.treespec)

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._segment.geometry.batch_size

    @property
    def capacity(self) -> int:
        """Samples that the ring holds: ``batch_size * num_buffers``."""
        return self._segment.geometry.batch_size * self._segment.geometry.num_batches

    @property
    def port(self) -> int:
        """The port that the transport listens on, after :meth:`start`."""
        if self._transport is None:
            raise RuntimeError("no transport configured; pass one to Server(transport=...)")
        return int(self._transport.port)  # type: ignore[attr-defined]

    # -- taking batches

    def sample(self, timeout: float | None = None) -> Sample | None:
        """Waits for a batch and returns it. Releases the batch of the previous call first.

        Other threads run meanwhile, and Ctrl-C gets through. Threads that share a server
        share its previous batch, too: use :meth:`lease` there.

        Args:
            timeout: Seconds; None for ever, 0 not at all.

        Returns:
            A :class:`Sample`, or None once the ring is closed and fewer than
            ``batch_size`` samples are left in it.

        Raises:
            TimeoutError: No batch was complete in time.
            ForkedError: Called in a child of the process that attached.

        """
        self._release_current()
        return self._hand_out(timeout, None, drop_last=True)

    def lease(self, timeout: float | None = None) -> Lease:
        """A context manager over one batch, for holding several at a time::

            with server.lease() as a, server.lease() as b: ...

        Its value is as :meth:`sample` returns it. The batch keeps its slots until the
        block ends. A lease that never ends stops the ring after ``num_buffers - 1`` more batches.

        Args:
            timeout: As for :meth:`sample`.

        """
        return Lease(lambda snap: self._take(snap, timeout, None, drop_last=True), self._give_back)

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
        while True:
            self._release_current()
            if until is not None:
                until.check()
            sample = self._hand_out(None, until, drop_last)
            if sample is None:
                return
            if copy:
                sample = Sample(optree.tree_map(np.copy, sample.batch), sample.info)
                self._release_current()
            yield sample

    def _release_current(self) -> None:
        current = self._current
        if current is not None:
            current.release()

    def _hand_out(self, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        """Takes a batch as the current one."""
        snap = ffi.new("es_snapshot *")
        try:
            sample = self._take(snap, timeout, until, drop_last)
            with self._swapping:
                before, self._current = self._current, sample
        except BaseException:  # Ctrl-C, say, between the lease and the line that would have kept it
            self._give_back(snap)
            raise
        if before is not None:
            before.release()  # does nothing, unless another thread took it after we had released ours
        return sample

    def _give_back(self, snap: Any) -> None:
        """Undoes the take that ``snap`` tells of, if it tells of one that nobody has made his own."""
        if snap.length and not self._rest.holds(snap.batch, snap.round):
            lib.es_return_batch(self._ring, snap.batch, snap.round)

    def _take(self, snap: Any, timeout: float | None, until: Finishing | None, drop_last: bool) -> Sample | None:
        index = lib.es_take(self._ring, 0, 0, snap)
        if snap.sweep_due:
            self._attachment.sweep()
        if index >= 0 and snap.length == self._batch_size:
            return self._full(index, snap)
        return self._take_slowly(index, snap, timeout, until, drop_last)

    def _full(self, index: int, snap: Any) -> Sample:
        # What a named tuple's own __new__ does, without the call.
        sample = tuple.__new__(Sample, (self._tree(index), SampleInfo(snap)))
        sample._lease = (self._ring, index, snap.round)
        return sample

    def _take_slowly(
        self, index: int, snap: Any, timeout: float | None, until: Finishing | None, drop_last: bool
    ) -> Sample | None:
        """Waits in slices, so that signals get through, the dead are looked for and ``until`` is asked."""
        started = time.monotonic()
        while True:
            nanoseconds = 0
            if index >= 0:
                self._rest.add(index, snap)
            elif index == lib.ES_ENDED:
                # Unless somebody is dead whom nobody has reaped: what it held comes back.
                if self._attachment.sweep() == 0:
                    return self._rest.next(snap, drop_last)
            elif index == lib.ES_EDETACHED:
                return None
            elif index not in _NOTHING_YET:
                self._attachment.check(index)
            elif until is not None and until.finished:
                until.check()
                return self._drain(snap, drop_last)
            else:
                nanoseconds = self._next_slice(started, timeout)
            if until is not None:
                until.check()
            index = lib.es_take(self._ring, 0, nanoseconds, snap)
            # First of all, for a batch waits here. A sweep that is due stays due at the next take.
            if index >= 0 and snap.length == self._batch_size:
                return self._full(index, snap)
            if snap.sweep_due:
                self._attachment.sweep()

    def _next_slice(self, started: float, timeout: float | None) -> int:
        """Nanoseconds to sleep before looking up; raises TimeoutError when the time is over."""
        left = None if timeout is None else timeout - (time.monotonic() - started)
        if left is not None and left <= 0:
            snap = ffi.new("es_snapshot *")
            lib.es_observe(self._ring, snap)
            raise TimeoutError(
                f"no batch of {self._batch_size} samples was complete in {self._attachment.what} within {timeout} s; "
                f"{snap.store_size} samples wait in it, and {snap.active_producers} producers are attached"
            )
        return self._attachment.slice_ns_within(left)

    def _drain(self, snap: Any, drop_last: bool) -> Sample | None:
        """What is left after ``until`` finished, on a ring that stays open."""
        self._attachment.sweep()  # those that were killed, too, have left their slots
        flags = lib.ES_TAKE_ANY_ORDER | (0 if drop_last else lib.ES_TAKE_SHORT)
        while True:
            index = lib.es_take(self._ring, flags, 0, snap)
            if index < 0:
                return self._rest.next(snap, drop_last)
            if snap.length == self._batch_size:
                return self._full(index, snap)
            self._rest.add(index, snap)

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
        context: str = "spawn",
        restart: bool = False,
    ) -> WorkerGroup:
        """Starts n worker processes; worker i runs ``fn(client, args0[i], args1[i], ...)``, attached already.

        Workers never outlive this process, however it ends.

        Args:
            fn: A function that pickles: defined at the top level of a module.
            n: How many.
            per_worker_args: Sequences of n entries, one a worker.
            context: multiprocessing's start method: "spawn", "forkserver" or "fork".
            restart: Start a worker again, from the top of ``fn``, when a signal kills it.

        Returns:
            A :class:`WorkerGroup`; leaving its ``with`` block terminates what still runs.

        """
        return WorkerGroup(self.handle, fn, n, per_worker_args, context, restart)

    # -- beginning and end

    def start(self) -> None:
        """Starts the transport. Without one there is nothing to start: the ring exists already."""
        if self._transport is not None:
            self._transport.start(self.handle)

    def reset_histograms(self) -> None:
        """Empties the histograms of later :class:`SampleInfo` snapshots. Counters and gauges stay."""
        self._attachment.check(lib.es_reset_histograms(self._ring))

    def close(self) -> None:
        """Ends the stream. Idempotent.

        By the segment's creator: unlinks the segment; producers get
        ConnectionClosedError; what is committed can still be taken, until :meth:`sample`
        returns None. A claim that a producer, or a batch that another
        learner, holds on to is waited for no longer than a second.

        By a further learner: releases what it holds and leaves; the ring goes on.
        """
        if self._end is None:
            self._attachment.detach()
            return
        if self._transport is not None and self._end.alive:
            self._transport.shutdown()
        self._end()
        self._release_current()  # nothing is written to a closed ring: what it holds stays as it is

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
