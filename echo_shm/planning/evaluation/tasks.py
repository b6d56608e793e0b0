"""Tasks by name: what is played, and what agents that learn it share."""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import PlanningConfig, PPOConfig, ReplayConfig, TextConfig, TrainingConfig

#: Which agents can play it: with numbers; with texts and a list of commands; with texts that are free.
Kind = Literal["numbers", "commands", "free text"]


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    kind: Kind
    #: As of :class:`TrainingConfig`.
    env_name: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: What all agents that learn it share. ``replay`` is that of those that have one.
    shared: Mapping[str, Any] = field(default_factory=dict)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    #: What a language model is told.
    prompt: str = ""

    def training(self) -> TrainingConfig:
        """A run of training with what agents share.

        From a replay there are as many minibatches for each step as without one. There is one worker, so that a seed's
        rollouts do not depend on others.
        """
        base = TrainingConfig(
            self.env_name,
            env_kwargs=self.env_kwargs,
            num_actors=16,
            num_workers=1,
            num_learners=1,
            device="cpu",
            progress=False,
            learning_starts=max(1, self.replay.hot_buffer_size // 8),
            **self.shared,
        )
        return replace(base, train_frequency=max(1, base.batch_size // base.ppo.epochs))


_REPLAY = ReplayConfig(hot_buffer_size=8_192, cold_buffer_size=16_384, age_threshold=200, target_effective=0.5)

_CARTPOLE = Task(
    "cartpole",
    "numbers",
    "CartPole-v1",
    shared={
        "evaluation_frequency": 2_048,
        "planning": PlanningConfig(embedding_dim=32, learning_rate=2e-3),
        "ppo": PPOConfig(learning_rate=2e-3, gamma=0.98, gae_lambda=0.9, reward_scale=0.05),
    },
    replay=_REPLAY,
)

_MINIGRID = Task(
    "minigrid",
    "numbers",
    "",
    shared={
        "evaluation_frequency": 2_048,
        "rollout_length": 64,
        "planning": PlanningConfig(embedding_dim=32, state_window_size=8, learning_rate=1e-3),
        "ppo": PPOConfig(learning_rate=1e-3, reward_scale=5.0),
    },
    replay=_REPLAY,
)

#: Episodes are short, and are learned within some thousand steps: shorter rollouts and horizons, and a smaller replay.
_TEXT_WORLD = Task(
    "textworld",
    "commands",
    "TextWorld",
    {"max_steps": 30},
    shared={
        "evaluation_frequency": 512,
        "rollout_length": 16,
        "batch_size": 128,
        "text": TextConfig(max_tokens=176, max_commands=24),
        "planning": PlanningConfig(
            embedding_dim=16,
            state_window_size=4,
            learning_rate=1e-3,
            hidden_dim=32,
            heads=2,
            layers=1,
            prefix_length=2,
        ),
        "ppo": PPOConfig(learning_rate=2e-3, reward_scale=5.0, gamma=0.97),
    },
    replay=ReplayConfig(hot_buffer_size=512, cold_buffer_size=512, age_threshold=16, target_effective=0.5),
    prompt="You play a game in a house of rooms. Each action is one command. Reach the goal in as few as you can.",
)

_OTHERS = {
    "code": Task(
        "code",
        "free text",
        "CodeReasoning",
        {"max_code_length": 300},
        prompt="The action is the Python expression that stands for ?? in the assertion, and nothing else.",
    ),
    "arc": Task(
        "arc",
        "free text",
        "Arc",
        {"answers": "text", "grid_size": 5, "max_examples": 2},
        prompt="The action is the last output: one row of digits after the other, with / between rows.",
    ),
    "shop": Task(
        "shop",
        "free text",
        "Shop",
        {"max_steps": 15},
        prompt="You shop for a customer. An action is search[words], or click[link] of a link that is there.",
    ),
}

#: Names, and patterns of names, and what they are.
KNOWN = {
    "cartpole": "CartPole-v1, solved at a return of 475",
    "minigrid-NAME": "MiniGrid-NAME-v0 in lower case, as minigrid-doorkey-5x5, seen one-hot",
    "textworld": "the text world of this project, in its default sizes",
    "textworld-RxO": "one of R rooms and O things, keys among them: R / 2 containers; from 2 things on one door is "
    "locked, and from 4 on one container, too",
    "code": "questions about short generated functions, in CRUXEval's format",
    "arc": "generated tasks in the manner of ARC, of up to 5 x 5 cells, as text",
    "shop": "a generated shop in WebShop's format",
}


def find(name: str, max_steps: int | None = None) -> Task:
    """The task of that name.

    Args:
        name: One of :data:`KNOWN`.
        max_steps: Of a text task: steps after which an episode is truncated. None: the task's own.

    Raises:
        ValueError: There is none.
        ModuleNotFoundError: What it needs is not installed.

    """
    if name == "cartpole":
        return _CARTPOLE
    if name.startswith("minigrid-"):
        return replace(_MINIGRID, name=name, env_name=_minigrid(name))
    if name in _OTHERS:
        task = _OTHERS[name]
    elif name == "textworld":
        task = _TEXT_WORLD
    elif sizes := re.fullmatch(r"textworld-(\d+)x(\d+)", name):
        task = _text_world(name, *map(int, sizes.groups()))
    else:
        raise ValueError(f"task {name!r} is unknown: use one of {', '.join(KNOWN)}")
    if max_steps is not None:
        task = replace(task, env_kwargs={**task.env_kwargs, "max_steps": max_steps})
    return task


def _minigrid(name: str) -> str:
    """MiniGrid's own name."""
    with needs("planning.evaluation", "MiniGrid", "minigrid", "gymnasium", extra="planning-agents"):
        importlib.import_module("minigrid")
        registry: list[str] = list(importlib.import_module("gymnasium").registry)
    ids = [one for one in registry if one.lower() == f"{name}-v0"]
    if not ids:
        some = sorted(one[:-3].lower() for one in registry if one.startswith("MiniGrid-") and one.endswith("-v0"))
        raise ValueError(f"task {name!r} is unknown: MiniGrid has {', '.join(some)}")
    return ids[0]


def _text_world(name: str, rooms: int, things: int) -> Task:
    if rooms < 2 or things < 1:
        raise ValueError(f"task {name!r}: use 2 rooms or more, and 1 thing or more")
    containers = max(1, rooms // 2)
    sizes = {
        "rooms": rooms,
        "max_objects": things,
        "containers": containers,
        "locked_doors": int(things >= 2),
        "locked_containers": int(things >= 4),
    }
    room = TextConfig(max_tokens=64 + 16 * (things + containers), max_commands=10 + 2 * (things + containers))
    return replace(
        _TEXT_WORLD,
        name=name,
        env_kwargs={**_TEXT_WORLD.env_kwargs, **sizes},
        shared={**_TEXT_WORLD.shared, "text": room},
    )
