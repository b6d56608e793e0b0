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
from echo_shm.net.client.sender import Pump

_log = logging.getLogger("echo_shm")

#: What was not closed yet, and the time that closing may take.
_open: dict[Pump, float | None] = {}
#: The process of multiprocessing that will call us at its end.
_registered = 0


def watch(client: object, pump: Pump, timeout: float | None) -> None:
    """Closes the pump once its client is collected, or at the process's end."""
    global _registered
    _open[pump] = timeout
    # Such a process leaves without the interpreter's own exit.
    if multiprocessing.parent_process() is not None and _registered != os.getpid():
        _registered = os.getpid()
        Finalize(None, _close_all, exitpriority=0)
    weakref.finalize(client, _collected, pump).atexit = False


def forget(pump: Pump) -> None:
    """It was closed."""
    _open.pop(pump, None)


def _collected(pump: Pump) -> None:
    """In whichever thread, in the middle of whatever: that may hold locks, and is not to wait for anything."""
    if pump in _open:
        with contextlib.suppress(RuntimeError):  # no more threads can be had: then at the process's end
            _thread.start_new_thread(_close, (pump,))


def _close(pump: Pump) -> None:
    try:
        pump.close(_open.get(pump))
    except ConnectionClosedError as error:  # there is nobody to raise to
        _log.error("%s", error)
    forget(pump)


def _close_all() -> None:
    for pump in list(_open):
        _close(pump)


atexit.register(_close_all)
