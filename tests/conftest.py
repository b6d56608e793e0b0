"""What every test gets: a watchdog, and a check that it leaves no segment and no process behind."""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo_shm import SegmentError
from echo_shm.ring.segment import Segment

SHM = Path("/dev/shm")

#: Seconds that a test may take unless it is marked ``@pytest.mark.watchdog(seconds)``.
_WATCHDOG = 60.0

_stderr_copy = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and keeps the real stderr for the watchdog."""
    config.addinivalue_line("markers", "watchdog(seconds): how long the test may take before the run is ended")
    config.stash[_stderr_copy] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the whole run with every thread's traceback when a test hangs."""
    marker = request.node.get_closest_marker("watchdog")
    seconds = marker.args[0] if marker else _WATCHDOG
    faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.stash[_stderr_copy])
    yield
    faulthandler.cancel_dump_traceback_later()


def _files() -> set[str]:
    return {path.name for path in SHM.glob("echo_shm*")}


def _is_somebody_elses(file: str) -> bool:
    """Whether a running process that is no child of ours made it: another test run on this machine."""
    name = file.removeprefix("echo_shm_locks.").removeprefix("echo_shm.")
    if not (SHM / f"echo_shm.{name}").is_file():
        return False
    try:
        pid = Segment.attach(name, read_only=True).creator_pid
    except (SegmentError, ValueError, OSError):  # of another version, perhaps; names that are made up start with a PID
        pid = int(name.partition("-")[0]) if name.partition("-")[0].isdigit() else 0
    with contextlib.suppress(psutil.Error, OverflowError):
        creator = psutil.Process(pid)
        return pid > 0 and os.getpid() not in {creator.pid, *(p.pid for p in creator.parents())}
    return False


def _children() -> dict[int, psutil.Process]:
    """Our child processes, without the helpers that multiprocessing keeps for good."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if not any("resource_tracker" in part or "forkserver" in part for part in child.cmdline()):
                found[child.pid] = child
    return found


def _wait_for_none(find: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def nothing_left(watchdog: None) -> Iterator[None]:
    """Asserts that the test left nothing of ours in /dev/shm and no child process."""
    files, children = _files(), _children()
    yield
    left = _wait_for_none(lambda: {f for f in _files() - files if not _is_somebody_elses(f)}, 3.0)
    processes = _wait_for_none(lambda: {p: c for p, c in _children().items() if p not in children}, 5.0)
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            process.kill()
    for file in left:
        with contextlib.suppress(OSError):
            (SHM / file).unlink()
    assert not left, f"left in {SHM}: {sorted(left)}"
    assert not processes, f"left running: {list(processes.values())}"


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Calls a function until it returns something true, and returns that; fails after a generous while."""

    def wait(function: Callable[[], Any], seconds: float = 30.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := function()):
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.002)
        return value

    return wait


class Background:
    """A function in a thread; ``result()`` waits for it and returns its value or raises its exception."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._error: BaseException | None = None
        self._value: Any = None

        def run() -> None:
            try:
                self._value = function(*args)
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self, seconds: float = 30.0) -> Any:
        """What the function came to."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the thread still runs"
        if self._error is not None:
            raise self._error
        return self._value


@pytest.fixture
def background() -> Callable[..., Background]:
    """Runs a function in a thread: ``background(f, x).result()``."""
    return Background


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a fresh interpreter and returns how it ended; asserts status 0 unless told otherwise."""

    def run(script: str, *args: str, status: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", script, *args],
            capture_output=True,
            text=True,
            timeout=50,
            env={**os.environ, **env},
        )
        if status is not None:
            assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
