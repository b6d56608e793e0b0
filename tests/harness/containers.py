"""Containers for tests: processes in PID and mount namespaces of their own.

``unshare --pid --mount --fork --mount-proc`` makes the same. For a user who is
not root there is a user namespace, too (``unshare -r``). /dev/shm is the one
outside unless a Box says otherwise. A container ends with its actor.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from harness.actors import Actor, perform_and_exit
from harness.processes import die_with_parent

CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND = 1 << 12
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18

_LAST_PID = "/proc/sys/kernel/ns_last_pid"
CAN_CHOOSE_PIDS = os.path.exists(_LAST_PID)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mount:
    """One mount(2)."""

    target: str
    kind: str = ""
    flags: int = 0
    options: str = ""
    source: str = "none"


@dataclass(frozen=True)
class Box:
    """A container's properties.

    Attributes:
        mounts: Made in order, after its /proc.
        within: The process whose mount namespace it starts from; None: ours.
        pid: The process id of the process that runs the function. Unless that is 1, process 1 only waits for it.
        proc: Whether it gets a /proc of its own.

    """

    mounts: tuple[Mount, ...] = ()
    within: int | None = None
    pid: int = 2
    proc: bool = True


def shm(options: str, flags: int = 0) -> Mount:
    """A /dev/shm of its own, as Docker's ``--shm-size`` makes it."""
    return Mount("/dev/shm", "tmpfs", flags, options)


def _call(function: str, *args: Any) -> None:
    if getattr(_libc, function)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{args}: {os.strerror(number)}")


def mount(what: Mount) -> None:
    """Calls mount(2)."""
    words = [word.encode() for word in (what.source, what.target, what.kind)]
    _call("mount", *words, ctypes.c_ulong(what.flags), what.options.encode())


def unshare(flags: int = CLONE_NEWPID | CLONE_NEWNS) -> None:
    """Enters new namespaces; a user who is not root gets a user namespace around them."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _call("unshare", flags)
    else:
        _call("unshare", flags | _CLONE_NEWUSER)
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{file}", "w") as f:
                f.write(text)
    if flags & CLONE_NEWNS:
        mount(Mount("/", flags=_MS_REC | _MS_PRIVATE))


def _enter(pid: int) -> None:
    for kind, flag in (("user", _CLONE_NEWUSER), ("mnt", CLONE_NEWNS)):
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"):
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            _call("setns", fd, flag)
            os.close(fd)


def _first_process(conn: Any, box: Box, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Process 1: makes the mounts, and runs the function or waits for the process that does."""
    die_with_parent()
    if box.proc:
        mount(Mount("/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "", "proc"))
    for each in box.mounts:
        mount(each)
    if box.pid == 1:
        fn(conn, *args)
        return
    body = fork_as(box.pid, fn, conn, *args)
    while os.wait()[0] != body:  # its orphans become our children
        pass


def fork_as(pid: int, fn: Callable[..., Any], conn: Any, *args: Any) -> int:
    """Forks a process with that PID, which runs ``fn(conn, *args)`` and ends without any clean-up; returns the PID."""
    if pid != 2 or os.getpid() != 1:
        with open(_LAST_PID, "w") as f:
            f.write(str(pid - 1))
    child = os.fork()
    if child == 0:
        perform_and_exit(conn, fn, args)
    assert child == pid, f"asked for pid {pid}, got {child}"
    return child


def contain(conn: Any, box: Box, fn: Callable[..., Any], *args: Any) -> None:
    """An actor's function: runs ``fn(conn, *args)`` in a container."""
    if box.within is not None:
        _enter(box.within)
    unshare()
    first = os.fork()
    if first == 0:
        perform_and_exit(conn, _first_process, (box, fn, args))
    os.waitpid(first, 0)


def pod(conn: Any, directory: str) -> None:
    """An actor's function: a mount namespace with a tmpfs on a directory, for containers to share."""
    unshare(CLONE_NEWNS)
    mount(Mount(directory, "tmpfs", 0, "size=256m"))
    conn.send("mounted")
    conn.recv()


def probe(conn: Any) -> None:
    """An actor's function: says why no container can be made here, or ``""``."""
    try:
        contain(conn, Box((shm("size=1m"),)), lambda conn: conn.send(""))
    except OSError as error:
        conn.send(str(error))


def inhabitants(actor: Actor) -> dict[int, int]:
    """The processes of an actor's container: a mapping from the PID inside to the PID outside."""
    found = {}
    for process in psutil.Process(actor.pid).children(recursive=True):
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status") as status:
            pids = next(line for line in status if line.startswith("NSpid:")).split()
            found[int(pids[-1])] = process.pid
    return found


def kill_container(actor: Actor) -> None:
    """Kills process 1 of a container; the kernel kills all the others at once."""
    os.kill(inhabitants(actor)[1], signal.SIGKILL)
    actor.end()
