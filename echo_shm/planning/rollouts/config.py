"""How rollouts run, and what can come of one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from echo_shm.errors import ConnectionClosedError, EchoShmError
from echo_shm.planning.reading import Readable
from echo_shm.planning.rollouts.scheduler import BandwidthConfig
from echo_shm.replay.validation import above_zero, at_least_zero, integer
from echo_shm.spec import Array


class Planned(NamedTuple):
    """The state of a rollout that follows a plan: a :class:`TransformerBackbone` reads it behind a soft prefix.

    Rollouts share what is computed only if their prefixes are equal.
    """

    #: Text, or tokens ``(t,)``.
    state: str | Sequence[int]
    #: ``(p, width)``, as ``SoftPrefixPolicy.embeddings(plans)[i]`` is. It takes p places of the model's ``max_length``.
    prefix: Array


#: With what a context begins.
State: TypeAlias = str | Sequence[int] | Planned


class RolloutError(EchoShmError):
    """A rollout failed as often as it may be tried. The cause is that of the last attempt."""


@dataclass(frozen=True)
class RolloutConfig(Readable):
    """How a :class:`RolloutEngine` runs rollouts. Times are in seconds."""

    #: Rollouts that run at the same time, if there are so many environments. Others wait in ``submit``.
    max_concurrent_rollouts: int = 128
    #: How long a rollout may run, all attempts together, and what it waits for a worker that starts. What it waits for
    #: other rollouts to end does not count.
    timeout: float = 30.0
    #: How often a rollout is tried again whose worker died, whose environment raised, or whose backbone failed.
    retries: int = 1
    #: Steps of an episode. A longer one is truncated.
    max_steps: int = 100
    #: Tokens of one answer.
    max_action_tokens: int = 32
    #: 0 takes the likeliest token each time.
    temperature: float = 1.0
    #: Of what is drawn. A rollout draws the same, whatever runs beside it, up to rounding of the backbone.
    seed: int = 0
    #: Rollouts, and new tokens, of one call of a local backbone. The first rollout goes in any case.
    max_batch: int = 32
    max_batch_tokens: int = 2048
    #: ``"shared"``: rollouts share prefixes. ``"rollout"``: each reuses its own steps before. ``"none"``: each step
    #: reads its context anew.
    reuse: Literal["shared", "rollout", "none"] = "shared"
    scheduling: BandwidthConfig = field(default_factory=BandwidthConfig)
    #: How long a local backbone may take for one call. If it takes longer, it is not used again.
    backbone_timeout: float = 60.0
    #: How long an environment may take for one step, or to be made. If it takes longer, its worker is killed.
    environment_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_concurrent_rollouts", "max_steps", "max_action_tokens", "max_batch", "max_batch_tokens"):
            integer(name, getattr(self, name), 1)
        for name in ("retries", "seed"):
            integer(name, getattr(self, name), 0)
        for name in ("timeout", "backbone_timeout", "environment_timeout"):
            above_zero(name, getattr(self, name))
        at_least_zero("temperature", self.temperature)
        if self.reuse not in ("shared", "rollout", "none"):
            raise ValueError(f"reuse={self.reuse!r}: use 'shared', 'rollout' or 'none'")
        if not isinstance(self.scheduling, BandwidthConfig):
            raise TypeError(f"scheduling={self.scheduling!r:.80}: use a BandwidthConfig")


@dataclass(frozen=True)
class Turn:
    """One step of a rollout: what the policy read, what it answered, and what came of it."""

    observation: str
    action: str
    reward: float
    #: Tokens that came into the context since the answer before. Empty with a remote backbone, as the next two.
    observation_tokens: list[int]
    action_tokens: list[int]
    #: The logarithm of the probability with which each of the action's tokens was drawn.
    log_probs: list[float]
    #: Tokens of the context before the answer, and those of them that were computed before.
    context_length: int
    reused: int
    #: How often the weights had been changed before the answer began.
    version: int
    #: Tokens of the answer. With a remote backbone as its server counts them, so 0 if it does not say.
    answer_length: int = 0


@dataclass(frozen=True)
class RolloutResult:
    """What came of a rollout that has ended."""

    turns: list[Turn]
    terminated: bool
    #: By the environment, or by ``max_steps``, or because the context was full.
    truncated: bool
    #: ``info["success"]`` of the last step if the environment has it; else whether that step earned a reward above 0
    #: and terminated the episode.
    success: bool
    #: What the environment showed last; "" without an environment.
    observation: str
    #: How often it began: 1 + retries.
    attempts: int
    #: Seconds before it ran, and while it ran.
    queued: float
    seconds: float

    @property
    def reward(self) -> float:
        """The sum of all rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def text(self) -> str:
        """All answers, one after the other."""
        return "".join(turn.action for turn in self.turns)


@dataclass
class Counts:
    """What became of rollouts. Each that was submitted is counted once as one of the next five, in the end."""

    submitted: int = 0
    finished: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    #: Those that the engine's end has ended.
    closed: int = 0
    #: Attempts after the first of a rollout.
    retried: int = 0
    #: Attempts that ended because a worker died or was killed, an environment raised, or a backbone failed.
    workers_lost: int = 0
    environment_errors: int = 0
    backbone_errors: int = 0
    #: Sequences whose blocks another one needed. They were computed again.
    preempted: int = 0
    #: Tokens of answers, also of those whose rollout failed.
    tokens: int = 0

    @property
    def ended(self) -> dict[str, int]:
        """How many rollouts have ended, by how."""
        return {name: getattr(self, name) for name in ("finished", "failed", "timed_out", "cancelled", "closed")}

    def end(self, error: BaseException) -> None:
        """Counts a rollout that has ended so."""
        if isinstance(error, asyncio.CancelledError):
            self.cancelled += 1
        elif isinstance(error, TimeoutError):
            self.timed_out += 1
        elif isinstance(error, ConnectionClosedError):
            self.closed += 1
        else:
            self.failed += 1


@dataclass(frozen=True)
class Answer:
    """What a backbone has answered in one turn."""

    text: str
    tokens: list[int]
    log_probs: list[float]
    context_length: int
    reused: int
    version: int
    length: int

    def turn(self, observation: str, reward: float, read: list[int]) -> Turn:
        """The step of a rollout that it was: to what it answered, what it earned, and the tokens read before it."""
        return Turn(
            observation,
            self.text,
            reward,
            read,
            self.tokens,
            self.log_probs,
            self.context_length,
            self.reused,
            self.version,
            self.length,
        )
