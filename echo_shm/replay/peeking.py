"""A look at the priorities in a replay's store, from a process that does not have it. Nothing changes.

A store in shared memory, and one in a directory, can be looked at: both are files that are mapped. A replay in a
process's own memory cannot.
"""

import errno
import mmap
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from echo_shm._core import ffi, lib
from echo_shm.errors import SegmentError, error_from
from echo_shm.replay.described import describe_store, table_name
from echo_shm.replay.disk import denied, read_manifest
from echo_shm.replay.store import map_existing
from echo_shm.ring.segment import map_trusted

#: Selectors that choose by priorities, or may.
_BY_PRIORITY = (lib.ES_PRIORITIZED, lib.ES_SOFTMAX, lib.ES_MIN_HEAP, lib.ES_MAX_HEAP, lib.ES_CUSTOM)


class Peek(NamedTuple):
    """Priorities of some items of a table. While items come and go, a few of them may be wrong.

    Attributes:
        priorities: Finite, and at least 0. Shape ``(n,)``, float64.
        looked: At how many records of items. Some hold none.
        records: Among how many of them these are spread.

    """

    priorities: npt.NDArray[np.float64]
    looked: int
    records: int


class Records:
    """The records of a store, mapped read-only, whatever the process does that has it.

    Args:
        name: Of a store in shared memory.
        directory: Of a store in a directory, or None.

    Attributes:
        by_priority: The tables' names in their order, each with whether its sampler or its remover goes by priorities.

    Raises:
        SegmentError: There is none, it is another user's, or it is damaged.

    """

    def __init__(self, name: str, directory: str | None) -> None:
        self.what = f"replay {name if directory is None else directory!r}"
        mapping = map_existing(name, self.what, read_only=True) if directory is None else _map_file(directory)
        self._base, self._size = ffi.from_buffer("uint8_t[]", mapping), len(mapping)
        code = lib.es_checkpoint_check(self._base, self._size)  # what comes before the rows says it all
        if code != lib.ES_OK:
            raise error_from(code, self.what)
        _, configs, _, _ = describe_store(self.what, self._base, self._size)
        self.by_priority = {
            table_name(one, self.what): one.sampler.kind in _BY_PRIORITY or one.remover.kind in _BY_PRIORITY
            for one in configs
        }

    def priorities(self, table: str, most: int) -> Peek:
        """Priorities of at most so many items, from all over the table. A larger table costs no more.

        Raises:
            SegmentError: The store was damaged since.

        """
        found, seen = np.empty(most), ffi.new("es_peeked *")
        room, index = ffi.from_buffer("double[]", found), list(self.by_priority).index(table)
        code = lib.es_replay_peek(self._base, self._size, index, room, most, seen)
        if code != lib.ES_OK:
            raise error_from(code, self.what)
        return Peek(found[: seen.found], seen.looked, seen.records)


def _map_file(directory: str) -> mmap.mmap:
    """Maps the records of a store in a directory."""
    part, what = read_manifest(directory).parts[0], f"replay {directory!r}"
    try:
        fd = os.open(os.path.join(directory, part.file), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SegmentError(errno.ENOENT, f"{what} cannot be used: its file {part.file!r} is missing") from None
    except OSError as error:
        raise denied(what, error) from None
    try:
        mapping, _ = map_trusted(fd, what, read_only=True)
    finally:
        os.close(fd)
    return mapping
