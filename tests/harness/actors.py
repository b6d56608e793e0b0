"""Processes that a test directs.

An actor is forked from a server process that has imported echo_shm, has one
thread and no attachments. It runs one function, which gets a connection to the
test. No method here waits without a deadline.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from harness.processes import die_with_parent
from harness.waiting import LONG

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["echo_shm", "psutil", "pytest"])  # what the modules of actors import


class Failure:
    """What an actor sends when its function raises."""

    def __init__(self, text: str) -> None:
        self.text = text


def perform(conn: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Runs an actor's function; its exception goes to the test."""
    try:
        fn(conn, *args)
    except (EOFError, BrokenPipeError):
        pass  # the test is over
    except BaseException:
        conn.send(Failure(traceback.format_exc()))


def perform_and_exit(conn: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> NoReturn:
    """The same in a process that was forked from an actor: it ends without any clean-up."""
    perform(conn, fn, args)
    os._exit(0)


def _life(conn: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    die_with_parent()
    # A test runner ignores or handles what an ordinary process would not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    perform(conn, fn, args)


class Actor:
    """A process that runs ``fn(conn, *args)``."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self.conn, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_life, args=(theirs, fn, args), daemon=False)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def hear(self, seconds: float = LONG) -> Any:
        """The next message; the exception of its function fails the test."""
        assert self.conn.poll(seconds), f"the process said nothing for {seconds} s"
        said = self.conn.recv()
        assert not isinstance(said, Failure), said.text
        return said

    def is_silent(self, seconds: float = 0.0) -> bool:
        """Whether there is no message, now and within that time."""
        return not self.conn.poll(seconds)

    def say(self, what: Any = None) -> None:
        """Sends it a message."""
        self.conn.send(what)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal; waits for the end after SIGKILL."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.end()

    def end(self, seconds: float = LONG) -> int | None:
        """Waits for its end; returns the exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"the process still runs after {seconds} s"
        return self.process.exitcode

    def discard(self) -> None:
        """Kills it if it runs, and collects it."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(LONG)
        self.conn.close()


@contextmanager
def cast() -> Iterator[Callable[..., Actor]]:
    """Makes actors, ``make(fn, *args)``, and discards them at the end."""
    made: list[Actor] = []

    def make(fn: Callable[..., Any], *args: Any) -> Actor:
        made.append(Actor(fn, *args))
        return made[-1]

    try:
        yield make
    finally:
        for actor in made:
            actor.discard()


class LastWords:
    """The last message of each of several actors; ``dataset_iter(until=...)`` ends when all have come."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self.actors = actors
        self.said: dict[int, Any] = {}

    @property
    def finished(self) -> bool:
        """Whether each actor has said something."""
        for i, actor in enumerate(self.actors):
            if i not in self.said and not actor.is_silent():
                self.said[i] = actor.hear()
        return len(self.said) == len(self.actors)

    def check(self) -> None:
        """Nothing: an actor that failed, or ended without a message, is an error in ``finished``."""
