"""Replay buffers for Stable-Baselines3. :mod:`echo_shm.adapters.sb3_dqn` has a DQN with priorities.

    DQN("CnnPolicy", env, replay_buffer_class=echo_shm.adapters.sb3.ReplayBuffer)

An observation is stored once, and is the next observation of the step before it. Timeouts stay apart from terminations
all the same.
"""

from typing import Any, Literal

import numpy as np

from echo_shm.adapters.transitions import Transitions
from echo_shm.missing import needs
from echo_shm.replay import Prioritized

with needs("adapters.sb3", "Stable-Baselines3", "stable_baselines3", "torch", "gymnasium"):
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

__all__ = ["DictReplayBuffer", "ReplayBuffer"]


class _Ends:
    """What stands for ``dones``: Stable-Baselines3 writes to it where it cuts an episode."""

    def __init__(self, transitions: Transitions) -> None:
        self._transitions = transitions

    def __setitem__(self, index: object, value: object) -> None:
        self._transitions.end_episodes()


class ReplayBuffer(buffers.ReplayBuffer):
    """Stable-Baselines3's ``ReplayBuffer``, and its ``NStepReplayBuffer``, over an echo_shm :class:`Replay`.

    Args:
        buffer_size: Transitions of all environments together.
        observation_space, action_space, device, n_envs: As there.
        optimize_memory_usage: As there: it has no effect. Observations are stored once in any case.
        handle_timeout_termination: As there. It goes with ``optimize_memory_usage``.
        n_steps, gamma: Sums rewards over so many steps, as ``NStepReplayBuffer`` does. A batch has ``discounts`` then.
        stack: Of so many frames an image consists, channels first: only the newest one is stored. For environments in a
            ``VecFrameStack``.
        pad: What such a stack begins with: ``"zero"``, or ``"first"``, the episode's first frame.
        sampler: Priorities, which :meth:`Replay.update` of :attr:`replay` changes. None: uniform.

    Raises:
        ValueError: A number is out of range, or the observations cannot be stacked.

    ``sample()`` draws from all steps that are complete: the last ``n_steps`` of an episode that goes on are not. Its
    tensors are new ones, over the batch's own memory. There are no arrays like ``observations`` or ``rewards`` to look
    into. A pickle, a deepcopy and ``save_replay_buffer`` have all that is stored. ``sample()`` cuts episodes that go on
    if no transition is complete yet.
    """

    dones: Any
    pos: int

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
        pad: Literal["zero", "first"] = "zero",
        *,
        sampler: Prioritized | None = None,
    ) -> None:
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        if n_steps > 1 and "discounts" not in ReplayBufferSamples._fields:
            raise ValueError(f"n_steps={n_steps}: this stable-baselines3 knows no discounts: install 2.7 or newer")
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        dtypes: Any = observation_space
        shape: Any = self.obs_shape
        self._transitions = Transitions(
            {name: np.zeros(one, dtypes[name].dtype) for name, one in shape.items()}
            if isinstance(observation_space, spaces.Dict)
            else np.zeros(shape, dtypes.dtype),
            np.zeros(self.action_dim, self._maybe_cast_dtype(action_space.dtype)),
            self.buffer_size * n_envs,
            n_envs,
            n_steps,
            gamma if n_steps > 1 else 1.0,  # of one step the discount says only whether it was terminated
            stack,
            pad,
            sampler,
        )
        self.dones = _Ends(self._transitions)

    @property
    def replay(self) -> Any:
        """The :class:`Replay`: ``replay.info()`` has its figures."""
        return self._transitions.replay

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Stores copies of one step of each environment. See Stable-Baselines3.

        Raises:
            ValueError: A shape is not that of the spaces and ``n_envs``. Nothing was stored.

        """
        timeouts = [self.handle_timeout_termination and info.get("TimeLimit.truncated", False) for info in infos]
        self._transitions.add(obs, next_obs, action, reward, done, timeouts)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draws transitions as ``ReplayBufferSamples``, or ``DictReplayBufferSamples``.

        Args:
            batch_size: How many.
            env: A ``VecNormalize`` that normalizes observations and rewards; of several steps, their sum.

        Raises:
            ValueError: The buffer is empty.

        """
        fields = self._fields(self._transitions.sample(batch_size), env)
        kind = DictReplayBufferSamples if isinstance(self.observation_space, spaces.Dict) else ReplayBufferSamples
        return kind(**fields)

    def _fields(self, batch: Any, env: Any) -> dict[str, Any]:
        data, made = batch.data, {}
        for name, stored in (("observations", data["obs"]), ("next_observations", data["next"]["obs"])):
            whole: Any = self._normalize_obs(self._transitions.observations.drawn(stored), env)
            is_dict = isinstance(whole, dict)
            made[name] = {k: self._tensor(v) for k, v in whole.items()} if is_dict else self._tensor(whole)
        column = (len(data["reward"]), 1)
        made["actions"] = self._tensor(data["action"])
        made["dones"] = self._tensor((data["discount"] == 0).astype(np.float32).reshape(column))
        made["rewards"] = self._tensor(self._normalize_reward(data["reward"].reshape(column), env))
        if self.n_steps > 1:
            made["discounts"] = self._tensor((self.gamma ** data["n"]).astype(np.float32).reshape(column))
        return made

    def _tensor(self, array: Any) -> torch.Tensor:
        return self.to_torch(array, copy=False)

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        raise NotImplementedError("transitions are drawn by sample(), not by their places in the buffer")

    def reset(self) -> None:
        """Forgets everything."""
        super().reset()
        self._transitions.reset()

    def close(self) -> None:
        """Ends it, and gives its memory back. Without it that happens with the last reference."""
        self._transitions.close()


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):
    """The same for observations that are dicts of arrays."""
