"""One shard: the replay of a node, in an actor of its own."""

import contextlib
import errno
import functools
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from echo_shm.adapters.ray import budgets, guard, handing, nodes
from echo_shm.adapters.ray.directory import NAMESPACE, Place, Report, pause_of
from echo_shm.adapters.ray.example import Example
from echo_shm.adapters.ray.handing import Origin
from echo_shm.adapters.ray.keys import Keys
from echo_shm.adapters.ray.metrics import Metrics
from echo_shm.adapters.ray.weights import Relay
from echo_shm.errors import ConnectionClosedError, EchoShmError, SegmentError
from echo_shm.net.transport import TcpTransport
from echo_shm.replay import Replay, ReplayClient, Table, TableInfo
from echo_shm.replay.sources import end_left
from echo_shm.replay.untaken import UNTAKEN, Untaken
from echo_shm.spec import Tree


@dataclass(frozen=True)
class Setup:
    """What all shards of a replay have in common. It pickles: shards get it, and whoever uses them.

    Attributes:
        name: Of the replay.
        like: The example of a step, as it goes to other processes.
        max_items: As for :class:`~echo_shm.replay.Replay`; of one shard.
        capacity: Steps of one shard.
        tables: A shard's part of each table.
        seed: Shard i has ``seed + i``.
        mass_age: Seconds.
        least: How many items each table holds in all shards, at least, before it is drawn from.
        per_node: Whether each node gets a shard.
        store: The directory of the shards' directories; None: shared memory.
        patience: How long a killed shard may take to be there again, before its store is removed (seconds).
        checkpoints: Where shards write checkpoints; None: nowhere.
        keys: Of the bridges; the public part.

    """

    name: str
    like: Example
    capacity: int
    tables: Sequence[Table]
    max_items: int | None
    seed: int
    mass_age: float
    least: dict[str, int]
    per_node: bool
    store: str | None
    checkpoints: str | None
    patience: float
    keys: Keys

    @property
    def example(self) -> Tree:
        """The example itself."""
        return self.like.tree

    @functools.cached_property
    def directory(self) -> Any:
        """The actor."""
        return ray.get_actor(self.name, NAMESPACE)

    def store_of(self, place: Place) -> str:
        """The name of a shard's replay. A directory keeps its own, wherever it is used."""
        again = f"-{place.incarnation}" if place.incarnation and self.store is None else ""
        return f"{self.name}-{place.number}{again}"

    def folder_of(self, number: int) -> str | None:
        """The directory of a shard's store; None: it is in shared memory."""
        return None if self.store is None else shard_folder(self.store, number)

    def client(self, place: Place, node: str, **options: Any) -> ReplayClient:
        """A way into a shard from a process of that node: through shared memory if the shard is there, too.

        Args:
            place: Where the shard is.
            node: The id of this process's node.
            options: For a client on another node: as for :class:`ReplayClient`.

        """
        if node == place.node:
            return ReplayClient(self.store_of(place), self.example)
        address, tls = f"tcp://{place.host}:{place.port}", self.keys.client_context()
        return ReplayClient(address, self.example, authkey=self.keys.authkey, tls=tls, **options)


class Shard:
    """The actor. If it is killed, Ray starts it again on its node, and it goes on with its store.

    A store in shared memory is removed when the shard is closed; or by a guard, once nobody has gone on with it for
    ``patience`` seconds: then Ray has given the actor up, for its owner has ended.
    """

    def __init__(self, setup: Setup, place: Place, keys: Keys, origin: Origin | None = None) -> None:
        self._setup, self._place, self._keys = setup, place, keys
        self._name, self._folder = setup.store_of(place), setup.folder_of(place.number)
        self._leaving = contextlib.ExitStack()
        self._untaken: Untaken | None = None  # from leave() on
        self._has_file = False
        self._is_settling = False
        self._bounding = threading.Lock()  # calls come on several threads: held while limits or the file change
        self._is_new = False
        self._refusal: EchoShmError | None = None
        handing.remove_all(self._name)
        try:
            self._replay = self._opened(origin)
        except EchoShmError as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                raise  # the keeper sees that this actor is dead, and makes another one
            self._refusal = error  # the keeper asks for it: an error of a constructor reaches nobody as what it is
            return
        if self._replay._rings.are_shut:  # the one before was killed while it left
            self._shut_out()
            self._reopen()
            self._is_settling = False
            self._hold(self._replay)
        self._metrics = Metrics(setup.name, place.number)
        self._relay = Relay(self._name, place.node)
        self._ended = threading.Event()
        nodes.thread(self._tell, "reports").start()

    def _opened(self, origin: Origin | None) -> Replay:
        """The replay of this shard: what its store holds, or else what the old one sends, or else a new one."""
        place, keys = self._place, self._keys
        transport = TcpTransport(place.port, host=place.host, authkey=keys.authkey, tls=keys.pem())
        try:
            replay = Replay.attach(self._folder or self._name, self._setup.example)
        except SegmentError as error:
            if error.errno != errno.ENOENT:
                raise
        else:
            if self._folder is not None:  # whoever had it before may have been on another node
                self._guard()
            if origin is not None and not self._is_known():
                replay._let_go()
                raise EchoShmError("its process was killed before it had all that the shard holds")
            try:
                self._allow(replay)  # the one before has stopped the draws, if it was to be handed over
                return self._begun(replay, transport, self._folder)
            except BaseException:
                replay._let_go()
                raise
        self._guard()  # before there is anything: this process may be killed while it makes it
        if origin is not None and not self._is_known():
            replay = self._received(transport, origin)
        else:
            replay = self._made(transport, self._name, self._folder)
        self._hold(replay)
        return replay

    def _guard(self) -> None:
        """Has a process remove what this one leaves in shared memory, and of files that are handed over."""
        prefix = handing.prefix_of(self._name) if self._folder is None else ""
        guard.watch(self._name, self._setup.patience, prefix)  # a store in files has its rings in shared memory, too

    def _is_known(self) -> bool:
        """Whether the keeper has written this shard down. Until then it is nothing but what the old one sends."""
        roster, _ = ray.get(self._setup.directory.look.remote())
        return self._place in roster.places

    def _received(self, transport: TcpTransport, origin: Origin) -> Replay:
        """What the old shard sends."""
        with handing.new_folder(self._name) as folder:
            handing.receive(origin, folder, self._keys)
            replay = Replay.restore(folder, example=self._setup.example, store="shm", name=self._name)
            try:
                return self._begun(replay, transport, folder)
            except BaseException:
                replay.close()
                raise

    def _begun(self, replay: Replay, transport: TcpTransport, folder: str | Path | None) -> Replay:
        """Puts what was drawn, and no learner had, where learners get it first. Only then anything is drawn or served.

        A file in the store's directory stays until the keeper has written this shard down: see :meth:`_tell`. Items
        that a killed process has put there before are not put again.
        """
        if folder is not None:
            replay._rings.put_untaken(Path(folder, UNTAKEN))
            self._has_file = self._folder is not None
        replay._rings.begin_serving(transport)
        return replay

    def _restored(self, transport: TcpTransport, path: Path, name: str, store: str) -> Replay:
        example = self._setup.example
        return Replay.restore(path, example=example, store=store, name=name, thread=True, transport=transport)

    def _hold(self, replay: Replay) -> None:
        """Until the keeper says what this shard may do, its limiters let nothing happen."""
        for table in self._setup.tables:
            limiter = table.rate_limiter
            if budgets.is_limited(limiter):
                replay._set_limits(table.name, math.inf, -math.inf)
        self._allow(replay)

    def _allow(self, replay: Replay) -> None:
        """What no keeper says of: the limits of tables whose draws are counted, and that no limiter holds for."""
        for table in self._setup.tables:
            limiter = table.rate_limiter
            if table.max_times_sampled and not budgets.is_limited(limiter):
                replay._set_limits(table.name, limiter.min_diff, limiter.max_diff)

    def _made(self, transport: TcpTransport, name: str, folder: str | None) -> Replay:
        """A new one; or what the last checkpoint of this shard has."""
        setup, number, store = self._setup, self._place.number, folder or "shm"
        if setup.checkpoints is not None:
            path = Path(shard_folder(setup.checkpoints, number))
            with contextlib.suppress(FileNotFoundError):
                if any(path.iterdir()):
                    return self._restored(transport, path, name, store)
        self._is_new = True
        return Replay(
            setup.example,
            setup.capacity,
            setup.tables,
            max_items=setup.max_items,
            store=store,
            name=name,
            seed=setup.seed + number,
            thread=True,
            transport=transport,
        )

    def _tell(self) -> None:
        """Reports to the directory, which says whose weights to relay. If that is away, the next report finds it."""
        said: list[Any] = []
        pause = 0.0
        while not self._ended.wait(pause):
            pause = pause_of(self._setup.mass_age)
            # The directory may be being started again, or have no name yet; or this shard leaves.
            with contextlib.suppress(ray.exceptions.RayError, ValueError, ConnectionClosedError):
                done, said = ray.wait(said, timeout=0) if said else ([], [])
                for one in done:
                    self._relay.follow(ray.get(one))
                self._remove_file()
                if not said:  # otherwise the last one is on its way: no more of them pile up
                    report = self.report()
                    self._metrics.set(report)
                    said = [self._setup.directory.report.remote(report, self._relay.offer, self._relay.version)]

    def _remove_file(self) -> None:
        """The rings have what was drawn before, if this shard is known. What :meth:`leave` writes is another file."""
        is_known = self._has_file and self._is_known()
        with self._bounding:
            if is_known and self._has_file:
                self._has_file = False
                Path(self._folder or "", UNTAKEN).unlink(missing_ok=True)

    def is_new(self) -> bool:
        """Whether nothing was there to go on with when it was made."""
        return self._is_new

    def report(self) -> Report:
        """What the shard says of itself now. It is the first that a new shard is asked.

        Raises:
            EchoShmError: It could not be made.

        """
        if self._refusal is not None:
            raise self._refusal
        infos = {table.name: self.info(table.name) for table in self._setup.tables}
        return Report(
            self._place.number,
            self._place.incarnation,
            self._replay.num_steps,
            self._setup.capacity,
            infos,
            os.getpid(),
            self._is_settling,
        )

    def set_limits(self, table: str, low: float, high: float) -> None:
        """As :meth:`Replay.set_limits`; but the range may be narrow, or empty, for as long as others are told."""
        with self._bounding:
            if not self._is_settling:  # otherwise it is a late word
                self._replay._set_limits(table, low, high)

    def info(self, table: str) -> TableInfo:
        """As :meth:`Replay.info`."""
        found = self._replay.info(table)
        assert isinstance(found, TableInfo)
        return found

    def checkpoint(self, path: str) -> str:
        """Writes a checkpoint of the shard into its own directory there, which it returns."""
        return self._replay.checkpoint(shard_folder(path, self._place.number))

    # -- leaving

    def settle(self) -> int:
        """Nothing is drawn any more of tables whose draws are counted. Writers go on, within the limits that there are.

        It may be called again.

        Returns:
            How many items were drawn that a learner can take, or has and is not done with.

        """
        with self._bounding:
            if not self._is_settling:
                self._is_settling = True  # learners then take what is there, and do not wait for more
                for name in self._counted:
                    self._replay._set_limits(name, math.inf, self.info(name).limiter.max_diff)
        return self._replay._rings.untaken(self._counted)

    @property
    def _counted(self) -> list[str]:
        """The tables whose draws are counted."""
        return [table.name for table in self._setup.tables if table.max_times_sampled]

    def leave(self) -> Origin | None:
        """Takes nothing any more, and has what the shard holds ready for another node.

        The shard is all that holds it until the keeper has written down the new one: :meth:`stay` goes on with it.
        What was drawn, and no learner has, goes along. If this process is killed before the other one is written down,
        the next one of this shard gives it to learners here. If it is killed after that, and before it is closed, a
        learner of this node that does not know it yet can get such an item there, and another one the same item here.

        Returns:
            Where it is to be had; None: it is in the shard's directory.

        """
        self._shut_out()
        self._untaken = self._replay._rings.hold_untaken(self._counted)
        if self._folder is not None:
            with self._bounding:
                self._has_file = False
            # If this process is killed before the rings are gone, they have it, and the next one of this shard sees so.
            self._untaken.save(Path(self._folder, UNTAKEN))
            self._replay.close()
            return None
        folder = self._leaving.enter_context(handing.new_folder(self._name))
        self._replay.checkpoint(folder)
        self._untaken.save(folder / UNTAKEN)
        sending = handing.Sending(folder, self._place.host, self._keys)
        self._leaving.callback(sending.close)
        return sending.origin

    def _shut_out(self) -> None:
        """Stores all that writers have sent, and takes no more."""
        with self._bounding:
            self._is_settling = True
            for table in self._setup.tables:
                if table.max_times_sampled or budgets.is_limited(table.rate_limiter):
                    self._replay._set_limits(table.name, math.inf, math.inf)  # all is let in
        self._replay._rings.shut_out()

    def stay(self) -> None:
        """No other node has taken the shard: it goes on here. One that was killed since :meth:`leave` does so."""
        self._leaving.close()
        if self._untaken is not None and self._replay._core.closed:
            self._untaken.release()  # the file has it: see below
        elif self._untaken is not None:
            self._untaken.give_back()  # to rings of batches, which stay
        self._is_settling = False
        if self._replay._core.closed:
            self._replay = self._opened(None)
        elif self._replay._rings.are_shut:
            self._reopen()
        self._hold(self._replay)

    def _reopen(self) -> None:
        """The same store with new rings, but for those of batches. Those that are closed hold nothing any more."""
        self._replay._let_go()
        end_left(self._name, batches=False)
        self._replay = self._opened(None)

    def close(self) -> None:
        """Closes the replay, and removes its store if it is in shared memory."""
        if self._refusal is not None:
            return
        self._ended.set()
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # the directory has ended
            self._remove_file()  # or whoever uses the store next would have that once more
        self._leaving.close()
        if self._untaken is not None:
            self._untaken.release()
        self._relay.stop()
        self._replay.close()


def shard_folder(path: str, number: int | str) -> str:
    """What a shard has below a directory of all: its store, or its checkpoints."""
    return os.path.join(path, f"shard-{number}")
