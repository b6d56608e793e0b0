"""ALFWorld's games, for who has its data."""

import json
import os
from pathlib import Path
from typing import Any

from echo_shm.missing import needs
from echo_shm.planning.environments.configs import ALFWORLD_TASKS, ALFWorldConfig, AlfworldConfig, configured
from echo_shm.planning.environments.played_games import PlayedGames

__all__ = ["ALFWorldConfig", "ALFWorldEnvironment", "Alfworld", "game_files"]

_HINT = (
    "ALFWorld's data come with its own command: pip install 'echo-shm[alfworld]', then alfworld-download, which fills "
    "the folder $ALFWORLD_DATA (https://github.com/alfworld/alfworld)"
)


class Alfworld(PlayedGames):
    """The text games of ALFWorld (Shridhar et al. 2021, arXiv:2010.03768), played by the package itself.

    What of the original it is: its games, its language and its success. What it is not: the games in THOR, with
    images; the expert's plans; a batch of games. Only games that ALFWorld itself lists are played: those whose file
    says that they can be solved, without movable or sliced things.

    Observations and actions are strings. The reward is 1 when the task is done, which ends the episode, else 0.
    ``info`` has ``"admissible_commands"`` (a tuple) and ``"success"``.

    Args:
        config: Which games; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        ModuleNotFoundError: The package ``alfworld`` is not there.
        FileNotFoundError: Its data are not there. The message says where they come from.
        ValueError: No game fits the configuration.

    """

    def __init__(self, config: AlfworldConfig | None = None, **fields: Any) -> None:
        self.config = configured(AlfworldConfig, config, fields)
        self._files = game_files(self.config)
        with needs("planning.environments.alfworld", "ALFWorld", "alfworld", "textworld", "fast_downward"):
            import fast_downward  # noqa: F401  # textworld says less clearly that it is not there
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        self._textworld, self._demangler = textworld, AlfredDemangler
        super().__init__(self.config, len(self._files))

    def _start(self, game: int) -> Any:
        infos = self._textworld.EnvInfos(admissible_commands=True, won=True, feedback=True)
        return self._textworld.start(str(self._files[game]), infos, wrappers=[self._demangler(shuffle=False)])


class ALFWorldEnvironment(Alfworld):
    """EchoRL's name of :class:`Alfworld`. There, it was one room of its own with three things, and no game of ALFWorld.

    So this one needs ALFWorld's data, and has Gymnasium's ``reset`` and ``step``, whose actions are commands.
    """


def game_files(config: AlfworldConfig) -> list[Path]:
    """The files of the games that fit, in the order of their names. It needs no package.

    Raises:
        FileNotFoundError: The data are not there.
        ValueError: No game fits.

    """
    given = config.path if config.path is not None else os.environ.get("ALFWORLD_DATA")
    if not given:
        raise FileNotFoundError(f"path=None, and ALFWORLD_DATA is not set. {_HINT}")
    folder = Path(os.path.expandvars(given)).expanduser() / "json_2.1.1" / config.split
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there. {_HINT}")
    task = ALFWORLD_TASKS.get(config.task_type, config.task_type)
    files = [path for path in sorted(folder.rglob("game.tw-pddl")) if _fits(path, task, config.max_objects)]
    if not files:
        raise ValueError(
            f"{folder} has no game of task_type={config.task_type!r} with max_objects={config.max_objects}: use 'any' "
            "and None, or fill it with alfworld-download"
        )
    return files


def _fits(game: Path, task: str, max_objects: int | None) -> bool:
    if "movable" in str(game.parent) or "Sliced" in str(game.parent):
        return False
    try:
        about = json.loads(game.with_name("traj_data.json").read_text(encoding="utf-8"))
        if task not in ("any", about["task_type"]):
            return False
        if max_objects is not None and len(about["scene"]["object_poses"]) > max_objects:
            return False
        return bool(json.loads(game.read_text(encoding="utf-8")).get("solvable", False))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{game} or its traj_data.json is not ALFWorld's: {type(error).__name__}: {error}") from None
