"""Worker processes that a learner starts, watches, restarts and ends."""

import atexit
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, cast

from echo_shm.errors import WorkerError
from echo_shm.workers.entry import Connect, importable
from echo_shm.workers.worker import SHORTEST_DELAY, Context, Worker, how_ended, preload

_log = logging.getLogger("echo_shm")

#: How long join() watches workers that wait for it (seconds).
_STUCK_GRACE = 0.8

#: How long workers may take to finish when they are stopped (seconds).
_STOP_TIMEOUT = 5.0

#: How long after SIGTERM a worker may still run (seconds).
_SIGTERM_GRACE = 2.0


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in a worker. Its text is the worker's traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n\n" + self.text


class WorkerGroup:
    """Worker processes started by :meth:`Server.spawn`. A context manager: leaving it stops those that still run.

    A worker has failed if it raised an exception or exited with a status above 0. :meth:`join`, ``server.sample()``
    and ``dataset_iter(until=group)`` raise the first failure, as soon as it is known.

    If a signal killed a worker that the group did not send, for example when memory ran out, ``restart=True`` starts it
    again; ``restart="always"`` does so, too, if it exited with a status above 0 and told of no exception. Otherwise
    WorkerError is raised by the same calls, but only when the other workers have finished and everything that was
    committed has been delivered; if none of them is called, by leaving the block. With ``on_death="ignore"`` the worker
    counts as finished (see :attr:`exitcodes`).

    A worker that leaves ``fn`` with ConnectionClosedError after :meth:`stop`, or after the server was closed, has
    finished.
    """

    def __init__(
        self,
        connect: Connect,
        fn: Callable[..., Any],
        n: int,
        args: Sequence[Sequence[Any]],
        context: str,
        restart: bool | Literal["always"],
        on_death: str = "raise",
        max_restarts: int = 10,
        stuck: Callable[[], str | None] | None = None,
        pump: Callable[[float], None] | None = None,
    ) -> None:
        if restart not in (True, False, "always"):
            raise ValueError(f"restart={restart!r}: use True, False or 'always'")
        if on_death not in ("raise", "ignore"):
            raise ValueError(f"on_death={on_death!r}: use 'raise' or 'ignore'")
        if not isinstance(max_restarts, int) or isinstance(max_restarts, bool) or max_restarts < 1:
            raise ValueError(f"max_restarts={max_restarts!r}: use a whole number of at least 1")
        if not callable(fn):
            raise TypeError(f"a worker runs a function, got {type(fn).__name__} {fn!r:.80}")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"n={n!r}: a group has a whole number of workers, at least 1")
        for position, values in enumerate(args):
            if not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
                raise TypeError(
                    f"per-worker argument {position} is {type(values).__name__} {values!r:.80}; "
                    "each argument is a sequence with one entry a worker"
                )
            if len(values) != n:
                raise ValueError(
                    f"per-worker argument {position} has {len(values)} entries for {n} workers; "
                    "each argument is a sequence with one entry a worker"
                )
        fn = fn if context == "fork" else importable(fn)
        self._connect, self._fn, self._restart = connect, fn, restart
        self._pump = pump  # takes what workers send while this thread only joins, for so many seconds
        self._stuck = stuck  # says why workers wait without end while this thread only joins, if they do
        self._on_death, self._max_restarts = on_death, max_restarts
        self._context = cast(Context, multiprocessing.get_context(context))
        if context == "forkserver":
            preload()
        self._workers = [Worker(i, tuple(values[i] for values in args)) for i in range(n)]
        self._changed = threading.Condition()
        self._stopping = False
        self._last_exitcode: int | None = None
        #: Whether a worker has failed, and whether the group has been ended or joined. Read without the lock.
        self.any_failed = False
        self.left = False
        self._pid = os.getpid()
        try:
            for worker in self._workers:
                worker.start(self._context, connect, fn)
        except BaseException:
            for worker in self._workers:
                if worker.started:
                    worker.process.kill()
                    worker.collect()
            raise
        _groups.add(self)
        # A daemon: it must not keep the parent alive if the parent has nothing else to do.
        self._monitor = threading.Thread(target=self._watch, name="echo_shm-workers", daemon=True)
        self._monitor.start()

    # -- the monitor thread

    def _watch(self) -> None:
        running = list(self._workers)
        # Looked at after each filter: a wait for no event at all would have no end.
        while running := [w for w in running if self._restarted_or_alive(w)]:
            later = any(w.restart_at is not None for w in running)
            by_event: dict[Any, Worker] = {w.exit_event: w for w in running if w.restart_at is None}
            # Reports are read as they come. A worker could not end if a long report did not fit into the pipe.
            by_event.update((w.control, w) for w in running if w.control is not None)
            for event in multiprocessing.connection.wait(list(by_event), SHORTEST_DELAY / 2 if later else None):
                worker = by_event[event]
                if event is worker.control:
                    worker.read_report()
                elif event == worker.exit_event and not self._settle(worker):
                    running.remove(worker)
        _groups.discard(self)

    def _restarted_or_alive(self, worker: Worker) -> bool:
        """Starts a worker again that has waited long enough. Returns False if the group was ended instead."""
        with self._changed:
            if worker.restart_at is None:
                return True
            if self._stopping:
                return False
            if time.monotonic() >= worker.restart_at:
                worker.restart_at = None
                worker.restarts += 1
                worker.start(self._context, self._connect, self._fn)
            return True

    def _settle(self, worker: Worker) -> bool:
        """Handles the end of a worker. Returns True if it is to be started again."""
        code = worker.collect()
        with self._changed:
            silent = code > 0 and self._restart == "always" and worker.failure is None
            if (code < 0 or silent) and not self._stopping:
                delay = worker.delay(self._max_restarts) if self._restart else None
                if delay is not None:
                    _log.warning("worker %d %s; restarting it in %g s", worker.number, how_ended(code), delay)
                    worker.restart_at = time.monotonic() + delay
                    self._last_exitcode = code
                    return True
                _log.warning("worker %d %s", worker.number, how_ended(code))
                worker.died = code < 0
            worker.exitcode = code
            worker.failed = worker.failure is not None or (code > 0 and not self._stopping)
            if worker.failed and not self.any_failed:  # of many that fail, the first speaks
                self.any_failed = True
                _log.warning(
                    "worker %d failed: join(), sample() and dataset_iter(until=workers) raise its exception",
                    worker.number,
                )
            self._changed.notify_all()
            return False

    # -- for the learner

    @property
    def exitcodes(self) -> list[int | None]:
        """Each worker's exit status: None while it runs, 0 if ``fn`` returned, -n if signal n killed it."""
        with self._changed:
            return [w.exitcode for w in self._workers]

    @property
    def pids(self) -> list[int]:
        """Each worker's process id. A restarted worker has a new one."""
        with self._changed:
            return [w.pid for w in self._workers]

    @property
    def restarts(self) -> int:
        """How often a worker was started again, all workers together."""
        with self._changed:
            return sum(w.restarts for w in self._workers)

    @property
    def last_exitcode(self) -> int | None:
        """How the worker had ended that was started again last: as in :attr:`exitcodes`. None: there was none."""
        with self._changed:
            return self._last_exitcode

    @property
    def finished(self) -> bool:
        """Whether every worker has ended."""
        with self._changed:
            return all(w.exitcode is not None for w in self._workers)

    def check(self) -> None:
        """Raises a failed worker's exception, with the worker's traceback as its cause.

        Raises:
            WorkerError: A worker exited with a status above 0, and no exception of its own could be sent.

        """
        with self._changed:
            failed = next((w for w in self._workers if w.failed), None)
            if failed is None:
                return
            failed.raised = True
        text, pickled = failed.failure or ("", None)
        error = None
        if pickled is not None:
            with contextlib.suppress(Exception):  # its class may not be importable here, or not accept its arguments
                error = pickle.loads(pickled)  # safe: it comes from a child of this process
        if isinstance(error, BaseException):
            raise error from RemoteTraceback(text)
        silent = ", before its function was called or from within; if it printed a traceback, that is on stderr"
        detail = f"\n\n{text}" if text else silent
        raise WorkerError(f"worker {failed.number} exited with status {failed.exitcode}{detail}")

    def ended(self) -> None:
        """Called when everything that was committed has been delivered: raises WorkerError if a worker was killed."""
        with self._changed:
            died = [w for w in self._workers if w.died]
            if not died or self._on_death == "ignore":
                return
            for worker in died:
                worker.raised = True
        first = died[0]
        assert first.exitcode is not None
        others = f" (and so were workers {[w.number for w in died[1:]]})" if len(died) > 1 else ""
        again = (
            f" after {first.restarts} restarts, {len(first.recent)} of them within a minute" if self._restart else ""
        )
        raise WorkerError(
            f"worker {first.number} (pid {first.pid}) {how_ended(first.exitcode)}{again}{others}. What it "
            "had committed was delivered. `dmesg` says whether memory ran out; restart=True starts killed workers "
            "again, on_death='ignore' counts them as finished"
        )

    def join(self, timeout: float | None = None) -> None:
        """Waits until every worker has ended.

        Args:
            timeout: Seconds to wait; None: no limit.

        Raises:
            TimeoutError: Some workers still run. Without waiting longer than a second if they never end, because they
                wait on a full ring and nobody but this thread could take a batch.
            BaseException: The exception of the first worker that failed; see :meth:`check`.
            WorkerError: A worker was killed; see :class:`WorkerGroup`.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        stuck_since: float | None = None
        while not self.finished:
            with self._changed:
                self.check()
                why = None if self._stuck is None else self._stuck()
                stuck_since = None if why is None else stuck_since or time.monotonic()
                if stuck_since is not None and time.monotonic() - stuck_since >= _STUCK_GRACE:
                    raise TimeoutError(why)
                left = _STUCK_GRACE / 4 if deadline is None else min(deadline - time.monotonic(), _STUCK_GRACE / 4)
                if left <= 0:
                    raise TimeoutError(f"workers {self._running()} still run after {timeout} s")
                if self._pump is None and not self.finished:
                    self._changed.wait(left)
            if self._pump is not None:
                self._pump(left)
        self.left = True
        self.check()
        self.ended()

    def stop(self, timeout: float | None = _STOP_TIMEOUT) -> None:
        """Lets the workers finish, and waits until they have. Idempotent; any thread may call it.

        Each worker's producers raise ConnectionClosedError at their next send, and in one that waits on a full ring.
        An open ``reserve()`` block can still end, and commits. So the worker's ``finally`` and ``with`` blocks run. A
        worker that leaves ``fn`` with that exception has finished. Everything that was sent is delivered. No worker is
        started again.

        Workers that still run after ``timeout`` get SIGTERM, and two seconds later SIGKILL. An exception that
        interrupts the wait, such as KeyboardInterrupt, kills them at once.

        Args:
            timeout: Seconds to wait for workers to finish; None: no limit.

        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise ValueError(f"timeout={timeout!r}: use seconds, at least 0, or None for no limit")
        self._end(None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout)

    def terminate(self) -> None:
        """SIGTERMs all workers that still run, SIGKILLs those that still run 2 s later, and waits. Idempotent.

        Nothing in them is cleaned up: :meth:`stop` lets them do that.
        """
        self.left = True
        self._end(0, tell=False)

    def _end(self, patience: float | None, tell: bool = True) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: the workers are its parent's
        try:
            self._begin_to_end(tell)
            with self._changed:
                if patience != 0 and not self._changed.wait_for(lambda: self.finished, patience):
                    _log.warning("workers %s have not stopped within %g s: SIGTERM", self._running(), patience)
                self._signal(signal.SIGTERM)
                if not self._changed.wait_for(lambda: self.finished, _SIGTERM_GRACE):
                    _log.warning("workers %s have not ended by SIGTERM: SIGKILL", self._running())
        finally:
            with self._changed:
                self._signal(signal.SIGKILL)
                self._changed.wait_for(lambda: self.finished)
            self._monitor.join()

    def _begin_to_end(self, tell: bool) -> None:
        with self._changed:
            self._stopping = True
            for worker in self._workers:
                if worker.restart_at is not None:  # its process is gone
                    worker.exitcode = worker.process.exitcode
                elif worker.exitcode is None and tell:
                    worker.tell_to_stop()
            self._signal(signal.SIGCONT)  # a stopped process could not do anything else

    def _running(self) -> list[int]:
        return [w.number for w in self._workers if w.exitcode is None]

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def __repr__(self) -> str:
        with self._changed:
            n, running, restarts = len(self._workers), len(self._running()), self.restarts
            failed, killed = sum(w.failed for w in self._workers), sum(w.died for w in self._workers)
        counts = [f"{running} running", f"{n - running} ended", f"{failed} failed"]
        counts += [f"{killed} killed"] if killed else []
        counts.append(f"{restarts} restart{'' if restarts == 1 else 's'}")
        return f"<WorkerGroup of {n} worker{'' if n == 1 else 's'}: {', '.join(counts)}>"

    def __enter__(self) -> "WorkerGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left = True
        self.stop(_STOP_TIMEOUT)
        # Reports failures even if neither join() nor dataset_iter(until=...) was called.
        failed = [(w, w.failure[0]) for w in self._workers if w.failure is not None]
        if failed and not any(w.raised for w, _ in failed):
            first, text = failed[0]
            same = sum(other.splitlines()[-1:] == text.splitlines()[-1:] for _, other in failed)
            more = f" ({len(failed)} workers failed, {same} of them so)" if len(failed) > 1 else ""
            _log.error("worker %d failed%s:\n%s", first.number, more, text)
        if kind is None and any(w.died and not w.raised for w in self._workers):
            self.ended()


#: The groups whose workers may still run.
_groups: set[WorkerGroup] = set()


def _stop_all() -> None:
    """Stops the workers of every group, all of them within the time of one."""
    mine = [group for group in list(_groups) if group._pid == os.getpid()]
    for group in mine:
        group._begin_to_end(tell=True)
    deadline = time.monotonic() + _STOP_TIMEOUT
    for group in mine:
        group.stop(max(0.0, deadline - time.monotonic()))


# It runs before multiprocessing's own exit handler, which was registered first and would wait for the workers forever.
atexit.register(_stop_all)
