"""Clients that nobody closes: what they sent arrives all the same, as they are collected or their process ends."""

import _thread
import atexit
import contextlib
import logging
import multiprocessing
import os
import weakref
from multiprocessing.util import Finalize

from echo_shm.errors import ConnectionClosedError
from echo_shm.net.client.sender import Sender

_log = logging.getLogger("echo_shm")

#: What was not closed yet, and the time that closing may take.
_open: dict[Sender, float | None] = {}
#: The process of multiprocessing that will call us at its end.
_registered = 0


def register(client: object, sender: Sender, timeout: float | None) -> None:
    """Closes the sender once its client is collected, or at the process's end."""
    global _registered
    _open[sender] = timeout
    # Such a process leaves without the interpreter's own exit.
    if multiprocessing.parent_process() is not None and _registered != os.getpid():
        _registered = os.getpid()
        Finalize(None, _close_all, exitpriority=0)
    weakref.finalize(client, _on_collected, sender).atexit = False


def unregister(sender: Sender) -> None:
    """It was closed."""
    _open.pop(sender, None)


def _on_collected(sender: Sender) -> None:
    """In whichever thread, in the middle of whatever: that may hold locks, and is not to wait for anything."""
    if sender in _open:
        with contextlib.suppress(RuntimeError):  # no more threads can be had: then at the process's end
            _thread.start_new_thread(_close, (sender,))


def _close(sender: Sender) -> None:
    try:
        sender.close(_open.get(sender))
    except ConnectionClosedError as error:  # there is nobody to raise to
        _log.error("%s", error)
    unregister(sender)


def _close_all() -> None:
    for sender in list(_open):
        _close(sender)


atexit.register(_close_all)
