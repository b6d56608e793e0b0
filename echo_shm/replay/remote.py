"""What writes into a replay from another host."""

from types import TracebackType
from typing import Any, NoReturn

from echo_shm.errors import SpecMismatchError
from echo_shm.net.client.client import TcpClient
from echo_shm.net.client.subscriber import TcpSubscriber
from echo_shm.replay.item_writer import ItemWriter
from echo_shm.spec import Spec, Tree


class RemoteWriter(ItemWriter):
    """Sends steps over TCP to a replay with a transport: ``Replay(..., transport=TcpTransport(port))``.

    Its methods are those of a :class:`Writer`. When :meth:`add` returns, this process is responsible for the step: it
    sends it within a millisecond, and again after a lost connection, until it is in the replay's inbox, exactly once.
    From then on no process's death on the replay's host loses it. :meth:`flush` waits until it is stored. Threads may
    share a RemoteWriter. A forked child must not use its parent's. It is a context manager that closes on exit.

    Args:
        host, port: The replay's host, and its ``replay.port``.
        example: Example pytree of one step. It must have the replay's structure, dtypes and shapes.
        options: Keywords of :class:`TcpClient`: ``authkey``, ``tls``, ``reconnect``, ``timeout`` and others. That
            ``timeout`` counts where a call has none of its own.

    Raises:
        SpecMismatchError: The replay has other steps, or the server is not a replay's. The message names the first leaf
            that differs.
        WireError, ConnectionClosedError, OSError: As for :class:`TcpClient`.

    """

    def __init__(self, host: str, port: int, example: Tree, **options: Any) -> None:
        self._client = TcpClient(host, port, example, **options)
        tables = self._client._tables
        if tables is None:
            self._client.close()
            raise SpecMismatchError(f"{self._client._peer} takes samples for batches, and is no replay: use TcpClient")
        self._client._send_whole_samples()
        super().__init__(tables, Spec.from_example(example), self._client)

    @property
    def ring_closed(self) -> bool:
        """Whether nothing can be sent any more: the replay or this writer is closed, or the connection is lost.

        It is so as soon as any call raises ConnectionClosedError for that.
        """
        return self._client._sender.end_reason() is not None

    def flush(self, timeout: float | None = None) -> None:
        """Returns once the replay has all steps that were sent before: they are stored.

        Args:
            timeout: Seconds to wait; None: the writer's own ``timeout``.

        Raises:
            TimeoutError: It had not, in time. The message says how many steps are on their way, or in its inbox.
            ConnectionClosedError: The replay was closed, or the connection lost for good, before it had them. Or
                another replay has taken its place, and what the first had in its inbox is gone.
            ForkedError: Called in a child of the process that connected.

        """
        self._client._sender.flush_taken(self._client._time(timeout))

    def subscriber(self, example: Tree = None, timeout: float | None = 0.0) -> TcpSubscriber:
        """Subscribes to the weights that the learner publishes: see :meth:`Replay.publisher`.

        The arguments and the errors are those of :meth:`TcpClient.subscriber`.
        """
        return self._client.subscriber(example, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Delivers what was sent to the replay's inbox, then disconnects; see :meth:`TcpClient.close`. Idempotent."""
        self._client.close(timeout)

    def _why_not(self) -> str:
        return "its inbox is full: a rate limiter may let nobody insert, or its process makes no calls"

    def __enter__(self) -> "RemoteWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<RemoteWriter for {self._client._peer}, {'closed' if self.ring_closed else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RemoteWriter belongs to its process: make a new one in the other process")
