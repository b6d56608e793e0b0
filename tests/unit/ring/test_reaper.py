"""Sweeps for the dead: interrupted, inside each other, and at the end of a stream."""

import contextlib
import os
import time

import numpy as np
import pytest
from harness.interrupts import Interrupt, at_opcode, interrupt, run_traced
from harness.programs import run_python

from echo_shm import Server
from echo_shm._core import ffi, lib
from echo_shm.ring import processes, reaper

EXAMPLE = np.zeros((), np.int64)


@pytest.fixture
def two(monkeypatch):
    """A server, and another learner on its ring."""
    with Server(EXAMPLE, 2, reap_interval=0.01) as server:
        for i in range(2):
            server.submit(np.int64(i))
        with Server.attach(server.name) as other:
            yield server, other


def lease(server):
    """Takes a batch, which stays leased."""
    snap = ffi.new("es_snapshot *")
    assert lib.es_api_take(server._ring, 0, 0, snap) == 0
    return snap


def die(server, monkeypatch):
    """Drops the lock of a learner, as the kernel does at a death."""
    monkeypatch.setattr(reaper, "contradicts_death", lambda pid, start_time: False)
    lib.es_segment_locks_drop(server._segment.lockfile.locks, server._attachment.index)


def numbers(server, **options):
    """Every batch to the end, as lists."""
    return [sample.batch.tolist() for sample in server.dataset_iter(**options)]


@pytest.mark.parametrize("which", ["sweep", "reap_and_check"])
def test_interrupted_anywhere(two, monkeypatch, which, background):
    """Wherever Ctrl-C interrupts a sweep, it keeps no lock: the next sweep of any thread finds the dead."""
    server, other = two
    die(other, monkeypatch)
    attached, locks, n = server._attachment, server._segment.lockfile.locks, 0
    monkeypatch.setattr(lib_of(monkeypatch), "es_sweep_settle", spare)
    while True:
        n += 1
        trace, left = at_opcode(n, interrupt, reaper, processes)
        with contextlib.suppress(Interrupt):
            run_traced(getattr(attached.reaper, which), trace)
        assert lib.es_segment_locks_held(locks, other._attachment.index) == 0, f"interrupted at point {n}"
        assert background(attached.reaper.reap_and_check).result(10)[0] == 1, f"interrupted at point {n}"
        assert lib.es_segment_locks_held(locks, other._attachment.index) == 0
        if left[0] > 0:
            break
    assert n > 20


class _Lib:
    """The C core, except what a test replaces."""

    def __getattr__(self, name):
        return getattr(lib, name)


def lib_of(monkeypatch):
    """A stand-in for reaper.py's C core."""
    stand_in = _Lib()
    monkeypatch.setattr(reaper, "lib", stand_in)
    return stand_in


def spare(ring, dead, reap):
    """An es_sweep_settle() that never reaps: the next sweep finds the same dead learner."""
    lib.es_sweep_settle(ring, dead, 0)
    return 0


def test_a_handler_that_sweeps_too(two, monkeypatch):
    """A signal handler may sweep while it interrupts a sweep: nothing waits for itself."""
    server, other = two
    die(other, monkeypatch)
    attached, locks = server._attachment, server._segment.lockfile.locks
    monkeypatch.setattr(lib_of(monkeypatch), "es_sweep_settle", spare)
    n = 0
    while True:
        n += 1
        trace, left = at_opcode(
            n, lambda: (attached.reaper.sweep(), attached.reaper.reap_and_check()), reaper, processes
        )
        run_traced(attached.reaper.sweep, trace)
        assert lib.es_segment_locks_held(locks, other._attachment.index) == 0, f"handled at point {n}"
        if left[0] > 0:
            break
    assert n > 20
    assert attached.reaper.reap_and_check()[0] == 1


def test_a_lock_file_that_was_closed_is_an_error():
    """A program that has closed the lock file's descriptor gets an error at the end of a stream, and does not hang."""
    run_python(
        """
import os, numpy as np
from echo_shm import SegmentError, Server
server = Server(np.int64(0), 2)
other = Server.attach(server.name)
for fd in os.listdir("/proc/self/fd"):
    try:
        if "echo_shm_locks." in os.readlink(f"/proc/self/fd/{fd}"):
            os.close(int(fd))
    except OSError:
        pass
server.close()
try:
    print(server.sample(timeout=20))
except SegmentError as error:
    print("SegmentError", error)
else:
    raise SystemExit("no error")
os._exit(0)
"""
    )


def test_what_the_dead_held_comes_without_waiting(monkeypatch):
    """At the end of a stream a batch that this learner's own sweep gives back is taken at once, also with timeout=0."""
    with Server(EXAMPLE, 2, reap_interval=3600) as server, Server.attach(server.name) as other:
        for i in range(2):
            server.submit(np.int64(i))
        lease(other)
        server.close()
        time.sleep(1.1)  # from now on the end does not wait for leases of living learners
        die(other, monkeypatch)
        assert server.sample(timeout=0).batch.tolist() == [0, 1]


def test_a_learner_that_is_dying_is_not_alive(two, monkeypatch):
    """The end of a stream waits for a dying learner: it has no memory, but the kernel has not dropped its lock."""
    server, other = two
    snap, asked = lease(other), []

    def has_memory(pid):
        asked.append(pid)
        if len(asked) < 5:
            return False
        lib.es_api_give_back(other._ring, snap.batch, snap.round)
        return True

    monkeypatch.setattr(reaper, "has_memory", has_memory)
    server.close()
    assert numbers(server) == [[0, 1]]
    assert asked[:5] == [os.getpid()] * 5


def test_only_processes_without_memory_are_dying():
    """This process has memory; a kernel thread, or one that has exited, has none."""
    assert processes.has_memory(os.getpid())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not processes.has_memory(pid)
    os.waitpid(pid, 0)
    assert not processes.has_memory(pid)


def test_the_last_sweep_counts_as_well(two, monkeypatch):
    """When the last sweep of a stream reaps a learner, the stream looks once more."""
    server, other = two
    lease(other)
    attached = server._attachment
    reap_and_check, killed = attached.reaper.reap_and_check, []

    def look_then_die():
        result = reap_and_check()
        if not killed:
            killed.append(die(other, monkeypatch))
            time.sleep(0.02)  # a reap interval passes
        return result

    monkeypatch.setattr(attached.reaper, "reap_and_check", look_then_die)
    server.close()
    assert numbers(server) == [[0, 1]]
