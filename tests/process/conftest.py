"""Fixtures of the tests that start, stop and kill processes."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import stamped
from actors import Actor

from echo_shm import Server
from echo_shm.ring import segment
from echo_shm.ring.metrics import Owner, RingView


@pytest.fixture
def act() -> Iterator[Callable[..., Actor]]:
    """Makes actors, and takes them down after the test."""
    made: list[Actor] = []

    def make(fn: Callable[..., Any], *args: Any) -> Actor:
        made.append(Actor(fn, *args))
        return made[-1]

    yield make
    for actor in made:
        actor.discard()


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
def name() -> Iterator[str]:
    """A segment's name, for one that is created elsewhere; what is left of it is removed."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    with contextlib.suppress(OSError):
        segment.collect(name)


@pytest.fixture
def owners() -> Callable[[str], list[Owner]]:
    """Looks up who is registered at a segment."""

    def look(name: str) -> list[Owner]:
        return RingView(segment.Segment.attach(name, read_only=True)).owners()

    return look
