"""What a :class:`~echo_shm.Server` accepts from other code: transports, and what ends a stream.

They are beside the ring, below both of its faces: the batch reader asks a ``Finishing``, the server starts a
``Transport``, and a transport gets the ring's handle.
"""

from typing import Protocol

from echo_shm.ring.handle import Handle


class Transport(Protocol):
    """Brings remote samples into a ring. :class:`TcpTransport` is one.

    A transport does not have to know the ring. It runs wherever it likes, best in a process of its own: the code that
    receives samples there sends them with a ``ShmClient(handle)``. A transport may have the attributes ``port``,
    which ``server.port`` returns, and ``max_connections``.
    """

    def start(self, handle: Handle) -> None:
        """Starts to accept samples, and returns. ``server.start()`` calls it, once.

        Args:
            handle: The segment's handle. It pickles.

        """

    def shutdown(self) -> None:
        """Stops accepting samples and detaches from the ring. ``server.close()`` calls it before the ring closes."""


class Finishing(Protocol):
    """What ``dataset_iter(until=…)`` waits for. :class:`WorkerGroup` is one.

    If it has a method ``ended()``, that is called when everything has been delivered. It may raise, too.
    """

    @property
    def finished(self) -> bool:
        """Whether no more samples will come from it."""

    def check(self) -> None:
        """Raises an exception if it failed."""


def check_finishing(until: object) -> None:
    """Raises TypeError unless it is None or has the methods."""
    if until is not None and not (hasattr(until, "check") and hasattr(until, "finished")):
        raise TypeError(f"until is a WorkerGroup, or has finished and check(); got {type(until).__name__}")


def tell_ended(until: Finishing) -> None:
    """Tells ``until`` that everything has been delivered, if it wants to know."""
    ended = getattr(until, "ended", None)
    if ended is not None:
        ended()
