"""Programs: command lines that run beside a test, on a terminal or without one."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

from harness.waiting import until

#: A program that has not ended, or has not printed what it should, after so many seconds has failed.
PATIENCE = 60

#: ``tests/``, so that a program can import the harness.
TESTS = Path(__file__).resolve().parents[1]

#: The command line ``echo-shm``.
ECHO_SHM = (sys.executable, "-m", "echo_shm")


def run(*words: str, status: int | None = 0, timeout: float = 50, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end, and asserts its exit status unless that is None.

    Args:
        words: The program and its arguments.
        status: What it must end with.
        timeout: How long it may take (seconds).
        options: Of :func:`subprocess.run`; ``env`` is added to this process's environment.

    """
    options["env"] = {**os.environ, **options.get("env", {})}
    done = subprocess.run([*words], capture_output=True, text=True, timeout=timeout, **options)
    assert status is None or done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_python(script: str, *args: str, status: int | None = 0, **env: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script in a fresh interpreter, and asserts its exit status unless that is None."""
    return run(sys.executable, "-X", "faulthandler", "-c", script, *args, status=status, env=env)


def quick_compiler(folder: Path) -> dict[str, str]:
    """The environment in which setuptools compiles without optimizing, in half the time.

    CFLAGS do not do this: setup.py's own options come after them.
    """
    compiler = folder / "quick-cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0 -g0\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler)}


class Program:
    """A program that runs, its output collected by a thread.

    Args:
        words: The program and its arguments.
        terminal: Give it a pseudo-terminal of 80 x 24 of its own, which does not echo: an echo comes anywhere in the
            output, also within a character. Without one, its stdin is a pipe.
        env: Added to this process's environment.

    """

    def __init__(self, *words: str, terminal: bool = False, env: dict[str, str] | None = None) -> None:
        self.output = ""
        self._grown = threading.Condition()
        self._ended = False
        if terminal:
            self._mine, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            modes = termios.tcgetattr(theirs)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, modes)
        else:
            self._mine, theirs = os.pipe()
        self.process = subprocess.Popen(
            words,
            stdin=theirs if terminal else subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1", **(env or {})},
            start_new_session=True,
            preexec_fn=_own_terminal if terminal else _default_signals,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def _read(self) -> None:
        data = b""
        with contextlib.suppress(OSError):  # a pseudo-terminal whose other end is closed
            while chunk := os.read(self._mine, 65536):
                data += chunk
                with self._grown:
                    self.output = data.decode(errors="replace")
                    self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Waits until the output has something in it."""

        def found() -> bool:
            return self._ended or re.search(pattern, self.output) is not None

        with self._grown:
            assert self._grown.wait_for(found, PATIENCE), f"no {pattern!r} in\n{self.output}"
        match = re.search(pattern, self.output)
        assert match is not None, f"it ended without {pattern!r}:\n{self.output}"
        return match

    def type(self, keys: bytes) -> None:
        """Presses keys of its terminal, or writes to its stdin."""
        os.write(self._mine if self.process.stdin is None else self.process.stdin.fileno(), keys)

    def send_signal(self, number: int) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def result(self) -> int:
        """Waits for its end; returns the exit status, or the signal's number with a minus."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        # discard() collects it: until then no other process gets its PID
        ended: Any = until(lambda: os.waitid(os.P_PID, self.pid, options), "the program ends", PATIENCE)
        self._reader.join(PATIENCE)
        return int(ended.si_status) if ended.si_code == os.CLD_EXITED else -int(ended.si_status)

    def kill(self) -> None:
        """Kills it, if it still runs, and waits for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self.result()

    def discard(self) -> None:
        """Kills it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with self.process:
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._mine)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # a background job of a script ignores the first, nohup the second
        signal.signal(number, signal.SIG_DFL)


def _own_terminal() -> None:
    _default_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
