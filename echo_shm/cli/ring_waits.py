"""Who waits in a ring, for what, and whom it waits for."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from echo_shm.cli import console
from echo_shm.cli.words import CLAIMED, COMMITTED, FREE, HELD, NOBODY, REOPENED, Picture, Words
from echo_shm.ring.metrics import Owner
from echo_shm.ring.segment import Segment

#: Most processes that one line names.
_MOST_NAMED = 3

#: How long a producer may be between two of the short waits that a long one consists of (seconds).
_BETWEEN = 0.2

#: The help of commands that show waits.
HELP = """\
waits, of those that last longer than a second:
  producers  they wait for space: a learner holds the oldest batch or takes
             none, or a producer holds a slot of it
  learners   they wait for a batch. One that gave up after its timeout counts
             as waiting until the next batch is full
"""

#: Somebody who is attached, and its state: see ``echo_shm.cli.top.states``.
Attached = Sequence[tuple[Owner, str]]


class RingWait(NamedTuple):
    """Some owners wait for the same.

    Attributes:
        who: In words: ``"producers 12, 13"``.
        what: What they wait for, in words.
        seconds: For how long the first of them does, as far as somebody has looked.
        waiting, on: The owners' indices: of those that wait, and of those that they wait for.
        of_producers: Whether they wait for space. Otherwise they wait for a batch.

    """

    who: str
    what: str
    seconds: float
    waiting: tuple[int, ...]
    on: tuple[int, ...]
    of_producers: bool

    def __str__(self) -> str:
        singular = len(self.waiting) == 1 or self.who.startswith("one of ")
        return f"{self.who} wait{'s' * singular} for {console.duration(self.seconds)}: {self.what}"


class Cause(NamedTuple):
    """Why nothing goes on: in words, and the indices of the owners that could change it."""

    what: str
    on: tuple[int, ...] = ()


class RingWaits:
    """Remembers since when each owner of a ring waits, from one look to the next.

    Args:
        segment: It holds samples.
        kind: What an owner is, in one word.

    """

    def __init__(self, segment: Segment, kind: Callable[[Owner], str] = lambda owner: owner.role) -> None:
        self.words = Words(segment)
        self._in_order = segment.geometry.order == "fifo"
        self._kind = kind
        self._since: dict[tuple[int, int], float] = {}
        self._seen: dict[tuple[int, int], float] = {}  # when it was last known to wait
        self._before: dict[tuple[int, int], Owner] = {}
        self._learners: tuple[int, float] | None = None  # batches taken, and since when a learner sleeps

    def look(self, attached: Attached, taken: int, *, closed: bool, least: float = 0.0) -> list[RingWait]:
        """Who waits now, for at least ``least`` seconds. ``taken``: how many batches learners have taken so far."""
        now, picture = time.monotonic(), self.words.picture()
        found = [*self._producers(attached, picture, now), *self._of_learners(attached, taken, picture, now)]
        return [] if closed else [wait for wait in found if wait.seconds >= least]

    # -- producers

    def _producers(self, attached: Attached, picture: Picture, now: float) -> list[RingWait]:
        since: dict[tuple[int, int], float] = {}
        seen: dict[tuple[int, int], float] = {}
        owners: dict[tuple[int, int], Owner] = {}
        for owner, state in attached:
            key = owner.index, owner.pid
            before = self._before.get(key)
            owners[key] = owner
            if owner.role != "producer" or state == "dead":
                continue
            is_same = before is not None and before.samples == owner.samples
            # A long wait is a row of short ones. Between two of them it does not count as waiting.
            if owner.waiting or (is_same and before is not None and before.blocked < owner.blocked):
                seen[key] = now
            elif is_same and now - self._seen.get(key, -math.inf) < _BETWEEN:
                seen[key] = self._seen[key]
            else:
                continue
            since[key] = self._since.get(key, now) if is_same else now
        self._since, self._seen, self._before = since, seen, owners
        if not since or (cause := why_full(picture, attached, self._kind)) is None:
            return []
        waiting = [owner for key, owner in owners.items() if key in since]
        indices = tuple(owner.index for owner in waiting)
        return [RingWait(self._named(waiting), cause.what, now - min(since.values()), indices, cause.on, True)]

    # -- learners

    def _of_learners(self, attached: Attached, taken: int, picture: Picture, now: float) -> list[RingWait]:
        learners = [owner for owner, state in attached if owner.role == "learner" and state in ("running", "waiting")]
        cause = None
        if picture.sleeps and learners:
            cause = why_empty(picture, attached, self._kind, in_order=self._in_order)
        if cause is None:
            self._learners = None
            return []
        if self._learners is None or self._learners[0] != taken:
            self._learners = taken, now
        who = self._named(learners)
        if len(learners) > 1:  # the ring does not say which of them
            who = f"one of {who}"
        indices = tuple(owner.index for owner in learners)
        return [RingWait(who, cause.what, now - self._learners[1], indices, cause.on, False)]

    def _named(self, owners: list[Owner]) -> str:
        return named(owners, self._kind)


# --- causes -------------------------------------------------------------------


def why_full(picture: Picture, attached: Attached, kind: Callable[[Owner], str]) -> Cause | None:
    """Why no slot can be claimed; None if one can be. The next claim needs a batch of the lap before."""
    count, size = picture.slots.shape
    number = picture.tail // size
    index = number % count
    if picture.rounds[index] >= number // count:
        return None
    by_index = {owner.index: (owner, state) for owner, state in attached}
    holder = int(picture.batch_owners[index])
    if holder != NOBODY:
        return _held(picture, holder, by_index, kind)
    committed, reopened = (np.count_nonzero(picture.slots[index] == state) for state in (COMMITTED, REOPENED))
    if committed == size:
        return _nobody_takes(picture, attached, kind)
    if (blocking := _claims(picture, index, by_index, kind)) is not None:
        return blocking
    if reopened:
        return Cause(f"{console.plural(int(reopened), 'slot')} of the oldest batch was given back, and is filled first")
    return None  # words of two moments


def _held(picture: Picture, holder: int, by_index: dict[int, tuple[Owner, str]], kind: Callable[[Owner], str]) -> Cause:
    held = int(np.count_nonzero(picture.batch_owners == holder))
    owner, state = by_index.get(holder, (None, ""))
    who = "a learner that left" if owner is None else f"{kind(owner)} {owner.pid}{_state(state)}"
    leased = picture.leased_ns[picture.batch_owners == holder]
    oldest = max(0.0, (time.monotonic_ns() - int(leased[leased > 0].min())) / 1e9) if (leased > 0).any() else 0.0
    count = len(picture.batch_owners)
    of = f"{held} of {count} batches" if count > 1 else "the only batch"
    since = f"{'the oldest ' if held > 1 else ''}for {console.duration(oldest)}"
    return Cause(f"{who} holds {of}, {since}", (holder,))


def _nobody_takes(picture: Picture, attached: Attached, kind: Callable[[Owner], str]) -> Cause:
    learners = [(owner, state) for owner, state in attached if owner.role == "learner"]
    full = int(np.count_nonzero(picture.committed == picture.slots.shape[1]))
    ready = "1 batch is full" if full == 1 else f"{full} batches are full"
    if not learners:
        return Cause(f"{ready}, and no learner is attached")
    indices = tuple(owner.index for owner, _ in learners)
    if len(learners) == 1:
        ((owner, state),) = learners
        return Cause(f"{ready}, and {kind(owner)} {owner.pid}{_state(state)} takes none", indices)
    return Cause(f"{ready}, and none of {len(learners)} learners takes one", indices)


def _claims(
    picture: Picture, index: int, by_index: dict[int, tuple[Owner, str]], kind: Callable[[Owner], str]
) -> Cause | None:
    """Who keeps a batch from being full by the slots that it has."""
    claimed = np.isin(picture.slots[index], (CLAIMED, HELD))
    if not claimed.any():
        return None
    holders = Counter(picture.slot_owners[index][claimed].tolist())
    holder = holders.most_common(1)[0][0]
    owner, state = by_index.get(holder, (None, ""))
    who = "a process that left" if owner is None else f"{kind(owner)} {owner.pid}{_state(state)}"
    if len(holders) > 1:
        who += f" and {console.plural(len(holders) - 1, 'other')}"
    verb = "holds" if len(holders) == 1 else "hold"
    return Cause(f"{who} {verb} {console.plural(sum(holders.values()), 'slot')} of the oldest batch", tuple(holders))


def why_empty(picture: Picture, attached: Attached, kind: Callable[[Owner], str], *, in_order: bool) -> Cause | None:
    """Why no batch can be taken; None if one can, or if that cannot be told. ``in_order``: only the oldest one can."""
    count, size = picture.slots.shape
    filling = picture.batch_owners == NOBODY
    if not filling.any():
        return None
    numbers = np.where(filling, picture.rounds * count + np.arange(count), np.iinfo(np.int64).max)
    oldest = int(numbers.argmin())
    full = filling & (picture.committed == size)
    if full[oldest] or (full.any() and not in_order):
        return None
    progress = f"the next batch has {int(picture.committed[oldest]):,} of {size:,} samples"
    producers = [(owner, state) for owner, state in attached if owner.role == "producer" and state != "dead"]
    open_slots = np.count_nonzero(np.isin(picture.slots[oldest], (FREE, REOPENED)))
    by_index = {owner.index: (owner, state) for owner, state in attached}
    blocking = _claims(picture, oldest, by_index, kind)
    if blocking is not None and not open_slots:
        return Cause(f"{progress}; {blocking.what}", blocking.on)
    if not producers:
        return Cause(f"{progress}, and no producer is attached")
    stopped = sum(state == "stopped" for _, state in producers)
    words = f"{console.plural(len(producers), 'producer')}, of which {stopped} stopped"
    what = f"{progress}, from {words if stopped else console.plural(len(producers), 'producer')}"
    return Cause(what, tuple(owner.index for owner, _ in producers))


def named(owners: Iterable[Owner], kind: Callable[[Owner], str]) -> str:
    """Owners in words: ``"workers 12, 13, 14 and 9 more"``; of several kinds: ``"worker 12, bridge 13"``."""
    found = sorted(((kind(owner), owner.pid) for owner in owners), key=lambda one: one[1])
    shown, more = found[:_MOST_NAMED], len(found) - _MOST_NAMED
    kinds = {word for word, _ in found}
    if len(kinds) == 1:
        words = f"{found[0][0]}{'s' * (len(found) > 1)} " + ", ".join(str(pid) for _, pid in shown)
    else:
        words = ", ".join(f"{word} {pid}" for word, pid in shown)
    return words + (f" and {more} more" if more > 0 else "")


def _state(state: str) -> str:
    """A state that explains why nothing happens, in brackets."""
    return f" ({state})" if state in ("stopped", "dead") else ""
