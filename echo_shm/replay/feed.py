"""The rings of a replay, as its own process sees them: they bring steps and updates, and take batches away."""

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echo_shm._core import ffi, lib
from echo_shm._replay import Core
from echo_shm.errors import error_from
from echo_shm.replay.batch_rings import BatchRings
from echo_shm.replay.sources import Sources
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.replay_board import ReplayBoard
from echo_shm.spec import Array, Spec

if TYPE_CHECKING:
    from echo_shm._core import Watch

#: How much one turn stores, in steps and in bytes. Other threads have their turn in between.
_TURN, _TURN_BYTES = 256, 4 << 20

#: How often the board is written (seconds).
_BOARD_INTERVAL = 0.1


class Feed:
    """A replay's rings. All calls come from the process that has the store; threads share it as they share the Core.

    Args:
        core: The replay's calls.
        sources: The rings that bring something. They belong to the new object.
        name: The replay's name.
        spec: What a step looks like.
        batches: What an item of each table's batches looks like.
        describe: Returns what the board says.

    Attributes:
        waits: Why a step that has come cannot be stored; None if there is none.
        unsynced: Whether a step that has come waits until the store is synced.
        stuck: Why that cannot be, in words, or None. Whoever syncs sets it.
        ended: Whether writers and clients are shut out, and all that they have sent is stored.
        held_back: Whether a limiter holds back items that have come, or those that a ring of batches has room for.
        handle: What other processes attach with.

    """

    def __init__(
        self,
        core: Core,
        sources: Sources,
        name: str,
        spec: Spec,
        batches: Sequence[Spec],
        describe: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._core = core
        self._sources = sources
        self._name = name
        self._describe = describe
        self.waits: str | None = None
        self._waits_for: tuple[int, int, str | None] | None = None  # the same without figures, which change
        self.held_back = self.unsynced = self.ended = self._is_settled = False
        self.stuck: str | None = None
        self.handle = sources.handle
        self._codes: tuple[int, ...] = ()  # why each ring of batches got no more
        self._most = max(1, min(_TURN, _TURN_BYTES // max(1, spec.sample_bytes)))
        self._lock = threading.Lock()  # of the board
        self._written = 0.0
        # It changes when the replay closes, for a thread that waits.
        self._word = ffi.new("uint32_t *")
        self._watched: tuple[bool, bool, tuple[int, ...]] | None = None
        self._watches, self._num_watches = ffi.new("es_watch[]", []), 0
        sources.connect(core)
        self._batches = BatchRings(core, name, batches)
        try:
            self._board = ReplayBoard(name)
            self.publish()
        except BaseException:
            self._batches.leave()
            raise

    def turn(self, waits: Callable[[int], str], *, is_last: bool) -> int:
        """Stores what has come: how much it was.

        Args:
            waits: Says why a step cannot be stored, for the board.
            is_last: Whether perhaps no turn follows, so that the board says at once what writers wait for. It is
                written when it is due otherwise: a limiter may hold them, and let them go on, in each turn.

        """
        got = self._core.turn(self._most)
        if isinstance(got, int):
            return 0  # closed
        done, steps, updates, table, sweep_due, _, parked, (asked, n, num_batches, world_size), self._codes = got
        self.unsynced = steps == lib.ES_UNSYNCED
        # The core says so of a closed ring once nothing is claimed, committed, or taken and not stored.
        is_over = steps == updates == lib.ES_ENDED and parked == 0
        # What a killed replay had taken is brought again, once it has been reaped, by this process or by another one.
        self.ended = is_over and (self.ended or self._is_settled)
        self._is_settled = is_over and (self.ended or self._sources.is_settled())
        self.held_back = parked > 0 or lib.ES_SHORT in self._codes
        if n:
            self._batches.make(asked, n, num_batches, world_size)
            self.publish()
            done += 1
        self.waits = waits(table) if steps in (lib.ES_REFUSED, lib.ES_NO_ROOM) else None
        if self.unsynced:
            self.waits = self.stuck
        before, self._waits_for = self._waits_for, None if self.waits is None else (steps, table, self.stuck)
        is_news = is_last and self._waits_for != before
        if is_news or time.monotonic() - self._written >= _BOARD_INTERVAL:
            self.publish()
        if sweep_due:
            self._sources.sweep()
            self._batches.sweep()
        return done

    @property
    def boxes(self) -> list[tuple[BatchRing, int]]:
        """The rings of batches, each with the code that says why it got no more in the last turn."""
        return list(zip(self._batches.connected, self._codes, strict=False))  # a new one has no code yet

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
        key = self.waits is not None, self.ended, full
        if key != self._watched:
            brings = [] if self.ended else self._sources.rings[1 if self.waits is not None else 0 :]
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
        return self._sources.senders()

    def shut_out(self) -> None:
        """Closes the rings to writers and clients: see :attr:`ended`. Batches are made as before."""
        self._sources.shut_out()
        self.wake()

    def put(self, table: int, num_batches: int, leaves: Sequence[Array]) -> None:
        """Puts items into a ring of single items: see :meth:`BatchRings.put`."""
        self._batches.put(table, num_batches, leaves)
        self.publish()

    def untaken(self, tables: Collection[int]) -> int:
        """How many items of those tables are drawn and not done, in rings that a learner is attached to."""
        return self._batches.untaken(tables)

    def close(self) -> None:
        """Ends the rings: writers get ConnectionClosedError. What they brought and nobody stored is lost."""
        self.wake()
        self._core.disconnect()
        self._batches.close()
        self._sources.close()
        self._board.remove()

    def leave(self) -> None:
        """Lets go of the rings. They stay, for the next replay."""
        self._core.disconnect()
        self._batches.leave()
        self._sources.leave()
