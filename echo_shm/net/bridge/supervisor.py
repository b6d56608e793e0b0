"""Bridge processes: started, told to end, and started again when they die."""

import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import weakref
from typing import IO, Any

from echo_shm.errors import EchoShmError
from echo_shm.net.bridge import process

_log = logging.getLogger("echo_shm")

#: How long a bridge may take to begin, and to end (seconds).
_BEGIN_TIME, _END_TIME = 60.0, 5.0
#: A bridge that has not lived this long is started again only after a pause (seconds).
_SHORT_LIFE, _PAUSE = 1.0, 0.5

#: With our module path and nothing else: a file that lies in the current directory is not imported by its name.
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from echo_shm.net.bridge.process import main; main()"

_processes: "weakref.WeakSet[_BridgeProcess]" = weakref.WeakSet()
_fork_state = threading.local()


def forking_a_bridge() -> bool:
    """Whether the fork that this is called after is our own, and not a user's."""
    return getattr(_fork_state, "forking", False)


def _forget() -> None:
    """In a forked child: the bridges are its parent's, who should see them end."""
    for one in list(_processes):
        one.close()


os.register_at_fork(after_in_child=_forget)


class _BridgeProcess:
    """One bridge process: ends when :meth:`stop` writes to its control pipe, or this process ends."""

    def __init__(self, config: dict[str, Any], tls: ssl.SSLContext | None) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._control: IO[bytes] | None = None
        self._ready: IO[bytes] | None = None
        self._reaping = threading.Lock()
        self._reaped = False  # from then on the PID may be another process's
        _processes.add(self)
        try:
            # An ssl.SSLContext cannot be handed to another program. A fork has it.
            if tls is None:
                self._start(config)
            else:
                self._fork(config, tls)
        except BaseException:
            self.close()
            raise

    def _start(self, config: dict[str, Any]) -> None:
        self._popen = popen = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, f"echo_shm bridge of {config['name']}", *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=config["listeners"],
        )
        self.pid, self._control, self._ready = popen.pid, popen.stdin, popen.stdout
        assert self._control is not None
        with contextlib.suppress(BrokenPipeError):
            self._control.write(json.dumps(config).encode() + b"\n")

    def _fork(self, config: dict[str, Any], tls: ssl.SSLContext) -> None:
        with contextlib.ExitStack() as here:
            control_read, control_write = os.pipe()
            here.callback(os.close, control_read)
            self._control = os.fdopen(control_write, "wb", buffering=0)
            ready_read, ready_write = os.pipe()
            here.callback(os.close, ready_write)
            self._ready = os.fdopen(ready_read, "rb", buffering=0)
            pid, _fork_state.forking = -1, True
            try:
                pid = os.fork()
            finally:
                _fork_state.forking = pid == 0
            if pid == 0:
                _run_bridge(config, control_read, ready_write, tls)
            self.pid = pid

    def wait_until_ready(self) -> bool:
        """Waits until it serves; False when it ended instead."""
        assert self._ready is not None
        said = self._ready.read(16)
        self._ready.close()
        return said == b"ready\n"

    def stop(self) -> None:
        """Tells it to end. (To close the pipe would not do: a child that was forked meanwhile has it, too.)"""
        if self._control is not None:
            with contextlib.suppress(OSError, ValueError):
                self._control.write(b"\n")

    def close(self) -> None:
        """Gives up our ends of the pipes. Idempotent."""
        for pipe in (self._control, self._ready):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        if self._popen is not None:
            return self._popen.wait()
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with self._reaping:
                self._reaped = True
                return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else reaps our children, or SIGCHLD is ignored
            self._reaped = True
            return 0

    def kill(self) -> None:
        """Ends it at once."""
        if self._popen is not None:
            self._popen.kill()
            return
        with self._reaping:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


def _run_bridge(config: dict[str, Any], control: int, ready: int, tls: ssl.SSLContext) -> None:
    """In a fork of ours; does not return."""
    status = 1
    try:
        _drop_inherited(config["listeners"])
        status = process.serve(config, control, ready, tls)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _drop_inherited(keep: list[int]) -> None:
    """Leaves what is the learner's own and a fork brings along: its signals' handlers, its listening sockets."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # systems without /proc
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in keep and _listens(descriptor):
                os.close(descriptor)


def _listens(descriptor: int) -> bool:
    try:
        duplicate = socket.socket(fileno=os.dup(descriptor))
    except OSError:  # no socket
        return False
    with duplicate:
        return duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


class Supervisor:
    """Keeps one bridge process running, in a thread of its own, until told to stop.

    Args:
        config: What the bridge is told; see :func:`echo_shm.net.bridge.process.serve`.
        tls: As for the transport.

    """

    def __init__(self, config: dict[str, Any], tls: ssl.SSLContext | None) -> None:
        self._config, self._tls = config, tls
        self._lock = threading.Lock()
        self._process: _BridgeProcess | None = None
        self._stopping = threading.Event()
        self._begun = threading.Event()
        self._ended = threading.Event()  # Thread.join() that Ctrl-C interrupts may take a thread for dead that is not
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="echo_shm-bridge-supervisor", daemon=True)

    def start(self) -> None:
        """Starts the bridge. Not by the constructor: what Ctrl-C interrupts in here must be somebody's to stop."""
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Returns when the first bridge serves."""
        if not self._begun.wait(_BEGIN_TIME):
            raise EchoShmError(f"the bridge process did not begin within {_BEGIN_TIME} s")
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout: float | None) -> bool:
        """Whether it has ended, in so many seconds.

        Raises:
            EchoShmError: It has, and not because it should.

        """
        ended = self._ended.wait(timeout)
        if ended and self._failure is not None:
            raise EchoShmError(f"the bridge could not be kept running: {self._failure}") from self._failure
        return ended

    @property
    def pid(self) -> int:
        """Of the bridge that runs now; -1 if none does."""
        with self._lock:
            return -1 if self._process is None else self._process.pid

    def stop(self) -> None:
        """Has the bridge tell its clients and end."""
        self._stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.stop()

    def join(self) -> None:
        """Waits for its end; a bridge that takes too long is killed."""
        self._stopping.set()
        if self._thread.ident is None:
            return  # not started; if it is just about to be, it ends at once
        if not self._ended.wait(_END_TIME):
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        # What is started here has Ctrl-C held back until it ignores it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                self._serve_once()
                if time.monotonic() - started < _SHORT_LIFE:
                    self._stopping.wait(_PAUSE)
        except Exception as error:
            self._failure = error
            _log.exception("the bridge cannot be kept running")
        finally:
            self._begun.set()
            self._ended.set()

    def _serve_once(self) -> None:
        try:
            with self._lock:
                if self._stopping.is_set():
                    return
                made = self._process = _BridgeProcess(self._config, self._tls)
        except OSError as error:  # no memory or no PID left, perhaps for now
            if not self._begun.is_set():
                raise
            _log.warning("cannot start another bridge process; trying again: %s", error)
            return
        if made.wait_until_ready():
            self._begun.set()
        status = made.wait()
        with self._lock:
            self._process = None
        made.close()
        if self._stopping.is_set():
            return
        if not self._begun.is_set():
            self._failure = EchoShmError(f"the bridge process ended with status {status} before it began; see its log")
            self._stopping.set()
        elif status == process.RING_CLOSED:
            self._stopping.set()
        else:
            _log.warning("the bridge process %d ended with status %d; starting another", made.pid, status)
