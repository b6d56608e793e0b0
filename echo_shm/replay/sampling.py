"""How a replay's own process draws batches."""

import functools
from collections.abc import Callable, Iterator

from echo_shm._core import lib
from echo_shm.replay import arguments
from echo_shm.replay.ahead import Ahead
from echo_shm.replay.batch import Batch, why_no_sample
from echo_shm.replay.items import Items
from echo_shm.replay.validation import integer
from echo_shm.spec import Array, Tree
from echo_shm.timeouts import PLAIN, check_timeout


class Sampling(Items):
    """The part of a :class:`Replay` that draws items of its tables, and waits until they allow it."""

    @property
    def has_thread(self) -> bool:
        """Whether a thread of this process stores what workers send (``thread=True``). Else this one's calls do."""
        return self._rings.has_thread

    def sample(
        self,
        n: int,
        table: str | None = None,
        timeout: float | None = None,
        beta: float | None = None,
        out: Tree = None,
    ) -> Batch | None:
        """Draws n items of a table, one at a time, with replacement unless the table says otherwise.

        If the table does not allow that many, the call waits for other threads. With no other thread there, it raises
        at once. What was drawn before it raised comes first in the next call, so nothing is lost.

        Args:
            n: How many, 1 or more.
            table: The table. None: the only one.
            timeout: Seconds to wait; 0: do not wait; None: no limit.
            beta: The exponent of the importance weights, 0 or more. None: that of the table's sampler.
            out: A tree as the table's ``Batch.data``, whose arrays are written to in place of new ones. Each is
                C-contiguous, and of the shape and dtype that it would have there.

        Returns:
            A :class:`Batch`. None once the replay is closed.

        Raises:
            TimeoutError: The table's limiter did not allow it in time. The message has its numbers.
            ValueError: A number is out of range, or the table is unknown.
            SpecMismatchError: ``out`` has another structure, or an array of another dtype or shape.
            MemoryError: There is no memory for the batch.
            ForkedError: Called in a child of the process that opened the replay.

        """
        if timeout is not None and not (timeout.__class__ in PLAIN and timeout >= 0):
            timeout = check_timeout(timeout)
        number = self._only if table is None else self._numbers.get(table)
        if number is None:
            number = self._number(table)
        if n.__class__ is not int or n < 1:
            n = arguments.count(n)
        if beta is not None:
            beta = arguments.exponent(beta)
        arrays = None if out is None else arguments.output(self._data[number], out, n)
        if self._rings.idle:
            self._rings.turn()
        got = self._core.sample(number, n, beta, arrays)
        if not isinstance(got, tuple):
            got = self._wait_to_sample(
                got, number, timeout, functools.partial(self._core.sample, number, n, beta, arrays)
            )
            if not got:
                return None
        if self._core.waiting:
            self._rings.tell()
        return self._batch(number, got, out)

    def _wait_to_sample(
        self, code: int, number: int, timeout: float | None, again: Callable[[], tuple[Array, ...] | int]
    ) -> tuple[Array, ...]:
        """Goes on with a sample whose first attempt returned ``code``. Empty: the replay is closed."""

        def attempt() -> tuple[Array, ...] | None:
            got = again()
            return got if isinstance(got, tuple) else self._no_batch(got)

        at_once = self._no_batch(code)
        return self._rings.wait(attempt, timeout, lambda: self._why_no_sample(number)) if at_once is None else at_once

    def _no_batch(self, code: int) -> tuple[Array, ...] | None:
        """Of a sample that returned a code: None if it may wait; empty if the replay is closed."""
        if code == lib.ES_SHORT:
            self._store.custom.check()
            return None
        if code == lib.ES_EDETACHED and self._store.custom.why is None:
            return ()
        raise self._error(code)

    def dataset_iter(
        self, n: int, table: str | None = None, prefetch: int = 0, timeout: float | None = None
    ) -> Iterator[Batch]:
        """Yields batches of n items, until the replay is closed.

        Args:
            n: As for :meth:`sample`.
            table: As for :meth:`sample`.
            prefetch: With ``thread=True``: how many batches that thread makes before they are asked for. They have the
                priorities and the weights of that time. Otherwise none is made ahead.
            timeout: The iteration ends once nothing came for so many seconds. None: no limit; what :meth:`sample`
                raises is raised.

        When the iteration ends, or nothing refers to it any more, what was made ahead comes first in the next call.
        """
        timeout, n, prefetch = check_timeout(timeout), arguments.count(n), integer("prefetch", prefetch, 0)
        return self._iterate(n, self._number(table), prefetch if self.has_thread else 0, timeout)

    def _iterate(self, n: int, number: int, prefetch: int, timeout: float | None) -> Iterator[Batch]:
        ahead = Ahead(self._core, number, n, prefetch)
        if prefetch:
            self._rings.begin(ahead)
        try:
            while box := self._next(number, ahead, timeout):
                # The generator itself must not refer to the batch while its user works on it, or waits for the next.
                yield box.pop()
        finally:
            self._rings.end(ahead)

    def _next(self, number: int, ahead: Ahead, timeout: float | None) -> list[Batch]:
        """The next batch in a list, or an empty list at the end."""

        self._rings.look()
        got = ahead.take()
        if not isinstance(got, tuple):
            try:
                got = self._wait_to_sample(got, number, timeout, ahead.take)
            except TimeoutError:
                if timeout is None:
                    raise
                return []
        if self.has_thread:
            self._rings.wake()
        if self._core.waiting:
            self._rings.tell()
        return [self._batch(number, got)] if got else []

    def _why_no_sample(self, number: int) -> str:
        return why_no_sample(self._names[number], self._info(number))
