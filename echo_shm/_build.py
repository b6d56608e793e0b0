"""Builds echo_shm._core from csrc/ with cffi's API mode.

setup.py names :data:`ffibuilder`. Set ``ECHO_SHM_WAIT=poll`` in the
environment to build the polling fallback of ``es_wait`` in place of futexes.
"""

import os
from pathlib import Path

from cffi import FFI

_ROOT = Path(__file__).resolve().parent.parent
_CSRC = _ROOT / "csrc"


def _declarations(header: str) -> str:
    """The header without its preprocessor lines, which cffi cannot read."""
    lines = (_CSRC / header).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(_declarations("base/es_types.h") + _declarations("api/es_api.h"))
ffibuilder.set_source(
    "echo_shm._core",
    '#include "api/es_api.h"',
    # setuptools wants paths relative to setup.py
    sources=sorted(str(path.relative_to(_ROOT)) for path in _CSRC.glob("*/es_*.c")),
    depends=sorted(str(path.relative_to(_ROOT)) for path in _CSRC.glob("*/es_*.h")),
    include_dirs=["csrc"],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-pthread"],
    extra_link_args=["-pthread"],
    define_macros=[("ES_WAIT_POLL", "1")] if os.environ.get("ECHO_SHM_WAIT") == "poll" else [],
    py_limited_api=True,
)
