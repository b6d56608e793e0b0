"""Waits let other threads run and signals through."""

import signal
import sys
import threading
import time

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import Server, ShmClient
from echo_shm.ring import processes, reaper

EXAMPLE = np.zeros((), np.int64)


class Rang(Exception):
    """The alarm."""


@pytest.fixture
def alarm():
    """Makes SIGALRM raise Rang; returns a function that says how long ago it did (seconds)."""
    rang = []

    def ring(*_):
        rang.append(time.monotonic())
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: time.monotonic() - rang[0]
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def ring_in_a_while(use):
    """Calls a function, and has SIGALRM sent meanwhile."""
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    use()


@pytest.mark.parametrize("reap_interval", [0.01, 3600])
@pytest.mark.parametrize("what", ["sample", "lease", "iterate", "send", "send_many", "reserve", "submit", "bind"])
def test_a_signal_handler_runs_while_waiting(alarm, what, reap_interval, monkeypatch):
    """A Python signal handler runs during any wait, and its exception ends the wait; the ring is as before."""
    monkeypatch.setattr("echo_shm.ring.stuck.only_thread", lambda: False)  # submit() waits, as if there were others
    with (
        Server(EXAMPLE, 1, num_buffers=1, reap_interval=reap_interval) as server,
        ShmClient(server.handle) as client,
    ):
        waits_for_room = what not in ("sample", "lease", "iterate")
        if waits_for_room:
            client.send(EXAMPLE)
        use = {
            "sample": server.sample,
            "lease": server.lease().__enter__,
            "iterate": lambda: next(server.dataset_iter()),
            "send": lambda: client.send(EXAMPLE),
            "send_many": lambda: client.send_many(np.zeros(3, np.int64)),
            "reserve": client.reserve().__enter__,
            "submit": lambda: server.submit(EXAMPLE),
            "bind": client.bind(EXAMPLE.copy()).send,
        }[what]
        with pytest.raises(Rang):
            ring_in_a_while(use)
        assert alarm() < 20
        if not waits_for_room:
            client.send(EXAMPLE)
        assert server.sample(5).batch.tolist() == [0]


def test_ctrl_c_while_other_threads_wait():
    """A SIGINT that the kernel delivers to another waiting thread interrupts the main thread's wait."""
    with Server(EXAMPLE, 1) as server, Server.attach(server.name) as other:
        thread = threading.Thread(target=other.sample, daemon=True)
        thread.start()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
        sent = []

        def interrupt():
            sent.append(time.monotonic())
            signal.pthread_kill(thread.ident, signal.SIGINT)

        timer = threading.Timer(0.1, interrupt)

        def wait():
            timer.start()
            server.sample()

        with pytest.raises(KeyboardInterrupt):
            wait()
        signal.signal(signal.SIGINT, before)
        assert time.monotonic() - sent[0] < 20.0
        timer.join()
        other.close()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("what", ["sample", "send"])
def test_other_threads_run_during_a_wait(background, what):
    """While one thread sleeps in the core, another runs Python code: the GIL is free."""
    with Server(EXAMPLE, 1, num_buffers=1) as server, ShmClient(server.handle) as client:
        if what == "send":
            client.send(EXAMPLE)
            waiting = background(client.send, EXAMPLE)
        else:
            waiting = background(server.sample)
        before = sys.getswitchinterval()
        sys.setswitchinterval(30)  # no thread is forced to release the GIL
        try:
            ticks = 0
            started = time.monotonic()
            while ticks <= 10 and time.monotonic() - started < 20:
                time.sleep(0.001)  # releases the GIL, and has to take it again
                ticks += 1
            assert ticks > 10
        finally:
            sys.setswitchinterval(before)
        if what == "send":
            assert server.sample(30) is not None
        else:
            client.send(EXAMPLE)
        waiting.result()
        server.close()


def test_an_interrupted_sweep_keeps_no_lock(monkeypatch):
    """After an exception in a sweep the next sweep finds the dead owner."""
    with Server(EXAMPLE, 1) as server:
        run_python(
            "import os, signal, sys; from echo_shm import ShmClient\n"
            "c = ShmClient(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)\n",
            server.name,
            status=-signal.SIGKILL,
        )

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(reaper, "contradicts_death", interrupted)
            with pytest.raises(KeyboardInterrupt):
                server._attachment.reaper.sweep()
        assert server._attachment.reaper.sweep() == 1


@pytest.mark.parametrize("pid", [-5, 2**40, 2**62])
def test_impossible_pids_are_nobody(pid):
    """An impossible PID in shared memory belongs to no process, and raises nothing."""
    assert processes.find_process(pid, 0.0) is None
