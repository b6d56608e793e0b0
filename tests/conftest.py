"""What every test gets: a watchdog, and a check that the test leaves no segment and no process behind."""

import contextlib
import faulthandler
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import leftovers
from harness.actors import Actor, cast
from harness.containers import CLONE_NEWNS, Mount, mount, unshare
from harness.leftovers import SHM
from harness.programs import Program
from harness.threads import Background
from harness.waiting import poll

from echo_shm.ring.metrics import Owner, RingView
from echo_shm.ring.segment import Segment

#: How long a test may take (seconds) unless it is marked ``@pytest.mark.watchdog(seconds)``.
_WATCHDOG = 60.0

_stderr_copy = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and keeps the real stderr for the watchdog."""
    config.addinivalue_line("markers", "watchdog(seconds): how long the test may take before the run is ended")
    config.stash[_stderr_copy] = os.dup(2)
    if os.geteuid() == 0:  # a /dev/shm of our own, where the kernel allows it: no other program's files are in it
        with contextlib.suppress(OSError):
            unshare(CLONE_NEWNS)
            mount(Mount(str(SHM), "tmpfs", 0, "mode=1777"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs inherit it ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file comes first: at the end, all processes but one would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_wheel.py")


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends the whole run with every thread's traceback when a test hangs."""
    marker = request.node.get_closest_marker("watchdog")
    seconds = marker.args[0] if marker else _WATCHDOG
    faulthandler.dump_traceback_later(seconds, exit=True, file=request.config.stash[_stderr_copy])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def nothing_left(watchdog: None) -> Iterator[None]:
    """Asserts that the test left nothing of ours in /dev/shm and no child process."""
    files, children = leftovers.files(), leftovers.children()
    yield
    left: set[str] = set()
    processes: dict[int, psutil.Process] = {}

    def is_clean() -> bool:
        nonlocal left, processes
        left = {file for file in leftovers.files() - files if not leftovers.is_somebody_elses(file)}
        processes = {pid: child for pid, child in leftovers.children().items() if pid not in children}
        return not left and not processes

    poll(is_clean, 5.0, pause=0.01)
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            process.kill()
    for file in left:
        with contextlib.suppress(OSError):
            (SHM / file).unlink()
    assert not left, f"left in {SHM}: {sorted(left)}"
    assert not processes, f"left running: {list(processes.values())}"


@pytest.fixture
def background() -> type[Background]:
    """Runs a function in a thread: ``background(f, x).result()``."""
    return Background


@pytest.fixture
def act() -> Iterator[Callable[..., Actor]]:
    """Makes actors, and discards them after the test."""
    with cast() as make:
        yield make


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts programs, and kills what is left of them after the test."""
    started: list[Program] = []

    def start(*words: str, **options: Any) -> Program:
        started.append(Program(*words, **options))
        return started[-1]

    yield start
    for one in started:
        one.discard()


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a segment of this test alone; the files that are left of the segment are removed."""
    name = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    yield name
    for prefix in ("echo_shm.", "echo_shm_locks."):
        (SHM / (prefix + name)).unlink(missing_ok=True)


@pytest.fixture
def shm_path() -> Iterator[Path]:
    """An empty directory where flushing takes no time, for tests that flush a hundred times."""
    with tempfile.TemporaryDirectory(dir=SHM, prefix="test_") as folder:
        yield Path(folder)


@pytest.fixture
def owners() -> Callable[[str], list[Owner]]:
    """Looks up who is registered at a segment."""
    return lambda name: RingView(Segment.attach(name, read_only=True)).owners()
