"""The transports of a Server or a Replay: their checks, their start, their end."""

import contextlib
from collections.abc import Sequence

from echo_shm.ring.handle import Handle
from echo_shm.ring.protocols import Transport

#: A segment has entries for at least this many clients of bridges.
_REMOTES = 1024


def checked(transport: Transport | Sequence[Transport] | None) -> tuple[Transport, ...]:
    """The transports that an argument means.

    Raises:
        TypeError: Something among them is no transport.

    """
    # Whatever else is given, another kind of sequence too, is taken for a transport and refused below.
    given: Sequence[Transport | None] = transport if isinstance(transport, list | tuple) else [transport]  # type: ignore[list-item]
    transports = tuple(one for one in given if one is not None)
    for one in transports:
        if isinstance(one, type):
            raise TypeError(f"a transport is an instance: {one.__name__}(...), not the class {one.__name__}")
        if not (hasattr(one, "start") and hasattr(one, "shutdown")):
            raise TypeError(f"a transport has start(handle) and shutdown(), got {type(one).__name__}")
    return transports


def remotes(transports: Sequence[Transport]) -> int:
    """For how many clients on other hosts a ring with these transports has entries."""
    return max(_REMOTES, sum(getattr(one, "max_connections", 0) for one in transports))


def port(transports: Sequence[Transport], owner: str) -> int:
    """The port of the first transport that has one. ``owner`` names whose they are in messages: ``"server"``.

    Raises:
        RuntimeError: None has one, or it takes a free port and was not started yet.

    """
    for transport in transports:
        if hasattr(transport, "port"):
            number = int(transport.port)
            if number == 0:
                raise RuntimeError(f"the port is known once the transport listens: call {owner}.start() first")
            return number
    raise RuntimeError(f"no transport configured; pass one to {owner.capitalize()}(transport=...)")


def start(transports: Sequence[Transport], handle: Handle) -> None:
    """Starts them. If one fails, all are shut down."""
    with contextlib.ExitStack() as undo:
        for transport in transports:
            transport.start(handle)
            undo.callback(transport.shutdown)
        undo.pop_all()


def shut_down(started: list[Transport]) -> None:
    """Shuts down each once, the last one first, and takes it off the list. After Ctrl-C, another call does the rest."""
    failures: list[Exception] = []
    while started:
        try:
            started[-1].shutdown()
        except Exception as error:
            failures.append(error)
        started.pop()
    if failures:
        raise failures[0]
