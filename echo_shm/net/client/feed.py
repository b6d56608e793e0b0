"""The weights that a client's server sends: what has come of them, and what to ask for.

A client asks for the next version once its user has got the last one, or waits for a later one. So one that is seldom
looked at is seldom sent, and the versions in between are skipped. The receive thread puts a version together in memory
that nobody sees, and shows it when it is whole. The send thread sends what is asked for.
"""

import enum
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from echo_shm.errors import ConnectionClosedError, SegmentError, WireError
from echo_shm.net import weights_wire, wire
from echo_shm.net.client.blocks import Blocks
from echo_shm.net.wire import Frame, Header
from echo_shm.spec import Array, Spec

#: Most blocks of memory that are kept and nobody uses.
_KEPT = 2


class Version(NamedTuple):
    """A version that has come whole. Its arrays are read-only. As long as one lives, nobody writes to its memory."""

    number: int
    arrays: list[Array]
    publisher: int


class _State(enum.Enum):
    """How far the connection is with the weights."""

    AWAY = "not subscribed"
    ASKED = "subscribed, and not answered"
    NONE = "there are no weights yet"
    OPEN = "described: versions may come"


class Feed:
    """The weights of one server. What several threads change, changes under ``changed``, which is notified then.

    Args:
        peer: The server's address, for messages.
        changed: It is notified, too, when the client ends. Whoever calls :meth:`begin`, :meth:`lost` and
            :meth:`take_requests` holds it.
        wake: Wakes the send thread if there is something to be sent.
        end_reason: Why the client has ended; None while it has not.
        stamp: Makes the client's samples carry a version from now on; 0: none.

    Attributes:
        held: The newest version that has come; None before the first, of this publisher.
        latest: The latest version that the server has told of; 0 before the first.
        spec: What the weights look like; None before the server has said so.
        requests: What is to be sent to the server.
        publishers: How many publishers there were. Each counts its versions from 1.

    """

    def __init__(
        self,
        peer: str,
        changed: threading.Condition,
        wake: Callable[[], None],
        end_reason: Callable[[], Exception | None],
        stamp: Callable[[int], object],
    ) -> None:
        self._peer, self._changed, self._wake, self._end_reason = peer, changed, wake, end_reason
        self._stamp = stamp
        self.held: Version | None = None
        self.latest = 0
        self.spec: Spec | None = None
        self.requests = b""
        self.publishers = 0
        self._state = _State.AWAY
        self._is_connected = self._is_subscribed = self._has_ended = False
        self._ring = self._why_none = b""
        self._goals: list[int] = []  # the versions that are waited for
        self._has_users = False
        self._is_taken = False  # some user has got the version that is held, or none is
        self._needed: int | None = None  # what was asked for, and has not come
        self._blocks: Blocks | None = None
        self._coming = 0  # the version of which parts have come, its arrays, and the memory of what is to come
        self._arrays: list[Array] = []
        self._left: list[memoryview] = []

    @property
    def number(self) -> int:
        """The number of the version that is held; 0: none is."""
        return 0 if self.held is None else self.held.number

    # -- called by the user's threads

    def subscribe(self) -> Spec:
        """Subscribes, and waits for the server to say what the weights look like.

        Raises:
            SegmentError: There are none.
            ConnectionClosedError: The client has ended.

        """
        with self._changed:
            if not self._is_subscribed:
                self._is_subscribed = True
                if self._is_connected:
                    self._ask_to_subscribe()
            while self._has_ended or self._state in (_State.AWAY, _State.ASKED):
                self._raise_if_ended()
                if self._state is _State.OPEN and self._needed is None:  # nothing comes: there may be another publisher
                    self._begin_anew()
                    self._ask_to_subscribe()
                self._changed.wait()
            if self._state is _State.NONE:
                raise SegmentError(f"{self._peer}: {wire.printable(self._why_none)}")
            assert self.spec is not None
            return self.spec

    def note_user(self) -> None:
        """There is a user who knows what the weights look like."""
        with self._changed:
            self._has_users, self._is_taken = True, self._is_taken or self.held is None
            self._ask()

    def await_version(self, goal: int, timeout: float | None, refuse: Callable[[], None]) -> int:
        """Waits until that version has come, or a later one. Returns the newest that has come.

        Args:
            goal: The version.
            timeout: Seconds; None: no limit.
            refuse: Raises if the caller is not to wait any more. It is asked whenever something has changed.

        Raises:
            TimeoutError: It has not come in time.
            ConnectionClosedError: It will not come.

        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            publishers = self.publishers
            self._goals.append(goal)
            try:
                while True:
                    refuse()
                    if publishers != self.publishers:
                        raise ConnectionClosedError(
                            f"{self._peer} has another publisher now, whose versions count from 1: its latest is "
                            f"{self.latest}; waited for {goal} of the one before it"
                        )
                    if self.number >= goal:
                        return self.number
                    if self._has_ended and self.latest < goal:
                        raise ConnectionClosedError(
                            f"the publisher of the weights of {self._peer} has closed them at version {self.latest}; "
                            f"waited for {goal}"
                        )
                    self._wait(goal, end, timeout)
            finally:
                self._goals.remove(goal)

    def await_latest(self, timeout: float | None, refuse: Callable[[], None]) -> Version | None:
        """The latest version that the server has told of by now. While the server is away: the newest that has come.

        The arguments and errors are those of :meth:`await_version`. None: nothing was published yet.
        """
        end = None if timeout is None else time.monotonic() + timeout
        goals: list[int] = []  # one, once it is known
        with self._changed:
            try:
                while True:
                    if self._state is _State.OPEN and not goals:
                        goals.append(self.latest)
                        self._goals += goals
                    there = min([self.latest, *goals])  # of another publisher, the latest may be less
                    if self.held is not None and (self._state is not _State.OPEN or self.number >= there):
                        return self.held
                    if self._state is _State.NONE or (self._state is _State.OPEN and there == 0):
                        return None
                    self._wait(there, end, timeout)
                    refuse()
            finally:
                for goal in goals:
                    self._goals.remove(goal)

    def _wait(self, goal: int, end: float | None, timeout: float | None) -> None:
        """Waits for a change, with the lock held. Asks for what is waited for."""
        self._raise_if_ended()
        self._ask()
        left = threading.TIMEOUT_MAX if end is None else end - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"the weights of {self._peer} stayed at version {self.number} for {timeout} s; waited for {goal}"
            )
        self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def _raise_if_ended(self) -> None:
        error = self._end_reason()
        if error is not None:
            raise error from error.__cause__

    def note_taken(self, version: Version) -> None:
        """A user has got that version."""
        with self._changed:
            if version.publisher == self.publishers:
                self._stamp(version.number)
            if version is self.held and not self._is_taken:
                self._is_taken = True
                self._ask()

    # -- what is asked for

    def take_requests(self) -> bytes:
        """What is to be sent now."""
        data, self.requests = self.requests, b""
        return data

    def _request(self, data: bytes) -> None:
        self.requests += data
        self._changed.notify_all()
        self._wake()

    def _ask_to_subscribe(self) -> None:
        self._state = _State.ASKED
        self._request(weights_wire.subscribe())

    def _ask(self) -> None:
        """Asks for the next version that somebody has use for, unless it was asked for."""
        if self._state is not _State.OPEN:
            return
        most = self.latest if self._has_ended else weights_wire.MAX_VERSION
        goals = [*self._goals, self.number + 1] if self._is_taken else self._goals
        needs = [goal for goal in goals if self.number < goal <= most]
        if needs and min(needs) != self._needed:
            self._needed = min(needs)
            self._request(weights_wire.need(self._needed))

    # -- connections

    def begin(self, ring: bytes) -> None:
        """There is a new connection, to the server of that ring."""
        if ring != self._ring:
            self._ring = ring
            self._begin_anew()
        self.requests, self._is_connected = b"", True
        if self._is_subscribed:
            self._ask_to_subscribe()

    def lost(self) -> None:
        """The connection is lost."""
        self._state, self._is_connected = _State.AWAY, False
        self._needed, self._coming = None, 0
        self._changed.notify_all()

    def _begin_anew(self) -> None:
        """Another publisher's versions come from now on."""
        self.publishers += 1
        self.held, self.latest = None, 0
        self._stamp(0)
        self._is_taken, self._needed, self._coming, self._has_ended = self._has_users, None, 0, False

    # -- the receive thread

    def heard(self, header: Header, body: bytes) -> None:
        """Does what a frame of the server says.

        Raises:
            WireError: It must not say that now.

        """
        kind, number = header.kind, weights_wire.checked(header).number
        with self._changed:
            if kind is Frame.REFUSE and self._state is _State.ASKED:
                self._state, self._why_none = _State.NONE, body
                self._begin_anew()
            elif kind is Frame.SUBSCRIBE and self._state in (_State.ASKED, _State.NONE):
                self._describe(body, number)
            elif kind in (Frame.NEWS, Frame.END) and self._state is _State.OPEN and not self._has_ended:
                if number < self.latest:
                    raise WireError(f"{self._peer} said that version {number} is the latest, after {self.latest}")
                self.latest, self._has_ended = number, kind is Frame.END
                if self._has_ended and (self._needed or 0) > number:
                    self._needed = None
            else:
                raise WireError(f"{self._peer} sent {kind.name}, which nobody has asked for")
            self._ask()
            self._changed.notify_all()

    def _describe(self, schema: bytes, latest: int) -> None:
        if self.spec is None or self.spec.schema != schema:
            try:
                self.spec = Spec.from_schema(schema, "its answer")
            except SegmentError as error:
                raise WireError(f"{self._peer}: {wire.printable(str(error).encode())}") from None
            self._blocks = Blocks(self.spec, 1, _KEPT)
            self._begin_anew()
        elif self._has_ended or latest < self.latest:
            self._begin_anew()
        self._state, self.latest = _State.OPEN, latest

    def spaces(self, header: Header) -> list[memoryview]:
        """Where to write the bytes of a piece. Call :meth:`filled` then.

        Raises:
            WireError: No such piece may come now.

        """
        number = weights_wire.checked(header).number
        with self._changed:
            if self._state is not _State.OPEN or self._needed is None:
                raise WireError(f"{self._peer} sent a part of version {number}, which nobody has asked for")
            if number != self._coming or number == 0:
                before = max(self._coming, self.number)
                if number <= before:
                    raise WireError(f"{self._peer} sent a part of version {number} after version {before}")
                self._begin_version(number)
        left = sum(map(len, self._left))
        if header.length > left or (left and not header.length):
            raise WireError(f"{self._peer} sent {header.length} bytes of version {number}, expected 1 to {left}")
        return self._cut(header.length)

    def _begin_version(self, number: int) -> None:
        assert self._blocks is not None
        spaces, self._arrays = self._blocks.take()
        self._coming, self._left = number, [space for space in spaces if len(space)]
        self.latest = max(self.latest, number)

    def _cut(self, n: int) -> list[memoryview]:
        """The memory of the next n bytes."""
        cut = []
        while n:
            space = self._left.pop(0)
            if len(space) > n:
                self._left.insert(0, space[n:])
            cut.append(space[:n])
            n -= len(cut[-1])
        return cut

    def filled(self) -> None:
        """The bytes of the last piece have come."""
        if self._left:
            return
        arrays = [array.reshape(array.shape[1:]) for array in self._arrays]
        for array in arrays:
            array.flags.writeable = False
        with self._changed:
            if not self._coming:  # the connection was lost just now
                return
            self.held, self._is_taken = Version(self._coming, arrays, self.publishers), False
            if self._needed is not None and self._needed <= self._coming:
                self._needed = None
            self._coming, self._arrays = 0, []
            self._ask()
            self._changed.notify_all()
