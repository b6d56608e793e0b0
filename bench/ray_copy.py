"""Copies blocks of memory as often as it is told to: ``python -m bench.ray_copy NBYTES TIMES``.

It writes a byte once it is ready, then copies so many blocks for each byte that comes, and answers each with one.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent

#: Blocks: together they are more than caches hold. And how far a process may be behind.
_BLOCKS, _BEHIND = 16, 4


def copies(nbytes: int) -> Iterator[None]:
    """Copies a block of so many bytes to another one each time."""
    blocks, i = np.ones((_BLOCKS, nbytes), np.uint8), 0  # written to: its pages are there
    while True:
        np.copyto(blocks[i % _BLOCKS], blocks[(i + _BLOCKS // 2) % _BLOCKS])
        yield
        i += 1


@contextlib.contextmanager
def beside(nbytes: int, times: int) -> Iterator[Callable[[], object]]:
    """A process that copies so many blocks each time that this is called. It is waited for if it is far behind."""
    words = [sys.executable, "-m", "bench.ray_copy", str(nbytes), str(times)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=_ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, answers, behind = process.stdin, process.stdout, 0
        if not answers.read(1):
            raise OSError(f"{' '.join(words)} has ended: its error is above")

        def tell() -> None:
            nonlocal behind
            told.write(b"x")
            behind += 1
            if behind > _BEHIND:
                answers.read(1)
                behind -= 1

        try:
            yield tell
        finally:
            process.kill()


def _main(nbytes: int, times: int) -> None:
    copying = copies(nbytes)
    next(copying)
    os.write(1, b"x")
    while os.read(0, 1):
        for _ in range(times):
            next(copying)
        os.write(1, b"x")


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
