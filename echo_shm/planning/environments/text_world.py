"""A small text world of our own, without any dependency but Gymnasium."""

from collections.abc import Mapping, Sequence
from typing import Any

from echo_shm.planning.environments.common import (
    LONGEST_ACTION,
    LONGEST_OBSERVATION,
    Environment,
    Strings,
    text,
)
from echo_shm.planning.environments.configs import TextWorldConfig, configured
from echo_shm.planning.environments.text_world_maker import MOST, VOCABULARY, make_world
from echo_shm.planning.environments.text_world_rules import Command, World, walkthrough
from echo_shm.planning.environments.vocabulary import Vocabulary


class TextWorld(Environment[str, str]):
    """Rooms, doors, containers, keys and a goal, in words.

    What of the originals it is: commands and sentences in the manner of TextWorld (Côté et al. 2018, arXiv:1806.11532),
    tasks in the manner of ALFWorld's pick and place (Shridhar et al. 2021, arXiv:2010.03768). What it is not: it has no
    text, game or number of theirs, and results in it say nothing about results in them. It is made to be played by the
    million: a step takes microseconds.

    Observations and actions are strings: commands such as ``go north``, ``take red key``, ``take apple from oak
    chest``, ``put apple in oak chest``, ``unlock red door with red key``, ``open oak chest``, ``close oak chest``,
    ``drop apple``, ``look``, ``inventory``. Another string changes nothing, and counts as a step. The reward is 1 when
    the goal is reached, which ends the episode, and 0 otherwise. Every world can be solved.

    ``info`` has ``"admissible_commands"`` (a tuple of what can be done now), ``"feedback"`` (what the last command led
    to) and ``"success"``.

    Args:
        config: The sizes; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        ValueError: There are not enough names for so many rooms, containers, doors or things.

    """

    #: Every word of every world.
    vocabulary: Vocabulary = VOCABULARY

    def __init__(self, config: TextWorldConfig | None = None, **fields: Any) -> None:
        self.config = configured(TextWorldConfig, config, fields)
        super().__init__(self.config)
        for name, most in MOST.items():
            if getattr(self.config, name) > most:
                raise ValueError(f"{name}={getattr(self.config, name)}: use at most {most}; there are no more names")
        self.observation_space = Strings(LONGEST_OBSERVATION)
        self.action_space = Strings(LONGEST_ACTION)
        self._world: World | None = None
        self._commands: dict[str, Command] = {}
        self._goal = ""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode in a new world. ``options={"game": n}`` is the world of that number."""
        self._world = world = make_world(self._begin(seed, options), self.config)
        self._goal = world.goal_text()
        self._commands = world.commands()
        feedback = f"{self._goal} {world.room_text()}"
        return (self._full(world) if self.config.full_observations else feedback), self._info(feedback, False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what a command says."""
        world, words = self._world, text(action)
        truncated = self._count()
        assert world is not None  # _count has raised otherwise
        command = self._commands.get(words)
        if command is None:
            feedback, success = "You cannot do that now.", False
        else:
            feedback = world.apply(command)
            self._commands = world.commands()
            success = world.is_done()
        if success:
            self._end()
        observation = self._full(world) if self.config.full_observations else feedback
        return observation, float(success), success, truncated and not success, self._info(feedback, success)

    def walkthrough(self) -> list[str]:
        """Commands that reach the goal from here, for demonstrations. They need not be the fewest.

        Raises:
            ValueError: There was no ``reset()`` yet.

        """
        if self._world is None:
            raise ValueError("there is no world yet: call reset() first")
        return walkthrough(self._world)

    @classmethod
    def encode(cls, words: str) -> list[int]:
        """The tokens of an observation or a command: ints below ``len(TextWorld.vocabulary)``."""
        return cls.vocabulary.encode(words)

    @classmethod
    def decode(cls, tokens: Sequence[int]) -> str:
        """The text of some tokens: of each observation's and command's tokens, itself."""
        return cls.vocabulary.decode(tokens)

    def _full(self, world: World) -> str:
        return f"{self._goal} {world.room_text()} {world.carried_text()}"

    def _info(self, feedback: str, success: bool) -> dict[str, Any]:
        return {"admissible_commands": tuple(self._commands), "feedback": feedback, "success": success}
