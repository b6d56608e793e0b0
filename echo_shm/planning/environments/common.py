"""What all environments share: seeds, the end of an episode, and spaces of strings."""

import string
from collections.abc import Mapping
from typing import Any, TypeVar

from echo_shm.missing import needs
from echo_shm.planning.environments.configs import EnvironmentConfig

with needs("planning.environments", "Gymnasium", "gymnasium", extra="planning-environments"):
    import gymnasium
    from gymnasium import spaces

ObsT = TypeVar("ObsT")
ActT = TypeVar("ActT")

#: How many characters an observation may have.
LONGEST_OBSERVATION = 1 << 16
#: How many characters an action may have. A longer one is refused as any other nonsense is.
LONGEST_ACTION = 1 << 12


class Strings(spaces.Text):
    """All strings of up to ``max_length`` characters, whatever they are. Samples are printable ASCII, and short."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=frozenset(string.printable))

    def contains(self, x: Any) -> bool:
        """Whether it is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random string of up to 40 characters."""
        length = int(self.np_random.integers(min(40, self.max_length) + 1))
        characters = self.np_random.choice(list(string.printable), size=length)
        return "".join(str(one) for one in characters)


class Environment(gymnasium.Env[ObsT, ActT]):
    """Seeds an episode, and knows when it is over.

    ``info["success"]`` says after each step whether the episode's goal is reached. ``reset(options={"game": n})`` plays
    the episode of number n, whatever the seed is.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._first_seed = config.seed
        self._max_steps: int | None = config.max_steps
        self._steps = -1  # no episode

    def _begin(self, seed: int | None, options: Mapping[str, Any] | None, games: int = 2**31) -> int:
        """Begins an episode; its number, below ``games``.

        Raises:
            ValueError: ``options`` has a number that is out of range, or something else.

        """
        if seed is None:
            seed = self._first_seed
        self._first_seed = None
        super().reset(seed=seed)
        self._steps = 0
        options = options or {}
        for name in options:
            if name != "game":
                raise ValueError(f"options={options!r:.200}: use {{'game': number}}, or nothing")
        drawn = int(self.np_random.integers(games))
        game = options.get("game", drawn)
        if isinstance(game, bool) or not isinstance(game, int) or not 0 <= game < games:
            raise ValueError(f"options['game']={game!r:.200}: use an integer, 0 to {games - 1}")
        return game

    def _count(self) -> bool:
        """Counts a step, whose action must have been found good; whether the episode is truncated after it.

        Raises:
            gymnasium.error.ResetNeeded: There is no episode, or it is over.

        """
        if self._steps < 0:
            raise gymnasium.error.ResetNeeded("there is no episode, or it is over: call reset() before step()")
        self._steps += 1
        if self._steps == self._max_steps:
            self._steps = -1
            return True
        return False

    def _end(self) -> None:
        """The episode is over: the next call is ``reset()``."""
        self._steps = -1


def text(action: object) -> str:
    """The action of an environment whose actions are strings.

    Raises:
        TypeError: It is no string.

    """
    if not isinstance(action, str):
        raise TypeError(f"action={action!r:.200}: use a string, as {Strings.__name__}({LONGEST_ACTION}) has them")
    return action[:LONGEST_ACTION]


def observed(words: str) -> str:
    """An observation, cut to the length that its space allows."""
    return words[:LONGEST_OBSERVATION]
