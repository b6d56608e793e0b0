"""The replay buffer of CleanRL's scripts. One line changes::

    from echo_shm.adapters.cleanrl import ReplayBuffer  # was: from cleanrl_utils.buffers import ReplayBuffer

It needs PyTorch; neither CleanRL nor Stable-Baselines3.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from echo_shm.adapters.transitions import Transitions
from echo_shm.missing import needs

with needs("adapters.cleanrl", "PyTorch", "torch"):
    import torch

__all__ = ["ReplayBuffer", "ReplayBufferSamples"]


class ReplayBufferSamples(NamedTuple):
    """A batch of n transitions. All but the observations have shape (n, 1), and actions (n, their dimensions)."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayBuffer:
    """What CleanRL's off-policy scripts make, fill and draw from, over an echo_shm :class:`Replay`.

    Args:
        buffer_size: Transitions of all environments together.
        observation_space, action_space: Of one environment: Gymnasium's, or whatever has ``shape`` and ``dtype``.
        device: Where a batch's tensors are. On the CPU they are the batch's own memory.
        n_envs: How many environments are stepped together.
        optimize_memory_usage: It has no effect: observations are stored once in any case.
        handle_timeout_termination: Steps whose ``infos`` have ``"TimeLimit.truncated"`` do not count as done. False:
            for scripts that pass the terminations alone.
        stack: Of so many frames an observation consists, the newest one at the end of its first dimension. Only that
            one is stored. For environments in a ``FrameStack``.
        pad: What such a stack begins with: ``"first"``, the episode's first frame, or ``"zero"``.

    Raises:
        ValueError: A number is out of range, or the observations cannot be stacked.

    A transition can be drawn once the next step of its environment is there, or its episode has ended.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        stack: int = 1,
        pad: Literal["zero", "first"] = "first",
    ) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.buffer_size, self.n_envs = max(buffer_size // n_envs, 1), n_envs
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.pos, self.full = 0, False
        kind = np.float32 if action_space.dtype == np.float64 else action_space.dtype  # as CleanRL has it
        self._transitions = Transitions(
            np.zeros(observation_space.shape or (1,), observation_space.dtype),
            np.zeros(int(np.prod(action_space.shape)), kind),
            self.buffer_size * n_envs,
            n_envs,
            stack=stack,
            pad=pad,
        )

    @property
    def replay(self) -> Any:
        """The :class:`Replay`: ``replay.info()`` has its figures."""
        return self._transitions.replay

    def size(self) -> int:
        """How many steps of each environment there are; at most ``buffer_size``."""
        return self.buffer_size if self.full else self.pos

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Stores copies of one step of each environment.

        Args:
            obs, next_obs: The observations before and after it, with a leading n. Where an episode ends: the last ones,
                which scripts call ``real_next_obs``.
            action, reward, done: Arrays with a leading n.
            infos: A list of a dict for each environment, or Gymnasium's dict of arrays.

        Raises:
            ValueError: A shape is not that of the spaces and ``n_envs``. Nothing was stored.

        """
        timeouts = _timeouts(infos, self.n_envs) if self.handle_timeout_termination else [False] * self.n_envs
        self._transitions.add(obs, next_obs, action, reward, done, timeouts)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """Draws transitions, each as likely as any other.

        Raises:
            ValueError: The buffer is empty.

        """
        data = self._transitions.sample(batch_size).data
        arrays = (
            self._transitions.observations.drawn(data["obs"]),
            data["action"],
            self._transitions.observations.drawn(data["next"]["obs"]),
            (data["discount"] == 0).astype(np.float32).reshape(-1, 1),
            data["reward"].reshape(-1, 1),
        )
        return ReplayBufferSamples(*(torch.as_tensor(array, device=self.device) for array in arrays))

    def reset(self) -> None:
        """Forgets everything."""
        self.pos, self.full = 0, False
        self._transitions.reset()

    def close(self) -> None:
        """Ends it, and gives its memory back. Without it that happens with the last reference."""
        self._transitions.close()


def _timeouts(infos: Any, n: int) -> Sequence[bool]:
    """Which steps were cut by a time limit."""
    if isinstance(infos, Mapping):
        flags: list[bool] = np.asarray(infos.get("TimeLimit.truncated", np.zeros(n)), bool).reshape(-1).tolist()
        return flags
    return [bool(info.get("TimeLimit.truncated", False)) for info in infos]
