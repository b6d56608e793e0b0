"""The C yardsticks of native.c, built with the system's compiler into a temporary directory."""

import contextlib
import ctypes
import mmap
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SOURCE = Path(__file__).with_name("native.c")
_SHM_DIR = "/dev/shm"


@contextlib.contextmanager
def built() -> Iterator[str]:
    """The path of the compiled library, for the length of the block."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as directory:
        library = os.path.join(directory, "native.so")
        command = [*compiler, "-std=c11", "-O2", "-shared", "-fPIC", "-o", library, os.fspath(_SOURCE)]
        subprocess.run(command, check=True)
        yield library


def load(library: str) -> ctypes.CDLL:
    """The library with its functions' types declared. Its calls let other threads run."""
    lib = ctypes.CDLL(library)
    u64, i64 = ctypes.c_uint64, ctypes.c_int64
    lib.bench_memcpy.argtypes = [ctypes.c_void_p, u64, ctypes.c_void_p, u64, i64]
    lib.bench_memcpy.restype = ctypes.c_double
    lib.bench_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.bench_wait.restype = i64
    lib.bench_wake.argtypes = [ctypes.c_void_p]
    lib.bench_wake.restype = i64
    return lib


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
