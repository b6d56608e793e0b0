"""Workers that Ray places: each writes into the shard of its node."""

from collections.abc import Callable, Sequence
from typing import Any

import ray

from echo_shm.adapters.ray.directory import Place
from echo_shm.adapters.ray.writers import RayWriter
from echo_shm.errors import WorkerError
from echo_shm.replay.validation import integer


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
            if len(values) != n:
                raise ValueError(f"per-worker argument {position} has {len(values)} entries for {n} workers: use {n}")
        given = {"scheduling_strategy": "SPREAD", "max_retries": -1 if restart else 0, **options}
        work = ray.remote(type(self)._task).options(num_cpus=num_cpus, **given)
        common = ray.put((setup, tuple(places), fn))
        self._running = {i: work.remote(common, i, *(values[i] for values in args)) for i in range(n)}

    @staticmethod
    def _task(common: tuple[Any, tuple[Place, ...], Callable[..., Any]], i: int, *args: Any) -> Any:
        """One worker, as a task of Ray's. ``common``: the first three arguments of :class:`RayWorkers`."""
        setup, places, fn = common
        with RayWriter(setup, places) as writer:
            return fn(writer, i, *args)

    def check(self) -> None:
        """Raises what a worker raised, or WorkerError if its process or its node died."""
        self._take(0)

    def _take(self, timeout: float | None) -> None:
        """Takes what has ended, and waits for at least one for so long; None: for all."""
        numbers = {one: i for i, one in self._running.items()}
        most = len(numbers)
        if not most:
            return
        ended, _ = ray.wait(list(numbers), num_returns=most, timeout=timeout)
        for one in ended:
            del self._running[numbers[one]]
            try:
                ray.get(one)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.TaskCancelledError:
                pass
            except ray.exceptions.RayError as error:
                raise WorkerError(f"worker {numbers[one]} died: {error}") from None

    @property
    def running(self) -> int:
        """How many have not ended, as far as :meth:`check` and :meth:`join` have seen."""
        return len(self._running)

    @property
    def finished(self) -> bool:
        """Whether all have ended, likewise. ``dataset_iter(until=workers)`` asks for it."""
        return not self._running

    def join(self, timeout: float | None = None) -> None:
        """Waits until all have ended.

        Raises:
            TimeoutError: They had not, in time.
            Exception: What the first worker that failed raised; :class:`WorkerError` if its process died.

        """
        self._take(timeout)
        if self._running:
            raise TimeoutError(f"{len(self._running)} workers had not ended in {timeout} s")

    def stop(self) -> None:
        """Ends those that run, at once. What they have sent stays."""
        for one in self._running.values():
            ray.cancel(one, force=True)
        self._running.clear()

    def __enter__(self) -> "RayWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
