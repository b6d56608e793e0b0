"""The producers of this process: those of a worker are stopped all at once, and a subscriber says what they carry."""

import numbers
import weakref
from typing import Any

from echo_shm._core import lib
from echo_shm.errors import ConnectionClosedError
from echo_shm.ring.attachment import Attachment
from echo_shm.ring.lockfile import INBOX, WEIGHTS
from echo_shm.ring.segment import Segment

# No lock: a fork could copy it locked. A producer enters the table before it looks whether all were stopped, and
# stop_all() says so before it reads the table: one of the two sees the other.
_attachments: "weakref.WeakValueDictionary[int, Attachment]" = weakref.WeakValueDictionary()
_stamps: "weakref.WeakValueDictionary[int, Stamp]" = weakref.WeakValueDictionary()
_stopped = False

_MAX_VERSION = 2**62


def add(attachment: Attachment) -> None:
    """Adds a producer that has attached just now."""
    _attachments[id(attachment)] = attachment
    if _stopped:
        attachment.stop()
    for reference in _stamps.valuerefs():
        stamp = reference()
        if stamp is not None:
            stamp.put_on(attachment)


def checked_version(version: Any) -> int:
    """The number of a version of weights, as a user gives it.

    Raises:
        ValueError: It is no integer from 0 to 2**62.

    """
    if isinstance(version, bool) or not isinstance(version, numbers.Integral) or not 0 <= int(version) <= _MAX_VERSION:
        raise ValueError(f"version={version!r}: use an integer from 0 (made without weights) to 2**62")
    return int(version)


class Stamp:
    """The version that a subscriber of this process has got last. The producers that its weights are for carry it.

    Args:
        weights: The segment of the weights. They are for the ring of the same uuid, or for the replay of the same name.

    """

    def __init__(self, weights: Segment) -> None:
        self._uuid, self._replay = weights.uuid, weights.name.removesuffix(WEIGHTS) + INBOX
        self._version = 0
        _stamps[id(self)] = self

    def set(self, version: int) -> None:
        """Stamps what these producers send from now on, but for those whose version was set by hand."""
        self._version = version
        for reference in _attachments.valuerefs():
            attachment = reference()
            if attachment is not None:
                self.put_on(attachment)

    def put_on(self, attachment: Attachment) -> None:
        """Stamps one producer, if the weights are for it."""
        segment = attachment.segment
        if self._version and (segment.uuid == self._uuid or segment.name == self._replay):
            lib.es_age_set_version(attachment.ring, self._version, 0)


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
