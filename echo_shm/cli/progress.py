"""How far a long piece of work is: a bar on a terminal, and a line now and then in a log."""

import contextlib
import logging
import sys
import time
from types import TracebackType

from echo_shm.cli.console import share, size

#: Time between two looks of the bar, and between two lines of the log (seconds).
_ON_TERMINAL, _IN_LOG = 0.1, 10.0

_WIDTH = 34


class Progress:
    """In its block, it is called with the bytes done and the bytes in all, and shows them on stderr.

    On a terminal it has the last line, and clears it at the end. A terminal that has gone is no reason to stop.
    """

    def __init__(self, what: str, log: logging.Logger) -> None:
        """Shows nothing yet."""
        self._what = what
        self._log = log
        self._on_terminal = sys.stderr.isatty()
        self._due = time.monotonic() + (0 if self._on_terminal else _IN_LOG)

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, done: int, total: int) -> None:
        """So far."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_ON_TERMINAL if self._on_terminal else _IN_LOG)
        amount = f"{share(done, total)} of {size(total)}"
        if not self._on_terminal:
            self._log.info("%s: %s", self._what, amount)
            return
        filled = round(_WIDTH * done / total) if total > 0 else 0
        self._show(f"\r{self._what} {'█' * filled}{'░' * (_WIDTH - filled)} {amount}\x1b[K")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._on_terminal:
            self._show("\r\x1b[K")

    def _show(self, text: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            sys.stderr.write(text)
            sys.stderr.flush()
