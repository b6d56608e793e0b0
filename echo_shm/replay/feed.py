"""The rings of a replay, as its own process sees them: they bring steps and updates, and take batches away."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.batch_rings import BatchRings
from echo_shm.replay.board import Board
from echo_shm.replay.writer import UPDATE_BLOCK, ReplayHandle
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.creation import create_segment
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import Tables, inbox_spec
from echo_shm.ring.lockfile import CREATOR_BYTE, INBOX, UPDATES
from echo_shm.ring.segment import Geometry, Segment
from echo_shm.spec import Spec

if TYPE_CHECKING:
    from echo_shm._core import Watch

#: Steps that the inbox holds, unless they are large: at most so many, and at least so many, whatever their size.
_MOST_SLOTS, _LEAST_SLOTS = 1024, 16

#: The inbox's memory, unless it has the least number of slots (bytes).
_INBOX_BYTES = 64 << 20

#: Blocks of updates that the other ring holds.
UPDATE_SLOTS = 64

#: How much one turn stores, in steps and in bytes. Other threads have their turn in between.
_TURN, _TURN_BYTES = 256, 4 << 20

#: How often the board is written (seconds).
_BOARD_INTERVAL = 0.1

_REAP_INTERVAL = 0.1


def inbox_slots(spec: Spec) -> int:
    """How many steps the inbox of such a replay holds."""
    return max(_LEAST_SLOTS, min(_MOST_SLOTS, _INBOX_BYTES // max(1, spec.sample_bytes)))


class Feed:
    """A replay's rings. All calls come from the process that has the store; threads share it as they share the Core.

    Args:
        core: The replay's calls.
        name: The replay's name.
        spec: What a step looks like.
        tables: For each table its name and the exponents of its priorities.
        max_producers: How many writers may be attached at the same time.
        max_remotes: How many clients on other hosts the inbox has entries for.
        describe: Returns what the board says.

    Attributes:
        waits: Why a step that has come cannot be stored; None if there is none.
        short: Whether a ring of batches has room for items that its table does not give now.
        handle: What other processes attach with.

    If rings of that name are there, because their replay was killed, it goes on with them. Their writers have waited.
    """

    def __init__(
        self,
        core: Core,
        name: str,
        spec: Spec,
        tables: Tables,
        max_producers: int,
        max_remotes: int,
        describe: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._core = core
        self._name = name
        self._describe = describe
        self.waits: str | None = None
        self.short = False
        self._codes: tuple[int, ...] = ()  # why each ring of batches got no more
        self._most = max(1, min(_TURN, _TURN_BYTES // max(1, spec.sample_bytes)))
        self._lock = threading.Lock()  # of the board
        self._written = 0.0
        brings = inbox_spec(spec, tables)
        block = Spec.from_example(np.zeros((), UPDATE_BLOCK))
        with contextlib.ExitStack() as undo:
            self._segments = [
                _ring(
                    name + ending, one, Geometry(1, slots, max_producers, "ready", False, _REAP_INTERVAL, remotes), undo
                )
                for ending, one, slots, remotes in (
                    (INBOX, brings, inbox_slots(spec), max_remotes),
                    (UPDATES, block, UPDATE_SLOTS, 0),
                )
            ]
            self._attachments = [
                Attachment(segment, lib.ES_ROLE_LEARNER, f"the inbox of replay {name!r}", prefault=True)
                for segment in self._segments
            ]
            for attachment in self._attachments:
                undo.callback(attachment.detach)
                attachment.reaper.sweep()
            for updates, (segment, attachment) in enumerate(zip(self._segments, self._attachments, strict=True)):
                code = core.connect(bool(updates), _address(attachment.ring), _address(segment.base), segment.uuid)
                if code != lib.ES_OK:
                    raise error_from(code, f"ring {segment.name!r}")
            self._batches = BatchRings(core, name, spec, len(tables))
            undo.callback(self._batches.leave)
            self._board = Board(name)
            undo.pop_all()
        # It changes when the replay closes, for a thread that waits.
        self._word = ffi.new("uint32_t *")
        self._watched: tuple[bool, tuple[int, ...]] | None = None
        self._watches, self._num_watches = ffi.new("es_watch[]", []), 0
        handles = [Handle(s.name, s.uuid, s.spec.treespec) for s in self._segments]
        self.handle = ReplayHandle(name, handles[0], handles[1], tables, spec.treespec)
        self.publish()

    def turn(self, waits: Callable[[int], str]) -> int:
        """Stores what has come: how much it was. ``waits`` says why a step cannot be stored, for the board."""
        got = self._core.turn(self._most)
        if isinstance(got, int):
            return 0  # closed
        done, steps, _, table, sweep_due, _, (asked, n, num_batches), self._codes = got
        self.short = lib.ES_SHORT in self._codes
        if n:
            self._batches.make(asked, n, num_batches)
            self.publish()
            done += 1
        waiting = waits(table) if steps in (lib.ES_REFUSED, lib.ES_NO_ROOM) else None
        if waiting != self.waits or time.monotonic() - self._written >= _BOARD_INTERVAL:
            self.waits = waiting
            self.publish()
        if sweep_due:
            for attachment in self._attachments:
                attachment.reaper.sweep()
            self._batches.sweep()
        return done

    def publish(self) -> None:
        """Writes the board."""
        self._written = time.monotonic()
        with self._lock:
            self._board.write(
                {
                    "pid": os.getpid(),
                    "time": time.time(),
                    "waits": self.waits,
                    "batches": self._batches.names,
                    "refused": self._batches.refused,
                    **self._describe(),
                }
            )

    @property
    def seen(self) -> int:
        """What :meth:`wait` compares with: read it before the last look at the replay."""
        return int(self._word[0])

    def wait(self, seen: int, timeout: float) -> None:
        """Sleeps until something has come, or :meth:`wake` was called after ``seen`` was read."""
        code = lib.es_api_wait_any(*self._causes(), self._word, seen, int(timeout * 1e9))
        # Detached: another thread is closing the replay, and the caller finds that out when it looks again.
        if code < 0 and code not in (lib.ES_TIMEOUT, -errno.EINTR, lib.ES_EDETACHED):
            raise error_from(code, f"the rings of replay {self._name!r}")

    def _causes(self) -> "tuple[Watch, int]":
        """What to wait for: only for what this replay would act on, or it would be found again and again."""
        full = tuple(i for i, code in enumerate(self._codes) if code == lib.ES_FULL)
        key = self.waits is not None, full
        if key != self._watched:
            brings = [one.ring for one in self._attachments[1 if self.waits is not None else 0 :]]
            rings = self._batches.rings
            takes = [rings[i] for i in full if i < len(rings)]
            self._watches = ffi.new(
                "es_watch[]",
                [
                    *({"ring": ring, "what": lib.ES_WATCH_BATCH} for ring in brings),
                    *({"ring": ring, "what": lib.ES_WATCH_ROOM} for ring in takes),
                ],
            )
            self._num_watches = len(brings) + len(takes)
            self._watched = key
        return self._watches, self._num_watches

    def wake(self) -> None:
        """Wakes all threads that wait."""
        lib.es_api_change_word(self._word)

    def senders(self) -> int:
        """How many writers and clients are attached."""
        snap = ffi.new("es_snapshot *")
        count = 0
        for attachment in self._attachments:
            lib.es_monitor_observe(attachment.ring, snap)
            count += snap.active_producers + snap.active_remotes
        return count

    def close(self) -> None:
        """Ends the rings: writers get ConnectionClosedError. What they brought and nobody stored is lost."""
        self.wake()
        self._core.disconnect()
        self._batches.close()
        for attachment, segment in zip(self._attachments, self._segments, strict=True):
            if lib.es_api_close(attachment.ring) != lib.ES_EFORK:
                segment.unlink()
            attachment.detach()
        self._board.remove()

    def leave(self) -> None:
        """Lets go of the rings. They stay, for the next replay."""
        self._core.disconnect()
        self._batches.leave()
        for attachment, segment in zip(self._attachments, self._segments, strict=True):
            attachment.detach()
            assert segment.lockfile is not None
            lib.es_api_locks_drop(segment.lockfile.locks, CREATOR_BYTE)


def _ring(name: str, spec: Spec, geometry: Geometry, undo: contextlib.ExitStack) -> Segment:
    """The ring of that name: a new one, or the one that a killed replay has left."""
    try:
        segment = Segment.attach(name)
    except SegmentError:
        segment = create_segment(name, spec, geometry)
        undo.callback(segment.unlink)
        return segment
    assert segment.lockfile is not None
    if not segment.lockfile.try_lock(CREATOR_BYTE):
        raise SegmentError(f"ring {name!r} belongs to a process that is alive: choose another name for the replay")
    undo.callback(lib.es_api_locks_drop, segment.lockfile.locks, CREATOR_BYTE)
    spec.check_same(segment.spec, f"ring {name!r}")
    segment.spec = spec
    return segment


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
