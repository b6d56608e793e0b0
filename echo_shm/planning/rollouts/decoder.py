"""Token by token over all rollouts, with a local backbone: who is computed next, in which blocks."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from echo_shm.errors import ConnectionClosedError
from echo_shm.planning.backbones.protocol import BackboneError, LocalBackbone
from echo_shm.planning.backbones.tokenizers import Tokenizer
from echo_shm.planning.rollouts.backbone_thread import BackboneThread
from echo_shm.planning.rollouts.blocks import Blocks, CachedSequence
from echo_shm.planning.rollouts.config import Answer, Counts, RolloutConfig
from echo_shm.planning.rollouts.sampling import checked_logits, draw, is_usable
from echo_shm.planning.rollouts.scheduler import BandwidthAwareScheduler
from echo_shm.spec import Array

_T = TypeVar("_T")


@dataclass(eq=False)
class _Job:
    """One answer that is being decoded."""

    sequence: CachedSequence
    reward: float
    rng: np.random.Generator
    temperature: float
    max_tokens: int
    end: int
    future: "asyncio.Future[None]"
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    #: Tokens that the backbone has read for it, its own answer left out.
    read: int = 0


class LocalDecoder:
    """Decodes the answers of many rollouts with one local backbone.

    Everything but the backbone's calls runs in the event loop. One dispatch takes the first rollouts in the scheduler's
    order, as many as fit: each of them reads what is new in its context, or its last token, and draws the next one. So
    a rollout may come or go after any token.

    If several are about to compute the same block, the first one does, and the others share it.
    """

    def __init__(self, backbone: LocalBackbone, tokenizer: Tokenizer, config: RolloutConfig, counts: Counts) -> None:
        self._backbone, self._tokenizer, self._config, self._counts = backbone, tokenizer, config, counts
        self.max_length = backbone.max_length
        self.blocks = Blocks(backbone.num_blocks, backbone.block_size, share=config.reuse == "shared")
        if self.blocks.count(self.max_length) > backbone.num_blocks:
            raise ValueError(
                f"num_blocks={backbone.num_blocks} of block_size={backbone.block_size}: one sequence of max_length="
                f"{self.max_length} takes {self.blocks.count(self.max_length)}: use more blocks"
            )
        if not 0 <= tokenizer.end < backbone.vocab_size:
            raise ValueError(f"the tokenizer ends with {tokenizer.end}: the backbone has {backbone.vocab_size} tokens")
        self._scheduler = BandwidthAwareScheduler(config.scheduling)
        self._sequences: dict[CachedSequence, None] = {}  # the one used longest ago first
        self._jobs: dict[_Job, None] = {}
        self._thread = BackboneThread()
        self._turn = asyncio.Lock()  # one dispatch, or one change of the weights, at a time
        self._wake = asyncio.Event()
        #: Why it cannot be used any more.
        self.failed: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- for a rollout

    def open(self, prefix: Array | None = None) -> CachedSequence:
        """The context of a new rollout: empty, but for a soft prefix ``(p, width)``. It must be closed."""
        sequence = CachedSequence(self.blocks, prefix)
        self._sequences[sequence] = None
        return sequence

    def close_sequence(self, sequence: CachedSequence) -> None:
        """Gives the blocks of a context back. Idempotent."""
        self._sequences.pop(sequence, None)
        sequence.drop()

    async def answer(
        self, sequence: CachedSequence, reward: float, rng: np.random.Generator, temperature: float
    ) -> Answer:
        """Decodes an answer to the context, and appends it.

        Raises:
            BackboneError: The backbone failed for this rollout, or for all.
            ConnectionClosedError: The decoder was closed.

        """
        self._refuse_failed()
        context, version = len(sequence.tokens), self.blocks.version
        if self._config.reuse == "none":
            sequence.drop()
        limit = min(self._config.max_action_tokens, self.max_length - context)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job = _Job(sequence, reward, rng, temperature, limit, self._tokenizer.end, future)
        self._jobs[job] = None
        self._wait_for_turn(job)
        try:
            await future
        finally:
            self._scheduler.remove(job)
            del self._jobs[job]
        reused = max(0, context - job.read)
        text, length = self._tokenizer.decode(job.tokens), len(job.tokens)
        return Answer(text, job.tokens, job.log_probs, context, reused, version, length)

    def _wait_for_turn(self, job: _Job) -> None:
        sequence = job.sequence
        sequence.find()
        self._scheduler.add(job, job.reward, len(sequence.tokens), sequence.computed)
        self._wake.set()

    @property
    def longest_wait(self) -> tuple[int, int]:
        """See :attr:`BandwidthAwareScheduler.longest_wait`."""
        return self._scheduler.longest_wait

    # -- for the learner

    async def update(self, change: Callable[[], _T]) -> _T:
        """Calls the function, which changes weights, in the backbone's thread, and forgets what is cached.

        Answers that are being decoded go on: their contexts are read anew.
        """
        async with self._turn:
            self._refuse_failed()
            try:
                return await self._thread.call(change)
            finally:
                for sequence in self._sequences:
                    sequence.drop()
                self.blocks.forget()

    def _refuse_failed(self) -> None:
        if self.failed is not None:
            raise type(self.failed)(str(self.failed))

    # -- the loop

    async def _run(self) -> None:
        try:
            while True:
                if not len(self._scheduler):
                    self._wake.clear()
                    await self._wake.wait()
                async with self._turn:
                    await self._dispatch()
        except Exception as error:
            self._fail(error if isinstance(error, BackboneError) else _told(error))
            if not isinstance(error, BackboneError):
                raise

    def _fail(self, error: Exception) -> None:
        self.failed = error
        self._thread.abandon()
        for job in self._jobs:
            _raise(job, type(error)(str(error)))

    async def _dispatch(self) -> None:
        chosen = self._choose()
        self._scheduler.dispatched(list(chosen))
        while chosen:
            now: list[_Job] = []
            later: list[_Job] = []
            prefixes: set[bytes] = set()
            for job in chosen:
                if job.future.done():
                    continue
                job.sequence.find()  # what was published since
                prefix = job.sequence.next_prefix()
                (later if prefix in prefixes else now).append(job)
                if prefix is not None:
                    prefixes.add(prefix)
            if now:
                await self._compute(now)
            chosen = later

    def _choose(self) -> list[_Job]:
        """The next rollouts, with blocks for what they read. The first one gets blocks in any case."""
        chosen: list[_Job] = []
        budget = self._config.max_batch_tokens
        order: list[Any] = self._scheduler.order()
        for job in order[: self._config.max_batch]:
            sequence = job.sequence
            sequence.find()
            budget -= len(sequence.tokens) - sequence.computed
            if chosen and (budget < 0 or not sequence.reserve()):
                break
            if not chosen:
                self._reserve_by_force(sequence, order)
            chosen.append(job)
        for job in chosen:  # used last
            if self._sequences.pop(job.sequence, 0) is None:
                self._sequences[job.sequence] = None
        return chosen

    def _reserve_by_force(self, sequence: CachedSequence, order: Sequence[_Job]) -> None:
        """Blocks for this one. Others lose theirs: first who is not decoding, then who comes last.

        A sequence never takes more than there are blocks, so this ends.
        """
        waiting = {job.sequence: None for job in reversed(order)}
        idle = [one for one in self._sequences if one not in waiting]
        victims = iter([one for one in [*idle, *waiting] if one is not sequence and one.blocks])
        while not sequence.reserve():
            next(victims).drop()
            self._counts.preempted += 1

    async def _compute(self, jobs: list[_Job]) -> None:
        """Reads the new tokens of these, and draws the next token of each."""
        parts = [job.sequence.part() for job in jobs]
        lengths = [len(job.sequence.tokens) for job in jobs]
        call = asyncio.ensure_future(self._thread.call(lambda: self._backbone.extend(parts)))
        try:
            await asyncio.wait({call}, timeout=self._config.backbone_timeout)
        finally:
            call.cancel()  # no effect on one that is done
        if not call.done():
            raise BackboneError(
                f"the backbone did not answer within {self._config.backbone_timeout:g} s: it is not used any more, and "
                "its thread still runs"
            )
        try:
            logits = checked_logits(call.result(), len(jobs), self._backbone.vocab_size)
        except Exception as error:
            if len(jobs) == 1:
                _raise(jobs[0], _told(error))
            else:
                await self._compute_alone(jobs)
            return
        alive = []
        for i, (job, part) in enumerate(zip(jobs, parts, strict=True)):
            if job.future.done():  # cancelled, and its blocks are gone
                continue
            if not is_usable(logits[i]):
                _raise(job, BackboneError("the backbone returned logits that are no numbers, or infinite"))
                continue
            context = lengths[i] - len(job.tokens)
            job.read += max(0, context - part.start)
            job.sequence.advance(lengths[i])
            alive.append(i)
        if alive:
            self._draw([jobs[i] for i in alive], logits[alive])

    async def _compute_alone(self, jobs: list[_Job]) -> None:
        """The same one by one: one of them may be to blame for what came of all."""
        for job in jobs:
            if not job.future.done():
                await self._compute([job])

    def _draw(self, jobs: list[_Job], logits: Array) -> None:
        self._counts.tokens += len(jobs)
        temperatures = np.array([job.temperature for job in jobs])
        tokens, log_probs = draw(logits, temperatures, [job.rng.random() for job in jobs])
        for job, token, log_prob in zip(jobs, tokens.tolist(), log_probs.tolist(), strict=True):
            job.tokens.append(token)
            job.log_probs.append(log_prob)
            if len(job.tokens) == 1 or token == job.end:
                job.sequence.publish()
            job.sequence.append([token])
            if token == job.end or len(job.tokens) >= job.max_tokens:
                job.future.set_result(None)
            else:
                self._wait_for_turn(job)

    async def close(self) -> None:
        """Ends the loop and the thread. Who still waits gets ConnectionClosedError."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task
        if self.failed is None:
            self._fail(ConnectionClosedError("the engine was closed"))
            await asyncio.to_thread(self._thread.end)


def _told(error: Exception) -> BackboneError:
    told = BackboneError(f"the backbone failed: {type(error).__name__}: {error}")
    told.__cause__ = error
    return told


def _raise(job: _Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)
