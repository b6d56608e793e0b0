"""How a replay's own process stores steps."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError, EchoShmError, with_sent
from echo_shm.replay import arguments, finals
from echo_shm.replay.batch import why_no_insert
from echo_shm.replay.finals import NOT_THE_END
from echo_shm.replay.items import Items
from echo_shm.replay.vector import check_mode, no_reset
from echo_shm.ring.producers import checked_version
from echo_shm.spec import Tree
from echo_shm.timeouts import check_timeout

if TYPE_CHECKING:
    from echo_shm._replay import Trouble

#: How much ``extend()`` stores with one call of the C core (bytes). Other threads have their turn in between.
_CHUNK = 32 << 20


class Inserting(Items):
    """The part of a :class:`Replay` that stores steps, and the items that they complete."""

    def add(
        self,
        step: Tree,
        priority: "float | dict[str, float | None] | None" = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Tree = None,
        timeout: float | None = 0.0,
    ) -> None:
        """Stores a copy of one step, and inserts what it completes into the tables: into all of them, or into none.

        Args:
            step: A pytree of the example's structure. Each leaf is an array of exactly the leaf's dtype and shape,
                contiguous or not. A leaf of shape () may also be a numpy scalar of the dtype, or a Python number,
                which is rounded to the leaf's precision. Nothing else is cast.
            priority: A number for all tables, 0 or more. A dict gives each table that it names a number of its own,
                and the others get no item. None, in place of any number: the table's highest so far, at first 1.0. All
                items that the step completes have it.
            terminated: This step ends its episode, and nothing follows from its last state.
            truncated: This step ends its episode, which would have gone on.
            final: The observations that this step has led to, where it ends its episode: a dict with some of the keys
                of the step's tree, at least with those that a table's :class:`NStep` calls ``observation``. The values
                are as in the step. They are stored as one step more.
            timeout: Seconds to wait for other threads if a limiter forbids to insert; 0: do not wait; None: no limit.

        Raises:
            TimeoutError: A table's rate limiter forbids it, and nobody changed that in time. The message names it.
            SpecMismatchError: The structure, a dtype or a shape differs.
            ValueError: The priority or the timeout is out of range, or a table is unknown; or there is a ``final``, and
                the step ends no episode.
            EchoShmError: The store is full of items of protected tables.
            SegmentError: The files of the store cannot be synced any more, and there is no room before.
            ConnectionClosedError: The replay is closed.
            ForkedError: Called in a child of the process that opened the replay.

        After an exception nothing of the step is stored.
        """
        if self._rings.idle:
            self._rings.turn()
        stored = False if final is not None else self._core.add(step, terminated, truncated, priority, timeout)
        if stored is None:
            return
        if stored is not True:
            self._add_slowly(step, priority, terminated, truncated, final, check_timeout(timeout))
        if self._core.waiting:
            self._rings.tell()

    def _add_slowly(
        self, step: Tree, priority: object, terminated: object, truncated: object, final: Tree, timeout: float | None
    ) -> None:
        self._refuse_closed()
        leaves = arguments.exact_leaves(self._spec, step)
        priorities = arguments.one_priority(priority, self._names, self._accepts)
        if final is not None:
            if not terminated and not truncated:
                raise ValueError(NOT_THE_END)
            leaves += finals.leaves_of_final(self._spec, final, self._finals)
        refused = 0

        def attempt() -> bool | None:
            nonlocal refused
            stored = self._core.add_each(terminated, truncated, priorities, *leaves)
            if stored is None or stored is True:
                return True
            assert isinstance(stored, tuple)
            code, refused, _ = stored
            if code == lib.ES_UNSYNCED:
                self._store.make_room()
                return attempt()
            if code != lib.ES_REFUSED:
                raise self._error(code)
            return None

        if attempt() is None:
            self._wait_to_insert(attempt, lambda: refused, timeout)

    def extend(
        self,
        steps: Tree,
        priorities: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        timeout: float | None = 0.0,
    ) -> None:
        """Stores copies of n steps, one after the other, as :meth:`add` does.

        Args:
            steps: As for :meth:`add`, but every leaf is an array with a leading n: ``(n, *leaf.shape)``.
            priorities: An array of shape (n,) for all tables, a dict of such arrays, or None.
            terminated: As for :meth:`add`: an array of bool of shape (n,), or None for no step.
            truncated: The same.
            timeout: Seconds to wait for other threads each time a limiter forbids to insert; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError, EchoShmError: As :meth:`add`, but some steps may be stored: the
                message and the attribute ``sent`` say how many.
            SpecMismatchError, ValueError, ForkedError: As :meth:`add`. Nothing was stored.

        """
        timeout = check_timeout(timeout)
        self._refuse_closed()
        self._rings.look()
        n, leaves = arguments.stacked(self._spec, steps)
        flags = arguments.end_flags(terminated, truncated, n)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)

        def store(first: int) -> "tuple[int, Trouble]":
            done, why = self._core.extend(leaves, n, first, min(self._chunk, n - first), flags, each)
            return first + done, why

        self._store_each(n, 0, store, "steps are stored", timeout)

    def add_vector(
        self,
        steps: Tree,
        terminated: Any,
        truncated: Any,
        autoreset: Literal["next_step", "same_step", "disabled"] = "next_step",
        *,
        final: Tree = None,
        priorities: Any = None,
        environments: Any = None,
        timeout: float | None = 0.0,
    ) -> None:
        """Stores copies of one step of each of n environments, which are stepped together.

        Each environment has episodes of its own. Its step follows the one that it had in the last call that named it.
        What a step has, and what the modes are, is said at :meth:`Writer.add_vector`. A row and its final observations
        are stored together, before the next row. :meth:`add` and :meth:`extend` store steps of environment 0. After
        :meth:`Replay.attach`, and after :meth:`end_episode`, each environment begins an episode.

        Args:
            steps, terminated, truncated, autoreset, final: As for :meth:`Writer.add_vector`.
            priorities: As for :meth:`extend`.
            environments: Which ones: an array of different integers of shape (n,), from 0 to 1,048,575. Some memory is
                used for each number up to the largest. None: 0 to n - 1. Another call may have more of them, or fewer.
            timeout: Seconds to wait for other threads each time a limiter forbids to insert; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError, EchoShmError: As :meth:`add`, but some rows may be done: the message
                and the attribute ``sent`` say how many. Go on with the rows and environments from there on.
            ValueError: An argument is out of range, or a row ends an episode that must be a reset. Nothing was stored.
            SpecMismatchError, ForkedError: As :meth:`extend`. Nothing was stored.

        """
        if self._rings.idle:
            self._rings.turn()
        stored = self._core.add_vector(
            steps, terminated, truncated, autoreset, final, priorities, environments, timeout, self._finals
        )
        if stored is None:
            return
        if stored is not True:
            sent = stored[0] if stored else 0
            self._add_vector_slowly(
                sent, steps, terminated, truncated, autoreset, final, priorities, environments, timeout
            )
        elif self._core.waiting:
            self._rings.tell()

    def _add_vector_slowly(
        self,
        sent: int,
        steps: Tree,
        terminated: Any,
        truncated: Any,
        autoreset: object,
        final: Tree,
        priorities: Any,
        environments: Any,
        timeout: float | None,
    ) -> None:
        """``sent``: how many rows are done."""
        timeout = check_timeout(timeout)
        self._refuse_closed()
        n, leaves = arguments.stacked(self._spec, steps)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)
        none = np.zeros(n, bool)
        terminal = none if (flags := arguments.flags("terminated", terminated, n)) is None else flags.copy()
        cut = none if (flags := arguments.flags("truncated", truncated, n)) is None else flags.copy()
        chosen = arguments.environments(environments, n)
        check_mode(autoreset)
        ended, last = terminal | cut, None
        if final is not None and ended.any():
            last = tuple(finals.rows_of_final(self._spec, final, ended, self._finals))

        def store(first: int) -> "tuple[int, Trouble]":
            skips_resets = autoreset == "next_step"
            return self._core.add_rows(first, n, leaves, last, terminal, cut, skips_resets, each, chosen)

        self._store_each(n, sent, store, "rows are done", timeout)

    def _store_each(
        self, n: int, sent: int, store: "Callable[[int], tuple[int, Trouble]]", what: str, timeout: float | None
    ) -> None:
        """Stores n steps, from number ``sent`` on.

        ``store`` stores some from that number on: how many of the n are done then, and why no more are.
        """
        refused = 0

        def attempt() -> int | None:
            nonlocal refused
            done, (code, refused, index) = store(sent)
            if done > sent:
                return done
            if code == lib.ES_UNSYNCED:
                self._store.make_room()
                return attempt()
            if code == lib.ES_ERESET:
                raise ValueError(no_reset(index))
            if code not in (lib.ES_OK, lib.ES_REFUSED):
                raise self._error(code)
            return None

        while sent < n:
            if self._core.waiting:
                self._rings.tell()
            try:
                done = attempt()
                sent = self._wait_to_insert(attempt, lambda: refused, timeout) if done is None else done
            except (TimeoutError, ConnectionClosedError, EchoShmError) as error:
                raise with_sent(error, f"{error}; {sent} of {n} {what}", sent) from error.__cause__
        if self._core.waiting:
            self._rings.tell()

    @property
    def version(self) -> int:
        """The version of the weights that the steps of this process's own calls are made with. 0: none.

        It is what :meth:`Replay.publisher` has published last, or what was assigned here: that stays until something
        else is assigned. A version is an integer from 0 to 2**62, and a batch has those of up to 2**32 - 1.
        """
        return self._checked(self._core.version())

    @version.setter
    def version(self, version: int) -> None:
        self._checked(self._core.set_version(checked_version(version), True))

    def end_episode(self, environments: Any = None) -> None:
        """The next step begins an episode, though the last one did not end as terminated or truncated.

        Args:
            environments: Of which ones, as for :meth:`add_vector`: an array of different integers. None: of all.

        Raises:
            ValueError: That is no such array.
            ConnectionClosedError: The replay is closed.
            ForkedError: Called in a child of the process that opened the replay.

        """
        self._checked(self._core.end_episode(arguments.environments(environments, None)))

    @functools.cached_property
    def _chunk(self) -> int:
        """How many steps one call of the C core stores."""
        return max(1, _CHUNK // max(1, self._spec.sample_bytes))

    def _wait_to_insert(self, attempt: Any, refused: Any, timeout: float | None) -> Any:
        """Waits while a limiter forbids to insert. ``refused`` returns the number of its table."""

        def why() -> str:
            return why_no_insert(self._names[refused()], self._info(refused()))

        if timeout == 0:
            raise TimeoutError(f"{why()}. Sample first, or let another thread do so and give add() a timeout")
        return self._rings.wait(attempt, timeout, why)
