"""Runs Python code in a process of its own, with limits, and brings back a value.

What the limits are: the process has a time, an address space, no environment, no site-packages, an empty working
directory of its own that is removed, and can write no byte to a file. When it has answered, or its time is over, its
whole process group is killed, so that what it has forked ends, too.

What they are not: a sandbox. The code can open network connections, read and remove files, and signal processes of the
same user; a process that leaves the group (``setsid``) outlives it. The number of the user's processes is limited, but
not for root. Namespaces would be needed for more: run what is hostile in a container.
"""

import ast
import contextlib
import dataclasses
import errno
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

#: The longest answer, in bytes.
_LONGEST = 1 << 20
#: How many processes the user may have.
_PROCESSES = 1 << 12
#: How a directory is opened: a link to one is none.
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: What the process does: sets its limits, reads the code and the expression, and writes the value's repr. The limits
#: are set here, and not between fork and exec, since a program with threads must do nothing there.
_PROGRAM = """
import resource, sys, os
memory, seconds, processes = map(int, sys.argv[1:])
for what, most in (
    (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_NPROC, processes),
):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
code, _, expression = sys.stdin.read().partition("\\0")
out = os.dup(1)
os.dup2(2, 1)
try:
    names = {"__name__": "answer"}
    exec(code, names)
    answer = b"=" + repr(eval(expression, names)).encode()
except BaseException as error:
    try:
        answer = b"!" + f"{type(error).__name__}: {error}"[:500].encode(errors="replace")
    except BaseException:
        answer = b"!" + type(error).__name__.encode()
answer += b"\\0"
while answer:
    answer = answer[os.write(out, answer):]
os._exit(0)
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        value: The value, if there is one: literals alone (numbers, strings, tuples, lists, dicts, sets, None).
        error: What was wrong; None: nothing was.

    """

    value: Any = None
    error: str | None = None


def run(code: str, expression: str, *, timeout: float, memory: int) -> Result:
    """Runs code and then evaluates an expression, in another process.

    Args:
        code: Statements.
        expression: What is evaluated after them.
        timeout: Seconds until the process and its group are killed.
        memory: Bytes of address space.

    """
    if "\0" in code or "\0" in expression:
        return Result(error="ValueError: the code has a null character")
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(memory), str(int(timeout) + 2), str(_PROCESSES)]
    folder = tempfile.mkdtemp()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd=folder,
            start_new_session=True,  # a group of its own, whose number is its PID
        )
        try:
            answer = _talk(process, f"{code}\0{expression}".encode(errors="replace"), time.monotonic() + timeout)
        finally:
            # The process is not waited for yet, so that its number, and the group's, is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()
    finally:
        remove_folder(folder)
    if answer is None:
        return Result(error=f"TimeoutError: it ran for more than {timeout:g} seconds")
    return _result(answer)


def _talk(process: "subprocess.Popen[bytes]", question: bytes, deadline: float) -> bytes | None:
    """Writes the question and reads the answer, up to its end mark; None when the time is over."""
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    answer = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while b"\0" not in answer and len(answer) <= _LONGEST:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    try:
                        question = question[os.write(process.stdin.fileno(), question[:65536]) :]
                    except BrokenPipeError:
                        question = b""
                    if not question:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    return bytes(answer)
                answer += piece
            if time.monotonic() > deadline:
                return None
    return bytes(answer)


def _result(answer: bytes) -> Result:
    """The answer of a process, which may be anything."""
    text, end, _ = answer.partition(b"\0")
    if not end:
        return Result(error="MemoryError or exit: the process ended without an answer, or with one that is too long")
    words = text.decode(errors="replace")
    if not words.startswith("="):
        return Result(error=words.removeprefix("!")[:500])
    value, is_literal = literal(words[1:])
    return Result(value) if is_literal else Result(error=f"ValueError: {words[1:80]!r} is no literal")


def literal(words: str) -> tuple[Any, bool]:
    """A literal's value, and whether it is one. Nothing is run."""
    try:
        return ast.literal_eval(words.strip()), True
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None, False


# --- the folder afterwards --------------------------------------------------------


def remove_folder(path: str) -> None:
    """Removes a directory with all that is in it that can be removed. Nothing is raised, and no link is followed.

    It may be deeper than a path is long, or than functions may call themselves, which :func:`shutil.rmtree` needs. So
    there is one open directory at a time, and the way up is its ``..``.
    """
    with contextlib.suppress(OSError):
        _empty(_enter(path))
    with contextlib.suppress(OSError):
        os.rmdir(path)
    with contextlib.suppress(OSError):
        os.unlink(path)  # the code may have put something else there


def _empty(here: int) -> None:
    """Removes what is in an open directory, and closes it.

    Raises:
        OSError: Somebody moves directories meanwhile. What is elsewhere now stays.

    """
    #: Of each directory above this one: which one it is, the names there that are to be tried, this one's name.
    above: list[tuple[tuple[int, int], list[str], str]] = []
    try:
        names = _unlink_all(here)
        while names or above:
            if names:
                name = names.pop()
                try:
                    below = _enter(name, here)
                except OSError:
                    continue
                above.append((_identity(here), names, name))
                os.close(here)
                here = below
                names = _unlink_all(here)
            else:
                identity, names, name = above.pop()
                parent = os.open("..", _DIRECTORY, dir_fd=here)
                os.close(here)
                here = parent
                if _identity(here) != identity:
                    raise OSError(errno.ESTALE, f"the directory {name!r} was moved while it was removed")
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)


def _enter(name: str, above: int | None = None) -> int:
    """Opens a directory, in an open one or by its path, so that it can be emptied.

    Raises:
        OSError: It cannot be opened; or it is a link, or no directory.

    """
    try:
        here = os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:  # it is a directory: links and files are refused before permissions are looked at
        os.chmod(name, 0o700, dir_fd=above)
        here = os.open(name, _DIRECTORY, dir_fd=above)
    with contextlib.suppress(OSError):
        os.fchmod(here, 0o700)
    return here


def _unlink_all(here: int) -> list[str]:
    """Removes what is no directory; the names of the rest."""
    rest: list[str] = []
    with contextlib.suppress(OSError):
        for name in os.listdir(here):
            try:
                os.unlink(name, dir_fd=here)
            except OSError:
                rest.append(name)
    return rest


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino
