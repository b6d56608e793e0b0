"""Replays in processes of their own, for the tests of what commands say of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_shm import Replay, Table
from echo_shm.cli import console, replay_top
from echo_shm.cli import main as cli
from echo_shm.replay import SampleToInsertRatio

SHM = Path("/dev/shm")
STEP = {"obs": np.zeros(4, np.float32), "act": np.zeros((), np.int64)}

#: It lets nobody insert more than 3 items before one is sampled.
TABLES = [Table("main", max_size=50, rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 6.0))), Table("[red]")]


def keep(conn: Any, name: str | None) -> None:
    """Has a replay with a step; says its handle, and stays."""
    how: dict[str, Any] = {} if name is None else {"store": "shm", "name": name}
    replay = Replay(STEP, 100, TABLES, **how)
    handle = replay.handle
    replay.add(STEP)
    replay._rings._feed.publish()
    conn.send(handle)
    conn.recv()


def files_of(name: str) -> list[str]:
    """The files in shared memory of a replay."""
    return sorted(file.name for file in SHM.glob(f"echo_shm*.{name}*"))


def run_cli(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command's status, and all that it printed."""
    status = cli.main([*words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def screen_of(watch: replay_top.ReplayWatch) -> str:
    """What a screen shows."""
    terminal = console.open_console()
    with terminal.capture() as captured:
        terminal.print(watch.render(20))
    return captured.get()
