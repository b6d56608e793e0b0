"""Batches that a replay's thread makes before they are asked for."""

import contextlib
import threading
from collections import deque

from echo_shm._core import lib
from echo_shm._replay import Core
from echo_shm.replay.batch import COLUMNS
from echo_shm.spec import Array

#: Which of the columns is that of the weights.
_WEIGHT = 2

#: In place of the weights' exponent: leave them for :meth:`Core.weigh`. A batch can be put back until then.
_UNWEIGHED = -1.0


class Ahead:
    """The batches of one iteration. One thread makes them, others take them.

    Args:
        core: The replay's calls.
        table: The table's number.
        n: Items in a batch.
        most: Batches that may be ready.

    Attributes:
        short: Whether there is room for a batch that the table does not give now.

    """

    def __init__(self, core: Core, table: int, n: int, most: int) -> None:
        self._core = core
        self._table = table
        self._n = n
        self._most = most
        self._ready: deque[tuple[Array, ...]] = deque()
        self._lock = threading.RLock()  # the garbage collector may end an iteration whose batch is being made
        self._ended = False
        self.short = False

    def make(self) -> bool:
        """Makes a batch, if there is room for one. Whether it did."""
        with self._lock, contextlib.suppress(MemoryError):  # whoever asks for the batch gets that error
            self.short = False
            if self._ended or len(self._ready) >= self._most:
                return False
            got = self._core.sample(self._table, self._n, _UNWEIGHED, None)
            if isinstance(got, tuple):
                self._ready.append(got)
                if self._ended:
                    self._put_back()
                return True
            self.short = got == lib.ES_SHORT
        return False

    def take(self) -> tuple[Array, ...] | int:
        """The leaves and the columns of the oldest batch that is ready, or of one that is drawn now; or a code."""
        with self._lock:  # for both: a batch that is made in between is older than the one that is drawn
            if not self._ready:
                return self._core.sample(self._table, self._n, None, None)
            arrays = self._ready.popleft()
            self._core.weigh(self._table, arrays[-len(COLUMNS) + _WEIGHT])
            return arrays

    def end(self) -> None:
        """Makes no more. What is ready comes first in the next call of the replay that samples this table."""
        with self._lock:
            self._ended = True
            self._put_back()

    def _put_back(self) -> None:
        while self._ready:
            self._core.put_back(self._table, self._ready.pop())
