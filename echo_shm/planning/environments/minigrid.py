"""MiniGrid's tasks, seen as symbols, as a vector or as words."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.environments.common import LONGEST_ACTION, LONGEST_OBSERVATION, Environment, Strings, text
from echo_shm.planning.environments.configs import MiniGridConfig, configured
from echo_shm.planning.environments.minigrid_views import COLOURS, OBJECTS, STATES, flat, in_words

with needs("planning.environments.minigrid", "MiniGrid", "minigrid", extra="minigrid"):
    import minigrid.envs as tasks
    from gymnasium import spaces
    from minigrid.core.actions import Actions
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
    from minigrid.core.world_object import Wall
    from minigrid.minigrid_env import MiniGridEnv
    from minigrid.wrappers import FullyObsWrapper

_NUMBERS = [{name: number for number, name in enumerate(names)} for names in (COLOURS, OBJECTS, STATES)]
if [COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX] != _NUMBERS:
    raise ImportError("this version of minigrid numbers its objects in another way: use minigrid 3")

#: What ``"text"`` takes for an action, in the order of MiniGrid's numbers.
ACTIONS = tuple(action.name for action in Actions)


def _key_door(size: int, config: MiniGridConfig) -> MiniGridEnv:
    return tasks.DoorKeyEnv(size=size, max_steps=config.max_steps)


def _navigation(size: int, config: MiniGridConfig) -> MiniGridEnv:
    return tasks.CrossingEnv(
        size=size, num_crossings=config.num_objects, obstacle_type=Wall, max_steps=config.max_steps
    )


#: For each task type: its own grid size, the least size (None: it cannot be chosen), and how it is made.
_TASKS: dict[str, tuple[int, int | None, Callable[[int, MiniGridConfig], MiniGridEnv]]] = {
    "key_door": (8, 5, _key_door),
    "empty": (8, 4, lambda size, config: tasks.EmptyEnv(size=size, max_steps=config.max_steps)),
    "four_rooms": (19, None, lambda size, config: tasks.FourRoomsEnv(max_steps=config.max_steps or 100)),
    "multi_object": (
        8,
        5,
        lambda size, config: tasks.FetchEnv(size=size, numObjs=config.num_objects, max_steps=config.max_steps),
    ),
    "navigation": (9, 5, _navigation),
    "lava_gap": (7, 5, lambda size, config: tasks.LavaGapEnv(size=size, max_steps=config.max_steps)),
    "unlock": (6, None, lambda size, config: tasks.UnlockEnv(max_steps=config.max_steps)),
    "key_corridor": (6, 4, lambda size, config: tasks.KeyCorridorEnv(room_size=size, max_steps=config.max_steps)),
    "memory": (9, 7, lambda size, config: tasks.MemoryEnv(size=size, max_steps=config.max_steps)),
    "moving_obstacles": (8, 5, lambda size, config: tasks.DynamicObstaclesEnv(size=size, max_steps=config.max_steps)),
    "go_to_door": (6, 5, lambda size, config: tasks.GoToDoorEnv(size=size, max_steps=config.max_steps)),
}


class MiniGrid(Environment[Any, Any]):
    """A task of MiniGrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831), from the package ``minigrid`` itself.

    What of the original it is: its grids, rules, actions, rewards (1 - 0.9 * steps / max_steps at the goal, else 0; of
    ``"moving_obstacles"`` also -1 for a collision) and limits on steps. What it is not: ``"flat"`` and ``"text"``
    observations are ours, and ``key_corridor``'s ``grid_size`` is that of a room.

    Task types, and MiniGrid's classes: ``key_door`` (DoorKey), ``empty`` (Empty), ``four_rooms`` (FourRooms),
    ``multi_object`` (Fetch), ``navigation`` (SimpleCrossing), ``lava_gap`` (LavaGap), ``unlock`` (Unlock),
    ``key_corridor`` (KeyCorridor), ``memory`` (Memory), ``moving_obstacles`` (Dynamic-Obstacles), ``go_to_door``
    (GoToDoor).

    Observations, by ``config.observation``, of ``config.view`` (w by h cells: 7 by 7, or the grid):

    - ``"symbolic"``: uint8 ``(w, h, 3)``: MiniGrid's numbers of object, colour and state. The mission is not in it.
    - ``"flat"``: uint8 ``(w * h * 20 + 4 + 17,)`` of zeros and ones: for each cell, which object (11), colour (6) and
      state (3; a door's) it has; the agent's direction; which object and colour is carried. An MLP learns from it.
    - ``"text"``: a string: the mission, the direction, what is carried, what is where. Actions are strings, too:
      ``left``, ``right``, ``forward``, ``pickup``, ``drop``, ``toggle``, ``done``. Another string does nothing,
      and counts as a step.

    Otherwise an action is an int, 0 to 6, in this order (0 to 2 of ``moving_obstacles``). ``info`` has ``"success"`` (a
    reward above 0 has ended the episode), ``"mission"`` and, with text, ``"admissible_commands"``.

    Args:
        config: Which task; None: the defaults.
        fields: Fields of the configuration.

    Raises:
        ValueError: There is no such task, or it cannot have that size.

    """

    def __init__(self, config: MiniGridConfig | None = None, **fields: Any) -> None:
        self.config = config = configured(MiniGridConfig, config, fields)
        super().__init__(config)
        self._max_steps = None  # the task counts
        self._task = _make(config)
        shown = FullyObsWrapper(self._task) if config.view == "full" else self._task
        self._shown: Any = shown  # a gymnasium.Env, not all of which is typed in every version
        image = shown.observation_space["image"]
        assert image.shape is not None
        self._seen: Mapping[str, Any] = {}
        self._actions = int(getattr(self._task.action_space, "n", 7))
        self.action_space = spaces.Discrete(self._actions)
        if config.observation == "text":
            self.observation_space = Strings(LONGEST_OBSERVATION)
            self.action_space = Strings(LONGEST_ACTION)
        elif config.observation == "flat":
            size = flat(np.zeros(image.shape, np.uint8), 0, None).size
            self.observation_space = spaces.Box(0, 1, (size,), np.uint8)
        else:
            self.observation_space = spaces.Box(0, 255, image.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode. ``options={"game": n}`` is the grid that the task makes of the seed n."""
        self._seen, info = self._shown.reset(seed=self._begin(seed, options))
        return self._observation(self._seen), self._info(info, False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one of the task's actions."""
        if self.config.observation == "text":
            words = text(action)
            number = ACTIONS.index(words) if words in ACTIONS[: self._actions] else None
        else:
            number = int(action)
            if not 0 <= number < self._actions:
                raise ValueError(f"action={action!r:.200}: use 0 to {self._actions - 1}")
        self._count()
        reward: Any
        info: dict[str, Any]
        if number is None:  # no action of every task does nothing: the task does not hear of it
            self._task.step_count += 1
            reward, terminated, info = 0.0, False, {}
            truncated = self._task.step_count >= self._task.max_steps
        else:
            self._seen, reward, terminated, truncated, info = self._shown.step(number)
        if terminated or truncated:
            self._end()
        success = bool(terminated and float(reward) > 0)
        return self._observation(self._seen), float(reward), terminated, truncated, self._info(info, success)

    def close(self) -> None:
        """Closes the task."""
        self._shown.close()

    def _carried(self) -> tuple[str, str] | None:
        carrying = self._task.carrying
        return None if carrying is None else (carrying.type, carrying.color)

    def _observation(self, seen: Mapping[str, Any]) -> Any:
        if self.config.observation == "symbolic":
            return seen["image"].astype(np.uint8)
        if self.config.observation == "flat":
            return flat(seen["image"], int(seen["direction"]), self._carried())
        full = self.config.view == "full"
        return in_words(seen["image"], str(seen["mission"]), int(seen["direction"]), self._carried(), full)

    def _info(self, info: Mapping[str, Any], success: bool) -> dict[str, Any]:
        told = {**info, "success": success, "mission": self._task.mission}
        if self.config.observation == "text":
            told["admissible_commands"] = ACTIONS[: self._actions]
        return told


class MiniGridEnvironment(MiniGrid):
    """EchoRL's name of :class:`MiniGrid`. There, it was a grid of its own, whose key lay where the agent began.

    The actions are numbered as in MiniGrid: 0 turns left, where there it went forward.
    """


def _make(config: MiniGridConfig) -> MiniGridEnv:
    """The task of a configuration."""
    if config.task_type not in _TASKS:
        raise ValueError(f"task_type={config.task_type!r}: use one of {', '.join(_TASKS)}")
    own, least, make = _TASKS[config.task_type]
    size = own if config.grid_size is None else config.grid_size
    if least is None and size != own:
        raise ValueError(f"grid_size={size}: {config.task_type!r} is always {own} wide; use None")
    if least is not None and size < least:
        raise ValueError(f"grid_size={size}: use {least} or more with {config.task_type!r}")
    if config.task_type in ("navigation", "memory") and size % 2 == 0:
        raise ValueError(f"grid_size={size}: use an odd one with {config.task_type!r}")
    return make(size, config)
