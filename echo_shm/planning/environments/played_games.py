"""What an environment does that plays games of the package ``textworld``: its own, and ALFWorld's."""

from collections.abc import Mapping
from typing import Any

from echo_shm.planning.environments.common import (
    LONGEST_ACTION,
    LONGEST_OBSERVATION,
    Environment,
    Strings,
    observed,
    text,
)
from echo_shm.planning.environments.configs import EnvironmentConfig


class PlayedGames(Environment[str, str]):
    """Plays one of some games an episode. A class below starts them.

    Args:
        config: Its ``max_steps`` and ``seed``.
        games: How many games there are.

    """

    def __init__(self, config: EnvironmentConfig, games: int) -> None:
        super().__init__(config)
        self.observation_space = Strings(LONGEST_OBSERVATION)
        self.action_space = Strings(LONGEST_ACTION)
        self._games = games
        self._playing = -1  # which game
        self._game: Any = None  # a textworld.Environment
        self._score = 0.0

    def _start(self, game: int) -> Any:
        """The game of a number, as a ``textworld.Environment``."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins a game. ``options={"game": n}`` is the one of that number."""
        game = self._begin(seed, options, self._games)
        if game != self._playing:
            self._stop()
            self._game, self._playing = self._start(game), game
        state = self._game.reset()
        self._score = 0.0
        return self._said(state), self._info(state)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what a command says. The game itself answers one that it does not know."""
        command = text(action)
        truncated = self._count()
        # A game reads one line, of printable characters.
        words = " ".join("".join(one if one.isprintable() else " " for one in command).split())
        state, _, done = self._game.step(words or "look")
        info = self._info(state)
        score = float(info["success"]) if state.max_score is None else float(state.score) / float(state.max_score)
        reward, self._score = score - self._score, score
        over = bool(done or info["success"])
        if over:
            self._end()
        return self._said(state), reward, over, truncated and not over, info

    def _said(self, state: Any) -> str:
        """What the game has said."""
        return observed(str(state.feedback).strip())

    def close(self) -> None:
        """Ends the game."""
        self._stop()

    def _stop(self) -> None:
        if self._game is not None:
            self._game.close()
        self._game, self._playing = None, -1

    def _info(self, state: Any) -> dict[str, Any]:
        return {"admissible_commands": tuple(state.admissible_commands or ()), "success": bool(state.won)}
