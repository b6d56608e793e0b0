"""Clients that were not closed: their samples are delivered when they are collected, or at the end of the process."""

import _thread
import atexit
import contextlib
import logging
import multiprocessing
import os
import time
import weakref
from multiprocessing.util import Finalize

from echo_shm.errors import ConnectionClosedError
from echo_shm.net.client.sender import Sender

_log = logging.getLogger("echo_shm")

#: The senders that are not closed yet, and how long closing each may take: in all, and without progress (seconds).
_open: dict[Sender, tuple[float | None, float | None]] = {}
#: The multiprocessing child that has registered :func:`_close_all` with its exit handlers.
_registered = 0


def register(client: object, sender: Sender, timeout: float | None, patience: float | None) -> None:
    """Closes the sender when its client is collected, or at the end of the process."""
    global _registered
    _open[sender] = timeout, patience
    # A multiprocessing child exits without atexit.
    if multiprocessing.parent_process() is not None and _registered != os.getpid():
        _registered = os.getpid()
        Finalize(None, _close_all, exitpriority=0)
    weakref.finalize(client, _on_collected, sender).atexit = False


def unregister(sender: Sender) -> None:
    """Forgets a sender that was closed."""
    _open.pop(sender, None)


def _on_collected(sender: Sender) -> None:
    """Starts a thread that closes the sender. The collector may run anywhere, so nothing here may wait or lock."""
    if sender in _open:
        with contextlib.suppress(RuntimeError):  # no thread could be started: it is closed at the end of the process
            _thread.start_new_thread(_close, (sender,))


def _close(sender: Sender, spent: float = 0.0, idle: float = 0.0) -> None:
    """Closes a sender. ``spent`` and ``idle``: seconds of its time, in all and without progress, that are over."""
    timeout, patience = _open.get(sender, (0.0, 0.0))
    try:
        sender.close(_less(timeout, spent), _less(patience, idle))
    except ConnectionClosedError as error:  # no caller would get it
        _log.error("%s", error)
    unregister(sender)


def _less(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(0.0, limit - spent)


def _close_all() -> None:
    """Closes the senders one after the other. All deliver meanwhile, so their times run at once."""
    started = time.monotonic()
    before = {sender: sender.acknowledged for sender in list(_open)}
    for sender, acknowledged in before.items():
        spent = time.monotonic() - started
        _close(sender, spent, spent if sender.acknowledged == acknowledged else 0.0)


atexit.register(_close_all)
