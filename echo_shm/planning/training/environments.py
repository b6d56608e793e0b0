"""Environments as agents see them: a vector of numbers, or of tokens, and actions that are counted."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.agents.configs import TextConfig
from echo_shm.planning.environments.minigrid_views import flat
from echo_shm.planning.training.text_view import CommandView
from echo_shm.spec import Array

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    import gymnasium
    from gymnasium.spaces import Box, Discrete, Text
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

#: Where the environments of this project are registered with Gymnasium.
_REGISTRATION = "echo_shm.planning.environments.registration"


class SymbolicView(gymnasium.ObservationWrapper[Any, Any, Any]):
    """What MiniGrid's agent sees and carries, as zeros and ones in float32: see ``minigrid_views.flat``.

    The mission, a text, is left out.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gymnasium.spaces.Dict)
        size = flat(np.zeros(env.observation_space["image"].shape or (), np.uint8), 0, None).size
        self.observation_space = Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: Any) -> Array:
        """The numbers of one observation."""
        carried = getattr(self.env.unwrapped, "carrying", None)
        named = None if carried is None else (carried.type, carried.color)
        return flat(observation["image"], int(observation["direction"]), named).astype(np.float32)


def make(
    name: str, env_kwargs: Mapping[str, Any] | None = None, text: TextConfig | None = None
) -> "gymnasium.Env[Any, Any]":
    """Makes an environment whose observations are float32 vectors, and whose actions are numbers.

    Args:
        name: Of Gymnasium. MiniGrid's are imported if their name begins with ``MiniGrid-``. A name of
            ``echo_shm.planning.environments``, such as ``"TextWorld"``, is that environment.
        env_kwargs: What it is made with.
        text: How an environment of texts becomes one of arrays: see :class:`CommandView`. None: the defaults.

    Raises:
        ValueError: Its actions are not discrete, or its observations cannot be flattened.
        gymnasium.error.Error: There is no such environment.

    """
    env: Any = gymnasium.make(_registered(name), **(env_kwargs or {}))
    if isinstance(env.observation_space, Text) and isinstance(env.action_space, Text):
        return CommandView(env, TextConfig() if text is None else text)
    if not isinstance(env.action_space, Discrete) or env.action_space.start != 0:
        raise ValueError(f"{name} has the actions {env.action_space}: use an environment with Discrete(n)")
    return SymbolicView(env) if name.startswith("MiniGrid-") else _flat(name, env)


def _registered(name: str) -> str:
    """Gymnasium's name, after what registers it was imported."""
    if name.startswith("MiniGrid-"):
        with needs("planning.training", "MiniGrid", "minigrid", extra="planning-agents"):
            importlib.import_module("minigrid")  # registers its environments
    ids: dict[str, str] = importlib.import_module(_REGISTRATION).IDS
    return next((one for one in ids if name == one.removeprefix("echo_shm/").removesuffix("-v0")), name)


def _flat(name: str, env: Any) -> Any:
    try:
        flat: Any = gymnasium.wrappers.FlattenObservation(env)
    except (NotImplementedError, ValueError):
        raise ValueError(
            f"{name} has the observations {env.observation_space}: use an environment, or a wrapper, whose "
            "observations can be flattened to a vector"
        ) from None
    if not isinstance(flat.observation_space, Box):
        raise ValueError(f"{name} has the observations {env.observation_space}: use ones of a fixed size")
    return flat


def make_vector(
    name: str, n: int, env_kwargs: Mapping[str, Any] | None = None, text: TextConfig | None = None
) -> SyncVectorEnv:
    """Makes n of them, which are played together in this process. A row that resets one follows its episode's end."""
    return SyncVectorEnv([lambda: make(name, env_kwargs, text)] * n, autoreset_mode=AutoresetMode.NEXT_STEP)


class Sizes(NamedTuple):
    """What an agent has to know of an environment."""

    #: Numbers, or tokens, of a state.
    state_dim: int
    action_dim: int
    #: The return that counts as a success, if the environment says any.
    success_return: float | None
    #: Of texts: tokens are below it. None: states are numbers.
    vocab_size: int | None


def sizes(name: str, env_kwargs: Mapping[str, Any] | None = None, text: TextConfig | None = None) -> Sizes:
    """Makes an environment, as :func:`make`, and looks at it. One of texts is begun, too: only then it lists commands.

    Raises:
        ValueError: As :func:`make`; or there are no commands.

    """
    env: Any = make(name, env_kwargs, text)
    try:
        assert isinstance(env.observation_space, Box)
        assert isinstance(env.action_space, Discrete)
        threshold = None if env.spec is None else env.spec.reward_threshold
        vocab_size = None
        if isinstance(env, CommandView):
            env.reset(seed=0)
            vocab_size = len(env.words)
        return Sizes(int(np.prod(env.observation_space.shape)), int(env.action_space.n), threshold, vocab_size)
    finally:
        env.close()
