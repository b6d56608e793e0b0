"""The two rings that bring steps and updates to a replay, as its own process holds them."""

import contextlib
import time
from typing import TYPE_CHECKING

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.writer import ReplayHandle
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.batch_names import batch_ring
from echo_shm.ring.creation import create_segment
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import Tables, inbox_spec
from echo_shm.ring.lockfile import CREATOR_BYTE, INBOX, UPDATES, names
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.ring.updates import UPDATE_SPEC
from echo_shm.spec import Spec

if TYPE_CHECKING:
    from echo_shm._core import Locks, Ring

#: Steps that the inbox holds, unless they are large: at most so many, and at least so many, whatever their size.
_MOST_SLOTS, _LEAST_SLOTS = 1024, 16

#: The inbox's memory, unless it has the least number of slots (bytes).
_INBOX_BYTES = 64 << 20

#: How long another process may take to reap what is dead, and how often it is looked at (seconds).
_REAPING, _NAP = 5.0, 0.001

#: Blocks of updates that the other ring holds.
UPDATE_SLOTS = 64

_REAP_INTERVAL = 0.1


def inbox_slots(spec: Spec) -> int:
    """How many steps the inbox of such a replay holds."""
    return max(_LEAST_SLOTS, min(_MOST_SLOTS, _INBOX_BYTES // max(1, spec.sample_bytes)))


def end_left(name: str, *, batches: bool = True) -> None:
    """Ends the rings that a killed replay has left, whose steps are gone with it.

    The next one of that name does not go on with them: updates of the lost items would hit its own. Without
    ``batches``, it goes on with what was drawn for learners.

    Raises:
        SegmentError: They belong to a process that is alive.

    """
    for ring in names():
        if ring not in (name + INBOX, name + UPDATES) and not (batches and batch_ring(name, ring)):
            continue
        try:
            segment = Segment.attach(ring)
        except SegmentError:
            continue  # it was removed just now, or cannot be used by anybody
        _take_over(segment)
        attachment = Attachment(segment, lib.ES_ROLE_LEARNER, f"ring {ring!r}")
        lib.es_api_close(attachment.ring)
        segment.unlink()
        attachment.detach()


class Sources:
    """The inbox and the ring of updates. This process is their creator, and their only learner.

    If rings of that name are there, because their replay was killed, it goes on with them. Their writers have waited,
    and from now on they know that there is a replay, although it may still recover its store.

    Args:
        name: The replay's name.
        spec: What a step looks like.
        tables: For each table its name and the exponents of its priorities.
        max_producers: How many writers may be attached at the same time.
        max_remotes: How many clients on other hosts each of them has entries for.

    Attributes:
        handle: What other processes attach with.
        are_new: Whether this process has made them: no writer of a dead replay waits there.

    """

    def __init__(self, name: str, spec: Spec, tables: Tables, max_producers: int, max_remotes: int) -> None:
        with contextlib.ExitStack() as undo:
            made = [
                _ring(
                    name + ending, one, Geometry(1, slots, max_producers, "ready", False, _REAP_INTERVAL, remotes), undo
                )
                for ending, one, slots, remotes in (
                    (INBOX, inbox_spec(spec, tables), inbox_slots(spec), max_remotes),
                    (UPDATES, UPDATE_SPEC, UPDATE_SLOTS, max_remotes),
                )
            ]
            self._segments = [segment for segment, _ in made]
            self.are_new = all(is_new for _, is_new in made)
            self._attachments = []
            for segment in self._segments:
                attachment = Attachment(segment, lib.ES_ROLE_LEARNER, f"the inbox of replay {name!r}", prefault=True)
                undo.callback(attachment.detach)
                self._attachments.append(attachment)
            undo.pop_all()
        handles = [Handle(s.name, s.uuid, s.spec.treespec) for s in self._segments]
        self.handle = ReplayHandle(name, handles[0], handles[1], tables, spec.treespec)

    def connect(self, core: Core) -> None:
        """Has the replay use what they bring."""
        deadline = time.monotonic() + _REAPING
        # What a killed replay had taken comes first, not behind later steps.
        while not self.is_settled() and time.monotonic() < deadline:
            time.sleep(_NAP)
        for updates, (segment, attachment) in enumerate(zip(self._segments, self._attachments, strict=True)):
            ring, base = (int(ffi.cast("uintptr_t", pointer)) for pointer in (attachment.ring, segment.base))
            code = core.connect(bool(updates), ring, base, segment.uuid)
            if code != lib.ES_OK:
                raise error_from(code, f"ring {segment.name!r}")

    @property
    def rings(self) -> "list[Ring]":
        """The ``es_ring`` of the inbox, and that of the updates."""
        return [one.ring for one in self._attachments]

    def sweep(self) -> None:
        """Reaps dead writers and clients."""
        for attachment in self._attachments:
            attachment.reaper.sweep()

    def is_settled(self) -> bool:
        """Whether nobody is dead: neither was before, nor is being reaped by another process. It reaps the dead."""
        answers = [one.reaper.reap_and_check() for one in self._attachments]  # of both rings, whatever the first says
        return all(answer == (0, True) for answer in answers)

    def senders(self) -> int:
        """How many writers and clients are attached."""
        snap = ffi.new("es_snapshot *")
        count = 0
        for ring in self.rings:
            lib.es_monitor_observe(ring, snap)
            count += snap.active_producers + snap.active_remotes
        return count

    def shut_out(self) -> None:
        """Closes the rings to writers and clients, forever. What they have sent can still be taken."""
        for attachment in self._attachments:
            attachment.check(lib.es_api_close(attachment.ring))

    @property
    def are_closed(self) -> bool:
        """Whether writers and clients are shut out."""
        return any(attachment.ring_closed() for attachment in self._attachments)

    def close(self) -> None:
        """Ends the rings: writers get ConnectionClosedError. What they brought and nobody stored is lost."""
        for attachment, segment in zip(self._attachments, self._segments, strict=True):
            if lib.es_api_close(attachment.ring) != lib.ES_EFORK:
                segment.unlink()
            attachment.detach()

    def leave(self) -> None:
        """Lets go of the rings. They stay, for the next replay."""
        for attachment, segment in zip(self._attachments, self._segments, strict=True):
            attachment.detach()
            assert segment.lockfile is not None
            lib.es_segment_locks_drop(segment.lockfile.locks, CREATOR_BYTE)


def _ring(name: str, spec: Spec, geometry: Geometry, undo: contextlib.ExitStack) -> tuple[Segment, bool]:
    """The ring of that name, and whether it is new. Otherwise a killed replay has left it."""
    try:
        segment = Segment.attach(name)
    except SegmentError:
        segment = create_segment(name, spec, geometry)
        undo.callback(segment.unlink)
        return segment, True
    undo.callback(lib.es_segment_locks_drop, _take_over(segment), CREATOR_BYTE)
    spec.check_same(segment.spec, f"ring {name!r}")
    segment.spec = spec
    return segment, False


def _take_over(segment: Segment) -> "Locks":
    """Makes this process the ring's creator, whose own one is dead."""
    assert segment.lockfile is not None
    if not segment.lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(
            f"ring {segment.name!r} belongs to a process that is alive: choose another name for the replay"
        )
    return segment.lockfile.locks
