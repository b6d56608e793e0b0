"""What transports and clients are given: each is what it should be, or an error says what it should."""

import math
import numbers
import ssl
from typing import Any

#: Least bytes of a key.
_MIN_KEY = 16


def integer(label: str, value: Any, least: int, most: int) -> int:
    """A whole number in that range.

    Raises:
        ValueError: It is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) <= most:
        raise ValueError(f"{label}={value!r}: use an integer from {least} to {most}")
    return int(value)


def seconds(label: str, value: Any, otherwise: str) -> float:
    """A length of time that is more than none; may be infinite.

    Raises:
        ValueError: It is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value) or value <= 0:
        raise ValueError(f"{label}={value!r}: use seconds, more than 0, or {otherwise}")
    return float(value)


def limit(label: str, value: Any, otherwise: str) -> float:
    """A length of time to wait at most; 0 and less: not at all.

    Raises:
        ValueError: It is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise ValueError(f"{label}={value!r}: use seconds, or {otherwise}")
    return float(value)


def host(value: Any) -> str:
    """A name or an address.

    Raises:
        ValueError: It can be neither.

    """
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"host={value!r}: use a name or an address, as a string")
    try:
        value.encode("idna" if value.strip(".") else "ascii")
    except UnicodeError as error:
        raise ValueError(f"host={value!r}: no host can be called so: {error}") from None
    return value


def key(value: Any) -> bytes | None:
    """A key, or None.

    Raises:
        ValueError: It is too short, or not bytes; does not say what it is.

    """
    if value is None:
        return None
    if not isinstance(value, bytes):
        hint = ", for instance authkey.encode()" if isinstance(value, str) else ""
        raise ValueError(f"authkey is of type {type(value).__name__}: use at least {_MIN_KEY} bytes{hint}")
    if len(value) < _MIN_KEY:
        raise ValueError(
            f"authkey has {len(value)} bytes: use at least {_MIN_KEY}, for instance secrets.token_bytes(32)"
        )
    return value


def tls_context(value: Any, *, server_side: bool) -> ssl.SSLContext | None:
    """A context to talk TLS with, from that side, or None.

    Raises:
        ValueError: It is none, or one for the other side.

    """
    if value is None:
        return None
    side = "server" if server_side else "client"
    if not isinstance(value, ssl.SSLContext):
        raise ValueError(f"tls={value!r}: use an ssl.SSLContext(ssl.PROTOCOL_TLS_{side.upper()})")
    name = None if server_side or not value.check_hostname else "localhost"
    try:
        value.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=server_side, server_hostname=name)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"tls is no context for a {side}: {error}") from None
    return value
