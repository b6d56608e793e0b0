"""What the tests of commands share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.actors import Actor

from echo_shm.replay import ReplayHandle
from echo_shm.ring import lockfile

from .kept import SHM, keep


@pytest.fixture
def keeper(act: Callable[..., Actor], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts processes that have a replay, with a store of that name or without one. The commands see only these."""
    known: set[str] = set()
    everything = lockfile.names
    monkeypatch.setattr(
        lockfile,
        "names",
        lambda files=lockfile.SEGMENT: [
            one for one in everything(files) if any(one in (name, f"{name}.inbox", f"{name}.updates") for name in known)
        ],
    )

    def start(name: str | None = None) -> tuple[Actor, ReplayHandle]:
        process = act(keep, name)
        handle = process.hear()
        known.add(handle.name)
        return process, handle

    yield start
    for name in known:
        for file in SHM.glob(f"echo_shm*.{name}*"):
            file.unlink()
