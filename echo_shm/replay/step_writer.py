"""What a writer sends steps with: from this machine, or from another."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from echo_shm._core import lib
from echo_shm.client import ShmClient
from echo_shm.errors import ConnectionClosedError, SpecMismatchError, with_sent
from echo_shm.net.client.client import TcpClient
from echo_shm.replay import arguments
from echo_shm.replay.finals import NOT_THE_END, leaves_of_final
from echo_shm.replay.vector import Vector
from echo_shm.ring.inbox import Heads, Tables
from echo_shm.spec import Array, Spec, Tree
from echo_shm.timeouts import check_timeout

#: The largest weight that an item may have. See csrc/replay/es_prefix_tree.h.
_LARGEST_WEIGHT = 2.0**991


class StepWriter:
    """Makes samples of a replay's inbox from steps, and sends them. Threads may share it.

    Args:
        tables: The replay's.
        steps: What its steps look like.
        client: Sends samples of its inbox.

    """

    def __init__(self, tables: Tables, steps: Spec, client: ShmClient | TcpClient) -> None:
        self._sends = client
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
        self._local = client if isinstance(client, ShmClient) else None

    @property
    def version(self) -> int:
        """The version of the weights that steps are made with: each step carries it. 0: none.

        On the replay's machine it is what this process's :class:`Subscriber` to the replay's weights has got last, or
        what was assigned here: that stays until something else is assigned. A version is an integer from 0 to 2**62.
        """
        return self._sends.version

    @version.setter
    def version(self, version: int) -> None:
        self._sends.version = version

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
        self._before_steps()
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
                self._episode_ended()

    def _add_last(
        self, step: Tree, priorities: tuple[float, ...], ends: int, final: Tree, timeout: float | None
    ) -> None:
        """Sends the last step of an episode, and what the episode ends with."""
        check_timeout(timeout)
        if not ends:
            raise ValueError(NOT_THE_END)
        leaves = arguments.exact_leaves(self._steps, step)
        last = leaves_of_final(self._steps, final, self._finals)
        rows = [np.stack(both) for both in zip(leaves, last, strict=True)]
        with self._heads.lock:
            self._send_left(timeout)
            self._send_whole(self._heads.last(ends, priorities), rows, timeout, lambda: self._heads.sent(2, ends))
            self._episode_ended()

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
        if priorities is None and self._add_vector_at_once(steps, terminated, truncated, autoreset, final, timeout):
            return
        n, leaves = arguments.stacked(self._steps, steps)
        each = arguments.many_priorities(priorities, n, self._names, self._accepts)
        ends = arguments.end_flags(terminated, truncated, n)
        with self._heads.lock:
            vector = self._vector or self._make_vector(n)
            rows = vector.rows(leaves, ends, autoreset, final, each)
            self._vector = vector
            self._send_left(timeout)
            if len(rows.heads):
                self._send_whole(rows.heads, rows.leaves, timeout, rows.sent)
            else:
                rows.sent()

    def _make_vector(self, n: int) -> Vector:
        ring = None if self._local is None else self._local._ring
        return Vector(self._tables, self._steps, n, self._finals, ring)

    def _add_vector_at_once(
        self, steps: Tree, terminated: Any, truncated: Any, autoreset: object, final: Tree, timeout: float | None
    ) -> bool:
        """Sends the samples of a common call of :meth:`add_vector`: True. Of any other call it sends nothing: False."""
        with self._heads.lock:
            if self._vector is None or self._left is not None:
                return False
            sent = self._vector.send(steps, terminated, truncated, autoreset, final)
            if sent:  # the ring is full now
                n, leaves = arguments.stacked(self._steps, steps)
                ends = arguments.end_flags(terminated, truncated, n)
                rows = self._vector.rows(leaves, ends, autoreset, final, None)
                self._send_whole(rows.heads, rows.leaves, timeout, rows.sent, first=sent)
        return sent != 0

    def _send_whole(
        self,
        heads: Array,
        leaves: Sequence[Array],
        timeout: float | None,
        sent: Callable[[], None],
        first: int = 0,
    ) -> None:
        """Sends samples that belong together, from ``first`` on, and calls ``sent``. What is left goes first in the
        next call.
        """
        try:
            samples = heads, self._steps.structure.unflatten(leaves)
            if first and self._local is not None:
                self._local._send_rest(samples, timeout, first)
            else:
                self._send_many(samples, timeout)
        except (TimeoutError, ConnectionClosedError) as error:
            count = getattr(error, "sent", 0)
            clearer = self._clearer(error, None)
            if count:
                self._left = heads[count:], [leaf[count:] for leaf in leaves]
                sent()
                clearer = type(clearer)(f"{clearer}; the others go first with the next call: do not add them again")
            raise with_sent(clearer, str(clearer), count) from None
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
            error.sent = 0  # type: ignore[union-attr]  # see with_sent(); of this call's steps, none
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
        self._before_steps()
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
                raise with_sent(clearer, str(clearer), sent) from None
            finally:
                self._heads.sent(sent, ends)
                if ends is not None and ends[:sent].any():
                    self._episode_ended()

    # -- what a kind of writer may add

    def _before_steps(self) -> None:
        """Called before steps are made that are items of tables."""

    def _episode_ended(self) -> None:
        """Called when a step was sent that ends its episode. The heads' lock is held."""

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
                arguments.exact_leaves(self._steps, step)
            except SpecMismatchError as clearer:
                return clearer
            return error
        why = self._why_not()
        return type(error)(f"{error}: {why}" if why else str(error))

    def _why_not(self) -> str:
        """Why the replay takes nothing; ``""`` if nothing says so."""
        return ""
