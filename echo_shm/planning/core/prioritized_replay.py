"""EchoRL's names of the replay with a hot and a cold part."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from echo_shm.planning.agents.configs import ReplayConfig
from echo_shm.planning.hot_cold import HotColdReplay
from echo_shm.replay.validation import integer
from echo_shm.spec import Array

__all__ = ["Experience", "HotColdBuffer", "PrioritizedReplayBuffer", "ReplayConfig"]

#: Of the memory that is free when the first step comes: what a buffer takes at most. And what the tables take for an
#: item, beside its step, in bytes: rather more than it is.
_SHARE, _PER_ITEM = 0.5, 256


@dataclasses.dataclass(frozen=True)
class Experience:
    """A step. There, its arrays were tensors; here they are numpy's, and tensors are taken, too."""

    state: Any
    latent_plan: Any
    action: Any
    reward: float
    next_state: Any
    done: bool
    #: The score with which it is drawn. None: its surprise, when it is added.
    priority: float | None = None

    def step(self) -> dict[str, Array]:
        """What the replay stores."""
        leaves = {"state": self.state, "plan": self.latent_plan, "action": self.action, "next_state": self.next_state}
        step = {name: _array(leaf) for name, leaf in leaves.items()}
        return {**step, "reward": np.asarray(self.reward, np.float32), "done": np.asarray(self.done, np.bool_)}


class HotColdBuffer:
    """A :class:`HotColdReplay` of :class:`Experience` with EchoRL's names.

    There, a full part lost its highest priority, and updates of priorities did nothing; here both are as of
    :class:`HotColdReplay`. The replay is made with the first step, whose shapes all others have. What it may hold is
    set aside then: where ``config`` asks for more than half of the memory that is free, both are cut, and a warning
    says so.

    Args:
        config: Sizes and weights.

    Attributes:
        replay: The real one; None before the first step.

    """

    def __init__(self, config: ReplayConfig) -> None:
        if config.sampling != "surprise":
            raise ValueError(f"sampling={config.sampling!r}: these buffers draw by 'surprise'; use a Replay otherwise")
        self.config = config
        self.replay: HotColdReplay | None = None

    def add_experience(self, experience: Experience) -> None:
        """Stores a step, which is hot.

        Raises:
            ValueError: Its shapes are not those of the first one, or a number is not finite.

        """
        step = experience.step()
        if self.replay is None:
            self.replay = self._made(step)
        self.replay.add(step, experience.priority, terminated=bool(experience.done))

    def sample_experiences(
        self, batch_size: int, temperature: float | None = None
    ) -> tuple[list[Experience], list[float]]:
        """Draws steps from both parts, with their importance weights ``(N * P) ** -beta``; none while it is empty.

        Args:
            batch_size: Draws, at least 1.
            temperature: That of the configuration, or None: the trees of the replay are built for one.

        Raises:
            ValueError: The temperature is another one.

        """
        if temperature not in (None, self.config.temperature):
            raise ValueError(
                f"temperature={temperature!r}: this buffer draws at {self.config.temperature}, for which it is built; "
                "use ReplayConfig(temperature=...)"
            )
        if self.replay is None:
            integer("batch_size", batch_size, 1)
            return [], []
        batch = self.replay.sample(batch_size)
        assert batch is not None
        data: Any = batch.data
        names = ("state", "plan", "action", "reward", "next_state", "done")
        rows = zip(*(data[name] for name in names), batch.priority.tolist(), strict=True)
        return [_experience(*row) for row in rows], batch.weight.tolist()

    def get_statistics(self) -> dict[str, int]:
        """The sizes of both parts, and how many steps became cold."""
        if self.replay is None:
            return {"hot_buffer_size": 0, "cold_buffer_size": 0, "total_size": 0, "moved": 0}
        parts = self.replay.parts
        hot, cold = parts.hot.size, parts.cold.size
        return {"hot_buffer_size": hot, "cold_buffer_size": cold, "total_size": hot + cold, "moved": parts.moved}

    def close(self) -> None:
        """Gives the memory back."""
        if self.replay is not None:
            self.replay.close()

    def _made(self, step: dict[str, Array]) -> HotColdReplay:
        config = self.config
        hot, cold = _fitting(config, sum(leaf.nbytes for leaf in step.values()))
        return HotColdReplay(
            step,
            hot,
            cold,
            plan_weight=config.plan_weight,
            reward_weight=config.reward_weight,
            age_threshold=config.age_threshold,
            temperature=config.temperature,
            target_effective=config.target_effective,
            beta=config.beta,
        )


class PrioritizedReplayBuffer:
    """A :class:`HotColdBuffer` that is given the parts of a step, by EchoRL's name.

    Args:
        config: Sizes and weights. There, nothing was drawn before 1,000 steps were there; here, from the first on.
        latent_dim: Numbers of a plan.

    Attributes:
        hot_cold_buffer: What it keeps steps in.

    """

    def __init__(self, config: ReplayConfig, latent_dim: int = 512) -> None:
        self.config, self._latent_dim = config, integer("latent_dim", latent_dim, 1)
        self.hot_cold_buffer = HotColdBuffer(config)

    def add_experience(
        self, state: Any, latent_plan: Any, action: Any, reward: float, next_state: Any, done: bool
    ) -> None:
        """Stores a step with its surprise for a score: see :class:`HotColdReplay`.

        There, the shared plan had taken a plan before it was compared with it.

        Args:
            state, next_state: Arrays or tensors of any shape; the same for all steps.
            latent_plan: ``(latent_dim,)``; a leading 1 is left out.
            action: A number, or an array.
            reward: What the step earned.
            done: Whether it ended its episode.

        """
        plan = _array(latent_plan).reshape(-1)
        if plan.shape != (self._latent_dim,):
            raise ValueError(f"latent_plan has {plan.size} numbers: use {self._latent_dim}, or give latent_dim")
        self.hot_cold_buffer.add_experience(Experience(state, plan, action, float(reward), next_state, bool(done)))

    def sample_batch(self, batch_size: int, temperature: float | None = None) -> tuple[list[Experience], list[float]]:
        """See :meth:`HotColdBuffer.sample_experiences`."""
        return self.hot_cold_buffer.sample_experiences(batch_size, temperature)

    def update_experience_ages(self) -> None:
        """All steps are one update of the learner older: :meth:`HotColdReplay.learned`."""
        if self.hot_cold_buffer.replay is not None:
            self.hot_cold_buffer.replay.learned()

    def close(self) -> None:
        """Gives the memory back."""
        self.hot_cold_buffer.close()


def _array(value: Any) -> Array:
    """An array of an array, a number or a tensor, wherever that is."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _experience(
    state: Any, plan: Any, action: Any, reward: Any, next_state: Any, done: Any, priority: float
) -> Experience:
    return Experience(state, plan, action, float(reward), next_state, bool(done), priority)


def _fitting(config: ReplayConfig, step: int) -> Sequence[int]:
    """The sizes of both parts, cut in proportion where steps of so many bytes would not fit into memory."""
    hot, cold = config.hot_buffer_size, config.cold_buffer_size
    most = int(_SHARE * psutil.virtual_memory().available / (step + _PER_ITEM))
    if hot + cold <= most:
        return hot, cold
    share = most / (hot + cold)
    cut = max(1, int(hot * share)), max(1, int(cold * share))
    warnings.warn(
        f"hot_buffer_size={hot} and cold_buffer_size={cold}: {hot + cold:,} steps of {step:,} bytes do not fit into "
        f"memory; they are {cut[0]:,} and {cut[1]:,} now: use a smaller ReplayConfig",
        stacklevel=5,
    )
    return cut
