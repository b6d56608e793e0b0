"""Several files in one range of addresses, so that the C core sees one store."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from echo_shm._core import ffi
from echo_shm.errors import SegmentError
from echo_shm.replay.disk import FILE, Part

if TYPE_CHECKING:
    from echo_shm._core import CData

#: From linux/mman.h.
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def range_size(parts: Sequence[Part]) -> int:
    """Bytes of addresses that the files take."""
    return sum(-(-part.size // FILE) * FILE for part in parts)


def map_parts(fds: Sequence[int], parts: Sequence[Part], what: str) -> "CData":
    """Maps the files one after the other: the address of the first, as a ``uint8_t *`` that keeps the mapping.

    Between them are zeros, which a header that lies may have the core read.
    """
    libc, size = _libc(), range_size(parts)

    def mapped(address: int | None, length: int, access: int, flags: int, fd: int) -> int:
        got = libc.mmap(address, length, access, flags, fd, 0)
        if got in (None, _MAP_FAILED):
            number = ctypes.get_errno()
            raise SegmentError(
                number,
                f"{what} of {size:,} bytes cannot be mapped ({os.strerror(number)}): is there a limit on this "
                "process's address space (ulimit -v, RLIMIT_AS)?",
            )
        return int(got)

    base = mapped(None, size + FILE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    memory: CData = ffi.gc(ffi.cast("uint8_t *", base + -base % FILE), lambda _: libc.munmap(base, size + FILE))
    address = base + -base % FILE
    for fd, part in zip(fds, parts, strict=True):
        mapped(address, part.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd)
        address += -(-part.size // FILE) * FILE
    return memory
