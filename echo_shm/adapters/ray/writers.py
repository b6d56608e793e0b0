"""What a worker of a replay over several nodes writes with: it goes on with another shard if its own moves or dies."""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

import numpy as np
import optree
import ray

from echo_shm.adapters.ray import nodes, silence
from echo_shm.adapters.ray.attaching import attach
from echo_shm.adapters.ray.directory import ABSENT, Place
from echo_shm.adapters.ray.shards import Setup
from echo_shm.adapters.ray.subscriber import RaySubscriber
from echo_shm.errors import ConnectionClosedError
from echo_shm.replay import RemoteWriter, Writer
from echo_shm.replay.history import Pattern
from echo_shm.spec import Array, Tree
from echo_shm.timeouts import check_timeout

#: Between two looks whether a shard is handed over (seconds).
_NAP = 0.05


class RayWriter:
    """Writes into the shard of this process's node; or, where there is none, into the one with most room.

    Its methods are those of a :class:`~echo_shm.replay.Writer`. If its shard is handed over to another node, or dies
    with its node, the writer goes on with another one. A call that was cut short is made again there, with what had not
    been sent, and so each step is stored once. An episode that was not finished ends where the old shard took its last
    step; the next step begins one, and items cannot refer to steps before it. What a shard had taken is safe if it is
    handed over, and lost if it dies with its node: :attr:`RayReplay.losses` counts it.

    :meth:`RayReplay.spawn` gives one to each worker, and :meth:`RayReplay.writer` makes more. Threads may share it; a
    forked child must not use its parent's. It is a context manager that closes on exit.
    """

    def __init__(self, setup: Setup, places: Sequence[Place]) -> None:
        self._setup, self._places, self._node = setup, tuple(places), nodes.here()
        self._lock = threading.RLock()
        self._by_hand: int | None = None
        self._closed = False
        self._closer: int | None = None  # the thread that is in close()
        self._writer: Writer | RemoteWriter
        self._begin()

    def _begin(self) -> None:
        self._place, client = attach(self._setup, self._node, self._places)
        try:
            self._writer = client.writer()
        finally:
            client.close()
        if isinstance(self._writer, RemoteWriter):
            silence.watch(self._setup, self._node, self._place, self._writer._client._sender)

    # -- going on elsewhere

    def _move(self, failed: Writer | RemoteWriter, error: ConnectionClosedError) -> None:
        """Goes on with another shard, unless another thread has done so, or this writer or the replay is closed.

        Once a thread closes this writer, it alone does so: it may be delivering what was sent.
        """
        with self._lock:
            if self._closed or self._closer not in (None, threading.get_ident()):
                raise error
            if failed is not self._writer:
                return
            left = _left(failed)
            with contextlib.suppress(ConnectionClosedError):
                failed.close()
            while True:
                self._begin()
                self._writer.patterns = failed.patterns
                if self._by_hand is not None:
                    self._writer.version = self._by_hand
                try:
                    while left:
                        heads, leaves = left[0]
                        self._writer._send_many((heads, self._writer._steps.structure.unflatten(leaves)), None)
                        left.pop(0)
                    return
                except ConnectionClosedError as again:  # that one, too
                    sent = getattr(again, "sent", 0)
                    heads, leaves = left[0]
                    left = [*_left(self._writer), (heads[sent:], [leaf[sent:] for leaf in leaves]), *left[1:]]

    def _call(self, call: str, *args: Any, **options: Any) -> Any:
        """Makes a call, again if it had sent nothing. What was left of it otherwise was sent when the writer moved."""
        while True:
            writer = self._writer
            try:
                return getattr(writer, call)(*args, **options)
            except ConnectionClosedError as error:
                self._move(writer, error)
                if getattr(error, "sent", 0):
                    return None

    # -- writing

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
        """Sends a copy of one step. Arguments and errors are those of :meth:`Writer.add`."""
        writer = self._writer
        try:
            writer.add(step, priority, terminated=terminated, truncated=truncated, final=final, timeout=timeout)
        except ConnectionClosedError as error:
            self._move(writer, error)
            if not getattr(error, "sent", 0):
                self.add(step, priority, terminated=terminated, truncated=truncated, final=final, timeout=timeout)

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
        """Sends copies of one step of each of n environments. Arguments and errors are those of
        :meth:`Writer.add_vector`.
        """
        given = {"final": final, "priorities": priorities, "timeout": timeout}
        self._call("add_vector", steps, terminated, truncated, autoreset, **given)

    def extend(
        self,
        steps: Tree,
        priorities: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Sends copies of n steps, one after the other. Arguments and errors are those of :meth:`Writer.extend`."""
        writer = self._writer
        try:
            writer.extend(steps, priorities, terminated=terminated, truncated=truncated, timeout=timeout)
        except ConnectionClosedError as error:
            self._move(writer, error)
            sent = getattr(error, "sent", 0)
            steps = optree.tree_map(lambda leaf: leaf[sent:], steps)
            rest = [_rest(values, sent) for values in (priorities, terminated, truncated)]
            if len(optree.tree_leaves(steps)[0]):
                self.extend(steps, rest[0], terminated=rest[1], truncated=rest[2], timeout=timeout)

    def append(self, step: Tree, *, partial: bool = False, timeout: float | None = None) -> None:
        """Sends a copy of one step that is no item of any table. Arguments and errors are those of
        :meth:`Writer.append`. What was appended to a step in part is lost where the writer moves.
        """
        self._call("append", step, partial=partial, timeout=timeout)

    def create_item(
        self, table: str, priority: float | None, trajectory: Tree, *, timeout: float | None = None
    ) -> None:
        """Sends an item of steps that were appended. Arguments and errors are those of :meth:`Writer.create_item`.

        If the writer moves, the item is not made: another shard does not have its steps.
        """
        writer = self._writer
        try:
            writer.create_item(table, priority, trajectory, timeout=timeout)
        except ConnectionClosedError as error:
            self._move(writer, error)

    def end_episode(self, clear: bool = True, *, timeout: float | None = None) -> None:
        """The next step begins an episode: see :meth:`Writer.end_episode`."""
        self._call("end_episode", clear, timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Returns once all steps and items that were sent before are stored. Errors are those of :meth:`Writer.flush`.

        If their shard is handed over meanwhile, it waits for that.
        """
        writer = self._writer
        try:
            writer.flush(timeout)
        except ConnectionClosedError as error:
            self._move(writer, error)
            while self._is_moving():
                time.sleep(_NAP)  # the directory answers questions, and tells nobody
            self.flush(timeout)

    def _is_moving(self) -> bool:
        """Whether a shard is handed over now: nobody can say yet where its steps will be."""
        try:
            roster, _ = ray.get(self._setup.directory.look.remote(), timeout=ABSENT)
        except ray.exceptions.RayError:  # it is being started again; the next call on the writer finds out if it ended
            return False
        return bool(roster.leaving)

    # -- what it has

    @property
    def history(self) -> Tree:
        """What was appended since the last :meth:`end_episode`, or since the writer moved."""
        return self._writer.history

    @property
    def patterns(self) -> Sequence[Pattern]:
        """Items that the writer makes after each :meth:`append`."""
        return self._writer.patterns

    @patterns.setter
    def patterns(self, patterns: Sequence[Pattern]) -> None:
        self._writer.patterns = patterns

    @property
    def version(self) -> int:
        """The version of the weights that steps are made with: see :attr:`Writer.version`."""
        return self._writer.version

    @version.setter
    def version(self, version: int) -> None:
        self._writer.version = version
        self._by_hand = version

    def subscriber(self, example: Tree = None, timeout: float | None = 60.0) -> RaySubscriber:
        """Subscribes to the weights of :meth:`RayReplay.publisher`.

        They come by way of the shard that is written into. If the writer goes on with another one, so does the
        subscriber.

        Args:
            example: As for :meth:`Writer.subscriber`.
            timeout: How many seconds to wait for a publisher, and for its first version to come to this node. None: no
                limit.

        Raises:
            SegmentError: There was no publisher in time.
            TimeoutError: There was no version in time: the learner has to call ``publisher.publish(params)``.
            SpecMismatchError, ValueError, ConnectionClosedError: As for :meth:`Writer.subscriber`.

        """
        return RaySubscriber(self, example, check_timeout(timeout))

    @property
    def shard(self) -> int:
        """The number of the shard that is written into now."""
        return self._place.number

    @property
    def ring_closed(self) -> bool:
        """Whether this writer is closed."""
        return self._closed

    # -- closing

    def close(self) -> None:
        """Delivers what was sent, and leaves the replay. Idempotent.

        Raises:
            ConnectionClosedError: The replay was closed before all was delivered.

        """
        self._closer = threading.get_ident()
        while not self._closed:
            writer = self._writer
            try:
                writer.close()
            except ConnectionClosedError as error:
                self._move(writer, error)
            else:
                self._closed = True

    def __enter__(self) -> "RayWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._closed = True
            self._writer.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<RayWriter of {self._setup.name} on node {self._node}, {'closed' if self._closed else 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RayWriter belongs to its process: pickle the RayReplay, and use its writer() there")


def _left(writer: Writer | RemoteWriter) -> list[tuple[Array, list[Array]]]:
    """Samples that an ended writer was given and its shard has not: heads, and leaves.

    Those of a client on another host come first, which its bridge has not acknowledged. A bridge whose replay shuts
    everybody out says first what is in its ring. If the connection was lost before it could, some may be in both.
    """
    found = []
    if isinstance(writer, RemoteWriter):
        writer._client._sender.abandon()  # another thread may be about to: from here on nobody adds a sample
        heads, *leaves = writer._client._sender.undelivered()
        found += [(heads, leaves)] if len(heads) else []
    return found + ([] if writer._left is None else [writer._left])


def _rest(values: Any, sent: int) -> Any:
    """What values of rows, or of each table's rows, are left."""
    if isinstance(values, Mapping):
        return {name: _rest(of_table, sent) for name, of_table in values.items()}
    return values if values is None or np.ndim(values) == 0 else np.asarray(values)[sent:]
