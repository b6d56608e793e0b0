"""The functions of the tests' worker processes."""

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np

from echo_shm import ConnectionClosedError, ForkedError, ShmClient
from harness import stamped


def send_some(client, incarnation, count):
    """Sends count samples and ends."""
    sample = stamped.example()
    for sequence in range(count):
        client.send(stamped.stamp(sample, incarnation, sequence))


def send_and_end_by(client, incarnation, count, how):
    """Sends count samples, and returns or kills itself."""
    send_some(client, incarnation, count)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def send_without_end(client, incarnation):
    """Sends until it is killed or the ring is closed."""
    send_some(client, incarnation, 1 << 60)


def send_and_count(client, incarnation, path):
    """Sends without end. When that ends, whatever the reason, it writes to a file how many it has sent."""
    sample, sent = stamped.example(), 0
    try:
        while True:
            client.send(stamped.stamp(sample, incarnation, sent))
            sent += 1
    finally:
        with open(path, "w") as file:
            file.write(str(sent))


def reserve_across_a_stop(client, incarnation, path, how):
    """Is inside ``reserve()`` when it is stopped; then commits or aborts, and tries to send once more."""
    with contextlib.suppress(ZeroDivisionError), client.reserve() as slot:
        stamped.stamp(slot, incarnation, 0)
        _write_pid(path)
        with contextlib.suppress(ConnectionClosedError):
            send_without_end(client, incarnation + 1)
        if how == "abort":
            raise ZeroDivisionError
    send_some(client, incarnation, 1)


def wait_for_weights(client, path):
    """Waits for a version of the weights that nobody publishes."""
    subscriber = client.subscriber()
    _write_pid(path)
    subscriber.wait(1)


def go_on_after_a_stop(client, path):
    """Sends without end, and tries to go on after every exception. After the first one it writes a file."""
    _write_pid(path)
    while True:
        try:
            client.send(stamped.example())
        except BaseException:
            _write_pid(f"{path}.stopped")


def end_at_a_stop_by(client, path, how):
    """Sends until it is stopped, and ends in another way."""
    _write_pid(path)
    try:
        send_without_end(client, 1)
    finally:
        fail(client, how)


def say_at_sigterm(client, path):
    """Has its own handler for SIGTERM. It ends the process with status 7."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    say_and_wait(client, path)


def say_and_wait_for(client, path, nothing):
    """As :func:`say_and_wait`, with one more argument."""
    say_and_wait(client, path)


class SlowToLoad:
    """An argument that a worker has only once a file is there."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return _load_slowly, (self.path,)


def _load_slowly(path):
    _write_pid(f"{path}.loading")
    while not os.path.exists(path):
        time.sleep(0.001)


def send_random_numbers(client):
    """Sends what the global random generators give."""
    client.send(np.array([random.random(), np.random.random()]))


def say_and_wait(client, path):
    """Writes its PID to a file and waits without end."""
    _write_pid(path)
    while True:
        signal.pause()


def ignore_sigterm(client, path):
    """The same, but ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say_and_wait(client, path)


def keep_the_gil(client, path):
    """Writes its PID to a file and sleeps in C without releasing the GIL."""
    _write_pid(path)
    while True:
        ctypes.PyDLL(None).sleep(3600)


def start_child(client, path):
    """Starts processes of its own, one by fork and one by exec, and waits for both."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            client.send(stamped.example())
        except ForkedError:
            code = 0
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    client.send(stamped.stamp(stamped.example(), 0, 0))
    _write_pid(path)


def multiply(client, path):
    """Starts a child through multiprocessing; the child attaches by itself."""
    import multiprocessing

    from_spawn = multiprocessing.get_context("fork").Process(target=_child, args=(client.name,))
    from_spawn.start()
    from_spawn.join()
    assert from_spawn.exitcode == 0
    client.send(stamped.stamp(stamped.example(), 0, 1))


def _child(name):
    with ShmClient(name) as client:
        client.send(stamped.stamp(stamped.example(), 0, 0))


def _write_pid(path):
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(f"{path}.new", path)


class OddError(Exception):
    """It can be pickled, but not unpickled."""

    def __init__(self, a, b):
        super().__init__(f"{a}{b}")


def fail(client, how):
    """Ends in the given way."""
    if how == "plain":
        raise KeyError("plain failure")
    if how == "odd":
        raise OddError("two", "arguments")
    if how == "unpicklable":
        error = ValueError("with a lambda")
        error.extra = lambda: None
        raise error
    if how == "local":
        raise type("LocalError", (Exception,), {})("a class of nowhere")
    if how == "long":
        raise ValueError("x" * (1 << 20))
    if how == "group":
        raise SystemExit("in words")
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    if how == "module":
        module = type(sys)("only_there")
        exec("class TheirError(Exception): pass", module.__dict__)
        sys.modules["only_there"] = module
        raise module.TheirError("their own")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def fail_second(client, number, path):
    """Worker 0 sends without end; worker 1 waits for samples to flow, and fails."""
    if number == 0:
        send_without_end(client, 0)
    while not os.path.exists(path):
        time.sleep(0.001)
    raise LookupError("the second worker")


def die_once(client, incarnation, path):
    """Kills itself inside a reservation the first time; sends and ends the second time."""
    if not os.path.exists(path):
        client.send(stamped.stamp(stamped.example(), incarnation, 0))
        with client.reserve():
            _write_pid(path)
            os.kill(os.getpid(), signal.SIGKILL)
    client.send(stamped.stamp(stamped.example(), incarnation, 1))


def count_starts(client, path, how):
    """Adds a letter to a file, then ends in the given way."""
    with open(path, "a") as file:
        file.write("x")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("raised")


def leave_a_child(client, path):
    """Returns, and leaves a forked child behind."""
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
        os._exit(0)
    with open(path, "w") as file:
        file.write(str(pid))
