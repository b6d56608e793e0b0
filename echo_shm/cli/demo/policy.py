"""What the demo learns: a linear policy, by a few lines of policy gradient in numpy.

The gradient is REINFORCE with normalised returns: R. J. Williams, "Simple statistical gradient-following algorithms for
connectionist reinforcement learning", Machine Learning 8, 1992.
"""

import collections
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from echo_shm.spec import Array

#: The policy's parameters: ``weight`` of shape (observations, actions) and ``bias`` of shape (actions,).
Params = dict[str, Array]

#: By how much the next step's return counts.
_DISCOUNT = 0.97

#: An update takes so many episodes, and at least so many steps.
_EPISODES, _STEPS = 8, 1024

#: How far one update goes, whatever the scale of the rewards.
_STEP_SIZE = 0.3

#: Over how many of the last episodes the return is shown.
_SHOWN = 100


def learning_for(transition: Mapping[str, Array], num_actions: int | None) -> "Learning | None":
    """Learns in an environment whose observations are vectors of floats, and whose actions are numbers; else None.

    Args:
        transition: The arrays of one transition, with ``obs``.
        num_actions: How many actions there are, from 0 on; None: they are no such numbers.

    """
    obs = transition["obs"]
    if num_actions is None or obs.ndim != 1 or obs.dtype.kind != "f":
        return None
    return Learning({"weight": np.zeros((obs.size, num_actions)), "bias": np.zeros(num_actions)})


def probabilities(params: Params, obs: Array) -> Array:
    """How likely each action is. ``obs`` of shape (..., observations) gives (..., actions)."""
    logits = obs @ params["weight"] + params["bias"]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    likely: Array = odds / odds.sum(-1, keepdims=True)
    return likely


def choose(params: Params, obs: Array, number: float) -> int:
    """An action, drawn with a random number from [0, 1)."""
    below = probabilities(params, obs).cumsum()
    return min(int(below.searchsorted(number * below[-1], side="right")), len(below) - 1)


class Learning:
    """Makes episodes of what comes in, and improves the policy after every few of them.

    Args:
        params: The policy. It is changed in place.

    Attributes:
        params: The policy.
        first: The mean return of the episodes before the first update; None until then.
        best: The highest mean of the last hundred returns.

    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.first: float | None = None
        self.best = 0.0
        self._open: dict[int, list[tuple[Array, Array, Array]]] = collections.defaultdict(list)
        self._ready: list[tuple[Array, Array, Array]] = []
        self._returns: collections.deque[float] = collections.deque(maxlen=_SHOWN)

    @property
    def mean_return(self) -> float:
        """The mean return of the last hundred episodes; 0 before the first has ended."""
        return float(np.mean(self._returns)) if self._returns else 0.0

    def add(self, batch: Mapping[str, Array]) -> bool:
        """Takes a batch of transitions. Returns whether the policy has changed."""
        done = batch["terminated"] | batch["truncated"]
        for worker in np.unique(batch["worker"]).tolist():
            mine = np.flatnonzero(batch["worker"] == worker)
            pieces = np.split(mine, np.flatnonzero(done[mine]) + 1)
            for index, piece in enumerate(pieces):
                self._open[worker].append((batch["obs"][piece], batch["action"][piece], batch["reward"][piece]))
                if index < len(pieces) - 1:
                    self._end_episode(self._open.pop(worker))
        if len(self._ready) < _EPISODES or sum(len(returns) for _, _, returns in self._ready) < _STEPS:
            return False
        self._improve()
        return True

    def _end_episode(self, parts: list[tuple[Array, Array, Array]]) -> None:
        obs, action, reward = map(np.concatenate, zip(*parts, strict=True))
        self._returns.append(float(reward.sum()))
        self._ready.append((obs, action, np.array(list(_discounted(reward)))[::-1]))

    def _improve(self) -> None:
        if self.first is None:
            self.first = self.mean_return
        self.best = max(self.best, self.mean_return)
        obs, action, returns = map(np.concatenate, zip(*self._ready, strict=True))
        self._ready.clear()
        better = (returns - returns.mean()) / (returns.std() + 1e-8)
        surprise = (np.eye(len(self.params["bias"]))[action] - probabilities(self.params, obs)) * better[:, None]
        gradient = {"weight": obs.T @ surprise, "bias": surprise.sum(0)}
        size = np.sqrt(sum(np.square(part).sum() for part in gradient.values())) + 1e-8
        for name, part in gradient.items():
            self.params[name] += _STEP_SIZE / size * part


def _discounted(reward: Array) -> Iterator[float]:
    """The returns from each step on, the last step first."""
    return itertools.accumulate(reversed(reward.tolist()), lambda later, now: now + _DISCOUNT * later)
