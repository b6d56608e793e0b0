"""Replays as onlookers see them: whatever a board or a file says, looking raises nothing else than SegmentError."""

import json
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_shm import Replay, SegmentError
from echo_shm.cli import console, ls, replay_top
from echo_shm.replay import listing
from echo_shm.ring import board

SHM = Path("/dev/shm")

#: What stands in a board in place of a figure.
_ODD: list[Any] = [None, True, -1, 10**400, 1e308, float("nan"), float("inf"), float("-inf"), "x", [], {}, {"x": 1}]


@pytest.fixture
def name(name: str) -> Iterator[str]:
    """A name; what is left of its replay is removed after the test."""
    yield name
    for file in SHM.glob(f"echo_shm*{name}*"):
        file.unlink()


def _write_board(name: str, text: bytes) -> None:
    image = struct.pack("<QQ", 2, len(text)) + text
    (SHM / f"echo_shm_board.{name}").write_bytes(image.ljust(64 << 10, b"\0"))


def _scribble(value: Any, random: random.Random) -> Any:
    """The value, with some of what is in it replaced."""
    if random.random() < 0.1:
        return random.choice(_ODD)
    if isinstance(value, dict):
        return {key: _scribble(one, random) for key, one in value.items() if random.random() < 0.95}
    return value


@pytest.mark.parametrize("seed", range(4))
def test_scribbled_boards_can_be_shown(name: str, seed: int) -> None:
    """Whatever JSON a board holds, ls and top show something, and no control character of it reaches the terminal."""
    with Replay({"x": np.zeros(2)}, 10, store="shm", name=f"{name}-good") as replay:
        replay._rings._feed.publish()
        said = board.read_board(f"{name}-good")
    said["tables"]["\x1b[2J[red]"] = said["tables"]["default"]
    scribbler = random.Random(seed)
    terminal = console.open_console()
    for _ in range(100):
        _write_board(name, json.dumps(_scribble(said, scribbler)).encode())
        assert ls.describe_replay(name)["state"] == "garbage"
        watch = replay_top.ReplayWatch(name)
        assert watch.look()
        with terminal.capture() as captured:
            terminal.print(watch.render(10))
            ls._print([], [ls.describe_replay(name)], [], {})
        assert name in captured.get()
        assert "\x1b" not in captured.get()


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[1]", b"{", b"[" * 60_000], ids=["empty", "bytes", "list", "cut", "deep"]
)
def test_a_board_that_is_no_board_says_nothing(name: str, text: bytes) -> None:
    """A board whose text cannot be read leaves all figures unknown."""
    _write_board(name, text)
    seen = listing.look(name)
    assert (seen.pid, seen.steps, seen.heard, seen.tables) == (None, None, None, {})


@pytest.mark.parametrize("file", ["echo_shm_board.", "echo_shm_replay."])
def test_a_fifo_stops_nobody(name: str, file: str) -> None:
    """Something that is no shared memory has a replay's name: looking does not wait, and what is no store is named."""
    os.mkfifo(SHM / f"{file}{name}")
    (SHM / f"echo_shm_replay_locks.{name}").touch()
    seen = listing.look(name)
    assert (seen.tables, seen.alive) == ({}, False)
    assert ("not shared memory" in seen.fault) == (file == "echo_shm_replay.")


def test_a_store_without_a_lock_file_stays(name: str) -> None:
    """Nothing tells whether a process has it, so it is not removed."""
    (SHM / f"echo_shm_replay.{name}").write_bytes(b"steps")
    for call in (listing.look, listing.remove):
        with pytest.raises(SegmentError, match="has no lock file"):
            call(name)
    assert (SHM / f"echo_shm_replay.{name}").exists()


def test_what_appears_while_a_replay_is_removed_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is held while its files go: a process that creates a replay of that name meanwhile is refused."""
    _write_board(name, b"{}")
    refused = []

    def interfere(replay: str) -> Iterator[Any]:
        with pytest.raises(SegmentError) as error:
            Replay({"x": np.zeros(2)}, 10, store="shm", name=replay)
        refused.append(str(error.value))
        return iter(())

    monkeypatch.setattr(listing, "_rings", interfere)
    listing.remove(name)
    assert len(refused) == 2
    assert not list(SHM.glob(f"echo_shm*{name}*"))
