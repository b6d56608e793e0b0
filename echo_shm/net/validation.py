"""Validation of the arguments of transports and clients. An error says what was got and what to use."""

import math
import numbers
import ssl

from echo_shm.net import pem

#: The shortest key (bytes).
_MIN_KEY = 16


def integer(label: str, value: object, least: int, most: int) -> int:
    """An integer from ``least`` to ``most``.

    Raises:
        ValueError: ``value`` is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) <= most:
        raise ValueError(f"{label}={value!r}: use an integer from {least} to {most}")
    return int(value)


def seconds(label: str, value: object, otherwise: str) -> float:
    """A number of seconds above 0; may be infinite.

    Raises:
        ValueError: ``value`` is anything else.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value) or value <= 0:
        raise ValueError(f"{label}={value!r}: use seconds, more than 0, or {otherwise}")
    return float(value)


def host(value: object) -> str:
    """A host name or an address.

    Raises:
        ValueError: ``value`` can be neither.

    """
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"host={value!r}: use a name or an address, as a string")
    try:
        value.encode("idna" if value.strip(".") else "ascii")
    except UnicodeError as error:
        raise ValueError(f"host={value!r}: use a valid name or address: {error}") from None
    return value


def key(value: object) -> bytes | None:
    """A key, or None.

    Raises:
        ValueError: It is too short, or not bytes. The message does not contain the key.

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


def certificate(value: bytes) -> bytes:
    """A certificate and its private key, as PEM.

    Raises:
        ValueError: They cannot be used.

    """
    try:
        pem.server_context(value)
        value.decode("ascii")
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"tls: {len(value)} bytes that are no private key with its certificate, as PEM: {error}"
        ) from None
    return value


def tls_context(value: object, *, server_side: bool) -> ssl.SSLContext | None:
    """A TLS context for that side, or None.

    Raises:
        ValueError: ``value`` is not a context, or is one for the other side.

    """
    if value is None:
        return None
    side = "server" if server_side else "client"
    if not isinstance(value, ssl.SSLContext):
        raise ValueError(
            f"tls={value!r}: use an ssl.SSLContext(ssl.PROTOCOL_TLS_{side.upper()})" + (", or PEM" * server_side)
        )
    name = None if server_side or not value.check_hostname else "localhost"
    try:
        value.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=server_side, server_hostname=name)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"tls is not a context for a {side}: {error}") from None
    return value
