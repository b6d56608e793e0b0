"""A process is killed at each call with which a checkpoint changes files; or the call fails: the disk is full; or the
machine goes down.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import checkpoint_writer as writer

from echo_shm import Replay

HARNESS = Path(writer.__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled ``es_fault.c``."""
    path = tmp_path_factory.mktemp("fault") / "fault.so"
    compiler = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-Wno-nonnull-compare"]
    subprocess.run([*compiler, "-o", path, HARNESS / "es_fault.c", "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def states():
    """What is restored from the second checkpoint, and from the third one."""
    found = []
    replay, done = writer.make(), 0
    for steps in writer.STEPS:
        writer.add(replay, done, steps)
        found.append(state(replay))
        writer.add(replay, steps, steps + 2)
        done = steps + 2
    replay.close()
    return found[1:]


def state(replay):
    """What it has, as far as it can be asked for without drawing."""
    found = [replay.num_steps]
    for name in replay.tables:
        info = replay.info(name)
        items = []
        for index in range(40):
            for generation in range(1, 60):
                try:
                    batch = replay.get(np.array([generation << 32 | index], np.uint64), name)
                except KeyError:
                    continue
                data = batch.data["n"].tolist()
                items.append((index, generation, data, batch.priority.tolist(), batch.age.tolist()))
        assert len(items) == info.size
        found.append((info.size, info.inserted, info.evicted, items))
    return found


def program(library, module, folder, number):
    """What a program of the harness says."""
    return subprocess.run(
        [sys.executable, "-m", f"harness.{module}", folder, str(number)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(HARNESS.parent)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def run(library, folder, error):
    """What the program says of each call: its number, whether the process was killed there, and what it said."""
    got = program(library, "checkpoint_writer", folder, error)
    lines = [json.loads(line) for line in got.splitlines()]
    assert len(lines) > 40
    assert lines[-1][1:] == [False, 0, ""], "the last one came to no such call"
    return lines


def restored(path):
    """The newest checkpoint's state."""
    with Replay.restore(path) as replay:
        return state(replay)


@pytest.mark.watchdog(240)
def test_killed_at_each_call(library, states, shm_path):
    """The second checkpoint is the newest one, or the third is, and they are whole. The next one that is written
    removes what is left of others."""
    before, after = states
    seen = []
    for at, killed, status, _ in run(library, shm_path, 0)[:-1]:
        assert killed, (at, status)
        path = shm_path / str(at)
        got = restored(path)
        assert got in (before, after), at
        seen.append(got == after)
        if at % 4 == 0 or len(os.listdir(path)) > 2:
            with writer.make() as replay:
                writer.add(replay, 0, 3)
                replay.checkpoint(path)
                expected = state(replay)
            names = os.listdir(path)
            assert len(names) == 2, names
            assert all((path / name / "DONE").exists() for name in names)
            assert restored(path) == expected
    assert seen == sorted(seen), "once it is complete, it stays"
    assert {True, False} == set(seen)


@pytest.mark.watchdog(240)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_each_call_fails(library, states, shm_path, error):
    """The call raises, says what to do, and leaves what was there, and nothing else. A checkpoint that is not removed
    in the end does not matter."""
    before, after = states
    failed = 0
    for at, killed, status, said in run(library, shm_path, error)[:-1]:
        assert (killed, status) == (False, 0), at
        path = shm_path / str(at)
        if not said:
            assert restored(path) == after, at
            continue
        failed += 1
        assert os.strerror(error) in said
        assert "those that are there stay" in said
        assert error != errno.ENOSPC or "the disk is full: free some space" in said
        assert sorted(os.listdir(path)) == ["000001", "000002"], at
        assert restored(path) == before
    assert failed > 30


@pytest.mark.parametrize("links", [1, 0])
def test_the_machine_goes_down(library, links):
    """After each call, with any part of what was not flushed on the disk, the newest complete checkpoint is whole: the
    one before, or the one that is being written. What a call has returned is not lost, in a new directory either."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # where flushing takes no time
        found, faults = json.loads(program(library, "checkpoint_loser", folder, links))
    assert not faults, faults[0]
    assert found["none"] > 50
    assert found["before"] > 100
    assert found["this"] > 10
