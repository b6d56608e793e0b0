"""What a step of an environment looks like. ``echo_shm.adapters.gymnasium`` has what users call."""

from typing import Any

import gymnasium
import numpy as np
import optree
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from echo_shm.spec import Tree

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


def example_of(
    env: "gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]", *, transition: bool = False
) -> dict[str, Any]:
    """The example pytree of an environment's steps, for a :class:`Replay` or a :class:`Server`.

    A step is ``{"obs", "action", "reward"}``. Observations and actions have the dtypes and shapes of their spaces; a
    ``Dict`` is a dict and a ``Tuple`` a tuple. The reward is a float32. Of a vector environment it is the step of one.

    Args:
        env: An ``Env`` or a ``VectorEnv``.
        transition: A step by itself, for a ring: with ``next_obs``, and ``terminated`` and ``truncated`` as bools.

    Raises:
        TypeError: A space has no fixed shape: ``Text``, ``Sequence``, ``Graph`` and the like. Or it is no environment.

    """
    observation, action = _spaces(env)
    obs = _zeros(observation, "observation_space")
    step = {"obs": obs, "action": _zeros(action, "action_space"), "reward": np.zeros((), np.float32)}
    if transition:
        step |= {"next_obs": obs, "terminated": np.zeros((), bool), "truncated": np.zeros((), bool)}
    return step


def _spaces(env: Any) -> "tuple[spaces.Space[Any], spaces.Space[Any]]":
    """The spaces of one environment."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    if isinstance(env, gymnasium.Env):
        return env.observation_space, env.action_space
    raise TypeError(f"expected a gymnasium.Env or a VectorEnv, got {type(env).__name__} {env!r:.80}")


def _zeros(space: "spaces.Space[Any]", where: str) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(one, f"{where}[{key!r}]") for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(one, f"{where}[{i}]") for i, one in enumerate(space.spaces))
    if not isinstance(space, _ARRAYS) or space.shape is None:
        raise TypeError(
            f"{where} is {space!r:.200}, whose values have no fixed shape; expected Box, Discrete, MultiBinary, "
            "MultiDiscrete, or Dict and Tuple of these: wrap the environment so that it has one of them "
            "(gymnasium.wrappers.TransformObservation, TransformAction)"
        )
    return np.zeros(space.shape, space.dtype)


def as_in(example: Tree, value: Tree) -> Tree:
    """A value of a space, or n of them, as arrays of the example's dtypes."""
    return optree.tree_map(lambda like, one: np.asarray(one, like.dtype), example, value)


def copy_in(example: Tree, value: Tree) -> Tree:
    """The same as copies."""
    return optree.tree_map(lambda like, one: np.array(one, like.dtype), example, value)
