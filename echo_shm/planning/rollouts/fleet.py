"""An engine's worker processes, as the engine sees them: environments to be leased, one question at a time each.

A worker that dies, or exits, ends its connection, and so fails the questions that it has not answered. Its group starts
it again, and it connects again. A worker that answers nothing for too long is killed. If that goes on and on while no
rollout ends, the fleet ends.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from echo_shm.errors import ConnectionClosedError, EchoShmError, WorkerError
from echo_shm.planning.rollouts.config import Turn
from echo_shm.planning.rollouts.messages import HEAD, Json, length_of, packed, unpacked
from echo_shm.planning.rollouts.workers import NoReplay, Record, TextEnvironment, run_environments
from echo_shm.replay import Replay
from echo_shm.workers.entry import importable
from echo_shm.workers.group import WorkerGroup
from echo_shm.workers.worker import how_ended

#: How often each worker is started again within a minute.
_MAX_RESTARTS = 100

#: How often each worker is started again, all of them together, before a rollout must have ended.
_IN_A_ROW = 6


class WorkerLostError(EchoShmError):
    """The worker died, or was killed, before it answered."""

    #: Whether the rollout must not be tried again.
    is_final = False


class EnvironmentFailedError(EchoShmError):
    """The environment, or what writes its steps, raised an exception. The message is its."""


class _Worker:
    """The connection of a worker that lives."""

    def __init__(self, stream: asyncio.StreamWriter, pid: int) -> None:
        self._stream, self.pid = stream, pid
        #: The questions that are not answered, in order: what waits, and whether it is the environment's to answer.
        self._asked: dict[int, tuple[asyncio.Future[Json], bool]] = {}
        self._last_id = 0
        #: Since when it has not answered (seconds), if it is asked something.
        self._since = 0.0
        self.lost = False

    def ask(self, question: Json) -> "asyncio.Future[Json]":
        """Sends a question. What comes back is done with the answer."""
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        if self.lost:
            future.set_exception(_lost(self.pid))
            return future
        self._last_id += 1
        self._stream.write(packed({"id": self._last_id, **question}))
        if not self._asked:
            self._since = monotonic()
        self._asked[self._last_id] = future, question["op"] != "record"
        return future

    def answered(self, answer: Json) -> None:
        """Takes an answer."""
        future, _ = self._asked.pop(answer["id"])
        self._since = monotonic()
        if not future.done():
            future.set_result(answer)

    def hangs(self, limit: float) -> bool:
        """Whether an environment of it has not answered for so long. A full replay may hold it up without end."""
        is_environment = next(iter(self._asked.values()), (None, False))[1]
        return is_environment and monotonic() - self._since > limit

    def lose(self) -> None:
        """Fails what is not answered."""
        self.lost = True
        for future, _ in self._asked.values():
            if not future.done():
                future.set_exception(_lost(self.pid))
                future.exception()  # nobody may be left who asks for it
        self._asked.clear()
        self._stream.close()


def _lost(pid: int) -> WorkerLostError:
    return WorkerLostError(f"worker {pid} died before it answered")


class Environment:
    """An environment that a rollout has leased."""

    def __init__(self, worker: _Worker, slot: int) -> None:
        self.worker, self.slot = worker, slot
        #: What it was asked last.
        self.asked: asyncio.Future[Json] | None = None

    async def _ask(self, question: Json) -> Json:
        self.asked = self.worker.ask(question)
        answer = await asyncio.shield(self.asked)
        if "error" in answer:
            raise EnvironmentFailedError(answer["error"])
        return answer

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> str:
        """Begins an episode. Returns what the environment shows."""
        observation: str = (await self._ask({"op": "reset", "slot": self.slot, "seed": seed, "options": options}))[
            "observation"
        ]
        return observation

    async def step(self, action: str) -> Json:
        """Takes an action. Returns ``observation``, ``reward``, ``terminated``, ``truncated`` and ``success``."""
        return await self._ask({"op": "step", "slot": self.slot, "action": action})

    async def record(self, turns: Sequence[Turn], terminated: bool, truncated: bool) -> None:
        """Has the worker write an episode into the replay. Returns when it is sent."""
        told = [asdict(turn) for turn in turns]
        await self._ask({"op": "record", "turns": told, "terminated": terminated, "truncated": truncated})


class Fleet:
    """Worker processes with ``slots`` environments each."""

    def __init__(
        self,
        make: Callable[[], TextEnvironment],
        workers: int,
        slots: int,
        timeout: float,
        replay: Replay | None,
        record: Record | None,
        context: str,
    ) -> None:
        self._make, self._n, self._slots, self._timeout = make, workers, slots, timeout
        self._replay, self._record, self._context = replay, record, context
        self._workers: set[_Worker] = set()
        self._free: list[Environment] = []
        self._freed = asyncio.Condition()
        self._error: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder = ""
        self._server: asyncio.AbstractServer | None = None
        self._group: WorkerGroup | None = None
        #: How often workers had been started again when a rollout ended last.
        self._restarts = 0

    @property
    def size(self) -> int:
        """How many environments there are while all workers live."""
        return self._n * self._slots

    @property
    def num_workers(self) -> int:
        """How many processes there are while all workers live."""
        return self._n

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are connected."""
        return sorted(worker.pid for worker in self._workers)

    async def start(self) -> None:
        """Starts the workers. They connect when they are ready."""
        self._folder = tempfile.mkdtemp(prefix="echo_shm_rollouts-")  # of this user alone
        path = str(Path(self._folder, "socket"))
        self._server = await asyncio.start_unix_server(self._serve, path)
        n = self._n
        make = self._make if self._context == "fork" else importable(self._make)
        args: list[list[Any]] = [[path] * n, list(range(n)), [make] * n, [self._record] * n]
        if self._replay is not None:
            self._group = self._replay.spawn(
                run_environments,
                n,
                *args,
                context=self._context,  # type: ignore[arg-type]  # checked there
                restart="always",
                on_death="ignore",
                max_restarts=_MAX_RESTARTS,
            )
        else:
            how: dict[str, Any] = {"on_death": "ignore", "max_restarts": _MAX_RESTARTS}
            self._group = WorkerGroup(NoReplay, run_environments, n, args, self._context, "always", **how)
        self._keep(self._watch(self._group))

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await self._read(reader)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            writer.close()
            return
        worker = _Worker(writer, int(hello["pid"]))
        self._workers.add(worker)
        await self._give([Environment(worker, slot) for slot in range(self._slots)])
        try:
            while True:
                worker.answered(await self._read(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._workers.discard(worker)
            worker.lose()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> Json:
        return unpacked(await reader.readexactly(length_of(await reader.readexactly(HEAD))))

    async def _give(self, environments: Sequence[Environment]) -> None:
        async with self._freed:
            self._free += environments
            self._freed.notify_all()

    # -- what is wrong with workers

    async def _watch(self, group: WorkerGroup) -> None:
        """Kills workers that hang, and notices that no worker will come back."""
        while self._error is None:
            await asyncio.sleep(min(0.1, self._timeout / 4))
            for worker in self._workers:
                if worker.hangs(self._timeout):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
            if group.any_failed:
                try:
                    group.check()
                except BaseException as error:
                    told = WorkerError(f"a worker failed: {type(error).__name__}: {error}")
                    told.__cause__ = error
                    await self._end(told)
            elif (restarts := group.restarts - self._restarts) >= _IN_A_ROW * self._n:
                code = group.last_exitcode
                assert code is not None
                how = f"workers were started again {restarts} times, and ended before they could play: the last one "
                await self._end(WorkerError(f"{how}{how_ended(code)}. If it printed why, that is on stderr"))
                await asyncio.to_thread(group.stop, 0.0)
            elif group.finished:
                await self._end(WorkerError(f"all workers have ended, with exit codes {group.exitcodes}"))

    async def _end(self, error: Exception) -> None:
        async with self._freed:
            self._error = error
            self._freed.notify_all()

    # -- for a rollout

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Environment]:
        """An environment of a living worker. Waits for one.

        Raises:
            WorkerError: There is no worker any more, and none will come.
            ConnectionClosedError: The fleet was closed.

        """
        environment = await self._next()
        try:
            yield environment
        finally:
            asked = environment.asked
            if asked is not None and self._group is not None:
                self._restarts = self._group.restarts  # if it has ended since, its rollout's retries are the bound
            if not environment.worker.lost:
                if asked is None or asked.done():
                    self._keep(self._give([environment]))
                else:  # its answer comes first
                    asked.add_done_callback(lambda _: self._after(environment))

    def _after(self, environment: Environment) -> None:
        if not environment.worker.lost and self._error is None:
            self._keep(self._give([environment]))

    async def _next(self) -> Environment:
        async with self._freed:
            while True:
                while self._free:
                    environment = self._free.pop(0)
                    if not environment.worker.lost:
                        return environment
                if self._error is not None:
                    raise type(self._error)(str(self._error)) from self._error.__cause__
                await self._freed.wait()

    async def close(self) -> None:
        """Ends the workers: those that do not end within two seconds get SIGTERM, then SIGKILL."""
        await self._end(ConnectionClosedError("the engine was closed"))
        if self._server is not None:
            self._server.close()
        for worker in list(self._workers):
            worker.lose()
        if self._group is not None:
            await asyncio.to_thread(self._group.stop, 2.0)
        for task in list(self._tasks):
            task.cancel()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
