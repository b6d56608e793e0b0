"""Text environments as agents see them: tokens of a fixed length, and commands that are counted."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import TextConfig
from echo_shm.planning.environments.vocabulary import HashedWords, Vocabulary
from echo_shm.spec import Array

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    import gymnasium
    from gymnasium.spaces import Box, Discrete


class Words(Protocol):
    """Texts as their numbers. The first four are ``Vocabulary``'s ``<pad>``, ``<end>``, ``<unknown>`` and ``<act>``."""

    def __len__(self) -> int:
        """Tokens are below it."""
        ...

    def encode(self, words: str, /) -> list[int]:
        """A text's tokens."""
        ...


class CommandView(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of texts and commands, as arrays.

    An observation is float32 ``(max_tokens,)``, which has tokens exactly: the observation's text, ``<end>``, and each
    of ``info["admissible_commands"]`` followed by ``<act>``; the rest is ``<pad>``, which is 0. Commands are in the
    environment's order. An action is the number of a command.

    What does not fit is left out: commands beyond ``max_commands``, commands from the first one that has no room, and
    the end of a text that has no room before its commands. ``info["left_out"]`` says how many commands and tokens that
    were. A command that is left out cannot be chosen. Nor can one whose number is beyond those that there are:
    :class:`~echo_shm.planning.agents.policies.CommandPolicy` never does; if somebody else does, the environment gets an
    empty command, which changes nothing and counts as a step. Where no command is possible, the empty one is.

    Words are numbered by the environment's ``vocabulary``, if it has one, and otherwise by :class:`HashedWords`. A word
    that looks like one of the four marks is ``<unknown>``.

    Args:
        env: Its observations and actions are strings.
        config: The sizes.

    Raises:
        ValueError: In ``reset()``: the environment lists no admissible commands, since it takes free text there.

    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", config: TextConfig) -> None:
        super().__init__(env)
        own = getattr(env.unwrapped, "vocabulary", None)
        self.words: Words = own if isinstance(own, Vocabulary) else HashedWords(config.word_numbers)
        self._tokens, self._most = config.max_tokens, config.max_commands
        self.observation_space = Box(0, len(self.words) - 1, (config.max_tokens,), np.float32)
        self.action_space = Discrete(config.max_commands)
        #: Those that can be chosen now.
        self.commands: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins an episode."""
        words, info = self.env.reset(seed=seed, options=options)
        if not info.get("admissible_commands"):
            name, key = type(self.env.unwrapped).__name__, "info['admissible_commands']"
            has = f"lists no command in {key}" if "admissible_commands" in info else f"has no {key}"
            raise ValueError(
                f"{name} {has} when an episode begins: an agent that is trained here chooses among commands; use an "
                "environment that lists them"
            )
        return self._see(words, info), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        """Gives the command of that number."""
        command = self.commands[action] if 0 <= action < len(self.commands) else ""
        words, reward, terminated, truncated, info = self.env.step(command)
        return self._see(words, info), reward, terminated, truncated, info

    def _see(self, words: str, info: dict[str, Any]) -> Array:
        """The tokens. From then on the info says what was left out."""
        given = tuple(info.get("admissible_commands") or ("",))
        room = self._tokens - 1  # one is for <end>
        tail: list[int] = []
        shown = 0
        for command in given[: self._most]:
            tokens = self._encode(command)
            if len(tail) + len(tokens) + 1 > room:
                break
            tail += [*tokens, Vocabulary.act]
            shown += 1
        text = self._encode(words)
        head = text[: room - len(tail)]
        seen = np.zeros(self._tokens, np.float32)
        both = [*head, Vocabulary.end, *tail]
        seen[: len(both)] = both
        self.commands = given[:shown]
        info["left_out"] = len(given) - shown + len(text) - len(head)
        return seen

    def _encode(self, words: str) -> list[int]:
        return [token if token > Vocabulary.act else Vocabulary.unknown for token in self.words.encode(words)]


def left_out(infos: Mapping[str, Any], n: int) -> Array:
    """Of which of n environments something was left out: bool ``(n,)``."""
    return np.asarray(infos.get("left_out", np.zeros(n))) > 0
