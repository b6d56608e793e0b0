"""A client whose server is a replay's: what it sends are steps, and each gets a head."""

import numpy as np
import optree

from echo_shm.errors import ConnectionClosedError, SpecMismatchError
from echo_shm.ring.inbox import Heads, Tables
from echo_shm.sending import SampleWriter
from echo_shm.spec import Spec, Tree

#: What the C core takes for "the table's highest priority so far".
_HIGHEST = -1.0


class StepSender:
    """Sends steps as samples of a replay's inbox, into all tables, with their highest priorities, in one episode.

    Args:
        writer: Writes samples of the inbox.
        steps: What a step looks like.
        tables: The replay's.

    """

    def __init__(self, writer: SampleWriter, steps: Spec, tables: Tables) -> None:
        self._writer = writer
        self._steps = steps
        self._priorities = (_HIGHEST,) * len(tables)
        self._heads = Heads(tables)

    def send_at_once(self, step: Tree) -> bool:
        """As the fast path of ``send``: whether the step was sent. It never is."""
        return False

    def send(self, step: Tree, timeout: float | None) -> None:
        """As :meth:`SampleWriter.send`, for a step."""
        with self._heads.lock:
            try:
                self._writer.send((self._heads.one(0, self._priorities), step), timeout)
            except SpecMismatchError:
                self._check(step)
                raise
            self._heads.sent(1, 0)

    def send_many(self, steps: Tree, timeout: float | None) -> None:
        """As :meth:`SampleWriter.send_many`, for steps."""
        first = next(iter(optree.tree_leaves(steps)), None)
        n = len(first) if isinstance(first, np.ndarray) and first.ndim else 0
        with self._heads.lock:
            sent = 0
            try:
                self._writer.send_many((self._heads.many(n, None, _HIGHEST), steps), timeout)
                sent = n
            except (TimeoutError, ConnectionClosedError) as error:
                sent = getattr(error, "sent", 0)
                raise
            finally:
                self._heads.sent(sent, None)

    def _check(self, step: Tree) -> None:
        """Raises SpecMismatchError that names what is wrong with a step by the step's own paths."""
        try:
            leaves = self._steps.structure.flatten_up_to(step)
        except (ValueError, TypeError):
            different = self._steps.structure_difference(step)
            raise SpecMismatchError(f"the structure is not that of the replay's steps: {different}") from None
        for index, leaf in enumerate(leaves):
            self._steps.exact(index, leaf)
