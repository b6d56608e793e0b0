"""A replay in this process: it keeps steps, and draws batches of them from tables."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from echo_shm._replay import Core
from echo_shm.replay import arguments
from echo_shm.replay.checkpoint import write_checkpoint
from echo_shm.replay.checkpoint_files import Progress
from echo_shm.replay.described import about_items
from echo_shm.replay.disk import is_directory
from echo_shm.replay.episodes import StoredEpisode, episodes
from echo_shm.replay.inserting import Inserting
from echo_shm.replay.lifetime import Lifetime
from echo_shm.replay.new_store import create_store
from echo_shm.replay.restoring import Plan, Restored, go_on, opened
from echo_shm.replay.sampling import Sampling
from echo_shm.replay.selectors import CustomSelector
from echo_shm.replay.store import attach_store
from echo_shm.replay.table import Table, check_tables, lay_out_table, table_config
from echo_shm.replay.validation import above_zero, flag, integer
from echo_shm.replay.writer import ReplayHandle
from echo_shm.ring import transports
from echo_shm.ring.protocols import Transport
from echo_shm.spec import Spec, Tree
from echo_shm.weights import Publisher
from echo_shm.workers.group import WorkerGroup

_log = logging.getLogger("echo_shm")


class Replay(Inserting, Sampling, Lifetime):
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
    #: Bytes that a subclass keeps in its store beside the steps; see ``es_replay_set_notes``.
    _notes_size: int = 0

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
        made = create_store(
            kind, name, spec, capacity, max_items, seed, configs, outputs, sync_every, notes=self._notes_size
        )
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
            same_episode: The next step that :meth:`add` stores follows the last one, in the same episode; so it is with
                each environment of :meth:`add_vector`. Otherwise it begins an episode, as after :meth:`end_episode`.
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
        restart: bool | Literal["always"] = False,
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

    # -- weights

    def publisher(self, params: Tree, *, max_leases: int = 8, max_subscribers: int = 1024) -> Publisher:
        """Makes the publisher of weights for this replay's workers, which find it by :meth:`Writer.subscriber`.

        Call it before the workers start. It ends with this replay. If this process is killed, the last version stays
        for the workers, and the next replay of this name goes on from it with a publisher of its own.

        Args:
            params, max_leases, max_subscribers: As for :class:`Publisher`.

        Raises:
            TypeError, ValueError, SegmentError, SpecMismatchError: As for :class:`Publisher`.
            ConnectionClosedError: The replay is closed.

        """
        told = functools.partial(_note_version, self._core)
        made = Publisher._beside(params, self.handle.name, None, max_leases, max_subscribers, told)
        if made.version:  # a dead process's
            told(made.version)
        self._publisher = made
        return made

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

    # -- looking

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

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "open"
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Replay{name} of {self.capacity:,} steps, {arguments.listed(self._names)}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Replay belongs to its process: it does not pickle")


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


def _note_version(core: Core, version: int) -> None:
    """This process's own steps are made with what it has published."""
    core.set_version(version, False)
