"""Producers on other hosts: :class:`TcpClient`; and :func:`connect`, which makes either kind of client."""

import functools
import math
import secrets
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any, NoReturn

from echo_shm.client import ShmClient
from echo_shm.closing import Closing
from echo_shm.errors import ConnectionClosedError, SpecMismatchError, with_sent
from echo_shm.net import validation
from echo_shm.net.client import finalizers
from echo_shm.net.client.connection import Options
from echo_shm.net.client.sender import Sender
from echo_shm.net.client.steps import StepSender
from echo_shm.net.client.subscriber import TcpSubscriber
from echo_shm.ring.inbox import tables_of
from echo_shm.sending import SampleWriter
from echo_shm.spec import Spec, Tree
from echo_shm.timeouts import PLAIN, check_timeout
from echo_shm.weights.subscription import await_publisher

#: How long a client tries to connect again by default (seconds).
_GRACE = 30.0
#: Keywords that TcpClient has and ShmClient has not.
_ONLY_TCP = frozenset({"max_inflight_msgs", "authkey", "tls", "reconnect", "timeout", "close_timeout"})
#: The largest ``max_inflight_msgs``.
_MAX_INFLIGHT = 1 << 20


def checked_options(
    host: str,
    port: int,
    spec: Spec,
    *,
    authkey: bytes | None,
    tls: ssl.SSLContext | None,
    reconnect: bool | float,
    timeout: float | None,
) -> tuple[Options, float, float | None]:
    """What a :class:`TcpClient` with these keywords has: options, seconds to try again, and seconds of a call or None.

    Raises:
        ValueError: One of them is not valid.

    """
    options = Options(
        validation.host(host),
        validation.integer("port", port, 1, 65535),
        spec,
        secrets.token_bytes(16),
        validation.key(authkey),
        validation.tls_context(tls, server_side=False),
    )
    if isinstance(reconnect, bool):
        grace = _GRACE if reconnect else 0.0
    else:
        grace = validation.seconds("reconnect", reconnect, "True or False")
    limit = None if timeout is None else validation.seconds("timeout", timeout, "None for no limit")
    return options, grace, None if limit == math.inf else limit


class TcpClient(Closing):
    """A producer on another host than the learner. It sends samples over TCP to a :class:`Server` with a transport.

    When :meth:`send` returns, the client is responsible for the sample. It sends the sample within a millisecond, and
    again after a lost connection, until the sample is in the server's ring, exactly once. :meth:`wait` waits for
    that. Threads may share a client. A forked child must not use its parent's client.

    The server may be a :class:`Replay` with a transport. Then a sample is a step: :meth:`send` inserts it into all
    tables, each with its highest priority so far. ``echo_shm.replay.RemoteWriter`` says more of a step.

    Args:
        host, port: The learner's host, and its ``server.port``.
        data_sample: Example pytree. It must have the server's structure, dtypes and shapes.
        max_inflight_msgs: How many frames may be unacknowledged before :meth:`send` waits. In wire version 1 a frame
            is one sample. In version 2 it is up to a mebibyte of samples, and at most 8 may be unacknowledged.
        authkey: The server's key. Both sides prove that they know it.
        tls: A client-side context. It decides which certificates are accepted.
        reconnect: How many seconds to try again after a lost connection. True: 30. False: not at all. After that,
            calls raise ConnectionClosedError.
        timeout: Seconds that connecting, :meth:`wait` and :meth:`close` may take, and that :meth:`send` waits for
            a slow server. Single calls can have a timeout of their own. None: 10 for connecting, no limit otherwise.
        close_timeout: Seconds that :meth:`close` waits while nothing at all is acknowledged, for example because the
            ring is full and no learner takes batches. None: no limit.

    Raises:
        SpecMismatchError: The server has other samples. The message names the first leaf that differs.
        WireError: The peer is not such a server, or does not know the key. (A ValueError.)
        ConnectionClosedError: The server was closed, or refuses more clients.
        OSError: The server cannot be reached, or its certificate is not accepted (an ssl.SSLCertVerificationError).

    """

    def __init__(
        self,
        host: str,
        port: int,
        data_sample: Tree,
        max_inflight_msgs: int = 32,
        *,
        authkey: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        reconnect: bool | float = True,
        timeout: float | None = None,
        close_timeout: float | None = 10.0,
    ) -> None:
        most = validation.integer("max_inflight_msgs", max_inflight_msgs, 1, _MAX_INFLIGHT)
        options, grace, self._timeout = checked_options(
            host, port, Spec.from_example(data_sample), authkey=authkey, tls=tls, reconnect=reconnect, timeout=timeout
        )
        self._close_timeout = (
            None if close_timeout is None else validation.seconds("close_timeout", close_timeout, "None for no limit")
        )
        self._sender = Sender(options, most, grace, self._timeout)
        try:
            # Only the sender frees slots of this ring. It must not sleep while a thread waits for a free slot.
            self._ring_writer = SampleWriter(self._sender.producer, None, self._sender.wake)
            self._tables = tables_of(self._sender.spec) if self._sender.spec is not options.spec else None
            self._writer: SampleWriter | StepSender = self._ring_writer
            self._send_now: Callable[[Tree], bool] = self._ring_writer._send_at_once
            if self._tables is not None:
                self._writer = steps = StepSender(self._ring_writer, options.spec, self._tables)
                self._send_now = steps.send_at_once
            self._peer = options.peer
            finalizers.register(self, self._sender, self._timeout, self._close_timeout)
        except BaseException:
            self._sender.abandon()
            finalizers.unregister(self._sender)
            raise

    def _send_whole_samples(self) -> None:
        """From now on, what is sent are samples of the server's ring: of a replay's server heads, too."""
        self._writer, self._send_now = self._ring_writer, self._ring_writer._send_at_once

    @property
    def version(self) -> int:
        """The version of the weights that samples are made with, as :attr:`ShmClient.version`. 0: none.

        It is what a :meth:`subscriber` of this client has got last, or what was assigned.
        A sample keeps the version that it was sent with, however long it waits for the server. In wire version 1 it
        arrives with 0.
        """
        return self._ring_writer.version

    @version.setter
    def version(self, version: int) -> None:
        self._ring_writer.version = version

    def send(self, data: Tree, timeout: float | None = None) -> None:
        """Sends one sample. Returns when it is copied.

        Args:
            data: As for :meth:`ShmClient.send`.
            timeout: Seconds to wait for a slow server; None: the client's own ``timeout``.

        Raises:
            SpecMismatchError: The structure, a dtype or a shape differs. Nothing was sent.
            ConnectionClosedError: The client or the server was closed, or the connection is lost for good.
            ValueError: ``timeout`` is not a number of seconds.
            TimeoutError: The server was too slow. Nothing was sent.
            ForkedError: Called in a child of the process that connected.

        """
        if timeout is not None and not (timeout.__class__ in PLAIN and timeout >= 0):
            self._time(timeout)
        if not self._send_now(data):
            self._send_slowly(self._writer.send, data, timeout)
        if self._sender.sleeping:
            self._sender.wake()

    def send_many(self, data: Tree, timeout: float | None = None) -> None:
        """Sends n samples, in order. Every leaf of ``data`` has a leading n.

        ``timeout`` is as for :meth:`send`, and counts each time the client waits for the server. It raises what
        :meth:`send` raises. Some samples may have been sent then: the message and the error's attribute ``sent`` say
        how many.
        """
        try:
            self._send_slowly(self._writer.send_many, data, timeout)
        finally:
            if self._sender.sleeping:
                self._sender.wake()

    def _send_slowly(self, send: Callable[[Tree, float | None], None], data: Tree, timeout: float | None) -> None:
        timeout = self._time(timeout)
        self._sender.raise_if_forked()
        try:
            send(data, timeout)
        except SpecMismatchError as error:
            raise SpecMismatchError(f"Payload size or structure != expected: {error}") from None
        except (ConnectionClosedError, TimeoutError) as error:
            sent = getattr(error, "sent", None)
            late = self._sender.end_reason() or (
                TimeoutError(f"{self._peer} did not take samples for {timeout} s")
                if isinstance(error, TimeoutError)
                else error
            )
            if sent is None or late is error:
                raise late from late.__cause__
            raise with_sent(late, f"{late}; {sent} of the samples were sent", sent) from late.__cause__

    def _time(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else check_timeout(timeout, "None for the client's own timeout")

    def wait(self, timeout: float | None = None) -> None:
        """Returns when all samples sent so far are in the server's ring.

        Args:
            timeout: Seconds to wait; None: the client's own ``timeout``.

        Raises:
            ConnectionClosedError: The connection was lost for good before that.
            ValueError: ``timeout`` is not a number of seconds.
            TimeoutError: It took longer than ``timeout``.
            ForkedError: Called in a child of the process that connected.

        """
        self._sender.flush(self._time(timeout))

    def subscriber(self, example: Tree = None, timeout: float | None = 0.0) -> TcpSubscriber:
        """Subscribes to the weights that the learner publishes: see :meth:`Server.publisher`.

        Args:
            example: A pytree with the structure, dtypes and shapes of the weights. It is only needed if the weights
                have node types beyond dict, list, tuple and None.
            timeout: How many seconds to wait for a learner that has no publisher yet. None: no limit.

        Raises:
            SegmentError: The learner has no publisher.
            ValueError: ``timeout`` is not a number of seconds.
            SpecMismatchError: The example does not fit, or one is needed.
            WireError: The server speaks wire version 1, which has no weights.
            ConnectionClosedError: The client or the server was closed, or the connection is lost for good.
            ForkedError: Called in a child of the process that connected.

        """
        subscribe = functools.partial(TcpSubscriber, self, self._sender, example, self._timeout)
        return await_publisher(subscribe, timeout)

    def _subscriber_of_leaves(self) -> TcpSubscriber:
        """One that gets the leaves alone, as a tuple, whatever the structure of the weights is."""
        return TcpSubscriber(self, self._sender, None, self._timeout, leaves=True)

    def close(self, timeout: float | None = None) -> None:
        """Delivers what was sent, then disconnects. Idempotent.

        It goes on for as long as samples are acknowledged, and waits ``close_timeout`` seconds for the next one. If
        Ctrl-C interrupts it, what was not delivered yet is dropped.

        Args:
            timeout: Seconds that it may take in all; None: the client's own ``timeout``.

        Raises:
            ConnectionClosedError: Some samples could not be delivered. The message says how many. Or another thread
                is closing the client, and takes longer than ``timeout``.
            ValueError: ``timeout`` is not a number of seconds.

        """
        try:
            self._sender.close(self._time(timeout), self._close_timeout)
        except ConnectionClosedError:
            finalizers.unregister(self._sender)
            raise
        finalizers.unregister(self._sender)

    @property
    def _in_flight_count(self) -> int:
        """Samples that were sent and are not acknowledged."""
        return self._sender.sent() - self._sender.acknowledged

    @property
    def _closed(self) -> threading.Event:
        """Set once nothing more can be sent."""
        return self._sender.ended

    def __repr__(self) -> str:
        return f"<TcpClient for {self._peer}, {'closed' if self._sender.ended.is_set() else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a TcpClient belongs to its process: make a new one in the other process")


def connect(address: str, example: Tree = None, **options: Any) -> ShmClient | TcpClient:
    """A producer by address: ``tcp://host:port`` makes a :class:`TcpClient`, ``shm://name`` a :class:`ShmClient`.

    Args:
        address: IPv6 hosts are in brackets: ``tcp://[::1]:50051``.
        example: As for either client. TcpClient needs one.
        options: Keywords of either client. For ``shm://``, those that only TcpClient has are ignored, so that the
            same call works on the learner's host and elsewhere.

    Returns:
        A client with ``send``, ``send_many``, ``wait`` and ``close``. It is a context manager.

    Raises:
        ValueError: The address is not valid.
        TypeError: ``tcp://`` without an example.
        Exception: As either client.

    """
    parts = _address(address)
    if parts.scheme == "shm" and parts.netloc:
        return ShmClient(parts.netloc, example, **{k: v for k, v in options.items() if k not in _ONLY_TCP})
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        if example is None:
            raise TypeError(f"connect({address!r}) needs an example of the samples")
        return TcpClient(parts.hostname, parts.port, example, **options)
    raise _wrong(address)


def host_and_port(address: str) -> tuple[str, int]:
    """The host and the port of ``tcp://host:port``.

    Raises:
        ValueError: The address is not valid.

    """
    parts = _address(address)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        raise _wrong(address)
    return parts.hostname, parts.port


def _address(address: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(address)
        _ = parts.port
    except ValueError:
        raise _wrong(address) from None
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise _wrong(address)
    return parts


def _wrong(address: str) -> ValueError:
    return ValueError(f"address {address!r}: use tcp://host:port or shm://name")
