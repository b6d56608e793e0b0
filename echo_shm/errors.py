"""The exceptions of echo_shm, and the one function that makes them from result codes of the C core.

::

    EchoShmError
    ├── SpecMismatchError       (also ValueError)       a pytree, dtype or shape is not the segment's
    ├── SegmentError            (also OSError)          a segment cannot be made, found, trusted or joined
    ├── ConnectionClosedError   (also ConnectionError)  the other side, or this attachment, is closed
    ├── ForkedError             (also RuntimeError)     an attachment inherited through a fork was used
    ├── BatchesHeldError        (also RuntimeError)     a learner refers to all batches and asks for one more
    ├── WireError               (also ValueError)       the peer of a connection does not speak the protocol
    └── WorkerError             (also RuntimeError)     a spawned worker failed without an exception to re-raise

A wait that times out raises the built-in :class:`TimeoutError`.
"""

import os
from typing import TypeVar

from echo_shm._core import lib

_E = TypeVar("_E", bound=Exception)


class EchoShmError(Exception):
    """The root of the exceptions of echo_shm."""


class SpecMismatchError(EchoShmError, ValueError):
    """A pytree's structure, a leaf's dtype or a leaf's shape is not the segment's."""


class SegmentError(EchoShmError, OSError):
    """A segment, or a replay's store or checkpoint, cannot be created, found, trusted or joined."""


class ConnectionClosedError(EchoShmError, ConnectionError):
    """The ring or this attachment was closed, or every learner is gone."""


class ForkedError(EchoShmError, RuntimeError):
    """A forked child used an attachment of its parent process."""


class BatchesHeldError(EchoShmError, RuntimeError):
    """A learner refers to all batches of its ring and waits for one more, which cannot come."""


class WireError(EchoShmError, ValueError):
    """The peer of a connection sent something that the protocol does not allow, or it does not know the key."""


class WorkerError(EchoShmError, RuntimeError):
    """A spawned worker failed, and it has left no exception to re-raise."""


#: What is wrong with a segment, for each code that ``es_segment_check`` returns.
_SEGMENT_FAULTS: dict[int, str] = {
    lib.ES_EMAGIC: "it is not an echo_shm segment (wrong magic number)",
    lib.ES_EINIT: "its creator has not finished initialising it, or died doing so; try again, or run `echo-shm gc`",
    lib.ES_EVERSION: "it was made by an incompatible version of echo_shm; both sides must run the same version",
    lib.ES_ESIZE: "its size is not the one that its header states: it is truncated or damaged",
    lib.ES_EGEOMETRY: "a count in its header is out of range: it is damaged",
    lib.ES_EOFFSET: "an offset in its header is wrong: it is damaged",
    lib.ES_EHASH: "its format hash does not fit its contents: it is damaged",
    lib.ES_ESCRIBBLED: "a word in it is one that no correct process has written: some process has overwritten it",
}


def error_from(code: int, what: str) -> Exception:
    """The exception for a negative result of the C core. ``what`` names the object, for example ``"ring 'x'"``."""
    if code in _SEGMENT_FAULTS:
        return SegmentError(f"{what} cannot be used: {_SEGMENT_FAULTS[code]}")
    if code == lib.ES_ECLOSED:
        return ConnectionClosedError(f"{what} was closed by the learner that created it")
    if code == lib.ES_EEVICTED:
        return ConnectionClosedError(f"{what} was closed while the sample was being written; it was not sent")
    if code == lib.ES_EDETACHED:
        return ConnectionClosedError(f"this attachment to {what} is closed")
    if code == lib.ES_EFORK:
        return ForkedError(
            f"this attachment to {what} was inherited through a fork and belongs to the parent process; "
            "attach again in the child: ShmClient(handle) or Server.attach(handle)"
        )
    if code == lib.ES_EREADONLY:
        return EchoShmError(f"this attachment to {what} only observes")
    if code < -10000:
        return EchoShmError(f"{what}: unexpected result {code} from the C core")
    return SegmentError(-code, f"{what}: {os.strerror(-code)}")


def with_sent(error: _E, message: str, sent: int) -> _E:
    """An error of the same class. Its attribute ``sent`` says how much was sent, or stored, before."""
    told = type(error)(message)
    told.sent = sent  # type: ignore[attr-defined]  # no class declares it: built-in errors have it, too
    return told
