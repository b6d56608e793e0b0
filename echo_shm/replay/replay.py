"""A replay in this process: it keeps steps, and draws batches of them from tables."""

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from echo_shm._core import lib
from echo_shm._replay import Core
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, EchoShmError
from echo_shm.replay import arguments, finals
from echo_shm.replay.ahead import Ahead
from echo_shm.replay.batch import Batch, why_no_insert, why_no_sample
from echo_shm.replay.checkpoint import write_checkpoint
from echo_shm.replay.checkpoint_files import Progress
from echo_shm.replay.disk import is_directory
from echo_shm.replay.episodes import StoredEpisode, episodes
from echo_shm.replay.finals import NOT_THE_END
from echo_shm.replay.items import Items
from echo_shm.replay.restoring import Plan, Restored, go_on, opened
from echo_shm.replay.rings import Rings, join
from echo_shm.replay.selectors import CustomSelector
from echo_shm.replay.store import Store, about_items, attach_store, create_store
from echo_shm.replay.table import Table, check_tables, lay_out_table, table_config
from echo_shm.replay.validation import above_zero, flag, integer
from echo_shm.replay.waiting import Changes
from echo_shm.replay.writer import ReplayHandle
from echo_shm.ring import transports
from echo_shm.ring.protocols import Transport
from echo_shm.spec import Array, Spec, Tree
from echo_shm.timeouts import PLAIN, check_timeout
from echo_shm.workers.group import WorkerGroup

_E = TypeVar("_E", bound=Exception)

_log = logging.getLogger("echo_shm")


#: How much ``extend()`` stores with one call of the C core (bytes). Other threads have their turn in between.
_CHUNK = 32 << 20


class Replay(Items, Closing):
    """Keeps steps in a store, and draws batches of them from tables.

    A step is stored once. The items of all tables refer to it: single steps, transitions, sequences, episodes, as each
    table's ``item`` says. When the store is full, the items go whose last steps are the oldest.

    Args:
        example: Pytree of numpy arrays. It gives the structure, dtypes and shapes of one step.
        capacity: Most steps. Their memory is set aside now.
        tables: A list of :class:`Table`. None: one table ``"default"`` that holds all steps and samples uniformly.
        max_items: Most items of all tables together. None: as many as the tables can hold.
        store: ``"memory"``: this process's own. ``"shm"``: shared memory, which outlives the process if it is killed.
            :meth:`attach` goes on with it. :meth:`close` removes it. If a replay in memory is killed, the next one of
            that name begins anew, and the clients of the dead one get ConnectionClosedError. A path, with a slash in
            it: files in that directory, which outlive the machine's boot, too. :meth:`close` leaves them.
        name: By which other processes find it, :class:`ReplayClient` and :meth:`attach`. None: a unique name is made.
        sync_every: Of a store in a directory: seconds between two syncs. If the machine goes down, what came after the
            last one is lost, and nothing else. Such a store has rows for an eighth more steps; when they are used up
            before, it is synced at once. None: it is synced when it is closed. If the machine goes down before, what
            came since it was opened is lost; once steps of before had to go, all is.
        seed: Of what is drawn. The same seed and the same calls give the same batches.
        thread: Store what workers send, and what :class:`ReplayClient` changes, in a thread of this process. Otherwise
            each call does so first.
        max_producers: How many writers may be attached at the same time.
        transport: Receives steps from other hosts, from now on: a :class:`TcpTransport`, or a list of them. They send
            with a :class:`~echo_shm.replay.RemoteWriter` or a :class:`TcpClient`. None: this machine only.

    Raises:
        TypeError: A leaf of the example is not an array, its items have no fixed size, or a table or a transport is
            something else; or a table's reward is no leaf of floats.
        ValueError: A number or the name is out of range, or a table waits for more items than there can be, or has a
            :class:`CustomSelector` that is used already, or cannot have one beside a thread; or its ``item`` names a
            leaf that the steps do not have, or is longer than ``capacity``.
        SegmentError: The name is taken, or shared memory is too small; or the directory holds something already, or
            cannot be made, or the disk is full. Nothing is left behind.
        MemoryError: So much memory cannot be had.

    Threads may share a replay. A forked child must not use its parent's. A Replay is a context manager that closes on
    exit. It also ends with the last reference to it, and with the interpreter.
    """

    #: What came of the checkpoint that it was restored from; None if it was not.
    restored: Restored | None = None

    def __init__(
        self,
        example: Tree,
        capacity: int,
        tables: Sequence[Table] | None = None,
        *,
        max_items: int | None = None,
        store: Literal["memory", "shm"] | str | os.PathLike[str] = "memory",
        name: str | None = None,
        sync_every: float | None = 60.0,
        seed: int = 0,
        thread: bool = False,
        max_producers: int = 1024,
        transport: Transport | Sequence[Transport] | None = None,
    ) -> None:
        given = transports.checked(transport)
        sync_every = _check_store(store, sync_every)
        capacity = integer("capacity", capacity, 1)
        max_items = None if max_items is None else integer("max_items", max_items, 1)
        tables = [Table("default")] if tables is None else tables
        check_tables(tables)
        items = [table.item for table in tables]
        spec = Spec.from_example(example, about_items(items))
        layouts = [lay_out_table(table, spec) for table in tables]
        configs = [
            table_config(table, layout, capacity, max_items) for table, layout in zip(tables, layouts, strict=True)
        ]
        samplers, removers = _custom_selectors(tables)
        if max_items is None:
            max_items = sum(min(config["max_size"], capacity) for config in configs)
        max_producers = integer("max_producers", max_producers, 1)
        outputs = [output for layout in layouts for output in layout.outputs]
        seed, kind = integer("seed", seed, 0), os.fspath(store)
        made = create_store(kind, name, spec, capacity, max_items, seed, configs, outputs, sync_every)
        try:
            self._open(made, max_producers, thread, given, samplers, removers, is_new=True)
        except BaseException:
            made.remove()
            raise

    @classmethod
    def attach(
        cls,
        name: str | os.PathLike[str],
        example: Tree = None,
        *,
        thread: bool = False,
        transport: Transport | Sequence[Transport] | None = None,
        samplers: Mapping[str, CustomSelector] | None = None,
        removers: Mapping[str, CustomSelector] | None = None,
    ) -> "Replay":
        """Goes on with a store in shared memory whose process has died, or with one in a directory.

        Whatever that process had begun is done or not done: no step is torn, and no item is there twice. If the machine
        went down since, a store in a directory is what it was at its last sync.

        Args:
            name: The store's name, or the path of its directory, with a slash in it.
            example: Pytree of numpy arrays, as of one step. It is only needed for trees with node types beyond dict,
                list, tuple and None.
            thread: As for :class:`Replay`.
            transport: As for :class:`Replay`. On the port of the one before, its clients go on.
            samplers, removers: By table: new objects for those that are a :class:`CustomSelector`.

        Raises:
            SegmentError: There is no such store, a living process has it, it is another user's, or it is damaged.
            SpecMismatchError: The example does not fit, or one is needed.
            ValueError: A custom selector is missing, or is used already, or its table does not have one.
            ConnectionClosedError: A custom selector raised an exception. The store stays.

        """
        given = transports.checked(transport)
        store = attach_store(name, example)
        self = cls.__new__(cls)
        try:
            self._open(store, 1024, thread, given, samplers, removers, is_new=False)
        except BaseException:
            store.release()
            raise
        return self

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        tables: Sequence[Table] | None = None,
        *,
        capacity: int | None = None,
        max_items: int | None = None,
        example: Tree = None,
        store: Literal["memory", "shm"] | str | os.PathLike[str] = "memory",
        name: str | None = None,
        sync_every: float | None = 60.0,
        same_episode: bool = False,
        thread: bool = False,
        max_producers: int = 1024,
        transport: Transport | Sequence[Transport] | None = None,
        samplers: Mapping[str, CustomSelector] | None = None,
        removers: Mapping[str, CustomSelector] | None = None,
        progress: Progress | None = None,
    ) -> "Replay":
        """A new replay with what a checkpoint has.

        Unless tables or capacity differ, all is as it was: items and their keys, counters, how often each item was
        sampled, and the generators. So what is drawn from now on is what would have been drawn. With others, the new
        ones count. A table has the items of the table of that name, if an item is the same there. With a smaller
        capacity the newest steps come, and the items that refer to no others. :attr:`restored` says what came, and what
        differs; it is logged, too.

        Args:
            path: A directory that :meth:`checkpoint` has written to: its newest complete checkpoint. Or one of them.
            tables: As for :class:`Replay`. None: as they were.
            capacity, max_items: As for :class:`Replay`. None: as they were.
            example: Pytree of numpy arrays, as of one step. It is only needed for trees with node types beyond dict,
                list, tuple and None.
            store, name, sync_every, thread, max_producers, transport: As for :class:`Replay`.
            same_episode: The next step that :meth:`add` stores follows the last one, in the same episode. Otherwise it
                begins an episode, as after :meth:`end_episode`.
            samplers, removers: By table: new objects for those that are a :class:`CustomSelector`, where ``tables`` is
                None.
            progress: Called now and then with the bytes of steps that were read, and of all.

        Raises:
            SegmentError: There is no checkpoint, it is damaged, or it is of another version of the format; or as
                :class:`Replay`. Nothing is left behind.
            SpecMismatchError: The example does not fit, or one is needed.
            ValueError, TypeError, MemoryError, ConnectionClosedError: As :class:`Replay` and :meth:`attach`.

        """
        given = transports.checked(transport)
        sync_every = _check_store(store, sync_every)
        capacity = None if capacity is None else integer("capacity", capacity, 1)
        max_items = None if max_items is None else integer("max_items", max_items, 1)
        max_producers = integer("max_producers", max_producers, 1)
        same_episode = flag("same_episode", same_episode)
        if tables is not None:
            if samplers or removers:
                raise ValueError("samplers and removers: they are those of the tables, which are given, too")
            samplers, removers = _custom_selectors(tables)
        self = cls.__new__(cls)
        with opened(Path(path)) as checkpoint:
            plan = Plan(checkpoint, tables, capacity, max_items, example)
            made, self.restored = plan.make(os.fspath(store), name, sync_every, progress)
            begin = functools.partial(go_on, checkpoint=checkpoint, plan=plan, same_episode=same_episode)
            try:
                self._open(made, max_producers, thread, given, samplers, removers, is_new=True, begin=begin)
            except BaseException:
                made.remove()
                raise
        for change in (*self.restored.changes, *self.restored.lost()):
            _log.warning("%s: %s", self, change)
        return self

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        incremental: bool = True,
        progress: Progress | None = None,
        *,
        keep: int = 2,
    ) -> str:
        """Writes all that is stored to files, for :meth:`restore`. Other threads and processes go on meanwhile.

        What is written is the replay as it is when the call begins, after it has stored what workers have sent. Others
        wait while the records of steps and items are written to a file, but not for the steps' leaves. These cost no
        memory either.

        Args:
            path: A directory, which is made if there is none. Each checkpoint becomes a directory in it, named by a
                number: ``path/000001``.
            incremental: Files of the newest checkpoint there are used again, by hard links, if they have steps that are
                still stored. So only what is new is written.
            progress: Called now and then with the bytes that were written, or need not be, and of all.
            keep: How many complete checkpoints stay in the directory, this one among them: the newest ones.

        Returns:
            The new checkpoint's own directory.

        Raises:
            SegmentError: It cannot be written: the disk is full, read-only, or gone; or another process writes one
                there. Nothing of it is left, and the checkpoints that are there stay.
            ConnectionClosedError: The replay is closed, or was meanwhile.
            ForkedError: Called in a child of the process that opened the replay.
            ValueError: A number is out of range.

        A process that is killed meanwhile leaves the checkpoints that are there as they are. The next one that is
        written removes the rest. Batches that were made ahead, for ``dataset_iter(prefetch=...)`` or for learners in
        other processes, count as sampled.
        """
        keep = integer("keep", keep, 1)
        incremental = flag("incremental", incremental)
        self._refuse_closed()
        self._rings.look()
        with self._saving:
            return str(
                write_checkpoint(Path(path), self._core, self._store, incremental, keep, progress, self._rings.look)
            )

    def _open(
        self,
        store: Store,
        max_producers: int,
        thread: bool,
        given: Sequence[Transport],
        samplers: Mapping[str, CustomSelector] | None,
        removers: Mapping[str, CustomSelector] | None,
        *,
        is_new: bool,
        begin: Callable[[Core], None] | None = None,
    ) -> None:
        if thread and (samplers or removers):
            name = next(iter(samplers or removers or ()))
            raise ValueError(
                f"thread=True: table {name!r} has a selector written in Python, which runs in calls of the replay "
                "alone: use thread=False"
            )
        # Before the store is recovered: workers wait for a replay only so long.
        sources = None if is_new else join(store, max_producers, given)
        try:
            core = store.open(samplers, removers)
        except BaseException:
            if sources is not None:
                (sources.close if sources.are_new else sources.leave)()
            raise
        if begin is not None:
            try:
                begin(core)
            except BaseException:
                core.close()
                raise
        self._saving = threading.Lock()
        if store.syncing is not None:
            store.syncing.start()
        self._changes = Changes(core)
        self._describe(core, store, Rings(core, self._changes, store, max_producers, given, sources))
        self._chunk = max(1, _CHUNK // max(1, self._spec.sample_bytes))
        try:
            if thread or given or store.known_as is not None:
                self._rings.open()
            if thread:
                self._rings.start()
            self._rings.serve()
        except BaseException:
            if sources is None or sources.are_new:
                self._rings.close()
            else:
                self._rings.leave()  # writers wait for the next one
            if store.syncing is not None:
                store.syncing.stop(sync=False)
            self._core.close()
            raise
        self._generation = lib.es_api_fork_generation()
        self._end = weakref.finalize(self, _end, self._core, store, self._rings, self._generation)
        if len(store.custom):
            store.custom.let_go = functools.partial(_let_go, self._core, store, self._rings, self._changes)

    # -- workers

    @property
    def handle(self) -> ReplayHandle:
        """What another process of this user needs: ``ReplayClient(handle)``. It pickles."""
        self._refuse_closed()
        return self._rings.handle

    def spawn(
        self,
        fn: Callable[..., Any],
        n: int,
        *per_worker_args: Sequence[Any],
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        restart: bool = False,
        on_death: Literal["raise", "ignore"] = "raise",
        max_restarts: int = 10,
    ) -> WorkerGroup:
        """Starts n worker processes. Worker i runs ``fn(writer, args0[i], args1[i], ...)``.

        Its :class:`Writer` is attached. All else is as for :meth:`Server.spawn`: a failed worker's exception is raised
        by the call that waits for a batch, by ``join()``, or by leaving the block.
        """
        self._refuse_closed()
        return self._rings.spawn(
            fn,
            n,
            per_worker_args,
            context=context,
            restart=restart,
            on_death=on_death,
            max_restarts=max_restarts,
        )

    # -- properties

    @property
    def name(self) -> str | None:
        """By which other processes find it; None in this process's own memory if no name was given."""
        return self._store.known_as

    @property
    def port(self) -> int:
        """The port that the transport listens on. If there are several, that of the first one.

        Raises:
            RuntimeError: There is no transport.

        """
        return self._rings.port

    # -- inserting

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
        leaves = [self._spec.exact(i, leaf) for i, leaf in enumerate(arguments.leaves_of(self._spec, step, "the step"))]
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
        sent = refused = 0

        def attempt() -> int | None:
            nonlocal refused
            done, (code, refused, _) = self._core.extend(leaves, n, sent, min(self._chunk, n - sent), flags, each)
            if done == 0 and code == lib.ES_UNSYNCED:
                self._store.make_room()
                return attempt()
            if done == 0 and code not in (lib.ES_OK, lib.ES_REFUSED):
                raise self._error(code)
            return None if done == 0 else done

        while sent < n:
            try:
                done = attempt()
                if done is None:
                    done = self._wait_to_insert(attempt, lambda: refused, timeout)
            except (TimeoutError, ConnectionClosedError, EchoShmError) as error:
                raise _with_sent(error, sent, n) from error.__cause__
            sent += done
            if self._core.waiting:
                self._rings.tell()

    def end_episode(self) -> None:
        """The next step begins an episode, though the last one did not end as terminated or truncated.

        Raises:
            ConnectionClosedError: The replay is closed.
            ForkedError: Called in a child of the process that opened the replay.

        """
        self._checked(self._core.end_episode())

    # -- sampling

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
        return self._iterate(n, self._number(table), prefetch if self._rings.has_thread else 0, timeout)

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
        if self._rings.has_thread:
            self._rings.wake()
        if self._core.waiting:
            self._rings.tell()
        return [self._batch(number, got)] if got else []

    def episodes(self) -> Iterator[StoredEpisode]:
        """Yields the episodes that are stored when the iteration begins, ordered by when their first steps came.

        Each is copied when its turn comes. Steps that have gone by then are left out. If they are from the middle of an
        episode, what follows comes as an episode of its own, whose ``first`` is above 0.

        Raises:
            ConnectionClosedError: The replay is closed.
            MemoryError: There is no memory for the episode.
            ForkedError: Called in a child of the process that opened the replay.

        """
        return episodes(self)

    # -- closing

    def close(self) -> None:
        """Ends the replay, and removes its store. Idempotent.

        A store in a directory is synced, and stays for :meth:`attach`.

        After that :meth:`sample` returns None, and every other call raises ConnectionClosedError. Threads that wait
        are woken. Batches stay as they are.
        """
        with contextlib.ExitStack() as ending:
            ending.callback(self._close)
            ending.callback(self._rings.shut_down)

    def _close(self) -> None:
        if self._end.alive:
            if self._core.num_steps() == lib.ES_EREENTERED:
                raise self._error(lib.ES_EREENTERED)
            # The finalizer is not called, because it runs only once, even if Ctrl-C interrupts it.
            _end(self._core, self._store, self._rings, self._generation)
            self._end.detach()
            self._changes.tell()

    def _let_go(self) -> None:
        """Ends the replay as if its process had been killed: a store in shared memory stays."""
        self._rings.shut_down()
        self._end.detach()
        _let_go(self._core, self._store, self._rings, self._changes)

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "open"
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Replay{name} of {self.capacity:,} steps, {arguments.listed(self._names)}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Replay belongs to its process: it does not pickle")

    # -- helpers

    def _wait_to_insert(self, attempt: Any, refused: Any, timeout: float | None) -> Any:
        """Waits while a limiter forbids to insert. ``refused`` returns the number of its table."""

        def why() -> str:
            return why_no_insert(self._names[refused()], self._info(refused()))

        if timeout == 0:
            raise TimeoutError(f"{why()}. Sample first, or let another thread do so and give add() a timeout")
        return self._rings.wait(attempt, timeout, why)

    def _why_no_sample(self, number: int) -> str:
        return why_no_sample(self._names[number], self._info(number))


def _check_store(store: object, sync_every: float | None) -> float | None:
    """Checks where the steps are kept, and returns after how many seconds they are synced there, if they are."""
    if not is_directory(store) and store not in ("memory", "shm"):
        raise ValueError(f"store={store!r}: use 'memory', 'shm', or the path of a directory, with a slash in it")
    return None if sync_every is None else above_zero("sync_every", sync_every)


def _custom_selectors(tables: Sequence[Table]) -> tuple[dict[str, CustomSelector], dict[str, CustomSelector]]:
    """The samplers, and the removers, that are written in Python, by table."""
    samplers = {table.name: table.sampler for table in tables if isinstance(table.sampler, CustomSelector)}
    removers = {table.name: table.remover for table in tables if isinstance(table.remover, CustomSelector)}
    return samplers, removers


def _with_sent(error: _E, sent: int, n: int) -> _E:
    """The same error, which says how many steps are stored."""
    late = type(error)(f"{error}; {sent} of {n} steps are stored")
    late.sent = sent  # type: ignore[attr-defined]
    return late


def _let_go(core: Core, store: Store, rings: Rings, changes: Changes) -> None:
    """Ends a replay as if its process had been killed: whoever attaches next goes on."""
    rings.leave()
    if store.syncing is not None:
        store.syncing.stop(sync=False)
    core.close()
    store.release()
    store.custom.drop()
    changes.tell()


def _end(core: Core, store: Store, rings: Rings, generation: int) -> None:
    # A forked child inherits the object, but the store is its parent's.
    if lib.es_api_fork_generation() == generation:
        with contextlib.ExitStack() as ending:
            ending.callback(store.custom.drop)
            ending.callback(store.end)
            ending.callback(core.close)
            if store.syncing is not None:
                ending.callback(store.syncing.stop, sync=True)
            rings.close()
