"""What a worker writes into a replay with."""

import collections
import contextlib
import errno
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import optree

from echo_shm._core import lib
from echo_shm.client import ShmClient
from echo_shm.errors import ConnectionClosedError, SegmentError, SpecMismatchError
from echo_shm.net.client.client import TcpClient
from echo_shm.replay import arguments
from echo_shm.replay.finals import NOT_THE_END, chosen_leaves, leaves_of_final
from echo_shm.replay.history import History, NewItem, Pattern, signatures
from echo_shm.replay.vector import Vector
from echo_shm.ring.board import read_board
from echo_shm.ring.handle import Handle
from echo_shm.ring.inbox import Heads, Tables, step_spec
from echo_shm.spec import Array, Spec, Tree
from echo_shm.timeouts import PLAIN, check_timeout

#: The largest weight that an item may have. See csrc/replay/es_prefix_tree.h.
_LARGEST_WEIGHT = 2.0**991

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


class StepWriter:
    """Makes samples of a replay's inbox from steps, and sends them. Threads may share it.

    Args:
        tables: The replay's.
        steps: What its steps look like.
        client: Sends samples of its inbox.

    """

    def __init__(self, tables: Tables, steps: Spec, client: ShmClient | TcpClient) -> None:
        self._tables = tables
        self._names = tuple(name for name, *_ in tables)
        self._exponents = tuple(exponents for _, exponents, _, _ in tables)
        self._finals = sorted({leaf for _, _, finals, _ in tables for leaf in finals})
        self._steps = steps
        self._highest = (arguments.HIGHEST,) * len(tables)
        self._heads = Heads(tables)
        self._vector: Vector | None = None
        # Samples of a call that was cut short, which go first in the next one: heads, and leaves.
        self._left: tuple[Array, list[Array]] | None = None
        self._send, self._send_many = client.send, client.send_many
        #: Items that the writer makes after each :meth:`append`.
        self.patterns: Sequence[Pattern] = ()
        self._signatures = signatures(tables, steps)
        self._history = History(self._heads, steps)
        self._nowhere = (float("nan"),) * len(tables)
        self._late: list[NewItem] = []  # items of a step that was appended in part: they follow it
        # Where an item is sent, nobody looks at the step beside it.
        self._no_step = steps.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in steps.leaves])

    def add(
        self,
        step: Tree,
        priority: "float | dict[str, float | None] | None" = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Tree = None,
        timeout: float | None = None,
    ) -> None:
        """Sends a copy of one step.

        Args:
            step, priority, terminated, truncated, final: As for :meth:`Replay.add`.
            timeout: Seconds to wait while the replay takes nothing; None: no limit.

        Raises:
            TimeoutError: It took nothing in time. The message says why, as far as this process can know.
            SpecMismatchError, ValueError: As for :meth:`Replay.add`.
            ConnectionClosedError: The replay or this writer was closed, this worker was stopped, or the replay was
                killed and no other one came in time.
            ForkedError: Called in a child of the process that made the writer.

        After an exception nothing was sent. With ``final`` there is one more case: a TimeoutError whose attribute
        ``sent`` is 1 says that the step was sent. Its final observations go first with the next call: go on with the
        next step.
        """
        if self._late:
            self._refuse_partial()
        priorities = self._highest if priority is None else self._priorities(priority)
        ends = (lib.ES_STEP_TERMINATED if terminated else 0) | (lib.ES_STEP_TRUNCATED if truncated else 0)
        if final is not None:
            self._add_last(step, priorities, ends, final, timeout)
            return
        heads = self._heads
        with heads.lock:
            self._send_left(timeout)
            try:
                self._send((heads.one(ends, priorities), step), timeout)
            except (SpecMismatchError, TimeoutError) as error:
                raise self._clearer(error, step) from None
            heads.sent(1, ends)
            if ends:
                self._history.clear()

    def _add_last(
        self, step: Tree, priorities: tuple[float, ...], ends: int, final: Tree, timeout: float | None
    ) -> None:
        """Sends the last step of an episode, and what the episode ends with."""
        check_timeout(timeout)
        if not ends:
            raise ValueError(NOT_THE_END)
        leaves = [
            self._steps.exact(i, leaf) for i, leaf in enumerate(arguments.leaves_of(self._steps, step, "the step"))
        ]
        last = leaves_of_final(self._steps, final, self._finals)
        rows = [np.stack(both) for both in zip(leaves, last, strict=True)]
        with self._heads.lock:
            self._send_left(timeout)
            self._send_whole(self._heads.last(ends, priorities), rows, timeout, lambda: self._heads.sent(2, ends))
            self._history.clear()

    def add_vector(
        self,
        steps: Tree,
        terminated: Any,
        truncated: Any,
        autoreset: Literal["next_step", "same_step", "disabled"] = "next_step",
        *,
        final: Tree = None,
        priorities: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Sends copies of one step of each of n environments, which are stepped together.

        Each environment has episodes of its own: row i of a call follows row i of the call before. A step has what the
        policy has seen, what it has done, and what came of that: the observations *before* the action, the action, its
        reward, and whether this action ended the episode. With a vector environment of Gymnasium 1.1 or later::

            obs, _ = envs.reset()
            while True:
                act = policy(obs)
                next_obs, reward, terminated, truncated, infos = envs.step(act)
                step = {"obs": obs, "act": act, "reward": reward.astype(np.float32)}
                writer.add_vector(step, terminated, truncated, "next_step", final={"obs": next_obs})
                obs = next_obs

        Gymnasium's modes (``envs.metadata["autoreset_mode"]``) differ in where the last observations of an episode are,
        and in whether the next row is a step:

        - ``"next_step"``: ``envs.step`` returns them. The next call ignores that environment's action and returns the
          first observations of the next episode: that row is no step, and it is left out.
        - ``"same_step"``: ``envs.step`` returns the first observations of the next episode already; the last ones are
          in ``infos``: ``final={"obs": infos.get("final_obs")}``.
        - ``"disabled"``: ``envs.step`` returns them, as above. Reset those environments before the next step:
          ``obs, _ = envs.reset(options={"reset_mask": terminated | truncated})``.

        After a reset of all environments in the middle of their episodes, call :meth:`end_episode`.

        Args:
            steps: As for :meth:`extend`: every leaf has a leading n, the same in each call.
            terminated, truncated: How each row ends its episode: arrays of bool of shape (n,).
            autoreset: The environments' mode.
            final: As for :meth:`add`, but with a leading n. Only the rows of episodes that have ended are used. None:
                they are not known. In place of an array there may be an array of n objects, as in ``infos``.
            priorities: As for :meth:`extend`.
            timeout: Seconds to wait each time the replay takes nothing; None: no limit.

        Raises:
            TimeoutError: As :meth:`add`. If its attribute ``sent`` is above 0, some rows were sent. The others go first
                with the next call: go on with the next steps.
            ValueError: An argument is out of range, n is not that of the calls before, or a row ends an episode that
                must be a reset. Nothing was sent.
            SpecMismatchError, ConnectionClosedError, ForkedError: As :meth:`extend`.

        """
        check_timeout(timeout)
        n, leaves = arguments.stacked(self._steps, steps)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)
        ends = arguments.end_flags(terminated, truncated, n)
        with self._heads.lock:
            vector = self._vector or Vector(self._tables, self._steps, n, self._finals)
            rows = vector.rows(leaves, ends, autoreset, final, each)
            self._vector = vector
            self._send_left(timeout)
            if len(rows.heads):
                self._send_whole(rows.heads, rows.leaves, timeout, rows.sent)
            else:
                rows.sent()

    def _send_whole(
        self, heads: Array, leaves: Sequence[Array], timeout: float | None, sent: Callable[[], None]
    ) -> None:
        """Sends samples that belong together, and calls ``sent``. What is left goes first in the next call."""
        try:
            self._send_many((heads, self._steps.structure.unflatten(leaves)), timeout)
        except (TimeoutError, ConnectionClosedError) as error:
            count = getattr(error, "sent", 0)
            clearer = self._clearer(error, None)
            if count:
                self._left = heads[count:], [leaf[count:] for leaf in leaves]
                sent()
                clearer = type(clearer)(f"{clearer}; the others go first with the next call: do not add them again")
            clearer.sent = count  # type: ignore[attr-defined]
            raise clearer from None
        sent()

    def _send_left(self, timeout: float | None) -> None:
        """Sends what is left of a call that was cut short."""
        if self._left is None:
            return
        (heads, leaves), self._left = self._left, None
        try:
            self._send_whole(heads, leaves, timeout, lambda: None)
        except (TimeoutError, ConnectionClosedError) as error:
            if self._left is None:
                self._left = heads, leaves
            error.sent = 0  # type: ignore[union-attr]
            raise

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
        if self._late:
            self._refuse_partial()
        n, leaves = arguments.stacked(self._steps, steps)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)
        ends = arguments.end_flags(terminated, truncated, n)
        with self._heads.lock:
            self._send_left(timeout)
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
                if ends is not None and ends[:sent].any():
                    self._history.clear()

    def end_episode(self, clear: bool = True, *, timeout: float | None = None) -> None:
        """The next step begins an episode, though the last one did not end as terminated or truncated.

        For :meth:`add_vector`: so does the next step of each environment. A step that was appended in part is sent as
        it is.

        Args:
            clear: Items cannot refer to the steps before any more.
            timeout: As for :meth:`add`. It counts if there is something to send.

        Raises:
            TimeoutError, ConnectionClosedError, ForkedError, ValueError: As :meth:`append`.

        """
        with self._heads.lock:
            self._complete(timeout)
        self._make_items(True, timeout)
        self._heads.end_episode()
        if clear:
            with self._heads.lock:
                self._history.clear()
        with self._heads.lock:
            if self._vector is not None:
                self._vector.end_episodes()

    # -- items that the caller describes

    @property
    def history(self) -> Tree:
        """What was appended since the last :meth:`end_episode`: the steps' tree, of :class:`Appended`."""
        return self._history.tree

    def append(self, step: Tree, *, partial: bool = False, timeout: float | None = None) -> None:
        """Sends a copy of one step that is no item of any table: :meth:`create_item` makes items of such steps.

        Args:
            step: As for :meth:`add`. A dict may have some of its keys, if the others come with other calls.
            partial: The next call appends more of the same step. Items may refer to what is there of it already.
            timeout: As for :meth:`add`.

        Raises:
            TimeoutError, ConnectionClosedError, ForkedError: As :meth:`add`.
            SpecMismatchError: As :meth:`add`; or a leaf of a step that is complete now is missing; or a leaf comes
                twice.
            ValueError: A pattern cannot make its item. The step was sent.

        """
        history, heads = self._history, self._heads
        with heads.lock:
            if partial or history.partial is not None:
                leaves = self._partial(step)
                if partial:
                    history.partial = leaves
                    return
                missing = [leaf.name for i, leaf in enumerate(self._steps.leaves) if i not in leaves]
                if missing:
                    raise SpecMismatchError(f"the step lacks {', '.join(missing)}: append it, or end the episode")
                step = self._steps.structure.unflatten([leaves[i] for i in range(len(leaves))])
            self._append(step, timeout)
            if self._late:
                self._send_late(timeout)
        if self.patterns:
            self._make_items(False, timeout)

    def _partial(self, step: Tree) -> dict[int, Array]:
        """The leaves of a step that are there, with these."""
        before = self._history.partial or {}
        given = chosen_leaves(self._steps, step, "the step")
        twice = sorted(before.keys() & given.keys())
        if twice:
            raise SpecMismatchError(f"{self._history.name(twice[0])} was appended to this step already")
        return {**before, **{i: np.array(self._steps.exact(i, leaf)) for i, leaf in given.items()}}

    def _refuse_partial(self) -> None:
        raise ValueError("items refer to a step that was appended in part: append the rest of it first")

    def _append(self, step: Tree, timeout: float | None) -> None:
        heads = self._heads
        self._send_left(timeout)
        try:
            self._send((heads.one(0, self._nowhere), step), timeout)
        except (SpecMismatchError, TimeoutError) as error:
            raise self._clearer(error, step) from None
        heads.sent(1, 0)
        self._history.partial = None

    def _complete(self, timeout: float | None) -> None:
        """Sends a step that was appended in part as it is, with zeros in the place of what is missing."""
        given = self._history.partial
        if given is None:
            return
        leaves = [given.get(i, np.zeros(leaf.shape, leaf.dtype)) for i, leaf in enumerate(self._steps.leaves)]
        number = self._heads.number
        self._append(self._steps.structure.unflatten(leaves), timeout)
        self._history.absent[number] = frozenset(range(len(leaves))) - given.keys()
        self._send_late(timeout)

    def create_item(
        self, table: str, priority: float | None, trajectory: Tree, *, timeout: float | None = None
    ) -> None:
        """Sends an item of steps that were appended, in the order of calls.

        Args:
            table: A table of :class:`Trajectory` items.
            priority: A number, 0 or more. None: the table's highest so far.
            trajectory: A tree of its signature's structure. Each leaf is a part of :attr:`history`: one step
                (``history["action"][-1]``) or several, one after the other or a stride apart
                (``history["obs"][-8::2]``), as its :class:`Column` says.
            timeout: As for :meth:`add`.

        Raises:
            ValueError: The table, the priority or the tree cannot be used, or steps of it are not kept any more or were
                never appended: the message names column and step. Nothing was sent.
            TypeError: A leaf is no part of a history. Nothing was sent.
            TimeoutError, ConnectionClosedError, ForkedError: As :meth:`add`.

        """
        signature = self._signatures.get(table)
        if signature is None:
            raise ValueError(self._no_signature(table))
        with self._heads.lock:
            item = signature.item(self._history, trajectory, self._one_priority(table, priority))
            if item.last == self._heads.number:
                self._late.append(item)
            else:
                self._send_item(item, timeout)

    def _send_item(self, item: NewItem, timeout: float | None) -> None:
        try:
            self._send((self._heads.item(*item), self._no_step), timeout)
        except TimeoutError as error:
            raise self._clearer(error, None) from None

    def _send_late(self, timeout: float | None) -> None:
        while self._late:
            self._send_item(self._late[0], timeout)
            del self._late[0]

    def _make_items(self, at_end: bool, timeout: float | None) -> None:
        """Makes the items of the patterns."""
        for pattern in self.patterns:
            if pattern.is_due(self._history.count, at_end):
                self.create_item(pattern.table, pattern.priority, pattern.trajectory(self.history), timeout=timeout)

    def _one_priority(self, table: str, priority: float | None) -> float:
        if priority is None:
            return arguments.HIGHEST
        number = self._names.index(table)
        if priority.__class__ in PLAIN and 0 <= priority < math.inf and self._accepts(number, priority):
            return priority
        return self._priorities({table: priority})[number]

    def _no_signature(self, table: object) -> str:
        if table not in self._names:
            return arguments.unknown_table(table, self._names)
        there = ", ".join(map(repr, self._signatures)) or "none"
        return f"table {table!r} makes its items itself; those that take items of Trajectory(...): {there}"

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

    def _send_item(self, item: NewItem, timeout: float | None) -> None:
        super()._send_item(item, timeout)
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
