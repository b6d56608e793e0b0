"""What the context managers share that end something for others."""

import logging
from types import TracebackType
from typing import TypeVar

_T = TypeVar("_T", bound="Closing")

_log = logging.getLogger("echo_shm")


class Closing:
    """A context manager that closes on exit.

    If that fails while an exception is under way, the failure is logged: the exception says more.
    """

    def close(self) -> None:
        """Closes."""
        raise NotImplementedError

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as late:
            if kind is None:
                raise
            _log.error("%s: %s", self, late)
