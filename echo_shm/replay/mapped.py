"""Several files in one range of addresses, so that the C core sees one store."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from echo_shm._core import ffi
from echo_shm.errors import SegmentError
from echo_shm.replay.disk import Part

if TYPE_CHECKING:
    from echo_shm._core import CData

#: What the start of each file in the range is a multiple of. Every system can map at such addresses.
_FILE = 65536

#: From linux/mman.h.
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def range_size(parts: Sequence[Part]) -> int:
    """Bytes of addresses that the files take."""
    return sum(-(-part.size // _FILE) * _FILE for part in parts)


def map_parts(fds: Sequence[int], parts: Sequence[Part], what: str) -> "CData":
    """Maps the files one after the other: the address of the first, as a ``uint8_t *`` that keeps the mapping."""
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

    base = mapped(None, size + _FILE, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    memory: CData = ffi.gc(ffi.cast("uint8_t *", base + -base % _FILE), lambda _: libc.munmap(base, size + _FILE))
    address = base + -base % _FILE
    for fd, part in zip(fds, parts, strict=True):
        mapped(address, part.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd)
        address += -(-part.size // _FILE) * _FILE
    return memory
