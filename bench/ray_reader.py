"""A reader of weights on a node of Ray's: without Ray, which takes a second to import."""

import contextlib
from collections.abc import Callable

from bench import replay_program
from echo_shm import EchoShmError, Subscriber


def read(_: int, stamp: Callable[[], None], name: str) -> None:
    """Looks at each version where it lies in shared memory, and stamps it."""
    subscriber, version = Subscriber(name), 0
    while True:
        version = subscriber.wait(version + 1)
        while True:
            with contextlib.suppress(EchoShmError), subscriber.lease() as params:  # another reader has the lease
                replay_program.read(params.values())
                break
        stamp()
