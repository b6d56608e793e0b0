"""Weights by way of the shard that a writer writes into, wherever that is."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from echo_shm.errors import ConnectionClosedError
from echo_shm.spec import Tree
from echo_shm.weights.subscription import Subscription

_T = TypeVar("_T")


class Moving(Protocol):
    """A :class:`RayWriter`, as its subscribers see it."""

    _writer: Any

    def _move(self, failed: Any, error: ConnectionClosedError) -> None: ...


class RaySubscriber(Subscription):
    """What :meth:`RayWriter.subscriber` returns. If the writer goes on with another shard, so does this.

    Versions never go backwards. After a move it waits until the other node has what this process had.
    """

    def __init__(self, writer: Moving, example: Tree, timeout: float | None) -> None:
        self._writer, self._example, self._timeout = writer, example, timeout
        self._last, self._closed = 0, False
        self._now, self._of = self._begun()

    def _begun(self) -> tuple[Subscription, Any]:
        """The first subscription, and the writer of a shard that it comes by way of."""
        while True:
            of = self._writer._writer
            try:
                return self._subscribe(of, 1), of
            except ConnectionClosedError as error:
                self._go_on(of, error)

    def _go_on(self, of: Any, error: ConnectionClosedError) -> None:
        """The writer goes on with another shard, if it cannot with this one. Raises the error if the weights alone end.

        A writer that left a shard which is there would send again what that shard has not acknowledged, and may have.
        """
        if self._closed or not of.ring_closed:
            raise error
        self._writer._move(of, error)

    def _subscribe(self, of: Any, version: int) -> Subscription:
        """Those that come by way of that writer of a shard, once there is such a version."""
        started = time.monotonic()
        found: Subscription = of.subscriber(self._example, self._timeout)
        try:
            found.wait(version, None if self._timeout is None else max(0.0, started + self._timeout - time.monotonic()))
        except BaseException:
            found.close()
            raise
        return found

    def _call(self, call: Callable[[Subscription], _T]) -> _T:
        """Calls what is subscribed to now, again if the writer goes on elsewhere meanwhile."""
        while True:
            of = self._writer._writer
            try:
                if self._of is not of:
                    self._now.close()
                    self._now, self._of = self._subscribe(of, max(1, self._last)), of
                found = call(self._now)
            except ConnectionClosedError as error:
                self._go_on(of, error)
            else:
                self._last = max(self._last, self._now.version)
                return found

    @property
    def version(self) -> int:
        """The version that this subscriber got last; 0 before the first one."""
        return max(self._last, self._now.version)

    @property
    def latest_version(self) -> int:
        """The version that was published last, as far as this process knows; 0 when there is none."""
        return self._call(lambda now: now.latest_version)

    def latest(self) -> Tree:
        """As :meth:`Subscriber.latest`."""
        return self._call(lambda now: now.latest())

    def poll(self, into: Tree = None) -> bool:
        """As :meth:`Subscriber.poll`."""
        return self._call(lambda now: now.latest_version > self._last and now.poll(into))

    def wait(self, min_version: int, timeout: float | None = None) -> int:
        """As :meth:`Subscriber.wait`."""
        return self._call(lambda now: now.wait(min_version, timeout))

    @contextlib.contextmanager
    def lease(self) -> Iterator[Tree]:
        """As :meth:`Subscriber.lease`."""
        with contextlib.ExitStack() as leased:
            yield self._call(lambda now: leased.enter_context(now.lease()))

    def close(self) -> None:
        """Ends it. The writer goes on. Idempotent."""
        self._closed = True
        self._now.close()
