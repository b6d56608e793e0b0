"""How a client reaches its server: name, addresses, TLS."""

import socket
import ssl
import time

from echo_shm.errors import ConnectionClosedError, WireError
from echo_shm.net import tcp


def time_left(deadline: float) -> float:
    """Seconds that a socket's next call may take; never 0, which would mean not to wait at all."""
    return max(1e-3, deadline - time.monotonic())


def dial(host: str, port: int, tls: ssl.SSLContext | None, deadline: float) -> socket.socket:
    """A connection to a server, with TLS if there is a context for it, but without a word of the protocol.

    Raises:
        OSError: The server cannot be reached in time, or its certificate is not accepted.
        WireError: It does not use TLS in this way.

    """
    peer = tcp.format_address(host, port)
    try:
        sock = _connect_to_any(host, port, deadline)
    except socket.gaierror as error:
        raise ConnectionClosedError(f"cannot find the host of {peer}: {error.strerror}") from None
    except TimeoutError:
        raise TimeoutError(f"{peer} does not answer") from None
    except OSError as error:
        hint = "; is the server started? (It listens beyond its own host only with host=.)"
        refused = isinstance(error, ConnectionRefusedError)
        raise OSError(error.errno, f"{peer}: {error.strerror}{hint if refused else ''}") from None
    try:
        tcp.set_options(sock)
        if tls is not None:
            sock.settimeout(time_left(deadline))
            return tls.wrap_socket(sock, server_hostname=host)
        return sock
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise _untrusted(host, peer, error) from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # the connection was lost; another try may succeed
        sock.close()
        raise ConnectionClosedError(f"{peer} closed the connection: does it use TLS?") from None
    except ssl.SSLError as error:
        sock.close()
        raise WireError(
            f"{peer} does not use TLS as tls= does: {error}. Has its TcpTransport tls=? If not, connect without"
        ) from None
    except TimeoutError:
        sock.close()
        raise TimeoutError(f"{peer} does not answer: does it use TLS?") from None
    except BaseException:
        sock.close()
        raise


#: What to do about a certificate, by OpenSSL's verify codes: expired, self-signed or of an unknown issuer, other name.
_REMEDIES = dict.fromkeys((9, 10), "renew it, and check both hosts' clocks") | dict.fromkeys(
    (18, 19, 20, 21), "if it is the server's own, trust it: ssl.create_default_context(cafile=...)"
)


def _untrusted(host: str, peer: str, error: ssl.SSLCertVerificationError) -> ssl.SSLCertVerificationError:
    """The same error, with the peer and what to do."""
    remedy = _REMEDIES.get(error.verify_code, f"connect to a host that it names, or make one that names {host}")
    why = error.verify_message.rstrip(".")
    told = ssl.SSLCertVerificationError(error.errno, f"tls= does not accept the certificate of {peer}: {why}; {remedy}")
    told.verify_code, told.verify_message = error.verify_code, error.verify_message
    told.library, told.reason = error.library, error.reason
    return told


def _connect_to_any(host: str, port: int, deadline: float) -> socket.socket:
    """Connects to the first of the host's addresses that accepts. Each gets an equal share of the time left."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(time_left(deadline) / (len(addresses) - index))
            sock.connect(address)
            return sock
        except BaseException as error:
            if sock is not None:
                sock.close()
            if not isinstance(error, OSError) or index == len(addresses) - 1:
                raise
    raise OSError(0, "the host has no address")
