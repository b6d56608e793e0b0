"""Workers never outlive the process that spawned them, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.processes import is_gone, state, stop
from harness.waiting import LONG, until

from echo_shm import segment

_FOLDER = str(Path(__file__).parent)

_PARENT = """
import os, signal, sys, threading
sys.path.insert(0, {folder!r})
import stamped, workers
from echo_shm import Server

def main():
    name, context, end, work, *paths = sys.argv[1:]
    server = Server(stamped.example(), 4, name=name)
    groups = []

    def spawn():
        groups.append(server.spawn(getattr(workers, work), len(paths), paths, context=context))

    if "thread" in end:
        thread = threading.Thread(target=spawn)
        thread.start()
        thread.join()
    else:
        spawn()
    print("spawned", flush=True)
    sys.stdin.readline()
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
def parent(name, tmp_path):
    """Runs a script that spawns workers; returns its process and the workers' pids."""
    made = []

    def make(context, end, work="say_and_wait", count=2):
        script = tmp_path / "parent.py"
        script.write_text(_PARENT.format(folder=_FOLDER))
        paths = [tmp_path / f"pid{i}" for i in range(count)]
        process = subprocess.Popen(
            [sys.executable, str(script), name, context, end, work, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        made.append((process, paths))
        assert process.stdout.readline() == "spawned\n"
        until(lambda: all(path.exists() for path in paths), "every worker runs")
        return process, [int(path.read_text()) for path in paths]

    yield make
    for process, paths in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        _until_gone([int(path.read_text()) for path in paths if path.exists()])
    if name in segment.names():
        until(lambda: segment.collect(name), "nobody is attached any more")


def _until_gone(pids):
    until(lambda: all(is_gone(pid) for pid in pids), f"the workers are gone: {[state(pid) for pid in pids]}")


CONTEXTS = pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])


@CONTEXTS
@pytest.mark.parametrize(("end", "status"), [("raise", 1), ("exit", 6), ("_exit", 5), ("thread exit", 6)])
def test_the_parent_ends_by_itself(parent, context, end, status):
    """By an exception, by sys.exit() without leaving the block, at once: it does not hang, and nobody stays."""
    process, pids = parent(context, end)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(LONG) == status
    _until_gone(pids)
    if end == "raise":
        assert "the parent's own" in process.stderr.read()


@CONTEXTS
@pytest.mark.parametrize("end", ["killed", "killed, workers from a thread"])
def test_the_parent_is_killed(parent, context, end):
    """With SIGKILL."""
    process, pids = parent(context, end)
    process.kill()
    _until_gone(pids)


@CONTEXTS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_parent_gets_a_signal(parent, context, number):
    """Its own death by a signal, or KeyboardInterrupt, is the workers' end too."""
    process, pids = parent(context, "killed")
    process.send_signal(number)
    process.wait(LONG)
    _until_gone(pids)


@pytest.mark.parametrize("context", ["spawn", "fork"])
@pytest.mark.parametrize("work", ["say_and_wait", "keep_the_gil"])
def test_a_worker_that_cannot_watch(parent, context, work):
    """One that is stopped, or keeps the interpreter for itself, ends with a killed parent all the same."""
    process, pids = parent(context, "killed", work)
    if work == "say_and_wait":
        for pid in pids:
            stop(pid)
    process.kill()
    _until_gone(pids)


def test_a_group_started_by_a_thread_outlives_the_thread(parent):
    """Workers go with their process, not with the thread that started them."""
    process, pids = parent("fork", "killed, workers from a thread")
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    _until_gone(pids)


def test_a_forked_child_of_the_parent_leaves_the_workers_alone(parent):
    """A child that the parent forks itself, and that ends as programs do, neither hangs nor takes the workers down."""
    process, pids = parent("fork", "fork")
    process.stdin.write("\n")
    process.stdin.flush()
    said, pipe = b"", process.stdout.fileno()
    os.set_blocking(pipe, False)

    def forked():
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            said += os.read(pipe, 100)
        return b"forked" in said or process.poll() is not None

    until(forked, "the child has ended", 10.0)
    assert said == b"forked\n"
    assert not any(is_gone(pid) for pid in pids)
