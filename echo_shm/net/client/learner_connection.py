"""One connection of a replay's learner to a server, on the learner's side."""

import socket
import ssl
from collections.abc import Sequence

from echo_shm.errors import SegmentError, WireError
from echo_shm.net import learner_wire, tcp, wire
from echo_shm.net.client.connection import Connection, Options, RefusedError
from echo_shm.net.wire import Accept, Header
from echo_shm.ring.inbox import Tables, step_spec, tables_of
from echo_shm.ring.updates import UPDATE_SPEC
from echo_shm.spec import Spec

#: Most buffers in one recvmsg_into.
_MAX_BUFFERS = 512


class LearnerConnection(Connection):
    """A connection after its handshake. One thread receives; any may send.

    Args:
        options: ``spec`` is not used.
        timeout: Seconds that connecting and the handshake may take.

    Attributes:
        tables: The replay's.
        step: What its steps look like.

    """

    tables: Tables
    step: Spec

    def __init__(self, options: Options, timeout: float) -> None:
        super().__init__(options._replace(spec=UPDATE_SPEC), 0, timeout)
        if self._tls is None:
            # The kernel waits for a whole batch then. A socket with a timeout of Python's own never does.
            tcp.set_time_limits(self._sock, wire.SILENCE)

    def _handshake_v1(self) -> None:
        raise WireError(f"{self._options.peer} speaks wire version 1: it is no replay's server")

    def _sends(self) -> bytes:
        return learner_wire.LEARNER

    def _accepted(self, accept: Accept) -> None:
        try:
            spec = Spec.from_schema(accept.schema, "its answer")
        except SegmentError as error:
            raise WireError(f"{self._options.peer}: {wire.printable(str(error).encode())}") from None
        tables, step = tables_of(spec), step_spec(spec)
        if tables is None or step is None:
            raise WireError(f"{self._options.peer} accepts learners, but its schema is not that of a replay's inbox")
        self.tables, self.step, self.ring = tables, step, accept.ring

    def _mismatch(self, schema: bytes) -> Exception:
        """Why a server does not know what a learner is."""
        peer = self._options.peer
        try:
            is_replay = tables_of(Spec.from_schema(schema, "its answer")) is not None
        except SegmentError as error:
            return WireError(f"{peer}: {wire.printable(str(error).encode())}")
        if is_replay:
            return RefusedError(
                f"{peer} has a replay and lets others only write to it: its version of echo_shm is older than this one"
            )
        return RefusedError(f"{peer} takes samples for batches, and is no replay: use TcpClient")

    def receive_header(self, n: int = 0) -> Header:
        """Waits for the next frame. ``n``: as for :func:`learner_wire.read_batch_header`."""
        return learner_wire.read_batch_header(self.receive_body(wire.HEADER_BYTES), n)

    def receive_body(self, length: int) -> bytes:
        """The next bytes."""
        data = bytearray(length)
        self.receive_into([memoryview(data)])
        return bytes(data)

    def receive_into(self, spaces: Sequence[memoryview]) -> None:
        """Fills all spaces with the next bytes.

        Raises:
            OSError: The connection is lost, or nothing came for a minute.

        """
        left = [space for space in spaces if len(space)]
        while left:
            got = self._receive_some(left)
            if got == 0:
                raise ConnectionResetError(f"{self._options.peer} closed the connection")
            while left and got >= len(left[0]):
                got -= len(left.pop(0))
            if got:
                left[0] = left[0][got:]

    def _receive_some(self, spaces: list[memoryview]) -> int:
        try:
            if self._tls is not None:
                return self._tls.read_into(spaces, wire.SILENCE)
            return self._sock.recvmsg_into(spaces[:_MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
        except (TimeoutError, BlockingIOError):
            raise TimeoutError(f"nothing came from {self._options.peer} for {wire.SILENCE} s") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
