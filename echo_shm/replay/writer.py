"""What a worker writes into a replay with."""

import contextlib
import errno
import math
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import optree

from echo_shm._core import lib
from echo_shm.client import ShmClient
from echo_shm.errors import ConnectionClosedError, SegmentError, SpecMismatchError
from echo_shm.net.client.client import TcpClient
from echo_shm.replay import arguments
from echo_shm.ring.board import read_board
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import Heads, Tables, step_spec
from echo_shm.spec import Spec, Tree
from echo_shm.timeouts import check_timeout

#: The largest weight that an item may have. See csrc/replay/es_prefix_tree.h.
_LARGEST_WEIGHT = 2.0**991

#: Times between two looks whether the replay has everything (seconds): at first, and at most.
_SOONEST, _LATEST = 50e-6, 2e-3


@dataclass(frozen=True)
class ReplayHandle:
    """Names a replay to another process of the same user. It pickles.

    Attributes:
        name: The replay's name.
        inbox: The ring that brings steps.
        updates: The ring that brings new priorities and deletions.
        tables: For each table its name, and the exponents of its priorities, as its selectors have them.
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


class StepWriter:
    """Makes samples of a replay's inbox from steps, and sends them. Threads may share it.

    Args:
        tables: The replay's.
        steps: What its steps look like.
        client: Sends samples of its inbox.

    """

    def __init__(self, tables: Tables, steps: Spec, client: ShmClient | TcpClient) -> None:
        self._names = tuple(name for name, _ in tables)
        self._exponents = tuple(exponents for _, exponents in tables)
        self._steps = steps
        self._highest = (arguments.HIGHEST,) * len(tables)
        self._heads = Heads(len(tables))
        self._send, self._send_many = client.send, client.send_many

    def add(
        self,
        step: Tree,
        priority: "float | dict[str, float | None] | None" = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sends a copy of one step.

        Args:
            step, priority, terminated, truncated: As for :meth:`Replay.add`.
            timeout: Seconds to wait while the replay takes nothing; None: no limit.

        Raises:
            TimeoutError: It took nothing in time. The message says why, as far as this process can know.
            SpecMismatchError, ValueError: As for :meth:`Replay.add`.
            ConnectionClosedError: The replay or this writer was closed, this worker was stopped, or the replay was
                killed and no other one came in time.
            ForkedError: Called in a child of the process that made the writer.

        After an exception nothing was sent.
        """
        priorities = self._highest if priority is None else self._priorities(priority)
        ends = (lib.ES_STEP_TERMINATED if terminated else 0) | (lib.ES_STEP_TRUNCATED if truncated else 0)
        heads = self._heads
        with heads.lock:
            try:
                self._send((heads.one(ends, priorities), step), timeout)
            except (SpecMismatchError, TimeoutError) as error:
                raise self._clearer(error, step) from None
            heads.sent(1, ends)

    def extend(
        self,
        steps: Tree,
        priorities: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Sends copies of n steps, one after the other.

        Args:
            steps, priorities, terminated, truncated: As for :meth:`Replay.extend`.
            timeout: Seconds to wait each time the replay takes nothing; None: no limit.

        Raises:
            TimeoutError, ConnectionClosedError: As :meth:`add`, but some steps may have been sent: the message and
                the attribute ``sent`` say how many.
            SpecMismatchError, ValueError, ForkedError: As :meth:`add`. Nothing was sent.

        """
        check_timeout(timeout)
        n, leaves = arguments.stacked(self._steps, steps)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)
        ends = arguments.end_flags(terminated, truncated, n)
        with self._heads.lock:
            heads = self._heads.many(n, ends, arguments.HIGHEST if each is None else each)
            sent = 0
            try:
                self._send_many((heads, self._steps.structure.unflatten(leaves)), timeout)
                sent = n
            except (TimeoutError, ConnectionClosedError) as error:
                sent = getattr(error, "sent", 0)
                clearer = self._clearer(error, None)
                clearer.sent = sent  # type: ignore[attr-defined]
                raise clearer from None
            finally:
                self._heads.sent(sent, ends)

    def end_episode(self) -> None:
        """The next step begins an episode, though the last one did not end as terminated or truncated."""
        self._heads.end_episode()

    # -- arguments and errors

    def _priorities(self, priority: object) -> tuple[float, ...]:
        packed = arguments.one_priority(priority, self._names, self._accepts)
        return tuple(np.frombuffer(packed))

    def _accepts(self, table: int, priority: float) -> bool:
        try:
            return all(math.pow(priority, exponent) <= _LARGEST_WEIGHT for exponent in self._exponents[table])
        except OverflowError:
            return False

    def _clearer(self, error: Exception, step: Tree) -> Exception:
        """The same error in the words of a replay."""
        if isinstance(error, SpecMismatchError):
            try:
                for i, leaf in enumerate(arguments.leaves_of(self._steps, step, "the step")):
                    self._steps.exact(i, leaf)
            except SpecMismatchError as clearer:
                return clearer
            return error
        why = self._why_not()
        return type(error)(f"{error}: {why}" if why else str(error))

    def _why_not(self) -> str:
        """Why the replay takes nothing; ``""`` if nothing says so."""
        return ""


class Writer(StepWriter):
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
        super().__init__(handle.tables, steps, self._client)

    @property
    def name(self) -> str:
        """The replay's name."""
        return self._handle.name

    @property
    def ring_closed(self) -> bool:
        """Whether the replay is closed. After that, nothing can be sent."""
        return self._client.ring_closed

    def flush(self, timeout: float | None = None) -> None:
        """Returns once the replay has all steps that were sent before: they are stored.

        Raises:
            TimeoutError: It had not, in time. The message names what it waits for.
            ConnectionClosedError: As :meth:`add`.

        """
        timeout = check_timeout(timeout)
        ring, attachment = self._attachment.ring, self._attachment
        attachment.refuse_in_child()
        mark, started, nap = lib.es_api_claimed(ring), time.monotonic(), _SOONEST
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
