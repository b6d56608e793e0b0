"""All workers that a server has started, as one thing to wait for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from echo_shm._core import ffi, lib
from echo_shm.workers.group import WorkerGroup

if TYPE_CHECKING:
    from echo_shm._core import Ring


class Spawned:
    """What a reading call waits for if nothing else is said.

    Args:
        groups: The workers.
        ring: The server's ``es_ring``.
        transports: Whether the server has any.

    """

    def __init__(self, groups: Sequence[WorkerGroup], ring: "Ring", transports: bool) -> None:
        self._groups = groups
        self._ring = ring
        self._transports = transports

    def check(self) -> None:
        """Raises a failed worker's exception."""
        for group in self._groups:
            if group.any_failed:
                group.check()

    def ended(self) -> None:
        """Raises WorkerError if a worker was killed."""
        for group in self._groups:
            if group.finished:
                group.ended()

    @property
    def finished(self) -> bool:
        """Whether all workers have ended, and nobody else sends."""
        if self._transports or not self._groups or not all(group.finished for group in self._groups):
            return False
        snap = ffi.new("es_snapshot *")
        lib.es_monitor_observe(self._ring, snap)
        return snap.active_producers == 0 and snap.active_remotes == 0
