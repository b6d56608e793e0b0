"""What a bridge logs of connections that it refuses or ends: a flood of them does not fill the log."""

import logging

_log = logging.getLogger("echo_shm.bridge")

#: Most lines that are logged between two calls of :meth:`RefusalLog.sum_up`.
_MAX_LINES = 10


class RefusalLog:
    """Logs the first refusals one by one, and only the number of the others."""

    def __init__(self) -> None:
        self._refusals = 0  # since the last call of sum_up()

    def note(self, peer: str, text: str) -> None:
        """Notes a refusal."""
        self._refusals += 1
        if self._refusals <= _MAX_LINES:
            _log.warning("%s: %s", peer, text)

    def sum_up(self) -> None:
        """Logs how many refusals have no line, and begins anew."""
        if self._refusals > _MAX_LINES:
            _log.warning("%d more connections were refused or ended", self._refusals - _MAX_LINES)
        self._refusals = 0
