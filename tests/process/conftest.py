"""Servers for the tests that start, stop and kill processes."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import stamped

from echo_shm import Server


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Makes servers of stamped samples, and closes them after the test."""
    made: list[Server] = []

    def make(batch_size: int = 4, num_buffers: int = 2, **options: Any) -> Server:
        made.append(Server(stamped.example(), batch_size, num_buffers=num_buffers, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def torch() -> None:
    """For tests that need torch: skips them without it. Where ECHO_SHM_NEED_TORCH is set, it must be there."""
    if importlib.util.find_spec("torch") is None:
        assert "ECHO_SHM_NEED_TORCH" not in os.environ, "torch is not installed"
        pytest.skip("needs torch, which is too large for the test extra; .ci/run installs it: pip install torch")
