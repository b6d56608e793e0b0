"""What Server.spawn refuses before a process starts."""

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import ConnectionClosedError, Server

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
