"""The half of a writer that makes items of tables whose items their writers describe."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from echo_shm.client import ShmClient
from echo_shm.errors import SpecMismatchError
from echo_shm.net.client.client import TcpClient
from echo_shm.replay import arguments
from echo_shm.replay.finals import chosen_leaves
from echo_shm.replay.history import History, NewItem, Pattern, signatures
from echo_shm.replay.step_writer import StepWriter
from echo_shm.ring.inbox import Heads, Tables
from echo_shm.spec import Array, Spec, Tree
from echo_shm.timeouts import PLAIN


class ItemWriter(StepWriter):
    """A :class:`StepWriter` that can send items as well, which refer to steps that it has sent.

    Args:
        tables, steps, client: As for :class:`StepWriter`.

    Attributes:
        patterns: Items that the writer makes after each :meth:`append`.

    """

    def __init__(self, tables: Tables, steps: Spec, client: ShmClient | TcpClient) -> None:
        super().__init__(tables, steps, client)
        self.patterns: Sequence[Pattern] = ()
        self._signatures = signatures(tables, steps)
        self._history = History(self._heads, steps)
        self._late: list[NewItem] = []  # items of a step that was appended in part: they follow it
        self._send_item_head = _item_sender(client, self._heads, steps)

    def _before_steps(self) -> None:
        if self._late:
            raise ValueError("items refer to a step that was appended in part: append the rest of it first")

    def _episode_ended(self) -> None:
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
            if partial or history.is_partial:
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

    def _append(self, step: Tree, timeout: float | None) -> None:
        heads = self._heads
        if self._left is not None:
            self._send_left(timeout)
        try:
            self._send((heads.appended(), step), timeout)
        except (SpecMismatchError, TimeoutError) as error:
            raise self._clearer(error, step) from None
        heads.count_one()
        if self._history.is_partial:
            self._history.partial = None

    def _complete(self, timeout: float | None) -> None:
        """Sends a step that was appended in part as it is, with zeros in the place of what is missing."""
        given = self._history.partial
        if given is None:
            return
        leaves = [given.get(i, np.zeros(leaf.shape, leaf.dtype)) for i, leaf in enumerate(self._steps.leaves)]
        number = self._heads.number
        self._append(self._steps.structure.unflatten(leaves), timeout)
        self._history.note_absent(number, frozenset(range(len(leaves))) - given.keys())
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
        heads = self._heads
        with heads.lock:
            if not signature.write(self._history, heads, trajectory, priority, heads.item_head):
                item = signature.item(self._history, trajectory, self._one_priority(table, priority))
                if item.last == heads.number:
                    self._late.append(item)
                    return
                heads.item(*item)
            self._send_item(timeout)

    def _send_item(self, timeout: float | None) -> None:
        """Sends the item of ``item_head``."""
        try:
            self._send_item_head(timeout)
        except TimeoutError as error:
            raise self._clearer(error, None) from None

    def _send_late(self, timeout: float | None) -> None:
        while self._late:
            self._heads.item(*self._late[0])
            self._send_item(timeout)
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


def _item_sender(client: ShmClient | TcpClient, heads: Heads, steps: Spec) -> Callable[[float | None], None]:
    """Sends what is in ``item_head``. Nobody reads the step beside an item: here it is not even written."""
    if isinstance(client, ShmClient):
        return client._bind_leaf(0, heads.item_head).send
    no_step = steps.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in steps.leaves])
    return functools.partial(client.send, (heads.item_head, no_step))
