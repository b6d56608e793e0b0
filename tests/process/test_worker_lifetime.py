"""Workers never outlive the process that spawned them, however that ends."""

import json
import signal
import sys
from pathlib import Path

import pytest
from harness.processes import is_gone, state, stop
from harness.programs import TESTS
from harness.waiting import until

from echo_shm.ring import lockfile

#: How many workers of each start method the parent has: starting an interpreter takes long.
COUNTS = {"spawn": 1, "forkserver": 1, "fork": 2}

#: Spawns its workers, then ends as argv[2] says. argv[4] has a file for each worker of each start method.
_PARENT = """
import json, os, signal, sys, threading
from harness import stamped, workers
from echo_shm import Server
from echo_shm.workers import group

def main():
    group._STOP_TIMEOUT = 0.2  # these workers never send
    name, end, work, paths = sys.argv[1:]
    server = Server(stamped.example(), 4, name=name)
    groups = []

    def spawn():
        for context, files in json.loads(paths).items():
            groups.append(server.spawn(getattr(workers, work), len(files), files, context=context))

    if "thread" in end:
        thread = threading.Thread(target=spawn)
        thread.start()
        thread.join()
    else:
        spawn()
    print("spawned", flush=True)
    sys.stdin.readline()
    if "stop" in end:
        groups[0].stop(timeout=None)
    if "raise" in end:
        raise ZeroDivisionError("the parent's own")
    if "_exit" in end:
        os._exit(5)
    if "exit" in end:
        sys.exit(6)
    if "fork" in end:
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("forked", flush=True)
        sys.stdin.readline()
    signal.pause()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def parent(name, program, tmp_path):
    """Runs a script that spawns workers by each start method; returns the program and the workers' pids."""
    made, files = [], []

    def make(end, work="say_and_wait", contexts=tuple(COUNTS)):
        paths = {context: [str(tmp_path / f"{context}{i}") for i in range(COUNTS[context])] for context in contexts}
        files.extend(Path(path) for group in paths.values() for path in group)
        script = tmp_path / "parent.py"
        script.write_text(_PARENT)
        words = (name, end, work, json.dumps(paths))
        made.append(program(sys.executable, str(script), *words, env={"PYTHONPATH": str(TESTS)}))
        made[-1].wait_for("spawned\n")
        until(lambda: all(file.exists() for file in files), "every worker runs")
        return made[-1], [int(file.read_text()) for file in files]

    yield make
    for one in made:
        one.kill()
    _until_gone([int(file.read_text()) for file in files if file.exists()])
    if name in lockfile.names():
        until(lambda: lockfile.collect(name), "nobody is attached any more")


def _until_gone(pids):
    until(lambda: all(is_gone(pid) for pid in pids), f"the workers are gone: {[state(pid) for pid in pids]}")


@pytest.mark.parametrize(("end", "status"), [("raise", 1), ("exit", 6), ("_exit", 5), ("thread exit", 6)])
def test_the_parent_ends_by_itself(parent, end, status):
    """A parent that ends by an exception, by sys.exit() or by os._exit() does not hang, and no worker stays."""
    process, pids = parent(end)
    process.type(b"\n")
    assert process.result() == status, process.output
    _until_gone(pids)
    if end == "raise":
        assert "the parent's own" in process.output


@pytest.mark.parametrize("end", ["killed", "killed, workers from a thread"])
def test_the_parent_is_killed(parent, end):
    """After SIGKILL to the parent no worker stays."""
    process, pids = parent(end)
    process.kill()
    _until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_parent_gets_a_signal(parent, number):
    """A parent that a signal kills, or KeyboardInterrupt ends, leaves no worker."""
    process, pids = parent("killed")
    process.send_signal(number)
    process.result()
    _until_gone(pids)


@pytest.mark.parametrize("context", COUNTS)
def test_the_parent_is_killed_while_it_stops_them(parent, tmp_path, context):
    """A worker that was told to stop, and goes on, still ends with its parent."""
    process, pids = parent("stop, workers from a thread", "go_on_after_a_stop", (context,))
    process.type(b"\n")
    until(lambda: len(list(tmp_path.glob("*.stopped"))) == len(pids), "every worker was told")
    process.kill()
    _until_gone(pids)


@pytest.mark.parametrize("work", ["say_and_wait", "keep_the_gil"])
def test_a_worker_that_cannot_watch(parent, work):
    """A worker that is stopped, or does not release the GIL, ends with its killed parent, too."""
    process, pids = parent("killed", work, ("spawn", "fork"))
    if work == "say_and_wait":
        for pid in pids:
            stop(pid)
    process.kill()
    _until_gone(pids)


def test_a_group_started_by_a_thread_outlives_the_thread(parent):
    """Workers go with their process, not with the thread that started them."""
    process, pids = parent("killed, workers from a thread", contexts=("fork",))
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    _until_gone(pids)


def test_a_forked_child_of_the_parent_leaves_the_workers_alone(parent):
    """A child that the parent itself forks, and that ends normally, neither hangs nor ends the workers."""
    process, pids = parent("fork", contexts=("fork",))
    process.type(b"\n")
    process.wait_for("forked\n")
    assert not any(is_gone(pid) for pid in pids)
