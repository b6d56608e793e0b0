"""What an engine and its workers say to each other: JSON objects over a Unix socket, each behind its length.

The engine asks, and its question is called ``op``:

- ``reset`` (``slot``, ``seed``, ``options``) is answered with ``observation``.
- ``step`` (``slot``, ``action``) is answered with ``observation``, ``reward``, ``terminated``, ``truncated`` and
  ``success``, which may be null.
- ``record`` (``turns``, ``terminated``, ``truncated``) is answered when the episode is sent to the replay.

Each question has an ``id``, which its answer repeats. A worker answers in the order of the questions. Where the
environment raised, the answer has ``error`` instead. A worker's first message has its ``worker`` number and ``pid``.
"""

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")

#: Bytes of the longest message.
LIMIT = 1 << 28

Json = dict[str, Any]


def packed(message: Json) -> bytes:
    """A message as it goes over the socket."""
    data = json.dumps(message, allow_nan=False).encode()
    if len(data) > LIMIT:
        raise ValueError(f"a message of {len(data)} bytes: at most {LIMIT}")
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """The length of the message whose first :data:`HEAD` bytes these are."""
    (length,) = _LENGTH.unpack(head)
    if length > LIMIT:
        raise ValueError(f"a message of {length} bytes: at most {LIMIT}")
    return int(length)


#: Bytes before a message.
HEAD = _LENGTH.size


def unpacked(data: bytes) -> Json:
    """The message in these bytes."""
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}: an object was expected")
    return message


def _exactly(connection: socket.socket, n: int) -> bytes | None:
    parts: list[bytes] = []
    while n:
        if not (part := connection.recv(min(n, 1 << 20))):
            return None
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def receive(connection: socket.socket) -> Json | None:
    """The next message; None at the end of the connection."""
    head = _exactly(connection, HEAD)
    data = None if head is None else _exactly(connection, length_of(head))
    return None if data is None else unpacked(data)
