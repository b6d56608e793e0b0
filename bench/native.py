"""The C yardsticks of native.c, built with the system's compiler into a temporary directory."""

import atexit
import contextlib
import ctypes
import functools
import mmap
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

_SOURCE = Path(__file__).with_name("native.c")
_CORE = _SOURCE.parent.parent / "csrc"
_SHM_DIR = "/dev/shm"


@functools.cache
def built() -> str:
    """The path of the library, which is compiled at the first call and removed when this process ends."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = os.path.join(directory, "native.so")
    command = [*compiler, "-std=c11", "-O2", "-shared", "-fPIC", f"-I{_CORE}", "-o", library, os.fspath(_SOURCE)]
    subprocess.run(command, check=True)
    return library


def load(library: str) -> ctypes.CDLL:
    """The library with its functions' types declared. Its calls let other threads run."""
    lib = ctypes.CDLL(library)
    u64, i64 = ctypes.c_uint64, ctypes.c_int64
    lib.bench_memcpy.argtypes = [ctypes.c_void_p, u64, ctypes.c_void_p, u64, i64]
    lib.bench_memcpy.restype = ctypes.c_double
    pointers = ctypes.POINTER(ctypes.c_void_p)
    lib.bench_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, u64]
    lib.bench_copy.restype = None
    lib.bench_copy_leaves.argtypes = [pointers, pointers, ctypes.POINTER(u64), u64]
    lib.bench_copy_leaves.restype = None
    lib.bench_read.argtypes = [ctypes.c_void_p, u64]
    lib.bench_read.restype = u64
    lib.bench_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.bench_wait.restype = i64
    lib.bench_wake.argtypes = [ctypes.c_void_p]
    lib.bench_wake.restype = i64
    lib.bench_sizes.argtypes = [ctypes.POINTER(u64)] * 3
    lib.bench_sizes.restype = None
    lib.bench_accesses.argtypes = [ctypes.POINTER(Part), u64, u64, u64, u64, i64]
    lib.bench_accesses.restype = ctypes.c_double
    return lib


class Part(ctypes.Structure):
    """An array that :func:`accesses_rate` goes to: ``bench_part`` of native.c."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("memory", "distance", "bytes", "shift", "writes")]


def core_sizes(lib: ctypes.CDLL) -> tuple[int, int, int]:
    """Bytes of an item's record, of a tree's node, and of what a node keeps of each kind."""
    sizes = [ctypes.c_uint64() for _ in range(3)]
    lib.bench_sizes(*sizes)
    record, node, kind = (size.value for size in sizes)
    return record, node, kind


#: Elements that are fetched ahead: the fastest counts. It depends on the machine and on what is read.
_AHEAD = (16, 24, 32, 48, 64)


def accesses_rate(lib: ctypes.CDLL, parts: Sequence[Part], items: int, draws: int, seconds: float) -> float:
    """How often a second so many items can be drawn, and every line of their elements be touched."""
    array = (Part * len(parts))(*parts)
    ns = int(seconds * 1e9 / len(_AHEAD))
    return max(float(lib.bench_accesses(array, len(parts), items, draws, ahead, ns)) for ahead in _AHEAD)


@contextlib.contextmanager
def shared_region(size: int) -> Iterator[int]:
    """The address of shared memory of the kind that a ring lies in, all pages there, for the length of the block."""
    fd = os.open(_SHM_DIR, os.O_TMPFILE | os.O_RDWR, 0o600)  # it has no name, so nothing can stay behind
    try:
        os.posix_fallocate(fd, 0, size)
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    array = np.frombuffer(mapping, np.uint8)
    try:
        yield array.ctypes.data
    finally:
        del array
        mapping.close()


def memcpy_rate(lib: ctypes.CDLL, sample: bytes, slots: int, seconds: float) -> float:
    """Samples a second that one process copies with memcpy into a region of ``slots`` of them."""
    nbytes = len(sample)
    source = np.frombuffer(sample, np.uint8)
    with shared_region(nbytes * slots) as region:
        return float(lib.bench_memcpy(region, nbytes * slots, source.ctypes.data, nbytes, int(seconds * 1e9)))
