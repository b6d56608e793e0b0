"""Who waits for whom: the waits of a learner that only the learner itself could end."""

import gc
import math
import sys
import threading
import time
import warnings

from echo_shm._batch import Reader
from echo_shm._core import ffi, lib
from echo_shm.errors import BatchesHeldError
from echo_shm.ring.attachment import Attachment

#: How long this process may refer to all batches and ask for one more, before it is told (seconds).
_HELD_GRACE = 0.8

#: How long before it looks for batches in reference cycles (seconds). A producer may just be writing the last sample.
_COLLECT_AFTER = 0.2

#: Modules whose computations go on after the call, and refer to their arguments until they end.
_ASYNCHRONOUS = ("jax",)


def only_thread() -> bool:
    """Whether no other Python thread runs, but for the package's own."""
    return all(
        thread is threading.current_thread() or thread.name.startswith("echo_shm") for thread in threading.enumerate()
    )


def refuse_to_wait_for_itself(attachment: Attachment) -> None:
    """Raises TimeoutError if a learner that sends would wait for the room that only itself could make."""
    if only_thread() and not attachment.other_learners():
        raise TimeoutError(
            f"{attachment.what} is full, and this thread, which sends, is all that could take a batch: it would wait "
            "for itself. Call sample() first, send from another thread or process, or use a larger batch_size * "
            "num_buffers"
        )


def nobody_takes(attachment: Attachment) -> str | None:
    """Why workers wait without end for a thread that does not take batches; None if they do not."""
    if not only_thread() or attachment.other_learners():
        return None
    snap = ffi.new("es_snapshot *")
    lib.es_monitor_observe(attachment.ring, snap)
    if snap.producers_waiting == 0 or snap.occupancy < attachment.segment.geometry.capacity:
        return None
    return (
        f"{snap.producers_waiting} producers wait, because {attachment.what} is full, and this thread, which joins, is "
        "all that could take a batch: iterate dataset_iter(until=workers) first, or leave the block to end the workers"
    )


class HeldWatch:
    """Notices that producers need a batch that this learner still refers to, while it waits for another one.

    It may wait in one call, or look often for a short time each.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._number = -1  # the batch that producers need next, as stuck() has seen it
        # The one that this learner waits for: since when, when it last asked, and whether it was told.
        self._waits_for, self._since, self._looked, self._warned = -1, -math.inf, -math.inf, False
        self._collected = -math.inf  # when cycles were last collected

    def stuck(self, reader: Reader) -> int:
        """How many batches it holds, if none can come before it drops one: producers fill batches in order. 0: it can.

        Another thread may drop batches meanwhile. So what is said of them is said of this number.
        """
        held = reader.held
        if held == 0:
            return 0
        geometry, snap = self._attachment.segment.geometry, ffi.new("es_snapshot *")
        lib.es_monitor_observe(self._attachment.ring, snap)
        self._number, inside = divmod(snap.samples_inserted, geometry.batch_size)
        if inside or snap.store_size:  # producers still write to a batch
            return 0
        return held if reader.leased(self._number % geometry.num_buffers) != 0 else 0

    def stuck_for_good(self, reader: Reader) -> int:
        """As :meth:`stuck`, when no batch is in a reference cycle any more. A call ends with it."""
        if self.stuck(reader) and time.monotonic() - self._collected > _COLLECT_AFTER:
            self._collect()
        self._looked = time.monotonic()  # whatever this call took was no pause
        return self.stuck(reader)

    def _collect(self) -> None:
        gc.collect()  # cycles may refer to batches
        self._collected = time.monotonic()

    def text(self, held: int) -> str:
        """What is wrong, and what to do."""
        count = self._attachment.segment.geometry.num_buffers
        return (
            f"this learner still refers to {held} of {count} batches of {self._attachment.what}, and producers need "
            "the oldest of them next: drop what refers to its arrays (lists, views, tensors), release() it, copy, or "
            "use more num_buffers, or prefetch of a replay"
        )

    def check(self, reader: Reader, started: float) -> None:
        """Raises BatchesHeldError after a while. It warns instead if another thread may drop the batch.

        Args:
            reader: What the learner takes batches with.
            started: When the call began that waits (:func:`time.monotonic`). Within a call the learner does not pause,
                however long a look takes.

        """
        held = self.stuck(reader)
        if held == 0:
            self._waits_for = -1
            return
        now = time.monotonic()
        paused = self._looked < started and now - self._looked > _HELD_GRACE
        if self._waits_for != self._number or paused:
            self._waits_for, self._since, self._warned = self._number, now, False
        if self._collected < self._since and now - self._since >= _COLLECT_AFTER:
            self._collect()
            held = self.stuck(reader)
        self._looked = time.monotonic()  # a large heap is collected for longer than a pause may be
        if held == 0 or self._warned or now - self._since < _HELD_GRACE:
            return
        if only_thread() and not any(name in sys.modules for name in _ASYNCHRONOUS):
            raise BatchesHeldError(self.text(held))
        self._warned = True
        warnings.warn(f"{self.text(held)}. Waiting for another thread to do so", RuntimeWarning, stacklevel=7)
