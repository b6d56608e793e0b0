"""Environments as agents see them."""

import contextlib

import numpy as np
import pytest
from harness.packages import need

need("torch", "gymnasium", "minigrid")

import gymnasium  # noqa: E402
from gymnasium.spaces import Box, Discrete  # noqa: E402

from echo_shm.planning.environments.minigrid_views import flat  # noqa: E402
from echo_shm.planning.training.actor import said_success  # noqa: E402
from echo_shm.planning.training.environments import make, sizes  # noqa: E402

NAME = "MiniGrid-DoorKey-5x5-v0"


def test_minigrid_is_seen_as_our_own_minigrid_shows_it():
    """The same numbers, in float32, of what is seen and of the key that is carried in the end."""
    with contextlib.closing(make(NAME)) as env:
        seen, _ = env.reset(seed=0)
        for action in (1, 2, 3, 0):
            assert env.observation_space.contains(seen)
            told, carried = env.unwrapped.gen_obs(), env.unwrapped.carrying
            named = carried and (carried.type, carried.color)
            np.testing.assert_array_equal(seen, flat(told["image"], told["direction"], named))
            seen = env.step(action)[0]
        assert carried is not None
    assert sizes(NAME) == (seen.size, 7, None, None)


class Odd(gymnasium.Env):
    """Spaces that are set from outside."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


@pytest.mark.parametrize(
    ("observations", "actions", "said"),
    [
        (Box(0, 1, (2,)), Box(0, 1, (1,)), r"Odd-v0 has the actions Box\(.*: use an environment with Discrete\(n\)"),
        (Box(0, 1, (2,)), Discrete(3, start=1), r"Odd-v0 has the actions Discrete\(3, start=1\): use an environment"),
        (gymnasium.spaces.Sequence(Discrete(2)), Discrete(2), "Odd-v0 has the observations Sequence.*: use ones of a "),
    ],
)
def test_spaces_that_no_agent_here_takes_are_refused(monkeypatch, observations, actions, said):
    """The message names them, and says which to use."""
    monkeypatch.setattr(gymnasium, "make", lambda name: Odd(observations, actions))
    with pytest.raises(ValueError, match=said):
        make("Odd-v0")


def test_discrete_observations_become_numbers():
    """One-hot, as Gymnasium flattens them."""
    assert sizes("FrozenLake-v1")[:2] == (16, 4)


def test_what_an_environment_says_of_success_counts_before_its_return():
    """Of each environment that says so; of others the return decides."""
    otherwise = np.array([True, False, True])
    infos = {"is_success": np.array([False, True, False]), "_is_success": np.array([True, True, False])}
    assert said_success(infos, otherwise).tolist() == [False, True, True]
    assert said_success({"success": np.array([1, 0, 0]), "_success": np.array([True] * 3)}, otherwise).tolist() == [
        *(True, False, False),
    ]
    assert said_success({}, otherwise).tolist() == otherwise.tolist()
