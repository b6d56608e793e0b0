"""A replay over the nodes of a cluster: a shard on each, and batches over all of them."""

import contextlib
import hashlib
import math
import os
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from echo_shm.adapters.ray import budgets, changes, checks, guard, nodes
from echo_shm.adapters.ray.directory import ABSENT, Look, Loss, Place, Roster, Watch
from echo_shm.adapters.ray.drawing import ShardsOfTable, batches, item_bytes, mixed_of
from echo_shm.adapters.ray.example import Example
from echo_shm.adapters.ray.filling import Left, RayBatch
from echo_shm.adapters.ray.keeper import Keeper
from echo_shm.adapters.ray.keys import Keys
from echo_shm.adapters.ray.limits import Limits
from echo_shm.adapters.ray.shards import Setup
from echo_shm.adapters.ray.sources import Clients
from echo_shm.adapters.ray.weights import RayPublisher, announcing
from echo_shm.adapters.ray.workers import RayWorkers
from echo_shm.adapters.ray.writers import RayWriter
from echo_shm.errors import ConnectionClosedError, EchoShmError
from echo_shm.replay import Table, TableInfo
from echo_shm.replay.table import check_tables
from echo_shm.replay.validation import above_zero, integer
from echo_shm.spec import Spec, Tree
from echo_shm.timeouts import check_timeout

#: How long a lost connection is tried again: with it the shard knows what this learner has (seconds).
_GRACE = 30.0

#: How long a shard may take nothing of what is sent to it (seconds).
_SEND = 10.0


class RayReplay:
    """A replay whose steps lie on the nodes of a Ray cluster: one shard on each node, each in an actor.

    A worker writes into the shard of its own node, through shared memory. A learner draws from all shards as from one
    table, wherever it is: what is on its own node comes through shared memory, the rest over the bridge. Ray's object
    store takes no part in it.

    A RayReplay pickles: another process of the cluster gets the same replay. Who made it closes it. It is a context
    manager that closes on exit. If the process that made it is killed, each node removes its shard within a minute. If
    a shard's process is killed, Ray starts it again, and it goes on with its store: nothing is lost.

    Args:
        example: Pytree of numpy arrays, as for :class:`~echo_shm.replay.Replay`.
        capacity: Most steps of all shards together. Each has room for as many.
        tables: As for :class:`~echo_shm.replay.Replay`. ``max_size`` and the ``min_size`` of a limiter are shared
            among the shards, too. Samplers: :class:`Uniform`, :class:`Prioritized`, :class:`Softmax` with a temperature
            of its own, :class:`Fifo`, :class:`Lifo`, :class:`MinHeap` and :class:`MaxHeap`, each with replacement. A
            rate limiter holds for all shards together; its range is at least ``2 * shards * (1 + ratio)``.
        shards: ``"per_node"``: one for each node, also for those that join. Or the ids of the nodes that get one.
        max_items: As for :class:`~echo_shm.replay.Replay`; of all shards together.
        store: ``"shm"``: each shard is in its node's shared memory. Or a directory that all nodes see: then a shard
            whose node died goes on elsewhere, and a new replay finds what an earlier one has left there.
        checkpoints: A directory that all nodes see, for :meth:`checkpoint`: a shard whose node died is restored
            elsewhere from its last one. None: such a shard is lost.
        seed: Of what a shard draws. Which shard an item is of has no seed.
        mass_age: Shards are chosen by masses that are no older than so many seconds.

    Raises:
        ValueError, TypeError: As for :class:`~echo_shm.replay.Replay`; or a table has what shards cannot have.
        SegmentError: A node has too little shared memory.
        EchoShmError: A node has another version of echo_shm or Python, or Ray has not been started.

    """

    #: How long a killed shard may take to be there again (seconds).
    _patience = guard.PATIENCE
    _keeper: Keeper | None

    def __init__(
        self,
        example: Tree,
        capacity: int,
        tables: Sequence[Table] | None = None,
        *,
        shards: str | Sequence[str] = "per_node",
        max_items: int | None = None,
        store: Literal["shm"] | str | os.PathLike[str] = "shm",
        checkpoints: str | os.PathLike[str] | None = None,
        seed: int = 0,
        mass_age: float = 1.0,
    ) -> None:
        nodes.check_started()
        capacity, mass_age = integer("capacity", capacity, 1), above_zero("mass_age", mass_age)
        max_items = None if max_items is None else integer("max_items", max_items, 1)
        tables = [Table("default")] if tables is None else list(tables)
        check_tables(tables)
        folders = [checks.folder("store", None if store == "shm" else store), checks.folder("checkpoints", checkpoints)]
        spec, chosen = Spec.from_example(example), checks.with_those_before(checks.chosen_nodes(shards), folders)
        for table in tables:
            checks.table(table, len(chosen))
        found = nodes.ask(chosen)
        steps = math.ceil(capacity / len(found))
        if store == "shm":
            checks.room(spec, steps, found)
        # Stores know their names, and who opens them again must find them by these.
        unique = uuid.uuid4().hex if folders[0] is None else hashlib.sha256(folders[0].encode()).hexdigest()
        keys, name = Keys.make(), f"ray-{unique[:12]}"
        self._join(
            Setup(
                name=name,
                like=Example(example),
                capacity=steps,
                tables=[budgets.part_of(table, len(found)) for table in tables],
                max_items=None if max_items is None else math.ceil(max_items / len(found)),
                seed=integer("seed", seed, 0),
                mass_age=mass_age,
                least={table.name: budgets.least(table) for table in tables},
                per_node=shards == "per_node",
                store=folders[0],
                checkpoints=folders[1],
                patience=self._patience,
                keys=keys.public(),
            ),
            (),
        )
        self._keeper = Keeper(self._setup, keys, Limits(tables), found)
        self._watches.append(self._keeper.watch)
        self._finally(self._keeper)

    def _join(self, setup: Setup, places: tuple[Place, ...]) -> None:
        """What every process has of its own."""
        self._setup, self._places = setup, places
        self._tables = {table.name: table for table in setup.tables}
        node = self._node = nodes.here()
        self._clients = Clients(lambda place: setup.client(place, node, reconnect=_GRACE, timeout=ABSENT))
        self._groups: list[RayWorkers] = []
        self._left: dict[str, deque[Left]] = {}
        self._watches: list[Watch] = []  # one, once this process has asked for something
        self._keeper = None
        self._is_closed = False

    def _finally(self, keeper: Keeper | None) -> None:
        """What happens when it is closed, or collected. Nothing there refers to this object."""
        parts = self._clients, self._groups, self._watches, self._node
        self._end = weakref.finalize(self, _close, keeper, *parts)

    @classmethod
    def _attach(cls, setup: Setup, places: tuple[Place, ...]) -> "RayReplay":
        self = cls.__new__(cls)
        self._join(setup, places)
        self._finally(None)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return RayReplay._attach, (self._setup, self._look().roster.places)

    def _look(self) -> Look:
        """What the directory said last. A process that only pickles a replay asks it nothing."""
        return self._watches[0].look if self._watches else Look(Roster(0, self._places), {})

    def _watching(self) -> Watch:
        self._check_open()
        if not self._watches:
            try:
                self._watches.append(Watch(self._setup.directory, self._setup.mass_age, self._places))
            except ValueError:  # there is no such actor
                raise ConnectionClosedError(f"{self._setup.name} is closed") from None
        return self._watches[0]

    def _check_open(self) -> None:
        """Raises ConnectionClosedError if this replay is closed, or Ray has ended in this process."""
        if self._is_closed or any(one.closed for one in self._watches):
            raise ConnectionClosedError(f"{self._setup.name} is closed")
        if not nodes.is_connected(self._node):
            raise ConnectionClosedError(f"{self._setup.name}: Ray has ended in this process, and the replay with it")

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return tuple(self._tables)

    @property
    def shards(self) -> dict[int, str]:
        """The shards by their numbers, each with the name of its replay: ``echo-shm top NAME`` on its node shows it."""
        return {one.number: self._setup.store_of(one) for one in self._look().roster.places}

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What went with nodes that died."""
        return self._look().roster.losses

    # -- workers

    def spawn(
        self,
        fn: Callable[..., Any],
        n: int,
        *per_worker_args: Sequence[Any],
        num_cpus: float = 1,
        restart: bool = False,
        **options: Any,
    ) -> RayWorkers:
        """Starts n workers, which Ray places. Worker i runs ``fn(writer, i, args0[i], args1[i], ...)``.

        Its writer, a :class:`RayWriter`, writes into the shard of the worker's node; where there is none, into the one
        with most room. It goes on with another shard if that one moves or dies with its node.

        Args:
            fn: It pickles, as what an actor of Ray gets does.
            n: How many, 1 or more.
            per_worker_args: Sequences with an entry for each worker.
            num_cpus: What Ray sets aside for each.
            restart: A worker whose process or node died is started again.
            options: Further options of an actor of Ray's.

        Returns:
            The workers. A failed worker's exception is raised by the next batch, or by ``join()``.

        """
        self._check_open()
        group = RayWorkers(self._setup, self._look().roster.places, fn, n, per_worker_args, num_cpus, restart, options)
        self._groups.append(group)
        return group

    def writer(self) -> RayWriter:
        """A new writer for this process, which need be no worker. It is the caller's to close.

        It writes into the shard of this process's node; or, if there is none, into the one with most room.

        Raises:
            ConnectionClosedError, OSError: The replay is closed, or no shard could be reached for half a minute.

        """
        self._check_open()
        return RayWriter(self._setup, self._look().roster.places)

    # -- learners

    def dataset_iter(
        self, n: int, table: str | None = None, timeout: float | None = None, *, prefetch: int | None = None
    ) -> Iterator[RayBatch]:
        """Yields batches of n items, drawn from all shards as from one table, until the replay is closed.

        The shards draw ahead. What lies in the shared memory of this node, and makes up a whole batch, comes without a
        copy; its arrays are to be used as those of :meth:`ReplayClient.dataset_iter`.

        Where items are drawn a limited number of times, as from a queue, they are done when the next batch is asked
        for, or the iteration ends. If this process is killed before that, or its node is lost, they go to other
        learners: none is lost. Each shard has room for items that were drawn and are not done: for eight batches, or
        fewer if these have more than 64 MiB, but at least two, or four if it is the only shard; the first learner's n
        decides. That room is filled in order. Where what a learner has for a batch that is not full is in the way, or
        takes all of its part, it takes these items if none comes for a tenth of a second; two learners of one shard
        are enough for that, if one of them is much faster. So it does where a shard is handed over. Items that were
        taken so are lost if this process is killed; an iteration that ends leaves them to its next one. A shard is
        handed over once iterations have taken what it has drawn for them, or have had a minute for that, or half of
        the time that Ray gives its node if that is less. What nobody has taken then goes along, and comes first from
        there. What an iteration has of that shard is its own from then on: an item of it is lost if this process is
        killed, and comes twice only if a process is killed, or cut off, while the shard is handed over.

        Args:
            n: How many items, 1 or more.
            table: The table. None: the only one.
            timeout: The iteration ends once no shard had an item for so many seconds. None: no limit.
            prefetch: How many batches a shard draws ahead, 1 or more; the first learner that draws so many items of a
                shard decides. What is drawn ahead has the priorities and the weights of that time. None: 4; of a shard
                on another node as many as 1 MiB holds, 4 to 32. It says nothing of items that are drawn a limited
                number of times.

        Raises:
            ValueError: The table is unknown, or a number is out of range.
            ConnectionClosedError: The replay was closed before.
            SegmentError: A shard cannot make a ring for such batches. The message says why.
            BatchesHeldError: This process refers to all batches of a shard on its node. With other threads, which may
                drop one, there is a warning.
            Exception: What a worker raised.

        """
        name, n, timeout = self._name(table), integer("n", n, 1), check_timeout(timeout)
        sampler, least = self._tables[name].sampler, self._setup.least[name]
        watch, is_limited = self._watching(), self._tables[name].max_times_sampled > 0
        shards = ShardsOfTable(
            watch,
            self._clients,
            name,
            n,
            item_bytes=item_bytes(self._tables[name], self._setup.example),
            prefetch=None if prefetch is None else integer("prefetch", prefetch, 1),
            is_limited=is_limited,
        )
        left = self._left.setdefault(name, deque()) if is_limited else None
        mixed = mixed_of(shards, n, sampler, least, left)
        return batches(mixed, timeout, self._check_workers, watch)

    def _check_workers(self) -> None:
        """Raises what a worker of this process has raised."""
        for group in self._groups:
            group.check()

    def update(self, keys: npt.NDArray[np.void], priorities: Any, table: str | None = None) -> None:
        """Sends new priorities of items, each to its shard. Items that are gone by then are ignored.

        Args:
            keys: ``batch.key``, or part of it, of shape ``(n,)``.
            priorities: Floats of shape ``(n,)``, finite, 0 or more.
            table: The table. None: the only one.

        Raises:
            ValueError: An argument is out of range.
            ConnectionClosedError: The replay is closed.

        """
        name, given, values = self._name(table), changes.checked(keys), np.asarray(priorities)
        if values.shape != given.shape:
            raise ValueError(f"priorities has shape {values.shape}, keys {given.shape}: use one priority for each key")
        self._send(given, lambda client, mine, chosen: client.update(mine, values[chosen], name, _SEND))

    def delete(self, keys: npt.NDArray[np.void], table: str | None = None) -> None:
        """Has items removed. Items that are gone by then are ignored. Arguments and errors are those of update()."""
        name, given = self._name(table), changes.checked(keys)
        self._send(given, lambda client, mine, _: client.delete(mine, name, _SEND))

    def _send(self, keys: npt.NDArray[np.void], call: changes.Send) -> None:
        changes.send(self._watching(), self._clients, self._setup.name, keys, call)

    def info(self, table: str | None = None) -> dict[int, TableInfo]:
        """What each shard last said of a table, by the shards' numbers: as :meth:`ReplayClient.info`."""
        name = self._name(table)
        return {number: report.tables[name] for number, (report, _) in self._watching().look.reports.items()}

    # -- weights

    def publisher(self, params: Tree) -> RayPublisher:
        """Makes the publisher of weights for the workers of all nodes, which find it by ``writer.subscriber()``.

        Each version goes to each node once, and from there through shared memory. The learner calls it, in its own
        process, wherever that is. It takes about as long as ``mass_age``, for all shards must know of it. It ends with
        :meth:`RayPublisher.close`, or with its process.

        Args:
            params: As for :meth:`Replay.publisher`.

        Raises:
            TypeError, ValueError, SegmentError, SpecMismatchError: As for :class:`RayPublisher`.

        """
        self._check_open()
        name, host = f"{self._setup.name}-weights-{uuid.uuid4().hex[:8]}", nodes.alive()[self._node]
        return RayPublisher(params, name, self._node, host, announcing(self._setup.directory))

    # -- checkpoints

    def checkpoint(self, path: str | os.PathLike[str] | None = None) -> list[str]:
        """Each shard writes a checkpoint into a directory of its own there, while all else goes on.

        Args:
            path: A directory that each node has, at best the same one on all of them. None: ``checkpoints``.

        Returns:
            The shards' new checkpoints.

        Raises:
            ValueError: There is no path.
            EchoShmError: This process is not the one that made the replay.
            SegmentError: As for :meth:`Replay.checkpoint`.

        """
        self._check_open()
        if self._keeper is None:
            raise EchoShmError("checkpoint: the process that made the replay writes checkpoints; this is another one")
        where = self._setup.checkpoints if path is None else os.path.abspath(path)
        if where is None:
            raise ValueError("path=None: use a directory, or RayReplay(..., checkpoints=directory)")
        return self._keeper.each("checkpoint", where)

    # -- the end

    def close(self) -> None:
        """Stops the workers, and, in the process that made it, removes all shards. Idempotent."""
        self._is_closed = True
        self._end()

    def __enter__(self) -> "RayReplay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RayReplay {self._setup.name} of {len(self.shards)} shards, {', '.join(self._tables)}>"

    def _name(self, table: object) -> str:
        if table is None and len(self._tables) == 1:
            return next(iter(self._tables))
        if not isinstance(table, str) or table not in self._tables:
            raise ValueError(f"table={table!r}: use one of {', '.join(map(repr, self._tables))}")
        return table


def _close(keeper: Keeper | None, clients: Clients, groups: list[RayWorkers], watches: list[Watch], node: str) -> None:
    """Ends what a process has of a replay; with its keeper, all of it."""
    with contextlib.ExitStack() as ending:
        if keeper is not None:
            ending.callback(keeper.close)
        if nodes.is_connected(node):  # else Ray has ended, and with it all workers
            for group in groups:
                ending.callback(group.stop)
        for watch in watches:
            ending.callback(watch.close)
        ending.callback(clients.close)
