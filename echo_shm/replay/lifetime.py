"""How a replay opens its store and its rings, and how it lets go of them."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from echo_shm._core import lib
from echo_shm._replay import Core
from echo_shm.closing import Closing
from echo_shm.replay.items import Items
from echo_shm.replay.rings import Rings, join
from echo_shm.replay.selectors import CustomSelector
from echo_shm.replay.store import Store
from echo_shm.replay.waiting import Changes
from echo_shm.ring.protocols import Transport
from echo_shm.weights import Publisher


class Lifetime(Items, Closing):
    """The part of a :class:`Replay` that begins and ends it.

    A replay ends with :meth:`close`, with the last reference to it, or with the interpreter. A store in shared memory
    is removed then, and one in a directory is synced.
    """

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
        self._publisher: Publisher | None = None
        if store.syncing is not None:
            store.syncing.start()
        self._changes = Changes(core)
        self._describe(core, store, Rings(core, self._changes, store, max_producers, given, sources))
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

    def close(self) -> None:
        """Ends the replay, and removes its store. Idempotent.

        A store in a directory is synced, and stays for :meth:`attach`.

        After that :meth:`sample` returns None, and every other call raises ConnectionClosedError. Threads that wait
        are woken. Batches stay as they are.
        """
        with contextlib.ExitStack() as ending:
            ending.callback(self._close)
            ending.callback(self._rings.shut_down)
            if self._publisher is not None:
                ending.callback(self._publisher.close)

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
