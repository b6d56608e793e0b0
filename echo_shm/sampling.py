"""How a learner takes batches out of a ring."""

from collections.abc import Generator, Sequence

from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_reader import BatchReader
from echo_shm.ring.protocols import Finishing, Transport, check_finishing, tell_ended
from echo_shm.ring.sample import Lease, Sample, copy_of
from echo_shm.ring.staleness import FreshBatches
from echo_shm.timeouts import PLAIN, check_timeout
from echo_shm.workers.group import WorkerGroup
from echo_shm.workers.spawned import Spawned


class Sampling:
    """The part of a :class:`Server` that takes batches, and waits for them."""

    _attachment: Attachment
    _reader: BatchReader
    _transports: Sequence[Transport]
    _unstarted: bool  # the transports are still to be started
    _spawned: list[WorkerGroup]

    def start(self) -> None:
        """Starts the transports."""
        raise NotImplementedError

    def sample(self, timeout: float | None = None, until: Finishing | None = None) -> Sample | None:
        """Waits for a batch and returns it. The first call starts the transports, if :meth:`start` has not.

        Other threads run while it waits, and Ctrl-C interrupts it. The batch's slots stay taken until nothing refers
        to the batch any more, see :class:`Sample`. So a loop that keeps one batch at a time needs ``num_buffers`` of
        at least 2. With ``num_buffers=1`` the arrays are copies.

        Args:
            timeout: Seconds to wait; 0: do not wait; None: no limit.
            until: As for :meth:`dataset_iter`. None: the workers that :meth:`spawn` has started, until they are
                joined or their block is left. They have finished when all of them have, no other producer is
                attached, and there is no transport.

        Returns:
            A :class:`Sample`. None once fewer than ``batch_size`` samples are left, and no more can come: the ring is
            closed, or ``until`` has finished.

        Raises:
            ValueError: ``timeout`` is not a number of seconds.
            TimeoutError: No batch was complete in time.
            BaseException: A worker failed: its exception.
            BatchesHeldError: For about a second, this learner has referred to all batches of the ring, so no further
                one can come. If another thread may drop one, and with JAX, it is a RuntimeWarning.
            ForkedError: Called in a child of the process that attached.

        """
        if timeout is not None and not (timeout.__class__ in PLAIN and timeout >= 0):
            check_timeout(timeout)
        until = self._until(until)
        sample = self._reader.next(timeout, until, True)
        if sample is None and until is not None:
            tell_ended(until)
        return sample

    def try_sample(self) -> Sample | None:
        """Returns a batch if one is complete, and None otherwise, at once. Raises what :meth:`sample` raises else."""
        try:
            return self.sample(0)
        except TimeoutError:
            return None

    def lease(self, timeout: float | None = None, until: Finishing | None = None) -> Lease:
        """Returns a context manager over one batch. With it, several batches can be held at the same time::

            with server.lease() as a, server.lease() as b: ...

        Its value is what :meth:`sample` returns, and never a copy. The end of the block releases the batch, even if
        something still refers to its arrays. A lease that never ends stops the ring after ``num_buffers - 1`` more
        batches.

        Args:
            timeout, until: As for :meth:`sample`.

        """
        check_timeout(timeout)
        return Lease(lambda: self._take_leased(timeout, until))

    def _take_leased(self, timeout: float | None, until: Finishing | None) -> Sample | None:
        until = self._until(until)
        sample = self._reader.take(timeout, until, drop_last=True)
        if sample is None and until is not None:
            tell_ended(until)
        return sample

    def dataset_iter(
        self,
        copy: bool = False,
        drop_last: bool = True,
        until: Finishing | None = None,
        *,
        max_age: int | None = None,
    ) -> Generator[Sample, None, None]:
        """Yields batches as they become complete. Each keeps its slots until nothing refers to it, see :class:`Sample`.

        It ends once the ring is closed and drained. With ``until``, it also ends once ``until`` has finished and no
        full batch is left.

        Args:
            copy: Yield copies, which take no slots.
            drop_last: At the end, drop the samples that do not fill a batch. Otherwise they come as one shorter
                batch, a copy.
            until: A :class:`WorkerGroup`, or any object with ``finished`` and ``check()``. If it failed, its
                exception is raised.
            max_age: Leave out samples that were made with weights more than this many versions before the latest one
                (see :meth:`Server.publisher`), and count them in :attr:`SampleInfo.too_old`. All batches are copies
                then: one that the caller still refers to would stop the ring while many are left out. What is left
                of batches with old samples is put together into batches of ``batch_size``; what waits for that is
                lost if this process is killed.

        """
        check_finishing(until)
        fresh = None if max_age is None else FreshBatches(self._attachment, max_age, self._reader.writable)
        while box := self._next(copy, drop_last, until, fresh):
            # The generator itself must not refer to the batch while its user works on it, or waits for the next.
            yield box.pop()
        if until is not None:
            tell_ended(until)

    def _next(self, copy: bool, drop_last: bool, until: Finishing | None, fresh: FreshBatches | None) -> list[Sample]:
        """The next batch in a list, or an empty list at the end."""
        if fresh is not None:
            return self._next_fresh(drop_last, until, fresh)
        if self._unstarted:
            self.start()
        if until is not None:
            until.check()
        sample = self._reader.next(None, until, drop_last)
        if sample is None:
            return []
        return [copy_of(sample) if copy else sample]

    def _next_fresh(self, drop_last: bool, until: Finishing | None, fresh: FreshBatches) -> list[Sample]:
        """The same without the samples that are too old."""
        while not (box := fresh.complete()):
            box = self._next(False, drop_last, until, None)
            if not box:
                return [] if drop_last else fresh.rest()
            if fresh.passes(box[0]):
                return [copy_of(box.pop())]
            fresh.keep(box.pop())
        return box

    def _until(self, until: Finishing | None) -> Finishing | None:
        """What a reading call waits for beside batches. It starts the transports."""
        if self._unstarted:
            self.start()
        if until is None:
            if not self._spawned:
                return None
            self._spawned[:] = [group for group in self._spawned if not group.left]
            until = Spawned(self._spawned, self._attachment.ring, bool(self._transports))
        else:
            check_finishing(until)
        until.check()
        return until
