"""A replay's ring of batches, as a learner takes them that never waits and may have several: a bridge is one."""

import errno
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm.ring import ranks
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.segment import Segment
from echo_shm.spec import Array

_NOTHING_YET = (lib.ES_EMPTY, lib.ES_TIMEOUT, -errno.EINTR)


class Lease(NamedTuple):
    """A batch that was taken. It is released once whoever it is for is done with it, or given back.

    number: its round times the batches of the ring, plus its index. No two batches of a ring have the same.
    """

    number: int
    batch: int
    round: int


class BatchSource:
    """A learner's attachment to the ring. It never waits.

    If this process dies, its leases are given back by whoever reaps it.

    Args:
        segment: The ring's segment, mapped with its lock file.
        is_bridge: Whether the batches are for learners on other hosts.
        is_rank: Whether the ring is a rank's, which this process has taken. Then batches come in the order in which
            they were drawn: none is taken before those that a dead learner had are back.

    Attributes:
        uuid: The segment's.
        schema: What an item of a batch looks like.
        n: Items of a batch.
        num_buffers: How many batches the ring holds.
        ended: Whether the replay has closed the ring, and nothing is left in it.

    """

    def __init__(self, segment: Segment, *, is_bridge: bool = True, is_rank: bool = False) -> None:
        geometry = segment.geometry
        self.is_rank, self._lockfile = is_rank, segment.lockfile
        self._is_waiting_for_dead = is_rank
        self.uuid, self.schema = segment.uuid, segment.spec.schema
        self.n, self.num_buffers = geometry.batch_size, geometry.num_buffers
        self.ended = False
        self._settled = False  # the last take said that the ring has ended, and after it no learner was dead
        self._attachment = Attachment(segment, lib.ES_ROLE_LEARNER, prefault=True)
        self._ring = self._attachment.ring
        if is_bridge:
            self._attachment.check(lib.es_bridge_learn(self._ring))
        self._leaves = segment.spec.leaves
        self._columns = [
            segment.array(
                lib.es_api_leaf_offset(self._ring, i),
                (self.num_buffers, self.n * leaf.nbytes),
                np.dtype(np.uint8),
                writable=False,
            )
            for i, leaf in enumerate(segment.spec.leaves)
        ]

    def refuse_in_child(self) -> None:
        """Raises ForkedError in a child of the process that has attached."""
        self._attachment.refuse_in_child()

    def take(self, *, is_last: bool = False) -> Lease | None:
        """Takes a batch. None: there is none now.

        ``is_last``: also one that is left to others, because producers need a batch that one of them has leased. It is
        for whoever knows that nothing more comes.
        """
        if self._is_waiting_for_dead:
            if not self.is_settled():
                return None
            self._is_waiting_for_dead = False
        snap = ffi.new("es_snapshot *")
        was_settled, self._settled = self._settled, False
        index = lib.es_api_take(self._ring, lib.ES_TAKE_LAST if is_last else 0, 0, snap)
        if snap.sweep_due:
            self._attachment.reaper.sweep()
        if index == lib.ES_ENDED:
            # What dead learners had leased is delivered again, once this process or another has reaped them.
            self.ended = was_settled
            self._settled = self.is_settled()
            return None
        if index in _NOTHING_YET:
            return None
        self._attachment.check(index)
        lease = Lease(snap.round * self.num_buffers + index, index, snap.round)
        if snap.length < self.n:  # the ring was closed before the replay could fill it
            self.release(lease)
            return None
        return lease

    def bytes_of(self, lease: Lease) -> list[memoryview]:
        """The batch's bytes, leaf after leaf. They stay as they are until the lease ends."""
        return [column[lease.batch].data for column in self._columns]

    def arrays_of(self, lease: Lease) -> list[Array]:
        """The same as arrays, one for each leaf, of shape ``(n, *leaf.shape)``. They cannot be written to."""
        return [
            column[lease.batch].view(leaf.dtype).reshape(self.n, *leaf.shape)
            for column, leaf in zip(self._columns, self._leaves, strict=True)
        ]

    def copies_of(self, leases: Sequence[Lease]) -> list[Array]:
        """The bytes of several batches: for each leaf an array of shape ``(len(leases), bytes of a batch)``."""
        index = [lease.batch for lease in leases]
        return [column[index] for column in self._columns]

    def is_settled(self) -> bool:
        """Whether nobody is dead, and what the dead had leased can be taken. It reaps them."""
        return self._attachment.reaper.reap_and_check() == (0, True)

    def release(self, lease: Lease) -> None:
        """Gives the batch's space back to the replay."""
        lib.es_api_release(self._ring, lease.batch, lease.round)

    def give_back(self, lease: Lease) -> None:
        """The batch is delivered again, here or to another learner."""
        lib.es_api_give_back(self._ring, lease.batch, lease.round)

    @property
    def next_number(self) -> int:
        """The number of the batch that the replay fills next: batches are filled in the order of their numbers."""
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(self._ring, snap)
        return int(snap.samples_inserted) // self.n

    def count_others(self) -> int:
        """How many other learners are attached to the ring."""
        info, count = ffi.new("es_owner_info *"), 0
        index = lib.es_monitor_next_owner(self._ring, 0, info)
        while index >= 0:
            count += info.id.role == lib.ES_ROLE_LEARNER and index != self._attachment.index
            index = lib.es_monitor_next_owner(self._ring, index + 1, info)
        return count

    def detach(self) -> None:
        """Leaves the ring, and the rank. All leases must have ended: those that have not are released."""
        if self.is_rank and self._lockfile is not None:
            ranks.leave(self._lockfile)
        self._attachment.detach()
