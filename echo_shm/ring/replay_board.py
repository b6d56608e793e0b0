"""The board of a replay, as the replay's process writes it."""

import contextlib

import posix_ipc

from echo_shm.ring.allocation import allocate, cannot_be_made
from echo_shm.ring.board import FILES, SIZE, Board
from echo_shm.ring.lockfile import ipc_name


class ReplayBoard(Board):
    """The board of a replay of that name. That of a dead one is replaced.

    Raises:
        SegmentError: There is no room in shared memory.

    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.remove()
        try:
            shm = posix_ipc.SharedMemory(ipc_name(name, FILES), posix_ipc.O_CREX, mode=0o600)
        except (OSError, posix_ipc.Error) as error:
            raise cannot_be_made(name, FILES, error) from None
        try:
            super().__init__(allocate(shm.fd, SIZE, f"{FILES.what} {name!r}", "capacity"))
        except BaseException:
            self.remove()
            raise
        finally:
            shm.close_fd()

    def remove(self) -> None:
        """Removes the file."""
        with contextlib.suppress(posix_ipc.ExistentialError):
            posix_ipc.unlink_shared_memory(ipc_name(self._name, FILES))
