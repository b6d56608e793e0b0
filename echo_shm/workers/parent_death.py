"""A process that ends when the process that started it ends."""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """On Linux, makes the kernel kill this process when the thread that started it ends. Elsewhere, does nothing.

    Args:
        parent: The process id of the parent.

    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os.kill(os.getpid(), signal.SIGKILL)
