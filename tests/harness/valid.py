"""Whether the words of a ring are what they should be: es_valid.c, compiled beside the extension that is tested."""

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from echo_shm._core import ffi

_HERE = Path(__file__).resolve().parent
_CSRC = _HERE.parents[1] / "csrc"


@functools.cache
def _library() -> ctypes.CDLL:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = f"{folder}/valid.so"
    sources = [str(_HERE / "es_valid.c"), str(_CSRC / "ring/es_invariant.c")]
    command = ["cc", "-std=c11", "-O1", "-fPIC", "-shared", "-I", str(_CSRC), "-I", str(_HERE), *sources, "-o", library]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(library)
    loaded.es_valid.argtypes, loaded.es_valid.restype = [ctypes.c_void_p], ctypes.c_char_p
    return loaded


def problem_of(ring: Any) -> str | None:
    """None, or the statement that does not hold of a ring at rest. ring: an attachment, as ``server._ring``."""
    found: bytes | None = _library().es_valid(int(ffi.cast("uintptr_t", ring)))
    return None if found is None else found.decode()
