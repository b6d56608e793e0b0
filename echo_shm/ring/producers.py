"""The producers of this process. Where the process is a worker, its group stops all of them at once."""

import weakref

from echo_shm.errors import ConnectionClosedError
from echo_shm.ring.attachment import Attachment

# No lock: a fork could copy it locked. A producer enters the table before it looks whether all were stopped, and
# stop_all() says so before it reads the table: one of the two sees the other.
_attachments: "weakref.WeakValueDictionary[int, Attachment]" = weakref.WeakValueDictionary()
_stopped = False


def add(attachment: Attachment) -> None:
    """Adds a producer that has attached just now."""
    _attachments[id(attachment)] = attachment
    if _stopped:
        attachment.stop()


def stop_all() -> None:
    """Stops every producer of this process, and those to come. Any thread may call it."""
    global _stopped
    _stopped = True
    for reference in _attachments.valuerefs():  # a list, made at once
        attachment = reference()
        if attachment is not None:
            attachment.stop()


def all_stopped() -> bool:
    """Whether :func:`stop_all` was called."""
    return _stopped


def refuse_if_stopped(what: str) -> None:
    """Raises ConnectionClosedError if :func:`stop_all` was called. ``what`` names what was to be joined."""
    if _stopped:
        raise ConnectionClosedError(f"cannot join {what}: this worker was stopped, its group wants no more samples")
