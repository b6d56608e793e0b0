"""What a worker sends to a stream with: to one learner, and to the next one if that is gone."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import optree

from echo_shm._core import lib
from echo_shm.adapters.ray import nodes
from echo_shm.adapters.ray.example import Example
from echo_shm.adapters.ray.keys import Keys
from echo_shm.adapters.ray.learners import Learner
from echo_shm.client import ShmClient
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, EchoShmError, SegmentError, with_sent
from echo_shm.net.client.client import TcpClient
from echo_shm.spec import Tree
from echo_shm.weights.subscription import Subscription

_log = logging.getLogger("echo_shm")

_T = TypeVar("_T")

#: Between two questions for a learner (seconds), and for one that should rather have this worker.
_NAP, _BALANCING = 0.1, 5.0


@dataclass(frozen=True)
class Way:
    """What the workers of a stream have in common. It pickles.

    Attributes:
        name: The stream's.
        like: The example of a sample.
        keys: Of the learners' bridges; the public part will do.
        grace: How long a worker waits for a learner (seconds); None: no limit.
        place, better, end: Of :class:`Learners`.

    """

    name: str
    like: Example
    keys: Keys
    grace: float | None
    place: Callable[[str, str, str | None], tuple[Learner | None, bool]]
    better: Callable[[str, str, str], Learner | None]
    end: Callable[[str], object]


class StreamClient(Closing):
    """Sends samples to a learner of a :class:`RayStream`: what each of its workers gets.

    To a learner on the worker's own node it sends through shared memory, to another one over its bridge. If the learner
    is killed, it is waited for, as by :class:`ShmClient` and :class:`TcpClient`: one that comes back on its node gets
    everything. If it ends, or does not come back, the client goes on with another learner: what the first one had not
    taken is gone with it. If other learners join, some clients go on with one of them.

    What is sent after that carries version 0, until a subscriber of this client gets a version of the new learner.

    Threads may share a client. A forked child must not use its parent's.

    Args:
        way: Of the stream.
        node: The id of this node.
        worker: The worker's name.

    Raises:
        ConnectionClosedError: The stream is closed, or no learner came in time.

    """

    def __init__(self, way: Way, node: str, worker: str) -> None:
        self._way, self._node, self._worker = way, node, worker
        self._lock = threading.Lock()
        self._is_closed = self._is_over = False
        self._learner, self._client = self._find(None, None)
        self._ended = threading.Event()
        nodes.thread(self._balance, "balance").start()

    @property
    def learner(self) -> Learner:
        """The learner that it sends to."""
        return self._learner

    @property
    def is_over(self) -> bool:
        """Whether the stream is closed, as far as this client knows."""
        return self._is_over

    @property
    def version(self) -> int:
        """As :attr:`ShmClient.version`."""
        return self._client.version

    @version.setter
    def version(self, version: int) -> None:
        self._client.version = version

    def send(self, data: Tree, timeout: float | None = None) -> None:
        """Sends one sample, as :meth:`ShmClient.send` or :meth:`TcpClient.send` does.

        Raises:
            ConnectionClosedError: The stream or this client is closed, or there is no learner any more.
            SpecMismatchError, ValueError, TimeoutError, ForkedError: As there.

        """
        while True:
            client = self._client
            try:
                client.send(data, timeout)
                return
            except ConnectionClosedError as error:
                self._go_on(client, error)

    def send_many(self, data: Tree, timeout: float | None = None) -> None:
        """Sends n samples, as :meth:`ShmClient.send_many` does. The errors are those of :meth:`send`.

        Some samples may have been sent then: the message and the error's attribute ``sent`` say how many.
        """
        done = 0
        while True:
            client = self._client
            rest = optree.tree_map(lambda leaf: leaf[done:], data) if done else data  # noqa: B023
            try:
                client.send_many(rest, timeout)
                return
            except (ConnectionClosedError, TimeoutError) as error:
                done += getattr(error, "sent", 0)
                try:
                    if isinstance(error, TimeoutError):
                        raise
                    self._go_on(client, error)
                except (ConnectionClosedError, TimeoutError) as late:
                    raise with_sent(late, f"{late}; {done} of the samples were sent", done) from None

    def wait(self, timeout: float | None = None) -> None:
        """Returns when all samples that were sent to the learner are in its ring, as :meth:`TcpClient.wait`."""
        self._client.wait(timeout)

    def subscriber(self, example: Tree = None) -> Subscription:
        """Subscribes to the weights of the learner that this client sends to, also after it has gone on to another one.

        A learner that has no publisher yet is waited for.

        Args:
            example: As for :class:`Subscriber`.

        Raises:
            SegmentError: The learner has no publisher.
            SpecMismatchError: As for :class:`Subscriber`.

        """
        return StreamSubscriber(self, example)

    def close(self) -> None:
        """Delivers what was sent, then leaves. Idempotent.

        Raises:
            ConnectionClosedError: Some samples could not be delivered. The message says how many.

        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._ended.set()
        try:
            self._client.close()
        finally:
            with contextlib.suppress(EchoShmError):
                self._way.end(self._worker)

    def __repr__(self) -> str:
        return f"<StreamClient of {self._way.name!r}, {'closed' if self._is_closed else self._client!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a StreamClient belongs to its worker: pickle the RayStream, and spawn a worker there")

    # -- learners

    def _go_on(self, client: ShmClient | TcpClient, error: ConnectionClosedError) -> None:
        """Finds another learner, unless another thread has. Raises the error if there is none."""
        with self._lock:
            if self._is_closed:
                raise error
            if self._client is not client:
                return
            self._leave(client)
            self._learner, self._client = self._find(self._learner, error)
            _log.warning("%s: goes on with the learner at %s", self._worker, self._learner.host)

    def _balance(self) -> None:
        while not self._ended.wait(_BALANCING):
            with contextlib.suppress(EchoShmError, OSError):  # the actor, or that learner, is away: as before
                better = self._way.better(self._worker, self._node, self._learner.ring)
                if better is not None:
                    self._move(better, self._connect(better))

    def _move(self, learner: Learner, client: ShmClient | TcpClient) -> None:
        """Goes on with another learner. Calls in other threads that the old client ends go on there, too."""
        with self._lock:
            left = client if self._is_closed else self._client
            if not self._is_closed:
                self._learner, self._client = learner, client
        self._leave(left)

    def _leave(self, client: ShmClient | TcpClient) -> None:
        try:
            client.close()
        except ConnectionClosedError as lost:
            _log.warning("%s: %s", self._worker, lost)

    def _find(
        self, failed: Learner | None, error: ConnectionClosedError | None
    ) -> tuple[Learner, ShmClient | TcpClient]:
        """A learner that is there. Waits for one."""
        way, started, why = self._way, time.monotonic(), "nobody has called stream.learner() or iterated over it"
        while True:
            learner, self._is_over = way.place(self._worker, self._node, None if failed is None else failed.ring)
            if self._is_over:
                raise error or ConnectionClosedError(f"stream {way.name!r} is closed")
            if learner is not None:
                try:
                    return learner, self._connect(learner)
                except (EchoShmError, OSError) as refused:
                    if not isinstance(refused, ConnectionError | SegmentError | TimeoutError):
                        raise  # another try would end alike
                    failed, why = learner, str(refused)
            if way.grace is not None and time.monotonic() - started > way.grace:
                raise ConnectionClosedError(
                    f"stream {way.name!r} has had no learner for {way.grace:g} s (learner_grace): {why}"
                ) from error
            time.sleep(_NAP)

    def _connect(self, learner: Learner) -> ShmClient | TcpClient:
        way = self._way
        if learner.node == self._node:
            client = ShmClient(learner.ring, way.like.tree, learner_grace=way.grace)
            if not lib.es_api_learner_alive(client._attachment.ring):
                client.close()
                raise ConnectionClosedError(f"the process of learner {learner.ring!r} is dead")
            return client
        return TcpClient(
            learner.host,
            learner.port,
            way.like.tree,
            authkey=way.keys.authkey,
            tls=way.keys.client_context(),
            reconnect=float("inf") if way.grace is None else way.grace or False,
        )


class StreamSubscriber(Subscription):
    """The weights of the learner that a :class:`StreamClient` sends to."""

    def __init__(self, client: StreamClient, example: Tree) -> None:
        self._client, self._example = client, example
        self._of, self._now = client._client, self._subscribe()

    def _subscribe(self) -> Subscription:
        """A learner that has just begun makes its publisher soon."""
        return self._client._client.subscriber(self._example, self._client._way.grace)

    def _current(self) -> Subscription:
        if self._of is not self._client._client:
            self._now.close()
            self._of, self._now = self._client._client, self._subscribe()
        return self._now

    @property
    def version(self) -> int:
        """The version that this subscriber got last; 0 before the first one of this learner."""
        return self._current().version

    @property
    def latest_version(self) -> int:
        """The version that was published last, as far as this process knows; 0 when there is none."""
        return self._current().latest_version

    def latest(self) -> Tree:
        """As :meth:`Subscriber.latest`."""
        return self._current().latest()

    def poll(self, into: Tree = None) -> bool:
        """As :meth:`Subscriber.poll`."""
        return self._current().poll(into)

    def wait(self, min_version: int, timeout: float | None = None) -> int:
        """As :meth:`Subscriber.wait`."""
        return self._current().wait(min_version, timeout)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Tree]:
        """As :meth:`Subscriber.lease`."""
        with self._current().lease() as tree:
            yield tree

    def close(self) -> None:
        """Ends it. The client goes on. Idempotent."""
        self._now.close()
