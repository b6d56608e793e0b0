"""The engine: it runs rollouts of a backbone in environments of worker processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from time import monotonic
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from echo_shm.errors import ConnectionClosedError
from echo_shm.planning.backbones.limits import BudgetSpentError
from echo_shm.planning.backbones.protocol import BackboneError, LocalBackbone, RemoteBackbone
from echo_shm.planning.backbones.tokenizers import ByteTokenizer, Tokenizer
from echo_shm.planning.rollouts.config import Counts, RolloutConfig, RolloutError, RolloutResult, State, Turn
from echo_shm.planning.rollouts.decoder import LocalDecoder
from echo_shm.planning.rollouts.dialogue import Dialogue, LocalDialogue, RemoteDialogue, checked_state
from echo_shm.planning.rollouts.fleet import Environment, EnvironmentFailedError, Fleet, WorkerLostError
from echo_shm.planning.rollouts.reporting import Reporter, figures
from echo_shm.planning.rollouts.tracker import EfficiencyTracker
from echo_shm.planning.rollouts.workers import Record, TextEnvironment
from echo_shm.replay import Replay
from echo_shm.replay.validation import above_zero, at_least_zero, integer, number
from echo_shm.ring.rollouts import RolloutFigures

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Request:
    state: State
    priority: float
    seed: int | None
    options: dict[str, Any] | None
    temperature: float
    #: The how manieth of its engine.
    number: int


class RolloutEngine:
    """Runs rollouts of a language policy: a backbone answers to what environments show, until their episodes end.

    The environments are in worker processes. The engine, and a local backbone, are in this one. ::

        async def play():
            async with RolloutEngine(TransformerBackbone(model), make_env, workers=2) as engine:
                results = await asyncio.gather(*[engine.submit("Find the key.", seed=i) for i in range(64)])
            return sum(result.success for result in results)

    A rollout's context is its state, then observations and answers in turns. An observation goes through ``show``
    first. Without ``make_env`` a rollout is one answer to its state.

    **What fails.** A rollout whose worker dies or hangs, whose environment raises, or whose backbone fails begins again
    with the same seed, ``config.retries`` times; then ``submit`` raises :class:`RolloutError`. Other rollouts go on. A
    local backbone's call that hangs cannot be ended: after ``config.backbone_timeout`` all rollouts fail, the engine
    refuses more, and the thread that computes is left behind until the process ends.

    **Replay.** With ``replay`` and ``record`` a worker writes each episode that has ended into the replay, before
    ``submit`` returns. Of a rollout that failed before its episode ended, nothing is written. One that is cancelled,
    runs out of time, or loses its worker while its episode is written may be there, or a beginning of it. It is not
    tried again then, so nothing is there twice.

    Args:
        backbone: A :class:`LocalBackbone` or a :class:`RemoteBackbone`, which the engine closes.
        make_env: Makes a :class:`TextEnvironment` in a worker's process, which must be able to import the function.
        workers: Worker processes.
        envs_per_worker: Environments of each. They are stepped one after the other.
        config: How rollouts run.
        tokenizer: Of a local backbone. None: bytes.
        show: Makes text of an observation, which the policy reads.
        replay: Episodes go there. It has a thread (``thread=True``), which takes them.
        record: Makes the replay's steps of the turns of an episode, in a worker: a tree whose leaves have a leading
            ``len(turns)``. :class:`TextSteps` is one.
        context: How workers are started, as for :meth:`Server.spawn`.
        name: By which ``echo-shm ls``, ``top`` and ``metrics`` show it, with ``.rollouts`` behind it. None: a unique
            one. They read a board of 4 KiB in shared memory, which the engine writes four times a second.
        board: Whether it has one. Without a name, an engine that gets none goes on, and logs a warning.

    It is used by one event loop, as an asynchronous context manager.

    """

    def __init__(
        self,
        backbone: LocalBackbone | RemoteBackbone,
        make_env: Callable[[], TextEnvironment] | None = None,
        *,
        workers: int = 2,
        envs_per_worker: int = 8,
        config: RolloutConfig | None = None,
        tokenizer: Tokenizer | None = None,
        show: Callable[[str], str] = "{}\n".format,
        replay: Replay | None = None,
        record: Record | None = None,
        context: Literal["spawn", "forkserver", "fork"] = "spawn",
        name: str | None = None,
        board: bool = True,
    ) -> None:
        if not isinstance(backbone, LocalBackbone | RemoteBackbone):
            raise TypeError(f"backbone is {type(backbone).__name__}: use a LocalBackbone or a RemoteBackbone")
        if (replay is None) != (record is None):
            raise ValueError("replay and record go together: record makes the replay's steps")
        if replay is not None and make_env is None:
            raise ValueError("replay without make_env: only episodes of environments are written")
        if name is not None and not board:
            raise ValueError(f"name={name!r} with board=False: without a board nothing shows it")
        if replay is not None and not replay.has_thread:
            raise ValueError(
                "this replay takes what workers send in its own calls, and nobody makes any while rollouts run: use "
                "Replay(..., thread=True)"
            )
        self.config = config or RolloutConfig()
        self.counts = Counts()
        self.tracker = EfficiencyTracker(self.config.scheduling.attention_scale)
        self._backbone, self._tokenizer, self._show = backbone, tokenizer or ByteTokenizer(), show
        self._records = record is not None
        self._decoder: LocalDecoder | None = None
        self._fleet: Fleet | None = None
        if make_env is not None:
            workers, slots = integer("workers", workers, 1), integer("envs_per_worker", envs_per_worker, 1)
            timeout = self.config.environment_timeout
            self._fleet = Fleet(make_env, workers, slots, timeout, replay, record, context)
        self._reporter = Reporter(name, self._figures) if board else None
        self._running: set[asyncio.Task[RolloutResult]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._state: Literal["new", "open", "closed"] = "new"

    async def __aenter__(self) -> "RolloutEngine":
        if self._state != "new":
            raise RuntimeError("an engine is entered once: make another one")
        most = self.config.max_concurrent_rollouts
        self._room = asyncio.Semaphore(most if self._fleet is None else min(most, self._fleet.size))
        if isinstance(self._backbone, LocalBackbone):
            self._decoder = LocalDecoder(self._backbone, self._tokenizer, self.config, self.counts)
        self._state = "open"
        try:
            if self._reporter is not None:
                self._reporter.start()
            if self._fleet is not None:
                await self._fleet.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all rollouts, whose ``submit`` raises ConnectionClosedError, and the workers. Idempotent.

        If it is cancelled, all ends nevertheless: call it again to wait for that.
        """
        if self._closing is None:
            self._state = "closed"
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        async with contextlib.AsyncExitStack() as ending:
            if self._reporter is not None:
                ending.callback(self._reporter.close)
            if isinstance(self._backbone, RemoteBackbone):
                ending.push_async_callback(self._backbone.close)
            if self._decoder is not None:
                ending.push_async_callback(self._decoder.close)
            if self._fleet is not None:
                ending.push_async_callback(self._fleet.close)

    # -- what is seen

    @property
    def name(self) -> str | None:
        """What ``echo-shm top`` takes: the name with ``.rollouts`` behind it. None without a board."""
        return self._reporter.name if self._reporter is not None else None

    def _figures(self) -> RolloutFigures:
        limiter = getattr(self._backbone, "limiter", None)
        return figures(self.counts, self.tracker.snapshot(), len(self._running), self._fleet, self._decoder, limiter)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are connected."""
        return self._fleet.pids if self._fleet is not None else []

    @property
    def free_blocks(self) -> int | None:
        """Blocks of the KV cache that nobody has: no rollout, and no prefix that is kept. None without such a cache."""
        return self._decoder.blocks.pool.num_free if self._decoder is not None else None

    # -- for the learner

    async def update(self, change: Callable[[], _T]) -> _T:
        """Calls a function that changes a local backbone's weights, between two of its calls, in its thread.

        What is cached of the old weights is forgotten. Rollouts go on with the new ones.

        Returns:
            What the function returns.

        """
        self._refuse_closed()
        if self._decoder is None:
            raise TypeError("a remote backbone has no weights here")
        return await self._decoder.update(change)

    # -- rollouts

    async def submit(
        self,
        state: State,
        priority: float = 1.0,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> RolloutResult:
        """Runs a rollout, and returns when its episode has ended.

        Waits while ``max_concurrent_rollouts`` run, or as many as there are environments; first come, first served.

        Cancel the task that calls it to end the rollout: its blocks and its environment are free again, at once or as
        soon as the environment has answered.

        Args:
            state: With what the context begins: text, or tokens of a local backbone, ``(t,)``, or either behind a soft
                prefix: :class:`Planned`. Rollouts with the same beginning share what is computed of it.
            priority: The reward that is expected of it. See :class:`BandwidthAwareScheduler`.
            seed: Of the environment, and of what is drawn. None: the rollout's number, for what is drawn.
            options: Of the environment's ``reset``; JSON.
            temperature: None: that of the configuration.
            timeout: Seconds that it may run. None: that of the configuration.

        Raises:
            TimeoutError: It ran too long.
            RolloutError: Each attempt has failed.
            BackboneError: A local backbone hung before.
            WorkerError: No worker is left, and none comes back; or workers go on ending before they can play.
            ValueError: The state is no tokens, or does not fit into the context.
            ConnectionClosedError: The engine was closed.

        """
        self._refuse_closed()
        request = self._request(state, priority, seed, options, temperature)
        timeout = self.config.timeout if timeout is None else above_zero("timeout", timeout)
        self.counts.submitted += 1
        submitted = monotonic()
        try:
            async with self._room:
                self._refuse_closed()
                began = monotonic()
                result = await self._within(timeout, self._attempts(request))
        except BaseException as error:
            self.counts.end(error)
            raise
        self.counts.finished += 1
        return replace(result, queued=began - submitted, seconds=monotonic() - began)

    def _request(
        self,
        state: State,
        priority: float,
        seed: int | None,
        options: dict[str, Any] | None,
        temperature: float | None,
    ) -> _Request:
        state = checked_state(state, self._backbone)
        priority = number("priority", priority)
        if not np.isfinite(priority):
            raise ValueError(f"priority={priority!r}: use a finite number")
        seed = None if seed is None else integer("seed", seed, 0)
        temperature = self.config.temperature if temperature is None else at_least_zero("temperature", temperature)
        return _Request(state, priority, seed, options, temperature, self.counts.submitted)

    async def _within(self, timeout: float, work: Any) -> RolloutResult:
        """The rollout as a task of its own, which ends before this does, however this does."""
        task: asyncio.Task[RolloutResult] = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        try:
            await asyncio.wait({task}, timeout=timeout)
            if not task.done():
                raise TimeoutError(f"the rollout still ran after {timeout:g} s")
            if task.cancelled():
                raise ConnectionClosedError("the engine was closed")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._running.discard(task)
            if not task.cancelled():
                task.exception()  # it was raised above, or nobody wants it

    async def _attempts(self, request: _Request) -> RolloutResult:
        for attempt in range(self.config.retries + 1):
            try:
                return await self._attempt(request, attempt)
            except (BackboneError, WorkerLostError, EnvironmentFailedError) as error:
                last = error
                self.counts.workers_lost += isinstance(error, WorkerLostError)
                self.counts.environment_errors += isinstance(error, EnvironmentFailedError)
                self.counts.backbone_errors += isinstance(error, BackboneError)
            if self._decoder is not None and self._decoder.failed is not None:
                raise self._decoder.failed
            if isinstance(last, BudgetSpentError) or getattr(last, "is_final", False):
                break
            self.counts.retried += attempt < self.config.retries
        tried = f"{attempt + 1} time" + "s" * (attempt > 0)
        raise RolloutError(f"the rollout was tried {tried}: {type(last).__name__}: {last}") from last

    @contextlib.asynccontextmanager
    async def _dialogue(self, request: _Request, attempt: int) -> AsyncIterator[Dialogue]:
        given = request.seed is not None
        seeds = [self.config.seed, int(given), request.seed if request.seed is not None else request.number, attempt]
        dialogue: Dialogue
        if self._decoder is not None:
            rng = np.random.default_rng(seeds)
            dialogue = LocalDialogue(
                self._decoder, self._tokenizer, request.state, request.priority, rng, request.temperature
            )
        else:
            assert isinstance(self._backbone, RemoteBackbone)
            assert isinstance(request.state, str)
            dialogue = RemoteDialogue(self._backbone, request.state, self.config, request.temperature, self.counts)
        try:
            yield dialogue
        finally:
            dialogue.close()

    async def _attempt(self, request: _Request, attempt: int) -> RolloutResult:
        async with self._dialogue(request, attempt) as dialogue:
            if self._fleet is None:
                return await self._completion(dialogue, attempt)
            async with self._fleet.lease() as environment:
                return await self._episode(dialogue, environment, request, attempt)

    async def _completion(self, dialogue: Dialogue, attempt: int) -> RolloutResult:
        if (read := dialogue.read("")) is None:
            raise ValueError("the state does not fit into the backbone's context: use a shorter one")
        answer = await dialogue.answer()
        turn = answer.turn("", 0.0, read)
        self._track(turn)
        ended = not answer.tokens or answer.tokens[-1] == self._tokenizer.end
        return RolloutResult([turn], ended, not ended, False, "", attempt + 1, 0.0, 0.0)

    async def _episode(
        self, dialogue: Dialogue, environment: Environment, request: _Request, attempt: int
    ) -> RolloutResult:
        observation = await environment.reset(request.seed, request.options)
        turns: list[Turn] = []
        step: dict[str, Any] = {"terminated": False, "truncated": False, "success": None}
        while not (step["terminated"] or step["truncated"]) and len(turns) < self.config.max_steps:
            if (read := dialogue.read(self._show(observation))) is None:
                break
            answer = await dialogue.answer()
            step = await environment.step(answer.text)
            turns.append(answer.turn(observation, step["reward"], read))
            observation = step["observation"]
        if not turns:
            raise ValueError("the state and the first observation do not fit into the backbone's context")
        terminated = bool(step["terminated"])
        if self._records:
            try:
                await environment.record(turns, terminated, not terminated)
            except WorkerLostError as error:
                error.is_final = True  # some of its steps may be in the replay
                raise
        won = terminated and turns[-1].reward > 0
        success = won if step["success"] is None else bool(step["success"])
        for turn in turns:
            self._track(turn)
        self.tracker.record_episode(success)
        return RolloutResult(turns, terminated, not terminated, success, observation, attempt + 1, 0.0, 0.0)

    def _track(self, turn: Turn) -> None:
        new = len(turn.observation_tokens) + len(turn.action_tokens)
        self.tracker.record_rollout_step(turn.reward, turn.context_length, turn.reused, new)

    def _refuse_closed(self) -> None:
        if self._state == "new":
            raise RuntimeError("the engine does not run: use `async with RolloutEngine(...) as engine`")
        if self._state == "closed":
            raise ConnectionClosedError("the engine was closed")
