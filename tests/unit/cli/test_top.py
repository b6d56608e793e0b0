"""``echo-shm top``: what it says of segments."""

import contextlib
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.processes import fork
from harness.waiting import until

from echo_shm import SegmentError, Server, ShmClient, TcpTransport
from echo_shm._core import lib
from echo_shm.cli import console, top
from echo_shm.cli import main as cli
from echo_shm.ring import lockfile, segment
from echo_shm.ring.metrics import RingView

SHM = Path("/dev/shm")
EXAMPLE = {"obs": np.zeros(4, np.float32), "step": np.zeros((), np.int64)}


def test_top_once_shows_rates_and_owners(name: str) -> None:
    """One reading shows the ring, and a line for each producer and learner with what it did meanwhile."""
    with Server(EXAMPLE, 8, num_buffers=4, name=name) as server, ShmClient(server.handle) as client:
        watch = top.Watch(name)
        for step in range(12):
            client.send({"obs": np.zeros(4, np.float32), "step": step})
        with server.lease(timeout=10):
            assert watch.look()
            terminal = console.open_console()
            with terminal.capture() as captured:
                terminal.print(watch.render(10))
    lines = captured.get().splitlines()
    assert name in lines[0]
    assert any("12 of 32 slots" in line for line in lines)
    (producer,) = [line.split() for line in lines if line.rstrip().endswith("running") and "12" in line.split()]
    assert producer[1] == str(os.getpid())
    assert float(producer[2].replace(",", "")) > 0
    (learner,) = [line.split() for line in lines[-2:] if "running" in line]
    assert learner == ["creator", str(os.getpid()), "1", "0", "s", "running"]


def _shown(watch: top.Watch) -> list[list[str]]:
    terminal = console.open_console()
    with terminal.capture() as captured:
        terminal.print(watch.render(20))
    return [line.split() for line in captured.get().splitlines()]


def test_top_says_since_when_a_learner_holds_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the oldest batch held; a learner that holds none has none."""
    with Server(EXAMPLE, 1, name=name) as server:
        watch = top.Watch(name)
        pid = str(os.getpid())
        assert ["creator", pid, "0", "-", "running"] in _shown(watch)
        with contextlib.ExitStack() as leases:
            for _ in range(2):
                server.submit(EXAMPLE)
                leases.enter_context(server.lease(timeout=10))
            started = time.monotonic()
            until(lambda: (watch.look(), ["creator", pid, "2", "1", "s", "running"] in _shown(watch))[1])
            assert time.monotonic() - started <= 2.5


def test_top_shows_ages_once_there_are_weights(name: str) -> None:
    """Those of the samples in the ring's slots, against the latest version, and how many were too old."""
    with Server(EXAMPLE, 2, num_buffers=2, name=name) as server, ShmClient(server.handle) as client:
        watch = top.Watch(name)
        client.send(EXAMPLE)
        assert watch.look()
        assert not [line for line in _shown(watch) if "version" in line]
        publisher = server.publisher(np.zeros(3))
        for _ in range(7):
            publisher.publish(np.zeros(3))
        client.version = 5
        client.send(EXAMPLE)
        assert watch.look()
        assert ["version", "7", "age", "4.5", "oldest", "7", "too", "old", "0"] in _shown(watch)
        batches = server.dataset_iter(max_age=5)
        for _ in range(2):
            client.send(EXAMPLE)
        next(batches)
        batches.close()
        assert watch.look()
        assert ["version", "7", "age", "3.2", "oldest", "7", "too", "old", "1"] in _shown(watch)


def _send_two(client: ShmClient) -> None:
    for _ in range(2):
        client.send(EXAMPLE)


def test_top_says_what_each_owner_is(name: str) -> None:
    """Workers, bridges, other producers, the creator and further learners are told apart."""
    with Server(EXAMPLE, 1, TcpTransport(0), num_buffers=1, name=name) as server:
        server.start()
        with server.spawn(_send_two, 1, context="fork"), ShmClient(name), Server.attach(name):
            watch = top.Watch(name)
            until(lambda: (watch.look(), any(line[:1] == ["worker"] for line in _shown(watch)))[1])
            lines = [line for line in _shown(watch) if line[-1:] in (["running"], ["waiting"])]
    here = str(os.getpid())
    assert sorted(line[0] for line in lines) == ["bridge", "creator", "learner", "producer", "worker"]
    assert {line[0] for line in lines if line[1] == here} == {"creator", "learner", "producer"}


@pytest.mark.parametrize("seed", range(8))
def test_top_survives_scribbled_words(name: str, seed: int) -> None:
    """Whatever a process has written over the owners' entries and the leases, a reading is shown."""
    with Server(EXAMPLE, 1, name=f"{name}-good") as server, ShmClient(server.name) as client:
        client.send(EXAMPLE)
        with server.lease(timeout=10):
            image = bytearray((SHM / f"echo_shm.{server.name}").read_bytes())
    scribble = random.Random(seed)
    owners = image.index(struct.pack("=IIq", 1, lib.ES_ROLE_LEARNER, os.getpid()))
    for at in range(owners, len(image), 8):
        if image[at : at + 8] != bytes(8) and scribble.random() < 0.5:
            image[at : at + 8] = scribble.choice([b"\xff" * 8, scribble.randbytes(8), image[at : at + 7] + b"\xff"])
    (SHM / f"echo_shm.{name}").write_bytes(image)
    (SHM / f"echo_shm_locks.{name}").touch()
    watch = top.Watch(name)
    assert watch.look()
    assert _shown(watch)


def test_top_command_prints_one_reading_and_exits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``top NAME --once`` is a snapshot with status 0."""
    with Server(EXAMPLE, 8, name=name):
        assert cli.main(["top", name, "--once", "--interval", "0.01"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(name)
    assert "samples/s" in out


def test_top_without_a_name(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The only ring in use needs no name. With none or several, the error says which there are."""
    there: list[str] = []
    monkeypatch.setattr(lockfile, "names", lambda files=lockfile.SEGMENT: there if files == lockfile.SEGMENT else [])
    assert cli.main(["top", "--once"]) != 0
    assert "no ring and no replay is in use" in capsys.readouterr().err
    with Server(EXAMPLE, 8, name=name), Server(EXAMPLE, 8, name=f"{name}-2"):
        there.append(name)
        assert cli.main(["top", "--once", "--interval", "0.01"]) == 0
        assert capsys.readouterr().out.startswith(name)
        there.append(f"{name}-2")
        assert cli.main(["top", "--once"]) != 0
        assert f"2 rings are in use: name one of {name}, {name}-2" in capsys.readouterr().err


def test_top_keeps_to_the_screen(name: str) -> None:
    """Producers for which the screen has no lines are only counted."""
    with Server(EXAMPLE, 8, name=name) as server, contextlib.ExitStack() as clients:
        for _ in range(5):
            clients.enter_context(ShmClient(server.handle))
        watch = top.Watch(name)
        terminal = console.open_console()
        with terminal.capture() as captured:
            terminal.print(watch.render(3))
    assert captured.get().count("running") == 3 + 1
    assert "and 2 more" in captured.get()


@pytest.mark.parametrize(("name", "status"), [("no-such-segment", 1), ("not/a/name", 2)])
def test_top_without_such_a_segment(name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is an error in one line, an impossible one a usage error."""
    assert cli.main(["top", name]) == status
    error = capsys.readouterr().err
    assert name in error
    assert error.count("\n") == 1


def test_top_ends_with_the_segment(name: str) -> None:
    """A watch notices that the segment was closed, also when a new one has its name."""
    with Server(EXAMPLE, 8, name=name):
        watch = top.Watch(name)
        assert watch.look()
    assert not watch.look()
    with Server(EXAMPLE, 8, name=name):
        assert not watch.look()


def _serve_alone(name: str) -> None:
    server = Server(EXAMPLE, 8, name=name)
    with ShmClient(server.handle):
        signal.pause()


def _owners(name: str) -> int:
    with contextlib.suppress(SegmentError):
        return len(RingView(segment.Segment.attach(name, read_only=True)).owners())
    return 0


def test_top_tells_the_stopped_and_the_dead(name: str) -> None:
    """A stopped producer is called stopped; one that was killed, and is not yet reaped, is called dead."""
    pid = fork("creator", _serve_alone, name)
    until(lambda: _owners(name) == 2, "it has attached")
    view = RingView(segment.Segment.attach(name, read_only=True))

    def states() -> set[str]:
        return {state for _, state in top.states(view)}

    assert states() == {"running"}
    os.kill(pid, signal.SIGSTOP)
    until(lambda: states() == {"stopped"})
    os.kill(pid, signal.SIGKILL)
    until(lambda: states() == {"dead"})  # a zombie: its parent has not waited for it
    os.waitpid(pid, 0)
    assert states() == {"dead"}


def test_top_calls_a_blocked_producer_waiting(name: str, background: Callable[..., Any]) -> None:
    """A producer that sleeps on a full ring is called waiting."""
    with Server(EXAMPLE, 1, num_buffers=1, name=name) as server, ShmClient(server.handle) as client:
        client.send(EXAMPLE)
        blocked = background(client.send, EXAMPLE)
        view = RingView(segment.Segment.attach(name, read_only=True))
        until(lambda: "waiting" in {state for _, state in top.states(view)})
        assert server.sample(timeout=10) is not None
        assert server.sample(timeout=10) is not None
        blocked.result()
