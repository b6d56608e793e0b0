"""The compiled part; everything else is in pyproject.toml."""

from setuptools import setup

setup(
    cffi_modules=["echo_shm/_build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
