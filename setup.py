"""The compiled parts; everything else is in pyproject.toml."""

import numpy
from setuptools import Extension, setup


def extension(name: str, depends: list[str] | None = None) -> Extension:
    """One of ``csrc/python/``: it uses numpy's C API."""
    return Extension(
        f"echo_shm._{name}",
        [f"csrc/python/{name}module.c"],
        depends=depends or [],
        include_dirs=[numpy.get_include(), "csrc"],
        extra_compile_args=[
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror=implicit-function-declaration",
            "-fvisibility=hidden",
        ],
        py_limited_api=True,
    )


setup(
    cffi_modules=["echo_shm/_build.py:ffibuilder"],
    ext_modules=[
        extension(
            "send",
            depends=[
                "csrc/python/arrays.h",
                "csrc/python/environments.h",
                "csrc/python/rows.h",
                "csrc/python/scalars.h",
                "csrc/python/trees.h",
                "csrc/replay/es_replay_types.h",
            ],
        ),
        extension("batch", depends=["csrc/base/es_types.h", "csrc/python/arrays.h"]),
        extension(
            "history",
            depends=[
                "csrc/python/appended.h",
                "csrc/python/arrays.h",
                "csrc/python/numbers.h",
                "csrc/python/trees.h",
                "csrc/replay/es_replay_types.h",
            ],
        ),
        extension("slot", depends=["csrc/python/arrays.h", "csrc/python/trees.h"]),
        extension(
            "replay",
            depends=[
                "csrc/base/es_types.h",
                "csrc/python/arrays.h",
                "csrc/python/changes.h",
                "csrc/python/core.h",
                "csrc/python/draws.h",
                "csrc/python/inserts.h",
                "csrc/python/kept.h",
                "csrc/python/lookups.h",
                "csrc/python/pool.h",
                "csrc/python/rings.h",
                "csrc/python/rows.h",
                "csrc/python/saves.h",
                "csrc/python/scalars.h",
                "csrc/python/snapshots.h",
                "csrc/python/trees.h",
                "csrc/python/vectors.h",
                "csrc/replay/es_checkpoint.h",
                "csrc/replay/es_replay.h",
                "csrc/replay/es_replay_types.h",
            ],
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
