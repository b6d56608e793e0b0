"""What a worker writes into a replay with."""

import collections
import contextlib
import errno
import functools
import time
from dataclasses import dataclass
from typing import NoReturn

import optree

from echo_shm._core import lib
from echo_shm.client import ShmClient
from echo_shm.errors import ConnectionClosedError, SegmentError
from echo_shm.replay.item_writer import ItemWriter
from echo_shm.ring.board import read_board
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import Tables, step_spec
from echo_shm.spec import Tree
from echo_shm.timeouts import check_timeout
from echo_shm.weights import Subscriber
from echo_shm.weights.subscription import await_publisher

#: The last items that a writer can wait for one by one.
_MARKS = 1024

#: Times between two looks whether the replay has everything (seconds): at first, and at most.
_SOONEST, _LATEST = 50e-6, 2e-3


@dataclass(frozen=True)
class ReplayHandle:
    """Names a replay to another process of the same user. It pickles.

    Attributes:
        name: The replay's name.
        inbox: The ring that brings steps.
        updates: The ring that brings new priorities and deletions.
        tables: For each table its name, the exponents of its priorities, as its selectors have them, and the leaves
            that an episode's last observations must have.
        treespec: The steps' structure.

    """

    name: str
    inbox: Handle
    updates: Handle
    tables: Tables
    treespec: optree.PyTreeSpec | None


def join(handle: ReplayHandle, ring: Handle, learner_grace: float | None) -> ShmClient:
    """Attaches to a replay's ring as a producer.

    Raises:
        SegmentError: There is no such replay.
        ConnectionClosedError: It is closed, or this worker was stopped.

    """
    try:
        return ShmClient(ring, learner_grace=learner_grace)
    except SegmentError as error:
        if error.errno != errno.ENOENT:
            raise
        raise SegmentError(errno.ENOENT, f"no replay is named {handle.name!r}: it was closed, or removed") from None


class Writer(ItemWriter):
    """Sends steps to a replay in another process. Threads may share it; a forked child must not use its parent's.

    :meth:`Replay.spawn` gives one to each worker, and :meth:`ReplayClient.writer` makes more. When :meth:`add` or
    :meth:`extend` returns, no process's death loses the steps. It is a context manager that closes on exit.

    Args:
        handle: ``replay.handle``.
        learner_grace: How many seconds to wait for the next replay if this one was killed, once its inbox is full.
            After that, ConnectionClosedError is raised. None: no limit.

    Raises:
        SegmentError: There is no such replay.
        ConnectionClosedError: It is closed, or this worker was stopped.

    """

    def __init__(self, handle: ReplayHandle, *, learner_grace: float | None = 30.0) -> None:
        self._handle = handle
        self._grace = learner_grace
        self._client = join(handle, handle.inbox, learner_grace)
        self._attachment = self._client._attachment
        steps = step_spec(self._attachment.segment.spec)
        if steps is None:
            self._client.close()
            raise SegmentError(f"ring {handle.inbox.name!r} is not the inbox of replay {handle.name!r}")
        # How far the ring was claimed after each of the last items.
        self._marks: collections.deque[int] = collections.deque(maxlen=_MARKS)
        super().__init__(handle.tables, steps, self._client)

    @property
    def name(self) -> str:
        """The replay's name."""
        return self._handle.name

    @property
    def ring_closed(self) -> bool:
        """Whether the replay is closed. After that, nothing can be sent."""
        return self._client.ring_closed

    def _send_item(self, timeout: float | None) -> None:
        super()._send_item(timeout)
        self._marks.append(lib.es_api_claimed(self._attachment.ring))

    def flush(self, timeout: float | None = None, *, pending: int = 0) -> None:
        """Returns once the replay has all steps and items that were sent before: they are stored.

        Args:
            timeout: Seconds to wait; None: no limit.
            pending: So many of the last items of :meth:`create_item`, and the steps after them, need not be stored:
                0 to 1023.

        Raises:
            ValueError: A number is out of range.
            TimeoutError: It had not, in time. The message names what it waits for.
            ConnectionClosedError: As :meth:`add`.

        """
        timeout = check_timeout(timeout)
        if not 0 <= pending < _MARKS:
            raise ValueError(f"pending={pending}: use 0 to {_MARKS - 1}")
        ring, attachment = self._attachment.ring, self._attachment
        attachment.refuse_in_child()
        mark, started, nap = lib.es_api_claimed(ring), time.monotonic(), _SOONEST
        if pending:
            mark = self._marks[-1 - pending] if len(self._marks) > pending else 0
        alone_since: float | None = None
        while lib.es_monitor_committed_before(ring, mark):
            if not attachment.attached or attachment.ring_closed():
                raise ConnectionClosedError(f"replay {self.name!r} was closed before it had all steps")
            now = time.monotonic()
            if timeout is not None and now - started >= timeout:
                raise self._clearer(TimeoutError(f"replay {self.name!r} did not take all steps in {timeout} s"), None)
            alone_since = None if lib.es_api_learner_alive(ring) else alone_since or now
            if alone_since is not None and self._grace is not None and now - alone_since >= self._grace:
                raise ConnectionClosedError(
                    f"replay {self.name!r} was killed, and no other one came for {self._grace} s (learner_grace)"
                )
            # Not a sleep on the ring's word: it would use up a wake-up that a writer waits for.
            time.sleep(nap)
            nap = min(2 * nap, _LATEST)

    def subscriber(self, example: Tree = None, timeout: float | None = 0.0) -> Subscriber:
        """Subscribes to the weights that the learner publishes: see :meth:`Replay.publisher`.

        Args:
            example: As for :class:`Subscriber`.
            timeout: How many seconds to wait for a learner that has no publisher yet. None: no limit.

        Raises:
            SegmentError, SpecMismatchError: As for :class:`Subscriber`. The replay has no publisher.
            ValueError: ``timeout`` is not a number of seconds.

        """
        return await_publisher(functools.partial(Subscriber._beside, self.name, None, example), timeout)

    def _why_not(self) -> str:
        with contextlib.suppress(SegmentError):
            return str(read_board(self.name).get("waits") or "")
        return ""

    # -- closing

    def close(self) -> None:
        """Leaves the replay. Idempotent. What was sent stays sent."""
        self._client.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Writer of replay {self.name!r}, {'closed' if self.ring_closed else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Writer belongs to its process: pickle replay.handle, and attach there: ReplayClient(handle)")
