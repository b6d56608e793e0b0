"""What other code may bring: the shapes that :class:`~echo_shm.Server` accepts."""

from typing import Protocol

from echo_shm.ring.handle import Handle


class Transport(Protocol):
    """What brings remote samples into a ring; :class:`TcpTransport` is one.

    Nothing in it needs to know the ring. It runs where it likes, best in a process of its own: whatever receives
    samples there is a ``ShmClient(handle)`` that sends them. A transport may have ``port``, which ``server.port``
    returns, and ``max_connections``.
    """

    def start(self, handle: Handle) -> None:
        """Starts accepting samples, and returns. Called by ``server.start()``, once.

        Args:
            handle: The segment's; pickles.

        """

    def shutdown(self) -> None:
        """Stops accepting samples, and leaves the ring. Called by ``server.close()``, before the ring is closed."""


class Finishing(Protocol):
    """What ``dataset_iter(until=…)`` waits for; :class:`WorkerGroup` is one."""

    @property
    def finished(self) -> bool:
        """Whether no more samples will come from it."""

    def check(self) -> None:
        """Raises if it failed."""
