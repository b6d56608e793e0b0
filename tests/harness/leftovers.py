"""What a test may leave behind: files in /dev/shm, and child processes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

SHM = Path("/dev/shm")


def files() -> set[str]:
    """The names of all files of echo_shm: segments, stores, boards and lock files."""
    return {path.name for path in SHM.glob("echo_shm*")}


def is_somebody_elses(file: str) -> bool:
    """Whether a running process that is not our child made it or has it, as in another test run on this machine.

    A generated name, and that of a test, starts with a PID. What has another name is somebody's who has it open, as
    who has it mapped with Python's mmap does.
    """
    word = file.partition(".")[2].partition("-")[0]
    if word.isdigit():
        with contextlib.suppress(psutil.Error, OverflowError):
            return not _is_ours(psutil.Process(int(word)))
    return any(not _is_ours(process) for process in _holders(str(SHM / file)))


def _is_ours(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return os.getpid() in {process.pid, *(parent.pid for parent in process.parents())}
    return False


def _holders(path: str) -> Iterator[psutil.Process]:
    """The processes that have a file open, as far as we may look at them."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            if path in _opened(folder / "fd"):
                yield psutil.Process(int(folder.name))


def _opened(folder: Path) -> Iterator[str]:
    for link in folder.iterdir():
        with contextlib.suppress(OSError):  # it was closed just now
            yield os.readlink(link)


def children() -> dict[int, psutil.Process]:
    """Our child processes, without the helpers that multiprocessing keeps until the end, and what clusters start.

    A cluster's keeper ends what it has started, and itself is one of ours: see ``ray_cluster``.
    """
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(OSError):  # the usual case, without a look at every process of the machine
        lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        if lists and not any(lists):
            return found
    kept: set[int] = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = child.cmdline()
            if "harness.ray_keeper" in words:
                kept.update(one.pid for one in child.children(recursive=True))
            if child.pid not in kept and not any("resource_tracker" in one or "forkserver" in one for one in words):
                found[child.pid] = child
    return found
