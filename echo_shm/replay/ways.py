"""The two ways into a replay that a process does not have: through shared memory, and over TCP."""

import contextlib
import functools
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from echo_shm.errors import ConnectionClosedError, SegmentError, SpecMismatchError, WireError
from echo_shm.net import learner_wire, wire
from echo_shm.net.client.backoff import Backoff
from echo_shm.net.client.batches import Batches
from echo_shm.net.client.client import TcpClient, checked_options, host_and_port
from echo_shm.net.client.connection import RefusedError, open_first
from echo_shm.net.client.learner_connection import LearnerConnection
from echo_shm.net.learner_wire import Ask
from echo_shm.net.wire import Frame
from echo_shm.replay import learner
from echo_shm.replay.batch import Batch
from echo_shm.replay.batch_rings import spec_of_batches
from echo_shm.replay.finding import find_replay
from echo_shm.replay.remote import RemoteWriter
from echo_shm.replay.stock import RemoteStock, Stock
from echo_shm.replay.writer import ReplayHandle, Writer, join
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.board import read_board
from echo_shm.ring.updates import UPDATE_BLOCK, UPDATE_SPEC, ask_for_batches
from echo_shm.spec import Array, Spec, Tree

#: How long to wait for the next replay if this one was killed (seconds).
_GRACE = 30.0

_T = TypeVar("_T")

#: Most batches on their way to a learner on another host.
_MOST = 1 << 20


class Way(Protocol):
    """What a :class:`ReplayClient` needs.

    Attributes:
        what: The replay's name, or its address.
        names: Its tables' names.

    """

    what: str
    names: tuple[str, ...]

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    def send(self, block: Array, timeout: float | None) -> None:
        """Sends a block of updates."""

    def batches(
        self, one: BatchRing, prefetch: int, timeout: float | None, *, early: bool = False
    ) -> Generator[Batch | None]:
        """Yields the batches of a ring, see :meth:`ReplayClient.dataset_iter`; None where nothing came in time.

        ``early``: what has a place of its own here gives up its place in the ring once others wait for that. It may not
        come again if the iteration ends.
        """

    def stock(self, table: int, prefetch: int, timeout: float) -> Stock | None:
        """As :meth:`batches`, of one item each, for a learner that takes several. None: there is no ring in time."""

    def figures(self) -> object:
        """What the replay's board says of its tables."""

    def writer(self, learner_grace: float | None) -> "Writer | RemoteWriter":
        """A new writer."""

    def close(self) -> None:
        """Leaves the replay."""


class LocalWay:
    """Through shared memory. Arguments and errors are those of :class:`ReplayClient`."""

    def __init__(self, handle_or_name: ReplayHandle | str, example: Tree) -> None:
        self.handle = find_replay(handle_or_name, example) if isinstance(handle_or_name, str) else handle_or_name
        self.what, self.names = self.handle.name, tuple(name for name, *_ in self.handle.tables)
        self._updates = join(self.handle, self.handle.updates, _GRACE)
        self._block, self._lock = np.zeros((), UPDATE_BLOCK), threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._updates.ring_closed

    def send(self, block: Array, timeout: float | None) -> None:
        """Sends a block of updates."""
        self._updates.send(block, timeout)

    def batches(
        self, one: BatchRing, prefetch: int, timeout: float | None, *, early: bool = False
    ) -> Generator[Batch | None]:
        """Yields the batches of a ring; None where nothing came in time. They have no place but that in the ring."""
        self._updates._attachment.refuse_in_child()
        treespec = self.handle.treespec
        assert treespec is not None  # a replay knows its steps
        # One batch more: the one that the learner works on.
        ask = functools.partial(self._ask, one, prefetch + 1)
        return learner.batches(self.what, one, treespec, timeout, _GRACE, ask)

    def stock(self, table: int, prefetch: int, timeout: float) -> Stock | None:
        """The batches of one item of a table; None: there is no ring in time."""
        self._updates._attachment.refuse_in_child()
        treespec = self.handle.treespec
        assert treespec is not None  # a replay knows its steps
        one = BatchRing(table, 1, 0, 0)
        ask = functools.partial(self._ask, one, prefetch)
        return learner.stock(self.what, one, treespec, timeout, _GRACE, ask, self.handle.inbox)

    def _ask(self, one: BatchRing, num_batches: int) -> None:
        with self._lock:
            ask_for_batches(self._block, one, num_batches)
            with contextlib.suppress(TimeoutError):  # it takes nothing now: the caller asks again
                self._updates.send(self._block, 0)

    def figures(self) -> object:
        """What the replay's board says of its tables."""
        try:
            return read_board(self.what).get("tables", {})
        except SegmentError:
            raise ConnectionClosedError(f"replay {self.what!r} is closed") from None

    def writer(self, learner_grace: float | None) -> Writer:
        """A new writer."""
        return Writer(self.handle, learner_grace=learner_grace)

    def close(self) -> None:
        """Leaves the replay."""
        self._updates.close()


class RemoteWay:
    """Over TCP, to a replay with a transport. Arguments and errors are those of :class:`ReplayClient`.

    Updates go through a :class:`TcpClient`, each once. Each iteration has a connection of its own, and so has each look
    at the figures.

    Args:
        address: ``tcp://host:port``.
        example: Example pytree of one step; None: from what the server says.
        authkey, tls, reconnect, timeout, close_timeout: As for :class:`TcpClient`.

    """

    def __init__(
        self,
        address: str,
        example: Tree,
        *,
        authkey: bytes | None,
        tls: ssl.SSLContext | None,
        reconnect: bool | float,
        timeout: float | None,
        close_timeout: float | None,
    ) -> None:
        self.what = address
        host, port = host_and_port(address)
        given: dict[str, Any] = {"authkey": authkey, "tls": tls, "reconnect": reconnect, "timeout": timeout}
        self._options, self._grace, self._timeout = checked_options(host, port, UPDATE_SPEC, **given)
        with contextlib.closing(self._connect(secrets.token_bytes(16))) as connection:
            self.names = tuple(name for name, *_ in connection.tables)
            self._step = _known(connection.step, example, address)
            connection.send([wire.bye(0)])
        self._host, self._port, self._given = host, port, {**given, "close_timeout": close_timeout}
        self._updates = TcpClient(host, port, np.zeros((), UPDATE_BLOCK), **self._given)

    def _connect(self, client: bytes) -> LearnerConnection:
        options = self._options._replace(client=client)
        return open_first(lambda timeout: LearnerConnection(options, timeout), self._timeout)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._updates._closed.is_set()

    def send(self, block: Array, timeout: float | None) -> None:
        """Sends a block of updates."""
        self._updates.send(block, timeout)

    def batches(
        self, one: BatchRing, prefetch: int, timeout: float | None, *, early: bool = False
    ) -> Generator[Batch | None]:
        """Yields the batches of a ring; None where nothing came in time."""
        self._updates._sender.raise_if_forked()
        if one.n > learner_wire.MAX_ITEMS:
            raise ValueError(f"n={one.n}: a batch on another host has at most {learner_wire.MAX_ITEMS} items")
        # One batch more: the one that the learner works on.
        ask = Ask(one.table, one.n, min(prefetch + 1, _MOST), rank=one.rank, world_size=one.world_size)
        return self._batches(ask, timeout, early)

    def _batches(self, ask: Ask, timeout: float | None, early: bool) -> Generator[Batch | None]:
        received, build = self._receive(ask, timeout, early=early)
        try:
            while (arrays := received.next(timeout)) or not received.over:
                # The generator itself must not refer to the batch while its user works on it, or waits for the next.
                yield build(arrays.pop()) if arrays else None
        finally:
            received.close()

    def stock(self, table: int, prefetch: int, timeout: float) -> Stock | None:
        """The batches of one item of a table."""
        self._updates._sender.raise_if_forked()
        return RemoteStock(*self._receive(Ask(table, 1, prefetch), timeout))

    def _receive(
        self, ask: Ask, timeout: float | None, *, early: bool = False
    ) -> tuple[Batches, Callable[[list[Array]], Batch]]:
        """Connects. Returns what comes, and what makes a batch of its arrays."""
        client = secrets.token_bytes(16)
        specs: list[Spec] = []

        def check(found: Spec) -> None:
            specs.append(spec_of_batches(found, self._step.structure, f"the server at {self.what}"))

        options = self._options._replace(client=client)
        connection = self._tried(lambda: self._connect(client), timeout)
        received = Batches(options, connection, ask, check, self._grace, early=early)
        return received, lambda arrays: cast(Batch, specs[0].structure.unflatten(arrays))

    def figures(self) -> object:
        """What the replay's board says of its tables."""
        return self._tried(self._ask_figures)

    def _tried(self, attempt: Callable[[], _T], limit: float | None = None) -> _T:
        """Tries again while the server cannot be reached, as the client of the updates does, for `limit` seconds."""
        backoff = Backoff(self._grace if limit is None else min(limit, self._grace))
        backoff.restart(useful=True)
        while True:
            self._updates._sender.raise_if_forked()
            self._updates._sender.raise_if_ended()
            try:
                return attempt()
            except (SpecMismatchError, WireError, RefusedError):
                raise
            except OSError:
                if backoff.time_left() <= 0:
                    raise
            time.sleep(backoff.next_delay())  # no word comes of a server that cannot be reached

    def _ask_figures(self) -> object:
        with contextlib.closing(self._connect(secrets.token_bytes(16))) as connection:
            connection.send([learner_wire.info()])
            while (header := connection.receive_header()).kind is Frame.ACK:
                pass
            body = connection.receive_body(header.length)
            if header.kind is not Frame.INFO:
                raise ConnectionClosedError(f"{self.what} has closed: {wire.printable(body)}")
            connection.send([wire.bye(0)])
        if not body:
            raise RefusedError(f"the replay at {self.what} is closed")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"the figures of {self.what} cannot be read: {error}") from None

    def writer(self, learner_grace: float | None) -> RemoteWriter:
        """A new writer."""
        example = self._step.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in self._step.leaves])
        return RemoteWriter(self._host, self._port, example, **self._given)

    def close(self) -> None:
        """Leaves the replay."""
        self._updates.close()


def _known(step: Spec, example: Tree, address: str) -> Spec:
    """What a step looks like, with its tree."""
    if example is not None:
        mine = Spec.from_example(example)
        mine.check_same(step, f"the replay at {address}")
        return mine
    if step.treespec is None:
        raise SpecMismatchError(
            f"the replay at {address} has steps with node types beyond dict, OrderedDict, list, tuple and None: "
            f"pass an example, ReplayClient({address!r}, example)"
        )
    return step
