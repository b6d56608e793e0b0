"""Processes for a test to steer, and waiting for conditions.

An actor is forked from a server process that has echo_shm imported, has one
thread and no attachments; it runs one function of a connection to the test.
Nothing here waits without a deadline.
"""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import psutil

#: Far more than anything here takes (seconds); a wait that gets there has failed.
LONG = 30.0

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["echo_shm", "actors", "stamped"])

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when the process that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def until(condition: Callable[[], Any], what: str, seconds: float = LONG) -> Any:
    """Polls until the condition's value is true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.001)


def state(pid: int) -> str:
    """The process's state as psutil names it; "gone" when there is none."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def is_gone(pid: int) -> bool:
    """Whether the process has ended, whoever has yet to collect it."""
    return state(pid) in ("gone", psutil.STATUS_ZOMBIE)


def until_asleep(pid: int, seconds: float = LONG) -> None:
    """Waits for a one-threaded process to sleep: in five looks in a row."""
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


class Failure:
    """What an actor sends when its function raises."""

    def __init__(self, text: str) -> None:
        self.text = text


def _life(conn: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    die_with_parent()
    # A test runner ignores or handles what an ordinary process would not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        fn(conn, *args)
    except (EOFError, BrokenPipeError):
        pass  # the test is over
    except BaseException:
        conn.send(Failure(traceback.format_exc()))


class Actor:
    """A process that runs ``fn(conn, *args)``."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self.conn, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_life, args=(theirs, fn, args), daemon=False)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def hear(self, seconds: float = LONG) -> Any:
        """The next thing it says; its exception is an error here."""
        assert self.conn.poll(seconds), f"the process said nothing for {seconds} s"
        said = self.conn.recv()
        assert not isinstance(said, Failure), said.text
        return said

    def is_silent(self, seconds: float = 0.0) -> bool:
        """Whether it has said nothing yet, and says nothing for so long."""
        return not self.conn.poll(seconds)

    def say(self, what: Any = None) -> None:
        """Sends it something."""
        self.conn.send(what)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal; waits for the end after SIGKILL."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.end()

    def end(self, seconds: float = LONG) -> int | None:
        """Waits for its end: the exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"the process still runs after {seconds} s"
        return self.process.exitcode

    def discard(self) -> None:
        """Takes it down, whatever it does."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(LONG)
        self.conn.close()
