"""A board: a small file in shared memory, on which a process says how something of its own is. Its user may read it.

A replay has one, and so has a RolloutEngine: see :mod:`echo_shm.ring.replay_board` and :mod:`echo_shm.ring.rollouts`.
"""

import contextlib
import json
import mmap
import os
import struct
from typing import Any

import posix_ipc

from echo_shm.errors import SegmentError
from echo_shm.ring.lockfile import Files, ipc_name

#: The file of a replay's board. It has no lock file of its own: the store's, or the inbox's, says who is alive.
FILES = Files("echo_shm_board.", "echo_shm_board_locks.", "board")

#: Most bytes of a board.
SIZE = 64 << 10

#: How often the text was changed (odd: just now), and its length.
_HEADER = struct.Struct("<QQ")

#: How often a reader tries again while the other process writes.
_TRIES = 1000


class Board:
    """The writer's side. One process writes.

    Args:
        memory: The board's file, at most ``SIZE`` bytes, all of them allocated.

    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._changes = 0

    def write(self, content: dict[str, Any]) -> None:
        """Replaces what the board says."""
        text = json.dumps(content, separators=(",", ":")).encode()
        if len(text) > len(self._memory) - _HEADER.size:
            text = json.dumps({"pid": os.getpid()}).encode()
        _HEADER.pack_into(self._memory, 0, self._changes + 1, 0)
        self._memory[_HEADER.size : _HEADER.size + len(text)] = text
        self._changes += 2
        _HEADER.pack_into(self._memory, 0, self._changes, len(text))


def read_board(name: str, files: Files = FILES) -> dict[str, Any]:
    """What a board says, a replay's unless ``files`` are others; empty if it says nothing that can be read.

    Raises:
        SegmentError: There is no such board.

    """
    try:
        # Non-blocking: there may be a FIFO of that name.
        shm = posix_ipc.SharedMemory(ipc_name(name, files), os.O_NONBLOCK, read_only=True)
    except (posix_ipc.Error, OSError, ValueError) as error:
        what = "no replay" if files is FILES else f"no {files.what}"
        raise SegmentError(f"{what} named {name!r} has a board: {error}") from None
    try:
        for _ in range(_TRIES):
            text = os.pread(shm.fd, SIZE, 0)
            if len(text) < _HEADER.size:
                break
            changes, length = _HEADER.unpack_from(text)
            again = os.pread(shm.fd, _HEADER.size, 0)
            if changes % 2 == 0 and again == text[: _HEADER.size]:
                with contextlib.suppress(ValueError, RecursionError):
                    content = json.loads(text[_HEADER.size : _HEADER.size + length])
                    if isinstance(content, dict):
                        return content
                break
    except OSError:  # it is no shared memory
        pass
    finally:
        shm.close_fd()
    return {}


def made_or_refused(replay: str, ring: str) -> tuple[bool, str | None]:
    """Whether a ring of batches is ready, and why it cannot be made, as the replay's board says."""
    try:
        board = read_board(replay)
    except SegmentError:
        return False, None
    made, refused = board.get("batches"), board.get("refused")
    text = refused.get(ring) if isinstance(refused, dict) else None
    return isinstance(made, list) and ring in made, text if isinstance(text, str) else None
