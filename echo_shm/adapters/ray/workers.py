"""Workers that Ray places: each writes into the shard of its node.

Each is an actor, not a task. Ray tells all processes when an actor dies, also with a node that is cut off. A task's
caller hears of that from its own connection alone, which may be silent for minutes before it is given up.
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

import ray

from echo_shm.adapters.ray.directory import Place
from echo_shm.adapters.ray.writers import RayWriter
from echo_shm.errors import WorkerError
from echo_shm.replay.validation import integer
from echo_shm.timeouts import check_timeout

_log = logging.getLogger("echo_shm")

#: How long Ray may take to place workers before it is said that it has not (seconds).
_WAITING = 20.0


class Worker:
    """The actor."""

    def run(self, task: Callable[..., Any], common: tuple[Any, ...], i: int, *args: Any) -> Any:
        """Does the work of worker i."""
        return task(common, i, *args)


class RayWorkers:
    """Worker processes that :meth:`RayReplay.spawn` or :meth:`RayStream.spawn` started.

    A context manager: leaving it stops those that run.
    """

    def __init__(
        self,
        setup: object,
        places: Sequence[Place],
        fn: Callable[..., Any],
        n: int,
        args: Sequence[Sequence[Any]],
        num_cpus: float,
        restart: bool,
        options: dict[str, Any],
    ) -> None:
        n = integer("n", n, 1)
        if not callable(fn):
            raise TypeError(f"a worker runs a function, got {type(fn).__name__} {fn!r:.80}")
        for position, values in enumerate(args):
            if not isinstance(values, Sized):
                raise TypeError(
                    f"per-worker argument {position} is {type(values).__name__} {values!r:.80}: use a sequence with an "
                    f"entry for each of the {n} workers"
                )
            if len(values) != n:
                raise ValueError(f"per-worker argument {position} has {len(values)} entries for {n} workers: use {n}")
        restarts = -1 if restart else 0
        given = {"scheduling_strategy": "SPREAD", "max_restarts": restarts, "max_task_retries": restarts, **options}
        actor = ray.remote(Worker).options(num_cpus=num_cpus, **given)
        common, task = ray.put((setup, tuple(places), fn)), type(self)._task
        self._actors: dict[int, Any] = {}
        self._running: dict[int, Any] = {}
        self._placed: dict[int, Any] = {}
        self._began, self._num_cpus = time.monotonic(), num_cpus
        for i in range(n):
            made = self._actors[i] = actor.remote()
            self._placed[i] = made.__ray_ready__.remote()
            self._running[i] = made.run.remote(task, common, i, *(values[i] for values in args))
        for i, running in self._running.items():
            # An actor that nobody refers to ends. So what it had of its node is free, whoever looks, or nobody.
            running.future().add_done_callback(functools.partial(_let_go, self._actors, i))

    @staticmethod
    def _task(common: tuple[Any, tuple[Place, ...], Callable[..., Any]], i: int, *args: Any) -> Any:
        """One worker. ``common``: the first three arguments of :class:`RayWorkers`."""
        setup, places, fn = common
        with RayWriter(setup, places) as writer:
            return fn(writer, i, *args)

    def check(self) -> None:
        """Raises what a worker raised, or WorkerError if its process or its node died."""
        self._say_waiting()
        numbers = {one: i for i, one in list(self._running.items())}
        if not numbers:
            return
        ended, _ = ray.wait(list(numbers), num_returns=len(numbers), timeout=0)
        for one in ended:
            if self._running.pop(numbers[one], None) is None:  # another thread has seen it
                continue
            try:
                ray.get(one)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError as error:
                raise WorkerError(f"worker {numbers[one]} died: {error}") from None

    def _say_waiting(self) -> None:
        """Says once if Ray has found no place for some workers for long."""
        if not self._placed or time.monotonic() - self._began < _WAITING:
            return
        placed = list(self._placed.values())
        _, waiting = ray.wait(placed, num_returns=len(placed), timeout=0)
        self._placed.clear()
        if waiting:
            _log.warning(
                "%d of %d workers have not begun after %g s: Ray has no node for them with num_cpus=%g free and what "
                "else they ask for. They begin once there is one",
                *(len(waiting), len(placed), _WAITING, self._num_cpus),
            )

    @property
    def running(self) -> int:
        """How many have not ended, as far as :meth:`check` and :meth:`join` have seen."""
        return len(self._running)

    @property
    def finished(self) -> bool:
        """Whether all have ended, likewise. ``RayStream.dataset_iter(until=workers)`` asks for it."""
        return not self._running

    def join(self, timeout: float | None = None) -> None:
        """Waits until all have ended, or one has failed.

        Args:
            timeout: Seconds. None: no limit.

        Raises:
            TimeoutError: They had not, in time.
            ValueError: ``timeout`` is not a number of seconds.
            Exception: What the first worker that failed raised; :class:`WorkerError` if its process died.

        """
        check_timeout(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while running := list(self._running.values()):
            left = None if end is None else max(0.0, end - time.monotonic())
            if not ray.wait(running, timeout=left)[0]:
                raise TimeoutError(f"{len(running)} workers had not ended in {timeout} s")
            self.check()

    def stop(self) -> None:
        """Ends those that run, at once. What they have sent stays."""
        self._running.clear()
        for one in list(self._actors.values()):
            ray.kill(one)
        self._actors.clear()

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _let_go(actors: dict[int, Any], i: int, _: object) -> None:
    """A worker has ended."""
    actors.pop(i, None)
