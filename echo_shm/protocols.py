"""What other code may bring: the shapes that :class:`~echo_shm.Server` accepts."""

from typing import Protocol

from echo_shm.handle import Handle


class Transport(Protocol):
    """What brings remote samples into a ring: started with the segment's handle, shut down when the server closes."""

    def start(self, handle: Handle) -> None:
        """Starts accepting samples; attaches to the segment as a producer."""

    def shutdown(self) -> None:
        """Stops, and leaves the ring."""


class Finishing(Protocol):
    """What ``dataset_iter(until=…)`` waits for; :class:`WorkerGroup` is one."""

    @property
    def finished(self) -> bool:
        """Whether no more samples will come from it."""

    def check(self) -> None:
        """Raises if it failed."""
