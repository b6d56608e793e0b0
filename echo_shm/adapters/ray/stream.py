"""A stream over the nodes of a cluster: on-policy samples, from workers anywhere to learners anywhere, each once."""

import contextlib
import functools
import inspect
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import ray

from echo_shm.adapters.ray import guard, nodes
from echo_shm.adapters.ray.asking import ask
from echo_shm.adapters.ray.example import Example
from echo_shm.adapters.ray.keys import Keys
from echo_shm.adapters.ray.learners import Learner, Learners
from echo_shm.adapters.ray.stream_client import StreamClient, Way
from echo_shm.adapters.ray.workers import RayWorkers
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, EchoShmError
from echo_shm.net.transport import TcpTransport
from echo_shm.replay.validation import integer
from echo_shm.ring import lockfile
from echo_shm.ring.lockfile import WEIGHTS
from echo_shm.ring.protocols import Finishing
from echo_shm.ring.sample import Sample
from echo_shm.server import Server
from echo_shm.spec import Spec, Tree
from echo_shm.timeouts import check_timeout

_log = logging.getLogger("echo_shm")

#: A learner says so often that it is there, and looks so often for workers that have failed (seconds).
_EVERY, _CHECKING = 0.5, 0.2


class RayStream(Closing):
    """On-policy samples over the nodes of a Ray cluster: a ring in the shared memory of each learner's node.

    Workers on a learner's node write into its ring. Those of other nodes send over its bridge, evenly shared among the
    learners. Each sample goes to one learner. Ray's object store takes no part in it.

    A RayStream pickles: another process of the cluster gets the same stream, to learn from it. Who made it closes it.
    It is a context manager that closes on exit. If a learner's process is killed, and the next one comes up on the same
    node, that goes on with the ring: nothing is lost. If the process that made the stream is killed, each node removes
    its rings within about a minute.

    Args:
        example: As for :class:`~echo_shm.Server`.
        batch_size: Samples in a batch.
        num_buffers, max_producers, order, writable: As for :class:`~echo_shm.Server`; of each learner.
        learner_grace: For how many seconds a worker waits for a learner: for the first one, or for another one if its
            own is gone. None: no limit.

    Raises:
        ValueError, TypeError: As for :class:`~echo_shm.Server`.
        EchoShmError: A node has another version of echo_shm or Python, or Ray has not been started.

    """

    def __init__(
        self,
        example: Tree,
        batch_size: int,
        *,
        num_buffers: int = 4,
        max_producers: int = 1024,
        order: Literal["fifo", "ready"] = "fifo",
        writable: bool = False,
        learner_grace: float | None = 60.0,
    ) -> None:
        nodes.check_started()
        Spec.from_example(example)
        options = {
            "batch_size": integer("batch_size", batch_size, 1),
            "num_buffers": integer("num_buffers", num_buffers, 1),
            "max_producers": integer("max_producers", max_producers, 1),
            "order": order,
            "writable": bool(writable),
        }
        if order not in ("fifo", "ready"):
            raise ValueError(f"order={order!r}: use 'fifo' or 'ready'")
        grace = check_timeout(learner_grace, label="learner_grace")
        nodes.ask(list(nodes.alive().items()))
        actor = ray.remote(Learners).options(max_restarts=-1, **nodes.on(nodes.here()))
        self._join(f"ray-{secrets.token_hex(6)}", Example(example), options, Keys.make(), grace, actor.remote())
        self._owns = True

    def _join(
        self, name: str, like: Example, options: dict[str, Any], keys: Keys, grace: float | None, learners: Any
    ) -> None:
        """What every process has of its own."""
        self._name, self._like, self._options, self._keys = name, like, options, keys
        self._grace, self._learners = grace, learners
        self._servers: weakref.WeakSet[Server] = weakref.WeakSet()
        self._groups: list[RayWorkers] = []
        self._owns = False

    @classmethod
    def _attach(cls, *parts: Any) -> "RayStream":
        self = cls.__new__(cls)
        self._join(*parts)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self._name, self._like, self._options, self._keys, self._grace, self._learners
        return RayStream._attach, parts

    @property
    def name(self) -> str:
        """The stream's name. The names of its rings begin with it: ``echo-shm ls`` shows them on their nodes."""
        return self._name

    # -- learners

    def learner(self) -> Server:
        """Makes this process a learner: a server whose ring the stream's workers fill.

        It is used as on one machine: :meth:`Server.sample`, :meth:`Server.dataset_iter`, :meth:`Server.publisher` and
        others. With its end, its workers go on to the other learners. If a learner of this node was killed, this one
        goes on with its ring.

        Returns:
            A :class:`~echo_shm.Server`, which is the caller's to close.

        Raises:
            SegmentError: Shared memory is too small.
            ConnectionClosedError: The stream is closed.

        """
        server = self._begin()
        if server is None:
            raise ConnectionClosedError(f"stream {self._name!r} is closed")
        return server

    def _begin(self) -> Server | None:
        """A learner; None if the stream is closed."""
        node = nodes.here()
        host = nodes.alive()[node]
        server = self._gone_on_with(node, host) or self._new(host)
        try:
            server.start()
            learner = Learner(server.name, node, host, server.port)
            if ask(self._learners, "announce", learner):
                server.close()
                return None
        except BaseException:
            server.close()
            raise
        self._servers.add(server)
        nodes.thread(_tell, "learner", weakref.ref(server), self._learners, learner).start()
        return server

    def _transport(self, host: str, port: int = 0) -> TcpTransport:
        return TcpTransport(port, host=host, authkey=self._keys.authkey, tls=self._keys.pem())

    def _new(self, host: str) -> Server:
        name = f"{self._name}-{secrets.token_hex(4)}"
        guard.watch(name)  # before there is anything: this process may be killed while it makes it
        return Server(self._like.tree, transport=self._transport(host), name=name, **self._options)

    def _gone_on_with(self, node: str, host: str) -> Server | None:
        """The server of a ring of this node whose learner was killed, if there is one."""
        rings = [one for one in lockfile.names() if one.startswith(f"{self._name}-") and not one.endswith(WEIGHTS)]
        ports = {one.ring: one.port for one in ask(self._learners, "look") if one.node == node} if rings else {}
        for ring in rings:
            with contextlib.suppress(EchoShmError):  # it has just ended, or is just being made
                server = Server._go_on(
                    ring, self._like.tree, self._transport(host, ports.get(ring, 0)), writable=self._options["writable"]
                )
                if server is not None:
                    return server
        return None

    def dataset_iter(self, *, until: Finishing | None = None, **options: Any) -> Iterator[Sample]:
        """Makes this process a learner, and yields its batches: see :meth:`Server.dataset_iter`.

        Args:
            until: The iteration ends once these workers have ended, and no full batch is left.
            options: As for :meth:`Server.dataset_iter`.

        Raises:
            TypeError: An option is unknown.
            Exception: What a worker raised that this process has started.

        """
        inspect.signature(Server.dataset_iter).bind(self, until=until, **options)
        return self._batches(until, options)

    def _batches(self, until: Finishing | None, options: dict[str, Any]) -> Iterator[Sample]:
        server = self._begin()
        if server is not None:
            with server:
                yield from server.dataset_iter(until=_Workers(self._groups, until), **options)

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
        """Starts n workers, which Ray places. Worker i runs ``fn(client, i, args0[i], args1[i], ...)``.

        Its client is a :class:`StreamClient`. A worker that has sent to a stream until that was closed has finished.

        Args:
            fn: It pickles, as what an actor of Ray gets does.
            n: How many, 1 or more.
            per_worker_args: Sequences with an entry for each worker.
            num_cpus: What Ray sets aside for each.
            restart: A worker whose process or node died is started again.
            options: Further options of an actor of Ray's.

        Returns:
            The workers. A failed worker's exception is raised by :meth:`dataset_iter`, or by ``join()``.

        """
        way = Way(
            self._name,
            self._like,
            self._keys.public(),
            self._grace,
            functools.partial(ask, self._learners, "place"),
            functools.partial(ask, self._learners, "better"),
            functools.partial(ask, self._learners, "end"),
        )
        group = _StreamWorkers(
            (way, f"{self._name}.{len(self._groups)}"), (), fn, n, per_worker_args, num_cpus, restart, options
        )
        self._groups.append(group)
        return group

    # -- the end

    def close(self) -> None:
        """Ends this process's learners, and, in the process that made it, the stream. Idempotent.

        Learners elsewhere can still take what is in their rings.
        """
        if self._owns:
            with contextlib.suppress(ConnectionClosedError):
                ask(self._learners, "close")
        for group in self._groups:
            group.stop()
        for server in list(self._servers):
            server.close()

    def __repr__(self) -> str:
        return f"<RayStream {self._name!r}, batches of {self._options['batch_size']}>"


class _StreamWorkers(RayWorkers):
    """The workers of a stream."""

    @staticmethod
    def _task(common: tuple[Any, tuple[Any, ...], Callable[..., Any]], i: int, *args: Any) -> Any:
        (way, group), _, fn = common
        with StreamClient(way, nodes.here(), f"{group}.{i}") as client:
            try:
                return fn(client, i, *args)
            except ConnectionClosedError:
                if not client.is_over:
                    raise
                return None


class _Workers:
    """All workers that a process has started, and those that it waits for."""

    def __init__(self, groups: Sequence[RayWorkers], until: Finishing | None) -> None:
        self._groups, self._until, self._looked = groups, until, 0.0

    def check(self) -> None:
        """Raises a failed worker's exception."""
        now = time.monotonic()
        if now - self._looked > _CHECKING:
            self._looked = now
            for one in [*self._groups, *([] if self._until is None else [self._until])]:
                one.check()

    @property
    def finished(self) -> bool:
        """Whether those that are waited for have ended."""
        self.check()
        return self._until is not None and self._until.finished


def _tell(server: "weakref.ref[Server]", learners: Any, learner: Learner) -> None:
    """Says that a learner is there, until it is not. Ends it once the stream is closed."""
    while True:
        time.sleep(_EVERY)
        one = server()
        if one is None or one._end is None or not one._end.alive:
            with contextlib.suppress(ConnectionClosedError):
                ask(learners, "leave", learner.ring)
            return
        try:
            closed = ask(learners, "announce", learner)
        except ConnectionClosedError:
            closed = True
        if closed:
            one.close()
            return
        del one
