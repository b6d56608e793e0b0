"""Learners: they take batches from a ring as zero-copy pytrees."""

import contextlib
import functools
import numbers
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from echo_shm._core import lib
from echo_shm.client import ShmClient
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, SegmentError
from echo_shm.ring import transports
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_reader import BatchReader
from echo_shm.ring.creation import create_segment
from echo_shm.ring.handle import Handle, attach_segment
from echo_shm.ring.lockfile import BATCHES, CREATOR_BYTE, INBOX, UPDATES, WEIGHTS
from echo_shm.ring.protocols import Transport
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.ring.stuck import nobody_takes, refuse_to_wait_for_itself
from echo_shm.sampling import Sampling
from echo_shm.sending import SampleWriter
from echo_shm.spec import Spec, Tree
from echo_shm.weights import Publisher
from echo_shm.workers.group import WorkerGroup

if TYPE_CHECKING:
    from echo_shm._core import Ring


class Server(Sampling, Closing):
    """Creates a segment and takes batches of a fixed size out of its ring.

    Args:
        example: Pytree of numpy arrays. It gives the structure, dtypes and shapes of one sample.
        batch_size: Samples in a batch.
        transport: Receives samples from other hosts: :class:`TcpTransport`, any object with the methods of
            :class:`Transport`, or a list of them. None: this machine only.
        num_buffers: Batches that the ring holds. The learner reads one while the others fill.
        name: The segment's name. None: a unique name is made.
        max_producers: How many producers may be attached at the same time.
        order: ``"fifo"``: batches are taken in the order of their positions. If a producer stalls inside a send or
            reserve and its batch is next, the batches behind it have to wait. ``"ready"``: such a batch is passed
            over until it is complete. In either order the ring stops ``num_buffers - 1`` batches later, when that
            batch's slots are needed again.
        detailed_metrics: Fill the histograms and claim counters of :class:`SampleInfo`. This reads the clock often.
        writable: The arrays of batches can be written to. Otherwise they are read-only.
        reap_interval: Seconds after which a waiting learner looks for dead producers. A dead producer delays the
            batch that it was writing to by at most about this time.
        prefault: Map all pages of the ring into this process now, in a thread if it is larger than 32 MiB. Otherwise
            the first access to each page takes a page fault. The page tables take 1/512 of the ring's size in each
            process; with huge pages next to nothing.
        num_drainers, producer_queue_size: Accepted for code written for id-echo, and ignored: there are no queues
            and no drainers here.
        pin_host_memory: Must be false: :func:`echo_shm.adapters.torch.pin_host_memory` does it.

    Raises:
        TypeError: A leaf of the example is not an array, or its items have no fixed size.
        ValueError: A number or the name is out of range.
        SegmentError: The name is taken, or shared memory is too small.

    A Server is a context manager that closes on exit. While it is open, it is attached as a learner. If its process
    is killed, another learner gets the batches that it had taken.
    """

    def __init__(
        self,
        example: Tree,
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
        prefault: bool = True,
        num_drainers: int | None = None,
        producer_queue_size: int | None = None,
        pin_host_memory: bool = False,
    ) -> None:
        if order not in ("fifo", "ready"):
            raise ValueError(f"order={order!r}: use 'fifo' or 'ready'")
        given = transports.checked(transport)
        if pin_host_memory:
            raise RuntimeError(
                "pin_host_memory is no argument of the server here: echo_shm.adapters.torch.pin_host_memory(server) "
                "registers its ring with CUDA"
            )
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
            max_remotes=transports.remotes(given),
        )
        if isinstance(name, str) and name.endswith((INBOX, UPDATES, BATCHES, WEIGHTS)):
            raise ValueError(
                f"name={name!r}: names that end with {INBOX!r}, {UPDATES!r} and {BATCHES!r} belong to replays, "
                f"those that end with {WEIGHTS!r} to weights"
            )
        segment = create_segment(name, spec, geometry)
        try:
            self._join(segment, given, writable, prefault)
        except BaseException:
            segment.unlink()
            raise
        # The segment ends when its creator closes it, drops the last reference to it, or exits.
        self._end = weakref.finalize(self, _end, self._ring, segment)

    @classmethod
    def attach(
        cls, name_or_handle: str | Handle, example: Tree = None, *, writable: bool = False, prefault: bool = True
    ) -> "Server":
        """Attaches to an existing ring as a further learner. Each batch goes to exactly one learner.

        If a learner is killed, the batches that it held are delivered again, to whichever learner takes next.

        Args:
            name_or_handle: As for :class:`ShmClient`.
            example: As for :class:`ShmClient`.
            writable, prefault: As for :class:`Server`.

        Raises:
            SegmentError, SpecMismatchError: As for :class:`ShmClient`.

        """
        segment = attach_segment(name_or_handle, example, caller="Server.attach")
        if segment.name.endswith((INBOX, UPDATES)):
            replay = segment.name.rpartition(".")[0]
            raise SegmentError(
                f"ring {segment.name!r} belongs to replay {replay!r}, which takes all of it: sample from the replay"
            )
        self = cls.__new__(cls)
        self._join(segment, (), writable, prefault)
        return self

    @classmethod
    def _go_on(cls, name: str, example: Tree, transport: Transport, *, writable: bool = False) -> "Server | None":
        """The server of a ring whose creator was killed, in its place; None if the creator is alive.

        Producers go on, those on other hosts too if the transport listens where the dead one's did. What the ring has
        is delivered, and what the dead one had taken and not released is delivered again.

        Raises:
            SegmentError, SpecMismatchError: As for :class:`ShmClient`.

        """
        segment = attach_segment(name, example, caller="Server")
        if segment.lockfile is None or not segment.lockfile.try_lock(CREATOR_BYTE):
            return None
        self = cls.__new__(cls)
        try:
            self._join(segment, transports.checked(transport), writable, True)
        except BaseException:
            lib.es_segment_locks_drop(segment.lockfile.locks, CREATOR_BYTE)
            raise
        self._end = weakref.finalize(self, _end, self._ring, segment)
        return self

    #: Closes the ring and unlinks the segment. None for a further learner.
    # Not annotated, because typing.get_type_hints() could not find the type where it looks.
    _end = cast("weakref.finalize[..., Server] | None", None)

    def _join(self, segment: Segment, given: Sequence[Transport], writable: bool, prefault: bool) -> None:
        self._segment = segment
        self._transports = given
        self._started: list[Transport] = []
        self._unstarted = bool(given)
        self._spawned = []
        self._publisher: Publisher | None = None
        self._attachment = Attachment(segment, lib.ES_ROLE_LEARNER, prefault=prefault)
        self._ring = self._attachment.ring
        self._attachment.reaper.sweep()
        self._writer = SampleWriter(
            self._attachment, None, functools.partial(refuse_to_wait_for_itself, self._attachment)
        )
        self._reader = BatchReader(self._attachment, writable)

    # -- properties

    @property
    def name(self) -> str:
        """The segment's name, for ``ShmClient(name)`` and the command line."""
        return self._segment.name

    @property
    def handle(self) -> Handle:
        """What another process of this user needs to attach. It pickles."""
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
        """The port that the transport listens on, after :meth:`start`. If there are several, that of the first one.

        Raises:
            RuntimeError: There is no transport, or it takes a free port and was not started yet.

        """
        return transports.port(self._transports, "server")

    # -- sending

    @property
    def version(self) -> int:
        """The version of the weights that :meth:`submit` stamps its samples with, as :attr:`ShmClient.version`.

        It is what the publisher has published last, unless a version was assigned.
        """
        return self._writer.version

    @version.setter
    def version(self, version: int) -> None:
        self._writer.version = version

    def submit(self, data: Tree, timeout: float | None = None) -> None:
        """Puts one sample into the ring from this process, as :meth:`ShmClient.send` does.

        If the ring is full, no other learner is attached and no other thread runs, the call would wait for itself. It
        raises TimeoutError at once.
        """
        self._writer.send(data, timeout)

    def submit_many(self, data: Tree, timeout: float | None = None) -> None:
        """Puts n samples into the ring from this process, as :meth:`ShmClient.send_many` does.

        A ring that is full is as for :meth:`submit`. The samples before it was full have been sent.
        """
        self._writer.send_many(data, timeout)

    def spawn(
        self,
        fn: Callable[..., Any],
        n: int,
        *per_worker_args: Sequence[Any],
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        restart: bool | Literal["always"] = False,
        on_death: Literal["raise", "ignore"] = "raise",
        max_restarts: int = 10,
    ) -> WorkerGroup:
        """Starts n worker processes. Worker i runs ``fn(client, args0[i], args1[i], ...)``; its client is attached.

        Workers never outlive this process, however it ends. They ignore SIGINT: Ctrl-C interrupts this process, which
        then stops them as it leaves the block.

        Args:
            fn: A function that pickles: defined at the top level of a module. If it was typed into a notebook or an
                interpreter, "spawn" and "forkserver" need cloudpickle.
            n: How many.
            per_worker_args: Sequences of n entries, one for each worker.
            context: multiprocessing's start method. "spawn" and "forkserver" import the main module again, so it
                must start its work under ``if __name__ == "__main__":``. "forkserver" starts many workers in a
                fraction of the time: they are forked from a process that has imported this package. They get the
                environment variables of the moment when that process was started, by the first worker of this kind.
                One that is stopped by SIGSTOP, or never releases the GIL, outlives a killed parent until it goes on.
            restart: If a signal kills a worker, start it again, from the top of ``fn``. If that happens within a second
                of its start again and again, it waits 0.1 seconds, then 0.2, and so on to 5. "always": also if it exits
                with a status above 0 without an exception that it could tell of, as a native library may have it do.
            on_death: What follows if a signal has killed a worker that is not started again. "raise": WorkerError,
                once everything has been delivered (see :class:`WorkerGroup`). "ignore": it counts as finished.
            max_restarts: How often within a minute a worker is started again. After that it is given up.

        Returns:
            A :class:`WorkerGroup`. Leaving its ``with`` block stops the workers that still run, see
            :meth:`WorkerGroup.stop`.

        """
        if self._attachment.ring_closed():
            raise ConnectionClosedError(f"{self._attachment.what} is closed: workers could not send anything")
        group = WorkerGroup(
            functools.partial(ShmClient, self.handle),
            fn,
            n,
            per_worker_args,
            context,
            restart,
            on_death,
            max_restarts,
            functools.partial(nobody_takes, self._attachment),
        )
        self._spawned.append(group)
        return group

    # -- weights

    def publisher(self, params: Tree, *, max_leases: int = 8, max_subscribers: int | None = None) -> Publisher:
        """Makes the publisher of weights for this ring's workers, which find it by :meth:`ShmClient.subscriber`.

        Call it before the workers start. It ends with this server. If a learner was killed, another one attaches to
        the ring, calls this and goes on from the last version.

        Args:
            params: As for :class:`Publisher`.
            max_leases: As for :class:`Publisher`.
            max_subscribers: As for :class:`Publisher`. None: as many as the ring may have producers.

        Raises:
            TypeError, ValueError, SegmentError, SpecMismatchError: As for :class:`Publisher`.

        """
        subscribers = self._segment.geometry.max_producers if max_subscribers is None else max_subscribers
        told = functools.partial(lib.es_age_set_latest, self._ring)
        made = Publisher._beside(params, self.name, self._segment.uuid, max_leases, subscribers, told)
        if made.version:  # a dead learner's
            told(made.version)
        self._publisher = made
        return made

    # -- start and close

    def start(self) -> None:
        """Starts the transports. If one fails, all are shut down. Without transports it does nothing.

        The first :meth:`sample`, :meth:`lease` or :meth:`dataset_iter` calls it.

        Raises:
            ForkedError: Called in a child of the process that attached. Nothing was started.

        """
        self._attachment.refuse_in_child()
        transports.start(self._transports, self.handle)
        self._started += self._transports
        self._unstarted = False

    def reset_histograms(self) -> None:
        """Empties the histograms of later :class:`SampleInfo` snapshots. Counters and gauges are kept."""
        self._attachment.check(lib.es_api_reset_histograms(self._ring))

    def close(self) -> None:
        """Ends the stream. Idempotent.

        The segment's creator unlinks the segment. Producers get ConnectionClosedError. Learners can still take what
        is committed, until :meth:`sample` returns None. It waits at most a second for a producer's open claim, and
        for a batch that another living learner holds. It waits for a dead learner's batch until that is delivered
        again.

        A further learner detaches once nothing refers to its batches any more. The ring goes on.
        """
        if self._publisher is not None:
            self._publisher.close()
        if self._end is None:
            self._reader.close()
            return
        self._unstarted = False
        with contextlib.ExitStack() as ending:
            ending.callback(self._end_stream)
            ending.callback(transports.shut_down, self._started)

    def _end_stream(self) -> None:
        # The finalizer is not called, because it runs only once, even if Ctrl-C interrupts it.
        if self._end is not None and self._end.alive:
            _end(self._ring, self._segment)
            self._end.detach()

    def __repr__(self) -> str:
        state = "open" if self._attachment.attached and not self._attachment.ring_closed() else "closed"
        return f"<Server {self.name!r}, batches of {self.batch_size}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Server belongs to its process: pickle server.handle, and attach there, ShmClient(handle) to send or "
            "Server.attach(handle) to sample"
        )


def _end(ring: "Ring", segment: Segment) -> None:
    # A forked child inherits the object, but the segment is its parent's.
    if lib.es_api_close(ring) != lib.ES_EFORK:
        segment.unlink()
