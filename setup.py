"""The compiled parts; everything else is in pyproject.toml."""

import numpy
from setuptools import Extension, setup

setup(
    cffi_modules=["echo_shm/_build.py:ffibuilder"],
    ext_modules=[
        Extension(
            "echo_shm._send",
            ["csrc/python/sendmodule.c"],
            include_dirs=[numpy.get_include()],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
