"""Builds ``echo_shm._core`` from csrc/ with cffi's API mode.

setup.py names :data:`ffibuilder`. With ``ECHO_SHM_WAIT=poll`` in the environment, ``es_wait`` polls instead of
using futexes.
"""

import os
from pathlib import Path

from cffi import FFI

_CSRC = Path(__file__).resolve().parent.parent / "csrc"

#: The headers that declare what Python sees. ``_core.pyi`` has the same.
HEADERS = [
    _CSRC / path
    for path in (
        "base/es_types.h",
        "replay/es_replay_types.h",
        "api/es_api.h",
        "replay/es_replay.h",
        "replay/es_checkpoint.h",
        "planning/es_plan.h",
        "planning/es_costs.h",
        "planning/es_prefix_index.h",
    )
]


def _declarations(header: Path) -> str:
    """The header without its preprocessor lines, which cffi cannot read."""
    lines = header.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef("".join(map(_declarations, HEADERS)))
# What custom selectors are called by: echo_shm/replay/custom.py defines them.
ffibuilder.cdef(
    """
    extern "Python" {
        int custom_insert(void *self, uint64_t key, double priority);
        int custom_update(void *self, uint64_t key, double priority);
        int custom_remove(void *self, uint64_t key);
        int custom_draw(void *self, const double *numbers, uint64_t n, uint64_t *keys, double *probabilities);
        int custom_probability(void *self, uint64_t key, double *probability);
        void custom_refuse(void *self, uint64_t key);
    }
    """
)
ffibuilder.set_source(
    "echo_shm._core",
    "\n".join(f'#include "{header.relative_to(_CSRC)}"' for header in HEADERS),
    # setuptools requires paths relative to setup.py
    sources=sorted(f"csrc/{path.relative_to(_CSRC)}" for path in _CSRC.glob("*/es_*.c")),
    depends=sorted(f"csrc/{path.relative_to(_CSRC)}" for path in _CSRC.glob("*/es_*.h")),
    include_dirs=["csrc"],
    extra_compile_args=[
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror=implicit-function-declaration",
        "-fvisibility=hidden",
        "-pthread",
    ],
    extra_link_args=["-pthread"],
    libraries=["m"],
    define_macros=[("ES_WAIT_POLL", "1")] if os.environ.get("ECHO_SHM_WAIT") == "poll" else [],
    py_limited_api=True,
)
