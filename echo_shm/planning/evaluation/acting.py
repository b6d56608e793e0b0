"""A text environment as language models play it. Worker processes import this: it needs no PyTorch."""

import re
from collections.abc import Mapping
from typing import Any

from echo_shm.planning import environments

_ACTION = re.compile(r"\baction\s*:", re.IGNORECASE)


def action_of(answer: str) -> str:
    """What stands behind the last ``Action:`` of an answer, up to the end of its line; an empty action without one."""
    *_, last = [0, *(match.end() for match in _ACTION.finditer(answer))]
    return answer[last:].strip().partition("\n")[0].strip() if last else ""


class Acting:
    """A :class:`TextEnvironment` whose actions are the actions in answers.

    What it shows is ``Observation:``, the observation, and the commands that are possible, where the environment lists
    them. An answer without an action is an empty one: it counts as a step.

    Args:
        name: An environment of :mod:`echo_shm.planning.environments`.
        fields: What it is made with.

    """

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.env: Any = getattr(environments, name)(**fields)
        self._is_arc = name == "Arc"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return _shown(observation, info), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what an answer says."""
        done = action_of(action)
        # An action is one line, and ARC's answers are several.
        observation, *rest, info = self.env.step(done.replace("/", "\n") if self._is_arc else done)
        return _shown(observation, info), *rest, info

    def close(self) -> None:
        """Ends it."""
        self.env.close()


def _shown(observation: str, info: Mapping[str, Any]) -> str:
    commands = info.get("admissible_commands")
    listed = f" Commands: {', '.join(commands)}." if commands else ""
    return f"Observation: {observation}{listed}"
