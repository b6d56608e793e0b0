"""Processes: which one a PID names, and whether it is alive."""

import contextlib
import functools
import os

import psutil


@functools.cache
def pid_namespace() -> int:
    """The inode of this process's PID namespace; 0 if there is none, or if /proc shows another namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return 0
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


# A forked child may be in another namespace or have another /proc.
os.register_at_fork(after_in_child=pid_namespace.cache_clear)


def start_time(pid: int) -> float:
    """When a process started, in seconds since the system started; 0.0 if there is no such process.

    Every caller gets the same number, even if the clock is set. Two processes that have had the same PID
    have the same start time only if both started within one tick (0.01 s).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The process's name, in brackets, may contain any character.
            return int(stat.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        pass
    with contextlib.suppress(psutil.Error):  # systems without /proc
        return psutil.Process(pid).create_time()
    return 0.0


def find_process(pid: int, started: float) -> psutil.Process | None:
    """The process with this PID in this namespace, if it is the one that started at ``started``; otherwise None."""
    # The PID comes from the segment, which may contain anything.
    with contextlib.suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(pid)
        if start_time(pid) == started != 0.0:
            return process
    return None


def contradicts_death(pid: int, started: float) -> bool:
    """Whether an owner whose lock is free still runs, according to its PID.

    The kernel drops the lock in the middle of a process's exit, after it has freed the process's memory.
    A process without memory cannot write to the ring any more.
    """
    process = find_process(pid, started)
    with contextlib.suppress(psutil.Error):
        return process is not None and process.status() != psutil.STATUS_ZOMBIE and process.memory_info().vms > 0
    return False


def has_memory(pid: int) -> bool:
    """Whether any thread of a process still has memory; True where this cannot be found out.

    The kernel frees a process's memory before it drops the process's locks.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return not os.path.isdir("/proc/self/task")
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/statm", "rb") as sizes:
            if not sizes.read().startswith(b"0 "):
                return True
    return False
