"""Environments of text for worker processes, and what goes wrong with them."""

import os
import signal
import sys
import threading


class Counting:
    """Shows a number, takes any answer, and ends after ``n`` steps with a reward of 1.

    Answers have no effect, so that a policy with random weights plays whole episodes.
    """

    def __init__(self, n=3):
        self.n = n

    def reset(self, *, seed=None, options=None):
        """Shows the seed. The options say how long the game is, and what goes wrong."""
        self.step_number = 0
        self.options = options or {}
        self.length = self.options.get("length", self.n)
        self._go_wrong("reset")
        return f"game {seed}", {}

    def step(self, action):
        """One more."""
        assert isinstance(action, str)
        self.step_number += 1
        self._go_wrong(self.step_number)
        ends = self.step_number >= self.length
        return f"step {self.step_number}", float(ends), ends, False, {}

    def _go_wrong(self, when):
        """Does what the options want at this step, once if they name a file to remember it by."""
        if self.options.get("when") != when:
            return
        if memory := self.options.get("once"):
            try:
                os.close(os.open(memory, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        what = self.options["what"]
        if what == "raise":
            raise RuntimeError("the dog ate it")
        if what == "exit":
            sys.exit(1)
        if what == "leave":
            os._exit(3)
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "wait":
            with open(self.options["for"]) as fifo:
                fifo.read()
        if what == "hang":
            threading.Event().wait()

    def close(self):
        """Nothing is left."""


def broken():
    """An environment that cannot be made."""
    raise OSError("no disk")


class Unloadable:
    """Makes environments, but a process that loads it fails, or is killed."""

    def __init__(self, kills=False):
        self.kills = kills

    def __reduce__(self):
        return (signal.raise_signal, (signal.SIGKILL,)) if self.kills else (int, ("no number",))

    def __call__(self):
        """Nobody gets here."""
        raise AssertionError
