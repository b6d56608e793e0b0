"""A replay and its workers: when its rings are opened, who stores what they bring, and how a call waits for that."""

import dataclasses
import functools
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from echo_shm._core import ffi
from echo_shm._replay import Core
from echo_shm.errors import EchoShmError, SegmentError
from echo_shm.net.transport import TcpTransport
from echo_shm.replay import untaken
from echo_shm.replay.ahead import Ahead
from echo_shm.replay.batch import TableInfo, table_info, why_no_insert
from echo_shm.replay.batch_rings import batch_spec
from echo_shm.replay.feed import Feed
from echo_shm.replay.history import explicit
from echo_shm.replay.sources import Sources
from echo_shm.replay.store import Store
from echo_shm.replay.untaken import Untaken
from echo_shm.replay.waiting import Changes
from echo_shm.replay.waits import Waits
from echo_shm.replay.writer import ReplayHandle, Writer
from echo_shm.ring import transports
from echo_shm.ring.protocols import Transport
from echo_shm.ring.stuck import only_thread
from echo_shm.workers.group import WorkerGroup

_T = TypeVar("_T")

#: The longest sleep before somebody looks for dead writers (seconds).
_SLICE = 0.1

#: Between two looks at whether all is stored (seconds).
_NAP = 1e-3

#: The longest sleep of a thread that waits for workers to end (seconds): they end without a word to the rings.
_SHORT = 0.02


def join(store: Store, max_producers: int, given: Sequence[Transport]) -> Sources:
    """The rings that bring something to the replay of that store: new ones, or those that a killed replay has left."""
    name = store.known_as or f"{os.getpid()}-{secrets.token_hex(4)}"
    tables = tuple(
        (table, settings.exponents, layout.finals, explicit(item))
        for (table, settings), layout, item in zip(store.tables.items(), store.layouts, store.items, strict=True)
    )
    return Sources(name, store.spec, tables, max_producers, transports.remotes(given))


class Rings:
    """The part of a replay that other processes know of. It does nothing before :meth:`open`."""

    def __init__(
        self,
        core: Core,
        changes: Changes,
        store: Store,
        max_producers: int,
        given: Sequence[Transport],
        sources: Sources | None,
    ) -> None:
        self._core = core
        self._changes = changes
        self._store = store
        self._names = tuple(store.tables)
        self._max_producers = max_producers
        self._sources = sources
        self._transports = given
        self._started: list[Transport] = []
        self._feed: Feed | None = None
        self._thread: threading.Thread | None = None
        self._groups: list[WorkerGroup] = []
        self._aheads: list[Ahead] = []
        self._closed = False
        self._waits = Waits()
        #: Whether a call stores what has come before it does its own work. A thread does so otherwise.
        self.idle = False

    @property
    def has_thread(self) -> bool:
        """Whether a thread stores what has come."""
        return self._thread is not None

    # -- opening

    def open(self) -> Feed:
        """The feed. The first call makes it."""
        if self._feed is None:
            self._sources = sources = self._sources or join(self._store, self._max_producers, self._transports)
            name, spec = sources.handle.name, self._store.spec
            specs = [
                batch_spec(layout.data, item)
                for layout, item in zip(self._store.layouts, self._store.items, strict=True)
            ]
            self._feed = Feed(self._core, sources, name, spec, specs, self._describe)
            self.idle = self._thread is None
        return self._feed

    @property
    def handle(self) -> ReplayHandle:
        """See :attr:`Replay.handle`."""
        return self.open().handle

    def spawn(self, fn: Callable[..., Any], n: int, args: Sequence[Sequence[Any]], **how: Any) -> WorkerGroup:
        """See :meth:`Replay.spawn`."""
        context, restart = how.pop("context"), how.pop("restart")
        connect = functools.partial(Writer, self.handle)
        pump = self.pump if self._thread is None else None
        group = WorkerGroup(connect, fn, n, args, context, restart, stuck=self._stuck, pump=pump, **how)
        self._groups.append(group)
        return group

    def start(self) -> None:
        """Starts the thread that stores what has come."""
        feed = self.open()
        self.idle = False
        # It does not refer to the Replay, whose end ends it.
        self._thread = threading.Thread(target=self._run, args=(feed,), name="echo_shm-replay", daemon=True)
        self._thread.start()

    def begin_serving(self, transport: Transport) -> None:
        """Starts the thread, and that transport, of a replay that had none."""
        self.start()
        self._transports = (transport,)
        self.serve()

    def serve(self) -> None:
        """Starts the transports."""
        if self._transports:
            transports.start(self._transports, self.handle.inbox)
        self._started += self._transports

    @property
    def port(self) -> int:
        """See :attr:`Replay.port`."""
        return transports.port(self._transports, "replay")

    def shut_down(self) -> None:
        """Ends the transports. Idempotent."""
        transports.shut_down(self._started)

    def _run(self, feed: Feed) -> None:
        """The thread: stores what comes, until the replay is closed.

        Whoever closes it says so first, and then wakes. So this looks whether it is closed after it has read ``seen``.
        """
        while True:
            seen = feed.seen
            if self._closed:
                return
            if self._work():
                continue
            if feed.waits is None and not feed.held_back and not any(ahead.short for ahead in self._aheads):
                feed.wait(seen, _SLICE)
                continue
            # Whoever samples may let in what waits or is parked, and whoever inserts may give a batch items. It wakes
            # the threads that it finds waiting: so this one is counted, and then looks once more.
            with self._changes.counted():
                seen = feed.seen
                if not self._closed and not self._work():
                    feed.wait(seen, _SLICE)

    def _work(self) -> bool:
        """One turn of the thread: whether there was anything to do."""
        done = self.turn()
        made = [ahead.make() for ahead in self._aheads]
        if any(made) and self._core.waiting:
            self.tell()
        return bool(done) or any(made)

    # -- making batches ahead

    def begin(self, ahead: Ahead) -> None:
        """Has the thread make batches ahead."""
        self._aheads = [*self._aheads, ahead]
        self.wake()

    def end(self, ahead: Ahead) -> None:
        """Has it make no more."""
        self._aheads = [one for one in self._aheads if one is not ahead]
        ahead.end()

    def wake(self) -> None:
        """Wakes the thread: there is room for a batch."""
        if self._feed is not None:
            self._feed.wake()

    def close(self) -> None:
        """Ends the rings, and the thread. Idempotent."""
        rings = self._stop()
        if rings is not None:
            rings.close()

    def leave(self) -> None:
        """Lets go of the rings, which stay for the next replay of that name."""
        rings = self._stop()
        if rings is not None:
            rings.leave()

    def _stop(self) -> Feed | Sources | None:
        self._closed, self.idle = True, False
        feed, thread = self._feed, self._thread
        if feed is not None:
            feed.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        rings = feed or self._sources
        self._feed = self._sources = None
        return rings

    # -- the end of what comes

    def shut_out(self) -> None:
        """Closes the replay to writers and clients of all hosts, and returns once all that they have sent is stored.

        A rate limiter that lets nothing in is waited for, however long.
        """
        feed = self.open()
        feed.shut_out()
        while not feed.ended:
            self.check()
            self.look()
            time.sleep(_NAP)  # another thread stores it, or a writer is about to commit: no word of its own says so

    @property
    def are_shut(self) -> bool:
        """Whether writers and clients are shut out, by this process or by one before it."""
        return self._sources is not None and self._sources.are_closed

    def untaken(self, tables: Collection[str]) -> int:
        """How many items of those tables are drawn for learners that are attached, and are not done yet."""
        feed = self._feed
        return 0 if feed is None else feed.untaken([self._names.index(one) for one in tables])

    def hold_untaken(self, tables: Collection[str]) -> Untaken:
        """Holds the items of those tables that are drawn, and that no learner has. Nothing is drawn of them meanwhile.

        First it ends the transports. Once a bridge has ended, the rings have what learners on other hosts do not have.
        """
        self.shut_down()
        return Untaken(self.handle.name, [self._names.index(one) for one in tables])

    def put_untaken(self, path: Path) -> None:
        """Puts what such a file has where learners get it first. It comes before the thread is started.

        Raises:
            SegmentError: It is damaged, or of another replay; or a ring cannot be made.

        """
        for table, saved in untaken.read(path).items():
            self.open().put(table, *saved)

    # -- storing

    def look(self) -> None:
        """Stores what has come, unless a thread does so."""
        if self.idle:
            self.turn()

    def turn(self) -> int:
        """Stores what has come: how much it was."""
        feed = self._feed
        if feed is None:
            return 0
        done = feed.turn(self._why_no_insert, is_last=self.idle)
        self._store.custom.check()
        if feed.unsynced and feed.stuck is None:
            done += 1
            try:
                self._store.make_room()
            except SegmentError as error:  # writers see it on the board; add() raises it
                feed.stuck = str(error)
        if done and self._core.waiting:
            self.tell()
        return done

    def tell(self) -> None:
        """Wakes threads that wait for a change."""
        if self._feed is not None:
            self._feed.wake()
        self._changes.tell()

    # -- waiting

    def wait(self, attempt: Callable[[], _T | None], timeout: float | None, why: Callable[[], str]) -> _T:
        """As :meth:`Changes.wait`, but workers, too, can bring what is waited for."""
        feed = self._feed
        if feed is None:
            return self._changes.wait(attempt, timeout, why)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changes.counted():
            last = False
            while True:
                seen = feed.seen
                self.look()
                got = attempt()
                if got is not None:
                    return got
                left = _SLICE if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{why()}. It stayed so for {timeout} s")
                self._check_workers()
                if last:
                    raise TimeoutError(
                        f"{why()}. No worker, client, transport or other thread is there that could change it"
                    )
                last = self._nobody_else(feed)
                if not last:
                    feed.wait(seen, min(left, _SLICE))

    def check(self) -> None:
        """Raises EchoShmError if the thread has died, or a transport cannot go on."""
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._closed:
            raise EchoShmError("the replay's thread has died: what was raised in it was printed")
        for transport in self._started:
            if isinstance(transport, TcpTransport):
                transport.wait(0.0)

    def pump(self, seconds: float) -> None:
        """Stores what comes, for a thread that only waits for the workers."""
        feed = self._feed
        if feed is None:
            return
        seen = feed.seen
        if not self.turn():
            feed.wait(seen, min(seconds, _SHORT))

    def _stuck(self) -> str | None:
        """Why the workers wait without end for a thread that only waits for them; None if they do not."""
        feed = self._feed
        if feed is None or feed.waits is None or not only_thread():
            return None
        return f"{feed.waits}. This thread, which joins, is all that could sample: do so first, or leave the block"

    def _check_workers(self) -> None:
        self._groups[:] = [group for group in self._groups if not group.left]
        for group in self._groups:
            if group.any_failed:
                group.check()

    def _nobody_else(self, feed: Feed) -> bool:
        working = any(not group.finished for group in self._groups)
        return not working and not self._started and only_thread() and feed.senders() == 0

    # -- the board

    def info(self, table: int) -> TableInfo | int:
        """A table's figures, or the code that says why there are none."""
        got = self._core.info(table)
        if isinstance(got, int):
            return got
        return table_info(self._store.tables[self._names[table]], ffi.from_buffer("es_table_info *", got))

    def _why_no_insert(self, table: int) -> str:
        info = self.info(table)
        return "" if isinstance(info, int) else why_no_insert(self._names[table], info)

    def _describe(self) -> dict[str, Any]:
        infos = {
            name: info for number, name in enumerate(self._names) if not isinstance(info := self.info(number), int)
        }
        tables = {name: dataclasses.asdict(info) for name, info in infos.items()}
        feed = self._feed  # None while it is made: nobody waits yet
        waits, activity = ([], {}) if feed is None else self._waits.look(infos, feed.waits, feed.boxes)
        said = {
            "capacity": self._store.capacity,
            "steps": self._core.num_steps(),
            "tables": tables,
            "waiting": waits,
            "activity": activity,
        }
        if self._store.directory is not None:
            said["directory"] = os.path.abspath(self._store.directory.path) + "/"
        return said
