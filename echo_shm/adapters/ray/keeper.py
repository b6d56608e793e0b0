"""Keeps the shards of a replay: a thread of the process that made it.

It makes a shard for each node that joins, says what went with a node that died, has shards brought back elsewhere where
something of them is left, divides rate limiters among them, and writes down in the directory where they are. It is the
only one that does, so shards' numbers and incarnations are counted here. With its process everything ends.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray

from echo_shm.adapters.ray import nodes
from echo_shm.adapters.ray.directory import NAMESPACE, Directory, Look, Loss, Place, Report, Roster, Watch
from echo_shm.adapters.ray.handing import Origin
from echo_shm.adapters.ray.keys import Keys
from echo_shm.adapters.ray.limits import Limits
from echo_shm.adapters.ray.settling import Settling
from echo_shm.adapters.ray.shards import Setup, Shard
from echo_shm.errors import EchoShmError, SegmentError

_log = logging.getLogger("echo_shm")

#: Between two looks at the nodes (seconds).
_EVERY = 0.5

#: How long an actor that is of no use any more may take to close (seconds).
_CLOSING = 10.0


class Keeper:
    """The shards of a replay, from its beginning to its end.

    Args:
        setup: What they have in common.
        keys: Of their bridges.
        limits: The rate limiters.
        found: The nodes that get a shard at the beginning.

    Raises:
        SegmentError: Another replay has the store.
        EchoShmError, ray.exceptions.RayError: A shard could not be made. None is left.

    """

    def __init__(self, setup: Setup, keys: Keys, limits: Limits, found: list[nodes.Node]) -> None:
        self._setup, self._keys, self._limits = setup, keys, limits
        self._lock = threading.Lock()
        self._actors: dict[int, Any] = {}
        self._roster = Roster()
        self._seen = {one.id for one in found}  # nodes that have a shard, or cannot have one
        self._kept: dict[Place, list[str]] = {}  # what could not be handed over, and which nodes there were then
        self._settling = Settling()
        self._absent: set[int] = set()
        #: What shards that are absent were asked; and since when an actor is dead that Ray does not start again.
        self._asked: dict[Place, Any] = {}
        self._dead_since: dict[Place, float] = {}
        self._node = nodes.here()
        self._ended = threading.Event()
        options = {**nodes.on(nodes.here()), "max_restarts": -1, "name": setup.name, "namespace": NAMESPACE}
        try:
            self._directory = ray.remote(Directory).options(**options).remote()
        except ValueError:  # the name is that of the store
            raise SegmentError(
                f"store={setup.store!r}: a replay of this cluster has it; close that one, or use another directory"
            ) from None
        try:
            places = [self._start(self._place(number, one)) for number, one in enumerate(found)]
            ray.get([self._actors[one.number].report.remote() for one in places])
        except ray.exceptions.RayTaskError as error:
            self.close()
            raise error.cause from None
        except BaseException:
            self.close()
            raise
        self._next = len(places)
        self._write(places=tuple(places))
        self._publish()  # before anybody asks
        self.watch = Watch(self._directory, setup.mass_age, places)
        self._thread = nodes.thread(self._run, "keeper")
        self._thread.start()

    # -- making

    def _place(self, number: int, node: nodes.Node, incarnation: int = 0) -> Place:
        return Place(number, incarnation, node.id, node.host, node.port)

    def _start(self, place: Place, origin: Origin | None = None) -> Place:
        """Has the actor made, and does not wait for it."""
        options = {**nodes.on(place.node), "max_restarts": -1, "max_concurrency": 4}
        made = ray.remote(Shard).options(**options).remote(self._setup, place, self._keys, origin)
        self._actors[place.number] = made
        return place

    def _make(self, place: Place, origin: Origin | None = None) -> bool:
        """Has the actor made, and waits until it has opened its replay."""
        try:
            ray.get(self._start(place, origin) and self._actors[place.number].report.remote())
        except (ray.exceptions.RayError, EchoShmError) as error:
            _log.warning("%s: node %s (%s) gets no shard: %s", self._setup.name, place.node, place.host, error)
            self._end(place.number)
            return False
        return True

    # -- looking

    def _run(self) -> None:
        while not self._ended.wait(_EVERY):
            if not nodes.is_connected(self._node):
                return  # with Ray all shards have ended
            try:
                self._look()
            except Exception as error:  # the cluster's head may be away; whatever it is, shards need their keeper
                if nodes.is_connected(self._node):
                    _log.warning("%s: what its nodes do cannot be looked at now: %r", self._setup.name, error)

    def _look(self) -> None:
        alive, leaving = nodes.alive(), nodes.draining()
        look = self.watch.look
        self._say_absent(look)
        staying = {node: host for node, host in alive.items() if node not in leaving}
        gone = [one for one in self._roster.places if one.node not in alive]
        if gone:
            self._lose(gone, look, staying, "its node is gone")
        for place in [one for one in self._roster.places if look.is_absent(one.number)]:
            if self._is_dead(place):
                self._revive(place, look, staying)
        there = [one for one in self._roster.places if one.node in leaving and one.node in alive]
        for place in [one for one in self._settling.places if one not in there]:
            self._go_on(place)
        for place in there:
            self._hand_over(place, staying, leaving[place.node])
        if self._setup.per_node:
            for node in [one for one in alive if one not in self._seen and one not in leaving]:
                self._seen.add(node)
                self._join(node, alive[node])
        self._limits.divide(look, self._actors, {one.number for one in self._settling.places})
        self._publish()

    def _say_absent(self, look: Look) -> None:
        """Says once that a shard is not heard of, and once that it is again."""
        absent = {one.number for one in self._roster.places if look.is_absent(one.number)}
        for place in self._roster.places:
            if place.number in absent - self._absent:
                _log.warning(
                    "%s: shard %d on node %s (%s) is not heard of; the others go on without it",
                    *(self._setup.name, place.number, place.node, place.host),
                )
            elif place.number in self._absent - absent:
                _log.warning("%s: shard %d is there again", self._setup.name, place.number)
        self._absent = absent

    # -- changes

    def _join(self, node: str, host: str) -> None:
        """A node has joined: it gets a shard."""
        try:
            (asked,) = nodes.ask([(node, host)])
        except EchoShmError as error:
            _log.warning("%s: a node that has joined gets no shard: %s", self._setup.name, error)
            self._write(places=self._roster.places)
            return
        place = self._place(self._next, asked)
        self._next += 1
        if not self._limits.has_room(len(self._roster.places) + 1):
            _log.warning(
                "%s: node %s (%s) gets no shard: a rate limiter is too narrow for one more; use a larger error_buffer",
                *(self._setup.name, node, host),
            )
        elif self._make(place):
            self._write(places=(*self._roster.places, place))
            return
        self._write(places=self._roster.places)  # that it gets none

    def _is_dead(self, place: Place) -> bool:
        """Whether Ray has given up a shard's actor although its node lives: it could not be started again.

        It is asked, and the answer is looked at later: the link of its node may be cut.
        """
        asked = self._asked.pop(place, None)
        if asked is not None:
            done, _ = ray.wait([asked], timeout=0)
            if not done:
                self._asked[place] = asked
                return False
            try:
                ray.get(asked)
            except ray.exceptions.ActorDiedError:
                return True
            except (ray.exceptions.RayError, EchoShmError):
                pass
        actor = self._actors.get(place.number)
        if actor is None:  # the last attempt to make it again has failed
            return True
        self._asked[place] = actor.report.remote()
        return False

    def _revive(self, place: Place, look: Look, alive: Mapping[str, str]) -> None:
        """A new actor goes on with a shard's store on its node. If none can until its guard removes it, it is lost."""
        now = time.monotonic()
        since = self._dead_since.setdefault(place, now)
        with contextlib.suppress(EchoShmError):
            (asked,) = nodes.ask([(place.node, place.host)])
            again = place._replace(port=asked.port)
            if self._make(again):
                del self._dead_since[place]
                self._write(places=tuple(again if one == place else one for one in self._roster.places))
                _log.warning("%s: shard %d has a new process", self._setup.name, place.number)
                return
        if now - since > self._setup.patience / 2:
            del self._dead_since[place]
            self._lose([place], look, alive, "its process cannot be started again")

    def _lose(self, gone: list[Place], look: Look, alive: Mapping[str, str], why: str) -> None:
        """Nodes have died. Their shards go, or come back elsewhere with what is left of them."""
        left = tuple(one for one in self._roster.places if one not in gone)
        self._write(places=left)
        self._publish()  # nobody is to wait for them
        for place in gone:
            self._end(place.number)
            found = look.reports.get(place.number)
            report = None if found is None else found[0]
            back, again = self._bring_back(place, alive)
            loss = _loss(place, report, restored=again is not None)
            self._say_lost(loss, len(left), why)
            self._limits.lose(place.number, report, again)
            places = self._roster.places if back is None else (*self._roster.places, back)
            self._write(places=places, losses=(*self._roster.losses, loss))

    def _bring_back(self, place: Place, alive: Mapping[str, str]) -> tuple[Place | None, Report | None]:
        """The shard again, on the node with the fewest, and what it says; None: nothing of it is left.

        Where checkpoints are to be, and there is none yet, it comes back empty.
        """
        if self._setup.store is None and self._setup.checkpoints is None:
            return None, None
        for node in self._by_shards(alive):
            with contextlib.suppress(EchoShmError, ray.exceptions.RayError):
                (asked,) = nodes.ask([(node, alive[node])])
                moved = self._place(place.number, asked, place.incarnation + 1)
                if self._make(moved):
                    actor = self._actors[place.number]
                    report, is_new = ray.get([actor.report.remote(), actor.is_new.remote()])
                    return moved, None if is_new else report
        return None, None

    def _by_shards(self, alive: Mapping[str, str]) -> list[str]:
        """Nodes, those with the fewest shards first."""
        count = {node: sum(one.node == node for one in self._roster.places) for node in alive}
        return sorted(alive, key=lambda node: count[node])

    def _hand_over(self, place: Place, alive: Mapping[str, str], deadline: float) -> None:
        """A node is drained, and ends at that time: its shard goes on elsewhere, once learners have what it has drawn.

        The roster has one place of a number at any time, and this thread alone changes it, in one step: the old one
        until the new one holds all, and the new one from then on. The old one takes nothing from before its state is
        read, and nobody finds the new one before it is written down. So what fails in between costs nothing: the old
        one goes on. What was drawn, and no learner has taken by then, goes along.
        """
        others = [node for node in self._by_shards(alive) if node != place.node]
        if place not in self._settling.places and self._kept.get(place) == others:  # nothing is new since
            return
        old = self._actors.get(place.number)
        if old is None or (others and not self._settling.has_settled(place, old, deadline)):
            return
        moved = self._move(place, others, alive, old) if others else None
        if moved is None:
            self._go_on(place)
            self._kept[place] = others
            self._write(places=self._roster.places)
            _log.warning(
                "%s: node %s (%s) is being drained, and %s: its shard %d stays, and goes with the node",
                *(self._setup.name, place.node, place.host),
                *("no other node could take it over" if others else "there is no other node", place.number),
            )
            return
        self._settling.leave(place)
        self._limits.move(place.number)
        self._write(places=tuple(moved if one == place else one for one in self._roster.places))
        self._publish()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(old.close.remote(), timeout=_CLOSING)
        ray.kill(old)
        _log.warning(
            "%s: node %s (%s) is being drained: its shard %d goes on on node %s (%s)",
            *(self._setup.name, place.node, place.host, place.number, moved.node, moved.host),
        )

    def _go_on(self, place: Place) -> None:
        """A shard stays where it is, though it may have settled."""
        self._settling.stay(place, self._actors.get(place.number) if place in self._roster.places else None)
        self._limits.move(place.number)

    def _move(self, place: Place, others: list[str], alive: Mapping[str, str], old: Any) -> Place | None:
        """The shard on the first of those nodes that can have it; None: on none, and the old one goes on."""
        moved = None
        try:
            self._write(places=self._roster.places, leaving=frozenset({place.number}))
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._publish(), timeout=_CLOSING)  # writers go elsewhere, rather than to wait here
            origin = ray.get(old.leave.remote())
            moved = self._move_to(place, others, alive, origin)
        except ray.exceptions.RayError as error:
            _log.warning("%s: shard %d cannot be handed over: %s", self._setup.name, place.number, error)
        finally:
            if moved is None:
                self._actors[place.number] = old
        return moved

    def _move_to(
        self, place: Place, others: list[str], alive: Mapping[str, str], origin: Origin | None
    ) -> Place | None:
        for node in others:
            with contextlib.suppress(EchoShmError, ray.exceptions.RayError):
                (asked,) = nodes.ask([(node, alive[node])])
                moved = self._place(place.number, asked, place.incarnation + 1)
                if self._make(moved, origin):
                    return moved
        return None

    def _say_lost(self, loss: Loss, left: int, why: str) -> None:
        what = "nothing is known of what it held" if loss.num_steps < 0 else f"it held {loss.num_steps:,} steps"
        items = ", ".join(f"{size:,} items of table {name!r}" for name, size in loss.tables.items())
        after = "it goes on elsewhere with what its store has" if loss.restored else "they are lost"
        _log.warning(
            "%s: shard %d on node %s (%s) is gone, because %s: %s%s; %s; %d other shards go on",
            *(self._setup.name, loss.number, loss.node, loss.host, why, what, items and f", {items}", after, left),
        )

    # -- the directory

    def _write(
        self,
        places: tuple[Place, ...],
        losses: tuple[Loss, ...] | None = None,
        leaving: frozenset[int] = frozenset(),
    ) -> None:
        with self._lock:
            given = self._roster.losses if losses is None else losses
            self._roster = Roster(self._roster.epoch + 1, places, given, leaving, frozenset(self._seen))

    def _publish(self) -> Any:
        """Each time: the directory may have been started again."""
        return self._directory.publish.remote(self._roster)

    @property
    def roster(self) -> Roster:
        """Where the shards are, and what was lost."""
        return self._roster

    def each(self, call: str, *args: Any) -> list[Any]:
        """Calls each shard's actor, and waits for all."""
        found: list[Any] = ray.get(
            [getattr(self._actors[one.number], call).remote(*args) for one in self._roster.places]
        )
        return found

    # -- the end

    def _end(self, number: int) -> None:
        """An actor that is of no use any more."""
        actor = self._actors.pop(number, None)
        if actor is not None:
            ray.kill(actor)

    def close(self, patience: float = 10.0) -> None:
        """Closes all shards. Those that cannot be reached have so many seconds; a guard removes what they leave."""
        self._ended.set()
        if hasattr(self, "_thread"):
            self._thread.join()
            self.watch.close()
        if not nodes.is_connected(self._node):
            return  # with Ray all actors have ended
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=patience)
        for number in list(self._actors):
            self._end(number)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._directory)


def _loss(place: Place, report: Report | None, *, restored: bool) -> Loss:
    tables = {} if report is None else {name: info.size for name, info in report.tables.items()}
    steps = -1 if report is None else report.num_steps
    return Loss(place.number, place.node, place.host, steps, tables, restored)
