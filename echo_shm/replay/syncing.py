"""When a store of files is synced: in a thread, at intervals, and whenever its spare rows are used up."""

import threading
import time

from echo_shm._replay import Core
from echo_shm.errors import SegmentError
from echo_shm.replay.snapshots import Snapshots

#: How often the thread looks whether half of the spare rows are used up (seconds).
_SLICE = 0.1

#: A step, and the observation that its episode ends with.
_ROOM = 2


class Syncing:
    """Brings a replay's store to the disk. Several threads may use it.

    Args:
        core: The replay's calls.
        snapshots: The store's.
        every: Seconds between two syncs. None: there are none, but at the end.
        spare: Rows that the store has for steps while others are held.

    """

    def __init__(self, core: Core, snapshots: Snapshots, every: float | None, spare: int) -> None:
        self._core = core
        self._snapshots = snapshots
        self._every = every
        self._spare = spare
        self._lock = threading.RLock()  # the thread itself may run the finalizer that ends the replay
        self._stopped = threading.Event()
        self._last = time.monotonic()
        self._thread: threading.Thread | None = None
        snapshots.hold(core)

    def start(self) -> None:
        """Starts the thread, if there is anything to do for it."""
        if self._every is not None:
            # It does not refer to the Replay, whose end ends it.
            self._thread = threading.Thread(target=self._run, name="echo_shm-sync", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        assert self._every is not None
        while not self._stopped.wait(min(self._every, _SLICE)):
            if time.monotonic() - self._last < self._every and self._core.room() > self._spare // 2:
                continue
            try:
                with self._lock:
                    self.sync()
            except SegmentError:  # it is logged, and raised by the call that needs room
                return

    def sync(self) -> None:
        """Makes a snapshot now."""
        self._last = time.monotonic()
        self._snapshots.write(self._core)

    def make_room(self) -> None:
        """Waits until a step can be stored, which it could not because rows are held.

        Raises:
            SegmentError: The disk does not take what is to be synced.

        """
        with self._lock:
            # Another thread may have done so. But steps may have come meanwhile, and used up what a sync freed.
            if 0 <= self._core.room() < _ROOM:
                if self._every is None:
                    self._snapshots.clear(self._core)
                else:
                    self.sync()

    def stop(self, *, sync: bool) -> None:
        """Ends the thread. ``sync``: makes a last snapshot.

        Raises:
            SegmentError: It could not be made.

        """
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if sync:
            with self._lock:
                self.sync()
