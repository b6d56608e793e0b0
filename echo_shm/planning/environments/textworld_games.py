"""Games that the package ``textworld`` generates."""

import os
import re
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

from echo_shm.missing import needs
from echo_shm.planning.environments.common import observed
from echo_shm.planning.environments.configs import TextWorldGamesConfig, configured
from echo_shm.planning.environments.played_games import PlayedGames

with needs("planning.environments.textworld_games", "TextWorld", "textworld", extra="textworld"):
    import textworld


#: What a game says beside its story: the title, in large letters made of dollar signs, and the prompt with its status.
_TITLE, _PROMPT = re.compile(r".*\$\$[^\n]*\n", re.DOTALL), re.compile(r"\n>[^\n]*$")


class TextWorldGames(PlayedGames):
    """Games of TextWorld (Côté et al. 2018, arXiv:1806.11532), generated and played by the package itself.

    What of the original it is: the generator, the language, the interpreter and the score. What it is not: the games of
    a benchmark. The game of number n is generated from the seed n and the sizes.

    Observations and actions are strings. The reward is the share of the greatest score that a step brings, so that they
    sum to 1 for a game that is won. ``info`` has ``"admissible_commands"`` (a tuple) and ``"success"``.

    A game is compiled by Inform 7 when it is first played, which takes seconds; its files lie in a temporary folder,
    which is removed with the environment. A process that is killed leaves the folder behind.

    Args:
        config: The sizes; None: the defaults.
        fields: Fields of the configuration.

    """

    def __init__(self, config: TextWorldGamesConfig | None = None, **fields: Any) -> None:
        self.config = configured(TextWorldGamesConfig, config, fields)
        super().__init__(self.config, self.config.games)
        self._folder = tempfile.mkdtemp(prefix="echo_shm_textworld_")
        self._removal = weakref.finalize(self, _remove, self._folder, os.getpid())

    def close(self) -> None:
        """Ends the game, and removes what was compiled."""
        super().close()
        self._removal()

    def _start(self, game: int) -> Any:
        Path(self._folder).mkdir(exist_ok=True)  # an environment may be used again after close()
        path = Path(self._folder, f"{game}.z8")
        if not path.exists():
            options = textworld.GameOptions()
            options.seeds = game
            options.nb_rooms = self.config.rooms
            options.nb_objects = self.config.max_objects
            options.quest_length = self.config.quest_length
            options.path = str(path)
            textworld.make(options)
        infos = textworld.EnvInfos(admissible_commands=True, won=True, score=True, max_score=True, feedback=True)
        with warnings.catch_warnings():  # jericho does not know the game's score; TextWorld follows it itself
            warnings.simplefilter("ignore")
            return textworld.start(str(path), infos)

    def _said(self, state: Any) -> str:
        return observed(_PROMPT.sub("", _TITLE.sub("", str(state.feedback)).rstrip()).strip())

    def walkthrough(self) -> list[str]:
        """Commands that win the game from its start, for demonstrations.

        Raises:
            ValueError: There was no ``reset()`` yet.

        """
        if self._playing < 0:
            raise ValueError("there is no game yet: call reset() first")
        game = textworld.Game.load(str(Path(self._folder, f"{self._playing}.json")))
        return [str(command) for command in game.walkthrough]


def _remove(folder: str, maker: int) -> None:
    """Removes the folder, but not in a process that was forked from the one that made it."""
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)
