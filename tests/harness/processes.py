"""Processes: their states, how they are forked, stopped and killed."""

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from harness.waiting import LONG, until

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when the process that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def state(pid: int) -> str:
    """The process's state as psutil names it; "gone" when there is none."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def is_gone(pid: int) -> bool:
    """Whether the process has ended, collected by its parent or not."""
    return state(pid) in ("gone", psutil.STATUS_ZOMBIE)


def until_asleep(pid: int, seconds: float = LONG) -> None:
    """Waits until a process with one thread sleeps: in five looks in a row."""
    asleep = 0

    def look() -> bool:
        nonlocal asleep
        asleep = asleep + 1 if state(pid) == psutil.STATUS_SLEEPING else 0
        return asleep >= 5

    until(look, f"process {pid} sleeps", seconds)


def stop(pid: int) -> None:
    """Stops a process, and waits until it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == psutil.STATUS_STOPPED, f"process {pid} is stopped")


def fork(who: str, fn: Callable[..., Any], *args: Any) -> int:
    """Forks a process that runs ``fn(*args)`` until it is killed, and dies with its parent; returns its PID.

    An exception is written to stderr under the name ``who``, and ends the process with status 1.
    """
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            fn(*args)
        except BaseException as error:
            os.write(2, f"{who}: {error!r}\n".encode())
        os._exit(1)
    return pid


def kill_all(pids: Sequence[int]) -> None:
    """Kills processes of :func:`fork`, then collects them: their deaths overlap."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status), f"process {pid} ended by itself, with status {status:#x}"


def in_child(function: Callable[[], Any]) -> str:
    """Runs a function in a forked child; returns what it raised as text, or ``""``. A child that hangs is killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            signal.alarm(20)
            function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return text if status == 0 else f"the child ended with status {status}"
