"""How a client connects to its server again: it tries until it succeeds, its time is over, or it is to end."""

import threading
from collections.abc import Callable
from typing import TypeVar

from echo_shm.errors import ConnectionClosedError, EchoShmError, SpecMismatchError, WireError
from echo_shm.net import wire
from echo_shm.net.client.backoff import Backoff
from echo_shm.net.client.connection import Connection, ForgottenError, Options, RefusedError
from echo_shm.ring.updates import UPDATE_SPEC

#: The longest that one try to connect may take (seconds). Finding the host's address may take longer.
_LONGEST_TRY = 5.0

_Made = TypeVar("_Made", bound=Connection)


class Reconnector:
    """Tries to connect again.

    Args:
        grace: As for :class:`Backoff`.
        changed: It is notified after ``stopped`` has become true.
        stopped: Whether no further try is to begin.

    Attributes:
        backoff: How often it tries, and for how long.
        trying: Whether it is in a try, which cannot be interrupted. It is not set any more after that notice.

    """

    def __init__(self, grace: float, changed: threading.Condition, stopped: Callable[[], bool]) -> None:
        self.backoff = Backoff(grace)
        self.trying = False
        self._changed = changed
        self._stopped = stopped

    def connect(self, make: Callable[[float], _Made], why: BaseException | None) -> _Made:
        """A new connection.

        Args:
            make: Tries to make it, within so many seconds.
            why: What ended the last one.

        Raises:
            ConnectionClosedError: Its time is over, or it was stopped.
            SpecMismatchError, WireError, RefusedError: Further tries are of no use.

        """
        while True:
            with self._changed:
                self._changed.wait_for(self._stopped, self.backoff.next_delay())
                left, stopped = self.backoff.time_left(), self._stopped()
                self.trying = left > 0 and not stopped
            if not self.trying:
                ending = "closed meanwhile" if stopped else f"not made again within {self.backoff.grace} s"
                raise ConnectionClosedError(f"connection lost, and {ending}: {why}") from why
            try:
                return make(min(max(left, 0.1), _LONGEST_TRY))
            except (SpecMismatchError, WireError, RefusedError):
                raise
            except (OSError, EchoShmError) as error:
                why = error
            finally:
                self.trying = False


def resume(
    reconnector: Reconnector,
    options: Options,
    old: Connection,
    acknowledged: int,
    in_doubt: int,
    lost: BaseException | None,
) -> Connection:
    """A new connection for the samples of an old one, so that each is in the ring once.

    Args:
        reconnector: Tries to connect.
        options: What both connections have in common.
        old: The connection that is lost.
        acknowledged: The number of the first sample that is not acknowledged.
        in_doubt: How many were sent from there on.
        lost: Why the old connection is lost.

    Raises:
        ConnectionClosedError: Nobody can tell whether those in doubt are in the ring; or as
            :meth:`Reconnector.connect`.
        SpecMismatchError, WireError: As :meth:`Reconnector.connect`.

    """
    forgotten = ConnectionClosedError(f"the server has forgotten this client: {in_doubt} samples are in doubt")
    doubt = old.ring if in_doubt > 0 and old.version == 2 else wire.NO_RING
    try:
        connection = reconnector.connect(lambda timeout: Connection(options, acknowledged, timeout, doubt), lost)
    except ForgottenError:
        raise forgotten from None
    try:
        if connection.version != old.version:
            raise ConnectionClosedError(
                f"the server speaks wire version {connection.version} now, no longer {old.version}: "
                f"{in_doubt} samples are in doubt"
            )
        if connection.ring == old.ring and not connection.known and in_doubt > 0:
            raise forgotten
        if connection.ring != old.ring and options.spec.schema == UPDATE_SPEC.schema:
            raise ConnectionClosedError("another replay is there now, whose items have other keys")
    except BaseException:
        connection.close()
        raise
    return connection
