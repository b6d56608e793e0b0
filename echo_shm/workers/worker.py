"""One worker's process, as its parent sees it."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from echo_shm.workers.entry import Connect, run_worker

#: A worker that is killed more than ``max_restarts`` times within this time is not started again (seconds).
_RESTART_WINDOW = 60.0

#: A worker that is killed so soon after its start, twice in a row, waits before it is started again: so long at first,
#: then twice as long, and so on (seconds).
_QUICK_DEATH = 1.0
SHORTEST_DELAY, _LONGEST_DELAY = 0.1, 5.0

#: What a forkserver imports. See there.
_PRELOAD = "echo_shm.workers.preload"

#: A start method.
Context: TypeAlias = SpawnContext | ForkContext | ForkServerContext


@contextlib.contextmanager
def _without_ctrl_c(context: Context) -> Generator[None, None, None]:
    """A process that is started in this block has Ctrl-C blocked until it ignores it."""
    method = context.get_start_method()
    if method == "forkserver":  # it would pass that on to whatever else it starts
        yield
        return
    if method == "spawn":
        resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def preload() -> None:
    """Has the forkserver import the package. No effect if one runs already: its workers import it themselves."""
    chosen: list[str] = getattr(multiprocessing.forkserver._forkserver, "_preload_modules", [])
    if _PRELOAD not in chosen:
        # ["__main__"] is what Python chooses.
        multiprocessing.set_forkserver_preload([_PRELOAD, *(chosen if chosen != ["__main__"] else [])])


def _exit_event(process: BaseProcess, context: Context) -> int:
    """A file descriptor that becomes readable when the process ends. The caller closes it.

    The process's sentinel is a pipe, and processes that the worker forks may hold its other end for much longer.
    """
    assert process.pid is not None
    if context.get_start_method() != "forkserver" and hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has ended, and other code has collected it
            read, write = os.pipe()
            os.close(write)
            return read
        except OSError:  # Linux before 5.3
            pass
    return os.dup(process.sentinel)


class Worker:
    """One worker's process, and what is known of it. Only the monitor thread asks the process how it ended."""

    def __init__(self, number: int, args: tuple[Any, ...]) -> None:
        self.number = number
        self.args = args
        self._process: BaseProcess | None = None
        #: Readable once the current process has ended. None before it starts, and once it is collected.
        self.exit_event: int | None = None
        #: The worker's failure comes from it, and what it is told goes to it. None once it is closed.
        self.control: Connection | None = None
        # Held while the pipe is written to or closed. A signal handler may enter again.
        self._control_lock = threading.RLock()
        self._told = False
        self.restarts = 0
        #: By time.monotonic(): when it was started, when it was started again within the last minute, and when it is
        #: to be started again.
        self.started_at = 0.0
        self.recent: list[float] = []
        self.restart_at: float | None = None
        self.quick_deaths = 0  # in a row
        self.died = False
        self.failed = False
        self.failure: tuple[str, bytes | None] | None = None
        self.raised = False
        self.exitcode: int | None = None

    def start(self, context: Context, connect: Connect, fn: Callable[..., Any]) -> None:
        """Starts a process that runs ``fn``."""
        # The kernel watches the thread that starts the worker. Only the main thread lives as long as this process, and
        # the forkserver lives as long as its workers.
        in_main = threading.current_thread() is threading.main_thread()
        by_signal = in_main and context.get_start_method() != "forkserver"
        self.control, theirs = context.Pipe()
        # Not a daemon in multiprocessing's sense: a daemon may not start processes, and some environments do.
        self._process = context.Process(
            target=run_worker,
            args=(theirs, by_signal, connect, fn, self.args),
            name=f"echo_shm-worker-{self.number}",
            daemon=False,
        )
        self._told = False
        self.started_at = time.monotonic()
        try:
            with _without_ctrl_c(context):
                self.process.start()
            self.exit_event = _exit_event(self.process, context)
        finally:
            theirs.close()

    def tell_to_stop(self) -> None:
        """Tells the process to send nothing more. Returns at once: one word fits into the pipe."""
        with self._control_lock:
            if self.control is not None and not self._told:
                self._told = True
                with contextlib.suppress(OSError):  # the process is gone
                    self.control.send_bytes(b"stop")

    @property
    def process(self) -> BaseProcess:
        """The worker's current process, once :meth:`start` was called."""
        assert self._process is not None
        return self._process

    @property
    def started(self) -> bool:
        """Whether there has been a process."""
        return self._process is not None and self._process.pid is not None

    @property
    def pid(self) -> int:
        """The process id of the current process."""
        assert self.process.pid is not None
        return self.process.pid

    def delay(self, max_restarts: int) -> float | None:
        """Seconds until it may be started again. None: it has been, too often."""
        now = time.monotonic()
        self.recent = [then for then in self.recent if now - then < _RESTART_WINDOW]
        self.quick_deaths = self.quick_deaths + 1 if now - self.started_at < _QUICK_DEATH else 0
        if len(self.recent) >= max_restarts:
            return None
        self.recent.append(now)
        if self.quick_deaths < 2:
            return 0.0
        return min(_LONGEST_DELAY, SHORTEST_DELAY * 2.0 ** (self.quick_deaths - 2))

    def read_report(self) -> None:
        """Reads why the worker failed, if it has reported that, and closes the pipe."""
        if self.control is None:
            return
        with contextlib.suppress(EOFError, OSError):
            if self.control.poll():
                self.failure = self.control.recv()
        with self._control_lock:
            self.control.close()
            self.control = None

    def collect(self) -> int:
        """Waits for the process, which is exiting, and returns its exit status."""
        self.process.join()
        while self.process.exitcode is None:  # another thread in multiprocessing is collecting it
            time.sleep(0.001)
        if self.exit_event is not None:
            os.close(self.exit_event)
            self.exit_event = None
        self.read_report()
        return int(self.process.exitcode)


def how_ended(exitcode: int) -> str:
    """How a process ended: by which signal, or with which status."""
    if exitcode >= 0:
        return f"exited with status {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
