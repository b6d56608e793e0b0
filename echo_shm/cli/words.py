"""The words of a ring as numbers: what each slot and each batch is, and whose. Read through a read-only mapping.

The C core says where the words are; csrc/ring/es_word.h says what their bits mean. A copy is not of one moment:
processes change words while it is made. So two words of it may disagree, and a reader must expect that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from echo_shm.ring.metrics import RingView
from echo_shm.ring.segment import Segment

if TYPE_CHECKING:
    from echo_shm._core import Places

#: What a slot can be, by the numbers in :attr:`Picture.slots`. ``leased``: a learner has its batch. ``held``: a learner
#: has taken a part of the batch, and this slot was free. ``sealed``: it stays empty, because the ring is closed.
SLOT_STATES = ("free", "claimed", "committed", "reopened", "sealed", "held", "leased")
FREE, CLAIMED, COMMITTED, REOPENED, SEALED, HELD, LEASED = range(len(SLOT_STATES))

#: The owner of what nobody has.
NOBODY = -1

_FILL_BATCH, _LEASED_BATCH, _RETIRED_BATCH, _POISONING_BATCH = range(4)


class Picture(NamedTuple):
    """A ring. K batches of B slots, by their place in the ring.

    Attributes:
        tail: The position that is claimed next.
        sleeps: Whether a learner sleeps. One that has given up after its timeout counts until the next batch is full.
        slots: What each slot is: an index of :data:`SLOT_STATES`. Shape ``(K, B)``, uint8.
        slot_owners: Whose: an owner's index; of a slot that nobody has :data:`NOBODY`. Shape ``(K, B)``, int32.
        rounds: The lap of each batch, from 0. Its number is ``round * K + its index``. Shape ``(K,)``, int64.
        batch_owners: Who leases it, or :data:`NOBODY`. Shape ``(K,)``, int32.
        leased_ns: Since when it is leased, on the clock of ``time.monotonic_ns()``. Shape ``(K,)``, int64.

    """

    tail: int
    sleeps: bool
    slots: npt.NDArray[np.uint8]
    slot_owners: npt.NDArray[np.int32]
    rounds: npt.NDArray[np.int64]
    batch_owners: npt.NDArray[np.int32]
    leased_ns: npt.NDArray[np.int64]

    @property
    def committed(self) -> npt.NDArray[np.int64]:
        """How many samples of each batch are committed, and not leased. Shape ``(K,)``."""
        counts: npt.NDArray[np.int64] = np.count_nonzero(self.slots == COMMITTED, axis=1)
        return counts


def _owner_type(at: "Places") -> np.dtype[Any]:
    """An owner's entry."""
    names = ("state", "role", "pid", "start_time", "samples", "blocked_ns", "waiting")
    formats = ("u4", "u4", "i8", "f8", "u8", "u8", "u4")
    return _struct(names, formats, [getattr(at, name) for name in names], at.owner_bytes)


def _batch_type(at: "Places") -> np.dtype[Any]:
    """A batch's word, and what is beside it."""
    return _struct(("word", "leased_ns"), ("u8", "u8"), [at.word, at.leased_ns], at.batch_bytes)


def _struct(names: Sequence[str], formats: Sequence[str], offsets: list[int], size: int) -> np.dtype[Any]:
    fields = {"names": list(names), "formats": list(formats), "offsets": offsets, "itemsize": size}
    found: np.dtype[Any] = np.dtype(fields)  # type: ignore[call-overload]
    return found


class Words:
    """Reads the words of one segment."""

    def __init__(self, segment: Segment) -> None:
        view = RingView(segment)
        at, geometry = view.places(), segment.geometry
        self._shape = geometry.num_buffers, geometry.batch_size
        self._tail = self._array(segment, at.tail, 1, np.dtype(np.uint64))
        self._high = self._array(segment, at.owners_high, 1, np.dtype(np.uint32))
        self._sleeps = self._array(segment, at.learner_sleeps, 1, np.dtype(np.uint32))
        self._owners = self._array(segment, at.owners, view.owner_entries(), _owner_type(at))
        self._slots = self._array(segment, at.slots, geometry.capacity, np.dtype(np.uint64))
        self._batches = self._array(segment, at.batches, geometry.num_buffers, _batch_type(at))

    @staticmethod
    def _array(segment: Segment, offset: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return segment.array(offset, (count,), dtype, writable=False)

    def tail(self) -> int:
        """How many slots were claimed since the ring was made."""
        return int(self._tail[0])

    def sleeps(self) -> bool:
        """Whether a learner sleeps: see :attr:`Picture.sleeps`."""
        return bool(self._sleeps[0])

    def owners(self) -> npt.NDArray[Any]:
        """A copy of the owners' entries that were ever in use: ``state`` is 1 for those that are now."""
        copy: npt.NDArray[Any] = self._owners[: int(self._high[0])].copy()
        return copy

    def batches(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """:attr:`Picture.rounds`, :attr:`Picture.batch_owners` and :attr:`Picture.leased_ns`."""
        rounds, owners, _, copy = self._read_batches()
        return rounds, owners, copy["leased_ns"].astype(np.int64)

    def _read_batches(self) -> tuple[Any, Any, Any, Any]:
        copy = self._batches.copy()
        word = copy["word"]
        state = word & np.uint64(15)
        leased = (state == _LEASED_BATCH) | (state == _POISONING_BATCH)
        owners = np.where(leased, (word >> np.uint64(4)) & np.uint64(0xFFFF), 0).astype(np.int32)
        owners[~leased] = NOBODY
        return (word >> np.uint64(20)).astype(np.int64), owners, state == _RETIRED_BATCH, copy

    def claims(self, rounds: npt.NDArray[np.int64]) -> dict[int, int]:
        """How many slots each producer has claimed now. ``rounds``: of the batches, read just before."""
        word = self._slots.copy()
        found = np.flatnonzero((word & np.uint64(15)) == CLAIMED)
        if not len(found):
            return {}
        word = word[found]
        current = (word >> np.uint64(20)).astype(np.int64) == rounds[found // self._shape[1]] + 1
        owners, counts = np.unique((word[current] >> np.uint64(4)) & np.uint64(0xFFFF), return_counts=True)
        return dict(zip(owners.astype(int).tolist(), counts.tolist(), strict=True))

    def picture(self) -> Picture:
        """The whole ring."""
        tail, sleeps = self.tail(), self.sleeps()
        word = self._slots.copy().reshape(self._shape)  # before the batches: what is released meanwhile is free then
        rounds, batch_owners, retired, batches = self._read_batches()
        # A slot of another lap, or of a batch that was released for good, holds nothing.
        current = ((word >> np.uint64(20)).astype(np.int64) == rounds[:, None] + 1) & ~retired[:, None]
        slots = np.where(current, word & np.uint64(15), FREE).astype(np.uint8)
        slots[slots > HELD] = FREE  # somebody has scribbled on it
        owners = ((word >> np.uint64(4)) & np.uint64(0xFFFF)).astype(np.int32)
        owners[np.isin(slots, (FREE, REOPENED, SEALED))] = NOBODY
        is_leased = (slots == COMMITTED) & (batch_owners != NOBODY)[:, None]
        owners = np.where(is_leased, batch_owners[:, None], owners)
        slots[is_leased] = LEASED
        return Picture(tail, sleeps, slots, owners, rounds, batch_owners, batches["leased_ns"].astype(np.int64))
