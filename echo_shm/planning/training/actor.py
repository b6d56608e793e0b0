"""An actor: it plays some environments together, and says what each row of a segment is."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.planner import LatentPlanner
from echo_shm.planning.agents.segments import row_example
from echo_shm.planning.training.text_view import left_out
from echo_shm.spec import Array

with needs("planning.training", "PyTorch", "torch", extra="planning-agents"):
    import torch

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    from gymnasium.vector import SyncVectorEnv


def rollout_example(envs: int, window: int, length: int, state_dim: int) -> dict[str, Any]:
    """One rollout of an actor, as a tree of arrays: what a ring's samples are.

    The leaves of a row have two more dimensions ``(envs, window + length + 1)``, and there are two of steps alone,
    ``(envs, length)``: ``episode_return``, NaN where no episode ends, ``success`` and ``cut``.
    """
    rows = {
        name: np.zeros((envs, window + length + 1, *leaf.shape), leaf.dtype)
        for name, leaf in row_example(state_dim).items()
    }
    shape = envs, length
    flags = {"success": np.zeros(shape, np.bool_), "cut": np.zeros(shape, np.bool_)}
    return {**rows, "episode_return": np.zeros(shape, np.float32), **flags}


class Played(NamedTuple):
    """What n environments have played at the same time."""

    #: A row of each, as :func:`row_example`, with a leading n.
    row: dict[str, Array]
    #: ``(n,)``: the return of an episode that has ended in it; NaN elsewhere.
    episode_return: Array
    #: bool ``(n,)``: whether it ended with a success.
    success: Array
    #: bool ``(n,)``: whether some of the text was left out that the step was chosen by.
    cut: Array
    #: float32 ``(n, embedding_dim)``; None without an encoder.
    plans: Array | None


class Actor:
    """Plays environments with a planner.

    Args:
        envs: Environments that reset in the call after an episode's end: ``AutoresetMode.NEXT_STEP``. They are the
            caller's to close.
        planner: Its weights may change between two steps. It computes on processors.
        seed: Of the environments and of the actions.
        success_return: The return that is a success where the environment does not say so. None: anything above 0.

    """

    def __init__(
        self, envs: SyncVectorEnv, planner: LatentPlanner, seed: int, success_return: float | None = None
    ) -> None:
        self._envs: Any = envs
        self._planner = planner
        self._least = math.nextafter(0.0, 1.0) if success_return is None else success_return
        self._generator = torch.Generator().manual_seed(seed)
        n = envs.num_envs
        begun: tuple[Array, dict[str, Any]] = self._envs.reset(seed=seed)
        self._obs, self._cut = _float(begun[0]), left_out(begun[1], n)
        self._first, self._over = np.ones(n, bool), np.zeros(n, bool)
        self._returns = np.zeros(n)
        window = planner.config.state_window_size
        self._windows = np.zeros((n, window, self._obs.shape[1]), np.float32)
        self._mask = np.zeros((n, window), bool)
        #: How many updates the planner has made.
        self.updates = 0
        # The last rows of the rollout before: what the first windows of the next one need.
        self._before: dict[str, Array] = {}

    def step(self) -> Played:
        """Plays one step of each environment, or resets it."""
        obs, over, first = self._obs, self._over, self._first
        self._windows = np.roll(self._windows, -1, axis=1)
        self._mask = np.roll(self._mask, -1, axis=1) & ~first[:, None]
        self._windows[:, -1], self._mask[:, -1] = obs, True
        done = self._planner.act(torch.from_numpy(self._windows), torch.from_numpy(self._mask), self._generator)
        action, log_prob = done.action.numpy(), done.log_prob.numpy()
        after, reward, terminated, truncated, infos = self._envs.step(action)
        acted = ~over
        self._returns = np.where(first, 0.0, self._returns) + np.where(acted, reward, 0.0)
        ended = (terminated | truncated) & acted
        row = {
            "obs": obs,
            "action": action * acted,
            "log_prob": log_prob * acted,
            "reward": np.where(acted, reward, 0.0).astype(np.float32),
            "terminated": terminated & acted,
            "update": np.where(acted, self.updates, 0),
            "acted": acted,
            "first": first,
        }
        success = ended & said_success(infos, self._returns >= self._least)
        plans = None if done.plans is None else done.plans.numpy()
        played = Played(row, np.where(ended, self._returns, np.nan), success, self._cut & acted, plans)
        self._obs, self._first, self._over = _float(after), over, ended
        self._cut = left_out(infos, len(ended))
        return played

    def rollout(self, length: int, into: Mapping[str, Array]) -> int:
        """Plays ``length`` rows of each environment into the arrays of :func:`rollout_example`.

        The rows before them are those of the rollout before, with nothing done. Returns how many steps there are.
        """
        window = self._planner.config.state_window_size
        names = [*row_example(0)]
        for name in names:
            into[name][:, :window] = self._before.get(name, 0)
        into["acted"][:, :window] = False
        for t in range(length):
            played = self.step()
            into["episode_return"][:, t], into["success"][:, t] = played.episode_return, played.success
            into["cut"][:, t] = played.cut
            for name in names:
                into[name][:, window + t] = played.row[name]
        into["obs"][:, -1], into["first"][:, -1] = self._obs, self._first
        for name in names:
            if name not in ("obs", "first"):
                into[name][:, -1] = 0
        steps = int(into["acted"].sum())
        self._before = {name: into[name][:, length : length + window].copy() for name in names}
        return steps


def said_success(infos: Mapping[str, Any], otherwise: Array) -> Array:
    """What environments say of a success, ``(n,)``; and for those that say nothing, what is given."""
    for name in ("is_success", "success"):
        if name in infos:
            said: Array = np.where(infos[f"_{name}"], np.asarray(infos[name], bool), otherwise)
            return said
    return otherwise


def _float(observations: Array) -> Array:
    """A copy of them, float32: the environments write into theirs."""
    return np.array(observations, np.float32).reshape(len(observations), -1)
