"""The frames that carry weights from a bridge to a client, as bytes, without any I/O. WIRE.md specifies them.

What comes from a peer is validated here and in wire.py; what depends on earlier frames, where those are known.
"""

from echo_shm.errors import WireError
from echo_shm.net import wire
from echo_shm.net.wire import Frame, Header, Refusal

#: The highest version.
MAX_VERSION = (1 << 48) - 1


def subscribe() -> bytes:
    """The frame that asks what the weights look like, and to hear of each version."""
    return Header(Frame.SUBSCRIBE, 0, 0).to_bytes()


def described(schema: bytes, latest: int) -> bytes:
    """The answer: what the weights look like, and the latest version."""
    return Header(Frame.SUBSCRIBE, len(schema), latest).to_bytes() + schema


def there_are_none(why: str) -> bytes:
    """The other answer: there are no weights now."""
    return wire.refuse(Refusal.OTHER, why)


def news(latest: int) -> bytes:
    """The frame that says that there is such a version now."""
    return Header(Frame.NEWS, 0, latest).to_bytes()


def need(least: int) -> bytes:
    """The frame that asks for the latest version, once it is at least that one."""
    return Header(Frame.NEED, 0, least).to_bytes()


def piece_header(version: int, length: int) -> bytes:
    """The header of the frame with the next bytes of a version."""
    return Header(Frame.PIECE, length, version).to_bytes()


def end(latest: int) -> bytes:
    """The frame that says that no later version will come."""
    return Header(Frame.END, 0, latest).to_bytes()


def checked(header: Header) -> Header:
    """The header, if its number can be a version's.

    Raises:
        WireError: It cannot.

    """
    if header.number > MAX_VERSION:
        raise WireError(f"{header.kind.name} of version {header.number}, expected at most {MAX_VERSION}")
    return header
