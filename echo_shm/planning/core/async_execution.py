"""EchoRL's names of the engine that runs rollouts, and of what finds their caches."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.devices import usable
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.policies import PolicyNetwork
from echo_shm.planning.backbones.protocol import Completion, LocalBackbone, Message, RemoteBackbone
from echo_shm.planning.backbones.transformer import CausalTransformer, TransformerBackbone
from echo_shm.planning.core.bandwidth import BandwidthMetrics
from echo_shm.planning.core.configs import ExecutionConfig
from echo_shm.planning.core.latent_planning import filled
from echo_shm.planning.prefix_index import PrefixIndex
from echo_shm.planning.rollouts import config as rollouts
from echo_shm.planning.rollouts.blocks import as_tokens
from echo_shm.planning.rollouts.engine import RolloutEngine
from echo_shm.spec import Array

with needs("planning.core", "PyTorch", "torch", extra="planning-agents"):
    import torch

__all__ = ["AsyncExecutionEngine", "ExecutionConfig", "KVCacheManager", "RolloutResult"]


class KVCacheManager:
    """Keeps the rows of caches by the states that they belong to: a :class:`PrefixIndex` with EchoRL's names.

    A sequence shares the rows of its longest prefix that is kept; what was used longest ago goes first. There, only a
    whole sequence that had been stored was found, its hash alone decided, and a thread threw out what nobody had looked
    for in the last minute. A state is known by eight bytes of its digest (BLAKE2b). A :class:`RolloutEngine` does not
    need it: it has the caches of its backbone.

    Args:
        config: ``max_cache_size`` states are kept.

    Attributes:
        index: The real one, with blocks of one state.

    """

    def __init__(self, config: ExecutionConfig) -> None:
        self.config = config
        self.index = PrefixIndex(config.max_cache_size)
        self._rows: dict[int, Any] = {}
        self._next = self._hits = self._requests = 0

    def get_kv_cache(self, state_sequence: Any) -> tuple[Any | None, int]:
        """What is kept of the longest proper prefix.

        Args:
            state_sequence: Numbers ``(t,)`` or states ``(t, state_dim)``; an array or a tensor.

        Returns:
            The rows ``(length, ...)`` and the length; ``(None, 0)`` if there is none.

        """
        match = self.index.match(_tokens(state_sequence))
        self._requests += 1
        if match.length == 0:
            return None, 0
        self._hits += 1
        rows = [self._rows[block] for block in match.blocks.tolist()]
        return (torch.stack(rows) if isinstance(rows[0], torch.Tensor) else np.stack(rows)), match.length

    def store_kv_cache(self, state_sequence: Any, kv_states: Any) -> None:
        """Keeps the row of each state. Those of states that are kept already stay.

        Args:
            state_sequence: As above.
            kv_states: ``(t, ...)``, an array or a tensor.

        Raises:
            ValueError: There are more or fewer rows than states.

        """
        tokens = _tokens(state_sequence)
        if len(kv_states) != len(tokens):
            raise ValueError(f"kv_states has {len(kv_states)} rows for {len(tokens)} states: use one for each")
        blocks = list(range(self._next, self._next + len(tokens)))
        self._next += len(tokens)
        made = self.index.insert(tokens, blocks)
        for at in range(made.known, made.known + made.taken):
            row = kv_states[at]
            self._rows[blocks[at]] = row.clone() if isinstance(row, torch.Tensor) else np.array(row)
        for block in made.evicted.tolist():
            del self._rows[block]

    def get_cache_stats(self) -> dict[str, float]:
        """How many states are kept, and what share of the requests found a prefix."""
        rate = self._hits / self._requests if self._requests else 0.0
        requests = {"hit_count": self._hits, "miss_count": self._requests - self._hits, "hit_rate": rate}
        return {"cache_size": len(self.index), "max_cache_size": self.config.max_cache_size, **requests}


@dataclass(frozen=True)
class RolloutResult:
    """What came of a rollout, by EchoRL's names."""

    request_id: str
    success: bool
    #: Seconds that it ran.
    execution_time: float = 0.0
    tokens_generated: int = 0
    error: str | None = None
    #: ``text``, ``tokens``, ``reuse_length`` and ``cache_hit``; and what ``submit_rollout`` was given.
    metadata: dict[str, Any] = field(default_factory=dict)


class AsyncExecutionEngine:
    """A :class:`RolloutEngine` without environments, which answers to sequences, by EchoRL's name.

    There, the caches were random numbers, no model was called, and who came first went first, whatever its priority.

    The engine starts with the first ``submit_rollout``, in that event loop, and is that loop's. It ends with
    ``shutdown``, with its ``async with`` block, or with the loop.

    Args:
        config: How rollouts run.
        model: A :class:`CausalTransformer` or a backbone: a sequence is of tokens, or text, and what sequences have in
            common is computed once. Or a policy over states (:class:`PolicyNetwork`, :class:`LatentPlanner`): a
            sequence is of states, the answer is the number of the action that is drawn, and there is no cache to
            share, and no order to be had by priorities. A ``PolicyNetwork`` by itself knows no plan: it gets zeros.
        device: Where the model computes. It is moved there. There, "cuda" was the default.

    Attributes:
        engine: The real one.

    Raises:
        TypeError: The model is nothing of that.
        ValueError: PyTorch does not know the device, or it is not here.

    """

    def __init__(self, config: ExecutionConfig, model: Any, device: str = "cpu") -> None:
        self.config, self.model, self.device = config, model, device
        self._backbone = _backbone(model, device, config)
        self.engine = RolloutEngine(self._backbone, config=config)
        self._began = False
        self._starting = asyncio.Lock()
        self._count = 0
        self._rollouts: dict[str, tuple[asyncio.Task[rollouts.RolloutResult], dict[str, Any]]] = {}

    async def submit_rollout(
        self, state_sequence: Any, priority: float = 1.0, metadata: dict[str, Any] | None = None
    ) -> str:
        """Begins a rollout, and returns its name at once. :meth:`get_result` waits for it.

        Args:
            state_sequence: Tokens ``(t,)`` or text, with a transformer; states ``(t, state_dim)`` with a policy.
            priority: The reward that is expected of it: see :class:`BandwidthAwareScheduler`.
            metadata: Comes back with the result.

        Raises:
            ValueError, TypeError: The sequence is not of that kind.

        """
        state = self._state(state_sequence)
        async with self._starting:
            if not self._began:
                self._began = True
                await self.engine.__aenter__()
        name = f"rollout-{self._count}"
        self._count += 1
        task = asyncio.get_running_loop().create_task(self.engine.submit(state, priority))
        self._rollouts[name] = task, metadata or {}
        return name

    def _state(self, sequence: Any) -> Any:
        """A sequence as :meth:`RolloutEngine.submit` takes it."""
        if isinstance(self._backbone, _Decisions):
            return self._backbone.message(_array(sequence))
        if isinstance(sequence, str) or not isinstance(self._backbone, LocalBackbone):
            return sequence
        return as_tokens("state_sequence", _array(sequence), self._backbone.vocab_size)

    async def get_result(self, request_id: str, timeout: float | None = None) -> RolloutResult | None:
        """What came of a rollout. It is kept until somebody has got it.

        Args:
            request_id: Of :meth:`submit_rollout`.
            timeout: Seconds to wait; None: that of the configuration.

        Returns:
            None if it still runs then, or there is no such rollout any more. One that failed has ``success=False``.

        """
        if request_id not in self._rollouts:
            return None
        task, metadata = self._rollouts[request_id]
        await asyncio.wait({task}, timeout=self.config.timeout if timeout is None else timeout)
        if not task.done():
            return None
        self._rollouts.pop(request_id, None)
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if error is not None:
            return RolloutResult(request_id, False, error=f"{type(error).__name__}: {error}", metadata=metadata)
        result = task.result()
        (turn,) = result.turns
        said = {"text": turn.action, "tokens": turn.action_tokens, "reuse_length": turn.reused}
        told = {**said, "cache_hit": turn.reused > 0, **metadata}
        return RolloutResult(request_id, True, result.seconds, len(turn.action_tokens), metadata=told)

    def get_performance_metrics(self) -> dict[str, float]:
        """The figures of ``engine.counts`` and ``engine.tracker``, by EchoRL's names.

        ``tokens_per_second`` counts the tokens of sequences, those that were reused among them, and of answers. A
        policy over states has no tokens and no cache: there are the numbers of rollouts alone.
        """
        counts, seen = self.engine.counts, self.engine.tracker.snapshot()
        numbers: dict[str, float] = {
            "total_rollouts": counts.submitted,
            "active_rollouts": sum(not task.done() for task, _ in self._rollouts.values()),
            "completed_rollouts": counts.finished,
        }
        if isinstance(self._backbone, _Decisions):
            return numbers
        figures = BandwidthMetrics.of(seen)
        return {
            **numbers,
            "tokens_per_second": seen.etps,
            "total_bandwidth_cost": figures.total_rollout_cost,
            "total_effective_bandwidth_cost": figures.total_effective_rollout_cost,
            "total_bandwidth_saved": figures.total_bandwidth_saved,
            "kv_reuse_rate": figures.kv_reuse_rate,
        }

    async def shutdown(self) -> None:
        """Ends all rollouts. Idempotent."""
        if self._began:
            await self.engine.close()
        await asyncio.gather(*(task for task, _ in self._rollouts.values()), return_exceptions=True)

    async def __aenter__(self) -> "AsyncExecutionEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()


# --- what a model is ---------------------------------------------------------------


def _backbone(model: Any, device: str, config: ExecutionConfig) -> LocalBackbone | RemoteBackbone:
    if isinstance(model, LocalBackbone | RemoteBackbone):
        return model
    at = usable(device)
    if isinstance(model, CausalTransformer):
        return TransformerBackbone(model.to(at), num_blocks=config.max_cache_size)
    if isinstance(model, PolicyNetwork | LatentPlanner):
        return _Decisions(model.to(at), at)
    raise TypeError(
        f"model is {type(model).__name__}: use a CausalTransformer, a backbone, a PolicyNetwork or a LatentPlanner"
    )


class _Decisions:
    """A policy over states as a backbone without a cache: a message is the states in JSON, the answer an action."""

    def __init__(self, model: PolicyNetwork | LatentPlanner, device: torch.device) -> None:
        self._model, self._device = model, device

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 1.0, stop: str | None = None
    ) -> Completion:
        """Draws the action."""
        states = torch.tensor(json.loads(messages[-1].text), dtype=torch.float32, device=self._device)
        with torch.no_grad():
            logits = self._logits(states)
        action = logits.argmax() if temperature == 0 else torch.multinomial((logits / temperature).softmax(-1), 1)
        return Completion(str(int(action)), len(states), 1)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        model = self._model
        if isinstance(model, PolicyNetwork):
            return _logits(model, states[-1], None)
        if model.encoder is None:
            return _logits(model.policy, states[-1], None)
        window = model.encoder.window
        return _logits(model.policy, states[-1], model.encoder(*filled(states[-window:], window)))

    def message(self, states: Array) -> str:
        """States ``(t, state_dim)`` as this backbone reads them."""
        model = self._model
        policy = model.policy if isinstance(model, LatentPlanner) else model
        width = policy.state_dim
        if states.ndim != 2 or len(states) == 0 or states.shape[1] != width:
            raise ValueError(f"state_sequence has shape {states.shape}: use (t, {width}), at least one state")
        return json.dumps(states.astype(float).tolist(), allow_nan=False)

    async def close(self) -> None:
        """Nothing is open."""


def _logits(policy: PolicyNetwork, state: torch.Tensor, plan: torch.Tensor | None) -> torch.Tensor:
    """Logits ``(action_dim,)``. Where the policy takes a plan and there is none, it gets zeros."""
    rest = policy.policy[0].in_features - len(state) - (0 if plan is None else len(plan))
    parts = [state, *([] if plan is None else [plan]), state.new_zeros(max(rest, 0))]
    logits: torch.Tensor = policy.policy(torch.cat(parts))
    return logits


# --- sequences ---------------------------------------------------------------------


def _array(sequence: Any) -> Array:
    return np.asarray(sequence.detach().cpu() if isinstance(sequence, torch.Tensor) else sequence)


def _tokens(sequence: Any) -> Array:
    """A number for each state, int64 ``(t,)``: itself, or eight bytes of its digest."""
    array = _array(sequence)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.ndim != 2:
        raise ValueError(f"state_sequence has shape {array.shape}: use (t, state_dim), or whole numbers (t,)")
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in array]
    return np.frombuffer(b"".join(digests), np.int64)
