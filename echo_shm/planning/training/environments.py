"""Environments as agents see them: a vector of numbers, and actions that are counted."""

import importlib
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.environments.minigrid_views import flat
from echo_shm.spec import Array

with needs("planning.training", "Gymnasium", "gymnasium", extra="planning-agents"):
    import gymnasium
    from gymnasium.spaces import Box, Discrete
    from gymnasium.vector import AutoresetMode, SyncVectorEnv


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


def make(name: str) -> "gymnasium.Env[Any, Any]":
    """Makes an environment whose observations are float32 vectors.

    Args:
        name: Of Gymnasium. MiniGrid's are imported if their name begins with ``MiniGrid-``.

    Raises:
        ValueError: Its actions are not discrete, or its observations cannot be flattened.
        gymnasium.error.Error: There is no such environment.

    """
    if name.startswith("MiniGrid-"):
        with needs("planning.training", "MiniGrid", "minigrid", extra="planning-agents"):
            importlib.import_module("minigrid")  # registers its environments
    env = gymnasium.make(name)
    if not isinstance(env.action_space, Discrete) or env.action_space.start != 0:
        raise ValueError(f"{name} has the actions {env.action_space}: use an environment with Discrete(n)")
    return SymbolicView(env) if name.startswith("MiniGrid-") else _flat(name, env)


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


def make_vector(name: str, n: int) -> SyncVectorEnv:
    """Makes n of them, which are played together in this process. A row that resets one follows its episode's end."""
    return SyncVectorEnv([lambda: make(name)] * n, autoreset_mode=AutoresetMode.NEXT_STEP)


def sizes(name: str) -> tuple[int, int, float | None]:
    """How many numbers a state has, how many actions there are, and the return that counts as a success, if any."""
    env: Any = make(name)
    try:
        assert isinstance(env.observation_space, Box)
        assert isinstance(env.action_space, Discrete)
        threshold = None if env.spec is None else env.spec.reward_threshold
        return int(np.prod(env.observation_space.shape)), int(env.action_space.n), threshold
    finally:
        env.close()
