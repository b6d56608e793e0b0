"""Whose a file in /dev/shm is."""

import os
import signal
import uuid

import pytest

from harness import leftovers
from harness.processes import is_gone
from harness.programs import run_python
from harness.waiting import until

#: Starts a process with a file of each kind, and ends: that process is nobody's child then. Prints its PID.
ANOTHER_RUN = """
import subprocess, sys
holder = '''
import os, sys, time
import numpy as np
from echo_shm import Replay
from echo_shm.ring.rollouts import RolloutsBoard
name = sys.argv[1].replace("PID", str(os.getpid()))
replay = Replay({"x": np.zeros(1)}, 10, store="shm", name=name)
replay.handle
board = RolloutsBoard(name)
print("ready", flush=True)
time.sleep(60)
'''
words = [sys.executable, "-c", holder, sys.argv[1]]
process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
assert process.stdout.readline() == b"ready\\n"
print(process.pid)
"""


@pytest.mark.parametrize("named", ["PID", "freely"])
def test_files_of_another_run_are_not_ours(named):
    """Whatever they are, while a process has them, or is the one that they are named after."""
    before = leftovers.files()
    pid = int(run_python(ANOTHER_RUN, f"{named}-{uuid.uuid4().hex}").stdout)
    try:
        made = leftovers.files() - before
        kinds = ("", "_locks", "_board", "_replay", "_replay_locks", "_rollouts", "_rollouts_locks")
        assert {file.partition(".")[0] for file in made} == {f"echo_shm{kind}" for kind in kinds}
        assert [file for file in made if not leftovers.is_somebody_elses(file)] == []
        if named == "PID":
            assert leftovers.is_somebody_elses(f"echo_shm_new_kind.{pid}-test.what")  # though nobody has it open
    finally:
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid))
    for file in made:
        assert named == "PID" or not leftovers.is_somebody_elses(file)
        (leftovers.SHM / file).unlink()


def wait(conn):
    """An actor that is there until the test is over."""
    conn.recv()


def test_our_own_files_are_ours(name, act):
    """Those of this process and of its children, and those that nobody has."""
    process = act(wait)
    for file in (f"echo_shm_board.{name}", f"echo_shm.{process.pid}-x", f"echo_shm.test_{name}"):
        assert not leftovers.is_somebody_elses(file)
        with open(leftovers.SHM / file, "w"):
            assert not leftovers.is_somebody_elses(file)
        (leftovers.SHM / file).unlink()
