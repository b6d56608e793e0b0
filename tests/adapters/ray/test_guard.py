"""What a process of Ray's leaves behind that is killed, as Ray does when a driver has ended."""

import os
import signal

import numpy as np
import pytest
from harness import leftovers
from harness.packages import need
from harness.waiting import until

need("ray")

from echo_shm import Replay, Server  # noqa: E402
from echo_shm.adapters.ray import guard  # noqa: E402

EXAMPLE = {"x": np.zeros(3)}


@pytest.mark.parametrize("kind", ["ring", "replay"])
def test_what_is_left_is_removed(name, kind):
    """With its weights, once nobody has it; what somebody has stays."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        make = {
            "ring": lambda: Server(EXAMPLE, 4, name=name),
            "replay": lambda: Replay(EXAMPLE, 9, store="shm", name=name),
        }
        with make[kind]() as made, made.publisher(EXAMPLE):
            guard.watch(name, 0.0)
            os.write(tell, b".")
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    mine = {file for file in leftovers.files() if name in file}
    try:
        with Server(EXAMPLE, 4, name=f"{name}-lives") as lives:
            guard.watch(lives.name, 0.0)
            assert len(mine) >= 4
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0
            until(lambda: not mine & leftovers.files())
            lives.submit(EXAMPLE)
            assert any(file.endswith(lives.name) for file in leftovers.files())
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_its_patience_begins_with_the_death(name, monkeypatch):
    """A process that is started again has so much time to go on."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with Server(EXAMPLE, 4, name=name):
            os.write(tell, b".")
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    now = 0

    def sleep(seconds):
        nonlocal now
        now += 1
        if now == 20:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    monkeypatch.setattr(guard.time, "sleep", sleep)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now)
    guard.main(name, 10.0, "", child)
    assert 30 <= now <= 33
