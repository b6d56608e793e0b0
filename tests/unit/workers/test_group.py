"""Server.spawn and WorkerGroup: what they refuse and what they say; what a forkserver imports."""

import os
import pickle
import signal
import sys

import numpy as np
import pytest
from harness.programs import run, run_python
from harness.waiting import until

from echo_shm import ConnectionClosedError, Server, WorkerError
from echo_shm.workers.entry import importable

EXAMPLE = np.zeros(3)


def test_spawn_on_a_closed_ring():
    """Workers that could not send anything are not started."""
    server = Server(EXAMPLE, 1)
    server.close()
    with pytest.raises(ConnectionClosedError, match="closed"):
        server.spawn(print, 1)


@pytest.mark.parametrize(
    ("fn", "n", "args"), [("print", 1, ()), (print, "2", ()), (print, 2, (5,)), (print, 1, ({1},))]
)
def test_spawn_says_what_it_takes(fn, n, args):
    """A function, a whole number, sequences: anything else is refused before a process starts."""
    with Server(EXAMPLE, 1) as server, pytest.raises((TypeError, ValueError), match=r"worker|sequence"):
        server.spawn(fn, n, *args)


def test_arguments_are_checked_before_anything_starts():
    """Sequences of another length, no workers, and a start method that does not exist are refused."""
    with Server(EXAMPLE, 1) as server:
        with pytest.raises(ValueError, match="argument 1 has 1 entries for 2 workers"):
            server.spawn(print, 2, [1, 2], [1])
        with pytest.raises(ValueError, match="at least 1"):
            server.spawn(print, 0, [], [])
        with pytest.raises(ValueError, match="nowhere"):
            server.spawn(print, 1, [1], [1], context="nowhere")


TYPED = """
import numpy as np
from echo_shm import Server

def work(client):
    client.send(np.float64(7))

with Server(np.zeros(()), 1) as server, server.spawn(work, 1) as workers:
    print(server.sample(timeout=30).batch)
"""


def test_a_typed_function_with_cloudpickle():
    """A function of an interpreter or a notebook runs in a spawned worker."""
    assert run_python(TYPED).stdout == "[7.]\n"


def test_a_typed_function_without_cloudpickle():
    """Before any process is started, the error says what to do."""
    without = "import sys; sys.modules['cloudpickle'] = None; import importlib.util\n"
    without += "find = importlib.util.find_spec\n"
    without += "importlib.util.find_spec = lambda name: None if name == 'cloudpickle' else find(name)"
    done = run_python(f"{without}\n{TYPED}", status=1)
    assert "work was typed into an interpreter or a notebook" in done.stderr
    assert "pip install cloudpickle" in done.stderr


def test_a_nameless_function(monkeypatch):
    """A lambda, or a function inside another, needs cloudpickle too, and the error says so."""
    number = 41
    assert pickle.loads(pickle.dumps(importable(lambda: number + 1)))() == 42
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TypeError, match=r"<locals>.<lambda> is a lambda or .*pip install cloudpickle"):
        importable(lambda: number)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan")])
def test_stop_says_what_it_takes(timeout):
    """A timeout is seconds or None."""
    with Server(EXAMPLE, 1) as server, server.spawn(_return, 1, context="fork") as group:
        with pytest.raises(ValueError, match=r"timeout=.*: use seconds"):
            group.stop(timeout)
        group.stop(float("inf"))
        assert group.exitcodes == [0]


def test_repr():
    """How many workers there are, and how they do."""
    with Server(EXAMPLE, 1) as server:
        with server.spawn(_return_or_fail, 3, ["return", "fail", "wait"], context="fork") as group:
            until(lambda: group.any_failed and group.exitcodes[0] == 0)
            assert repr(group) == "<WorkerGroup of 3 workers: 1 running, 2 ended, 1 failed, 0 restarts>"
            group.terminate()
        with server.spawn(_return_or_fail, 1, ["die"], context="fork", restart=True, max_restarts=1) as group:
            until(lambda: group.finished)
            assert repr(group) == "<WorkerGroup of 1 worker: 0 running, 1 ended, 0 failed, 1 killed, 1 restart>"
            with pytest.raises(WorkerError):
                group.join()


def test_a_worker_that_exits_is_started_again_if_it_is_to_be():
    """Only one that told of no exception; and only so often: then it has failed."""
    with Server(EXAMPLE, 1) as server:
        with pytest.raises(ValueError, match="restart='never': use True, False or 'always'"):
            server.spawn(_return, 1, restart="never")
        for how, restart, restarts in [("exit", "always", 2), ("exit", True, 0), ("fail", "always", 0)]:
            with server.spawn(
                _return_or_fail, 1, [how], context="fork", restart=restart, max_restarts=2, on_death="ignore"
            ) as group:
                until(lambda group=group: group.finished)
                assert (group.restarts, group.last_exitcode) == (restarts, 3 if restarts else None)
                with pytest.raises(WorkerError if how == "exit" else ValueError):
                    group.join()


def _return(client):
    pass


def _return_or_fail(client, how):
    if how == "fail":
        raise ValueError
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(3)
    if how == "wait":
        signal.pause()


PRELOAD = """
import multiprocessing.forkserver
import numpy as np
from echo_shm import Server

def work(client):
    import sys
    client.send(np.int64("echo_shm.workers.preload" in sys.modules))

if __name__ == "__main__":
    {before}
    with Server(np.zeros((), np.int64), 1) as server, server.spawn(work, 1, context="forkserver"):
        print(server.sample(timeout=30).batch, multiprocessing.forkserver._forkserver._preload_modules)
"""


@pytest.mark.parametrize(
    ("before", "preloaded", "modules"),
    [
        ("pass", 1, []),
        ("multiprocessing.set_forkserver_preload(['json'])", 1, ["json"]),
        ("multiprocessing.forkserver.ensure_running()", 0, []),
    ],
)
def test_a_forkserver_has_the_package(tmp_path, before, preloaded, modules):
    """It imports the package once, and what the user has chosen, but not the main module. One that runs is used."""
    script = tmp_path / "script.py"
    script.write_text(PRELOAD.format(before=before))
    assert run(sys.executable, str(script)).stdout == f"[{preloaded}] {['echo_shm.workers.preload', *modules]}\n"
