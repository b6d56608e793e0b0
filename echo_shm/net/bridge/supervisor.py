"""The supervisor: it starts a bridge process, stops it, and starts another one if it dies."""

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
from typing import IO

from echo_shm.errors import EchoShmError
from echo_shm.net.bridge import process
from echo_shm.net.bridge.process import BridgeConfig

_log = logging.getLogger("echo_shm")

#: How long a bridge may take to start, and to stop (seconds).
_BEGIN_TIME, _END_TIME = 60.0, 5.0
#: A bridge that has lived for less than this is replaced only after a pause (seconds).
_SHORT_LIFE, _PAUSE = 1.0, 0.5

#: Uses this process's module path and nothing else, so that no file in the current directory is imported by mistake.
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from echo_shm.net.bridge.process import main; main()"

_processes: "weakref.WeakSet[_BridgeProcess]" = weakref.WeakSet()
_fork_state = threading.local()


def forking_a_bridge() -> bool:
    """In a child after a fork: whether this module has forked it."""
    return getattr(_fork_state, "forking", False)


def _forget() -> None:
    """In a forked child: closes the pipes, so that the parent sees when its bridges end."""
    for one in list(_processes):
        one.close()


os.register_at_fork(after_in_child=_forget)


class _BridgeProcess:
    """One bridge process. It ends when :meth:`stop` writes to its control pipe, or when this process ends."""

    def __init__(self, config: BridgeConfig, tls: ssl.SSLContext | None) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._control: IO[bytes] | None = None
        self._ready: IO[bytes] | None = None
        self._reaping = threading.Lock()
        self._reaped = False  # if True, the PID may be another process's
        _processes.add(self)
        try:
            # An ssl.SSLContext cannot be sent to another program. A forked child has it.
            if tls is None:
                self._start(config)
            else:
                self._fork(config, tls)
        except BaseException:
            self.close()
            raise

    def _start(self, config: BridgeConfig) -> None:
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

    def _fork(self, config: BridgeConfig, tls: ssl.SSLContext) -> None:
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
        """Waits until it serves. Returns False if it ended before that."""
        assert self._ready is not None
        said = self._ready.read(16)
        self._ready.close()
        return said == b"ready\n"

    def stop(self) -> None:
        """Tells it to end. (Closing the pipe is not enough: a child forked meanwhile may have inherited it.)"""
        if self._control is not None:
            with contextlib.suppress(OSError, ValueError):
                self._control.write(b"\n")

    def close(self) -> None:
        """Closes this process's ends of the pipes. Idempotent."""
        for pipe in (self._control, self._ready):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def wait(self) -> int:
        """Waits until it has ended, and returns its exit status."""
        if self._popen is not None:
            return self._popen.wait()
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            with self._reaping:
                self._reaped = True
                return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # other code has reaped it, or SIGCHLD is ignored
            self._reaped = True
            return 0

    def kill(self) -> None:
        """Kills it."""
        if self._popen is not None:
            self._popen.kill()
            return
        with self._reaping:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


def _run_bridge(config: BridgeConfig, control: int, ready: int, tls: ssl.SSLContext) -> None:
    """Runs a bridge in a forked child. Does not return."""
    status = 1
    try:
        _drop_inherited(config["listeners"])
        status = process.serve(config, control, ready, tls)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _drop_inherited(keep: list[int]) -> None:
    """Drops what belongs to the learner and was inherited: signal handlers and listening sockets."""
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
    except OSError:  # not a socket
        return False
    with duplicate:
        return duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


class Supervisor:
    """Keeps one bridge process running, from a thread of its own, until it is stopped.

    Args:
        config: What the bridge serves.
        tls: As for the transport.

    """

    def __init__(self, config: BridgeConfig, tls: ssl.SSLContext | None) -> None:
        self._config, self._tls = config, tls
        self._lock = threading.Lock()
        self._process: _BridgeProcess | None = None
        self._stopping = threading.Event()
        self._begun = threading.Event()
        self._ended = threading.Event()  # needed because a Thread.join() that Ctrl-C interrupts may be wrong later
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="echo_shm-bridge-supervisor", daemon=True)

    def start(self) -> None:
        """Starts the bridge. Not part of the constructor: after a Ctrl-C here, the caller must be able to stop it."""
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Waits until the first bridge serves."""
        if not self._begun.wait(_BEGIN_TIME):
            raise EchoShmError(f"the bridge process did not start within {_BEGIN_TIME} s")
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout: float | None) -> bool:
        """Waits until the bridge has ended for good. Returns False if that takes longer than ``timeout`` seconds.

        Raises:
            EchoShmError: It could not be kept running.

        """
        ended = self._ended.wait(timeout)
        if ended and self._failure is not None:
            raise EchoShmError(f"the bridge could not be kept running: {self._failure}") from self._failure
        return ended

    @property
    def pid(self) -> int:
        """The process id of the bridge that runs now; -1 if none does."""
        with self._lock:
            return -1 if self._process is None else self._process.pid

    def stop(self) -> None:
        """Tells the bridge to send BYE to its clients and end."""
        self._stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.stop()

    def join(self) -> None:
        """Waits until it has ended. A bridge that takes too long is killed, and not waited for much longer."""
        self._stopping.set()
        if self._thread.ident is None:
            return  # not started; if another thread is about to start it, it ends at once
        if not self._ended.wait(_END_TIME):
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            if not self._ended.wait(_END_TIME):  # it is stuck in the kernel, or a child of it has its pipe
                _log.error("the bridge process %d was killed %g s ago, and has not ended", self.pid, _END_TIME)
                return
        self._thread.join()

    def _run(self) -> None:
        # Bridges inherit the mask. They unblock SIGINT once they ignore it.
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
        except OSError as error:  # perhaps no memory or no PID is free for now
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
            self._failure = EchoShmError(f"the bridge process ended with status {status} before it served; see its log")
            self._stopping.set()
        elif status == process.RING_CLOSED:
            self._stopping.set()
        else:
            _log.warning("the bridge process %d ended with status %d; starting another", made.pid, status)
