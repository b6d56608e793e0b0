"""What holds of every environment: Gymnasium's contract, seeds, nonsense, ends and bad input."""

import random

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from harness.programs import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning import environments
from echo_shm.planning.environments import Arc, CodeReasoning, Shop, TextWorld
from echo_shm.planning.environments.registration import IDS

#: One of each kind that needs no package.
MAKERS = {
    "text world": lambda: TextWorld(),
    "text world, feedback": lambda: TextWorld(full_observations=False, task_type="any"),
    "shop": lambda: Shop(products=40),
    "code, output": lambda: CodeReasoning(tries=3),
    "code, input": lambda: CodeReasoning(task_type="input"),
    "arc, grid": lambda: Arc(grid_size=5, tries=2),
    "arc, cells": lambda: Arc(answers="cells", grid_size=4),
    "arc, text": lambda: Arc(answers="text", grid_size=5),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_finds_nothing(name):
    """Spaces, seeds, options and what is returned are as Gymnasium wants them."""
    check_env(MAKERS[name](), skip_render_check=True)


def play(env, seed, actions):
    """An episode at random: everything that was returned."""
    rng = random.Random(seed)
    observation, info = env.reset(seed=seed)
    seen = [(observation, info)]
    over = False
    while not over and len(seen) < 60:
        action = rng.choice(info["admissible_commands"] or actions) if rng.random() < 0.7 else rng.choice(actions)
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert 0 <= reward <= 1
        assert reward == 0 or terminated
        assert not (terminated and truncated)
        assert info["success"] == (reward == 1)
        over = terminated or truncated
        seen.append((observation, reward, terminated, truncated, info))
    assert over
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(actions[0])
    return seen


WORDS = st.lists(
    st.one_of(
        st.text(max_size=30), st.sampled_from(["go", "take red key", "search[]", "click[x", "search[red]", "[", ""])
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["text world", "text world, feedback", "shop"]), st.integers(0, 2**31 - 1), WORDS)
def test_the_same_seed_is_the_same_episode_whatever_is_said(name, seed, actions):
    """Admissible commands and nonsense are taken alike, the episode ends, and can be played again."""
    assert play(MAKERS[name](), seed, actions) == play(MAKERS[name](), seed, actions)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["arc, text", "code, output"]), st.text(max_size=60).filter(lambda one: "(" not in one))
def test_a_nonsensical_answer_is_a_wrong_one(name, answer):
    """It is counted, and breaks nothing."""
    env = MAKERS[name]()
    env.reset(options={"game": 1})
    _, reward, _, _, info = env.step(answer)
    assert (reward, info["success"]) in ((0.0, False), (1.0, True))


@pytest.mark.parametrize("name", MAKERS)
def test_an_action_that_is_none_is_no_step(name):
    """It is refused, in words. The episode has as many steps left as before."""
    env = MAKERS[name]()
    env.reset(seed=0)
    bad, error, told = {
        "Strings": (3, TypeError, "action=3: use a string"),
        "Discrete": (getattr(env.action_space, "n", 0), ValueError, "use 0 to"),
        "Box": (np.zeros(7, int), ValueError, "expected integers of shape"),
    }[type(env.action_space).__name__]
    with pytest.raises(error, match=told):
        env.step(bad)
    assert env._steps == 0


@pytest.mark.parametrize("name", MAKERS)
def test_a_game_is_the_same_whatever_the_seed_is(name):
    """Its number alone says which episode it is; without one, episodes differ."""
    env = MAKERS[name]()
    first, _ = env.reset(seed=1, options={"game": 3})
    again, _ = env.reset(seed=2, options={"game": 3})
    assert str(first) == str(again)
    assert len({str(env.reset()[0]) for _ in range(5)}) > 1
    for bad in (-1, 2**31, True, "x"):
        with pytest.raises(ValueError, match=r"options\['game'\]=.*: use an integer"):
            env.reset(options={"game": bad})
    with pytest.raises(ValueError, match=r"use {'game': number}"):
        env.reset(options={"level": 1})


def test_the_configurations_seed_is_that_of_the_first_reset():
    """And of no later one."""
    one, other = TextWorld(seed=5), TextWorld()
    first, _ = one.reset()
    assert first == other.reset(seed=5)[0]
    assert one.reset()[0] == other.reset()[0] != first


@pytest.mark.parametrize("kind", [TextWorld, Shop, CodeReasoning, Arc])
def test_bad_configurations_are_refused(kind):
    """An unknown field, another class, and a value out of range."""
    with pytest.raises(TypeError, match=r"has no field 'room': it has max_steps, seed"):
        kind(room=3)
    with pytest.raises(TypeError, match=r"config=3: use a \w+Config"):
        kind(3)
    with pytest.raises(ValueError, match="max_steps=0: use an integer, 1 or more"):
        kind(max_steps=0)
    with pytest.raises(ValueError, match=r"='unheard of': use (one of|'all' or one of) "):
        kind(**{"website_type" if kind is Shop else "task_type": "unheard of"})


def test_ids_make_the_environments():
    """Each id has its class, which is made with the fields that are given."""
    env = gymnasium.make("echo_shm.planning.environments.registration:echo_shm/TextWorld-v0", rooms=3)
    assert isinstance(env.unwrapped, TextWorld)
    assert env.unwrapped.config.rooms == 3
    for name, place in IDS.items():
        module, _, kind = place.partition(":")
        assert gymnasium.spec(name).entry_point == f"echo_shm.planning.environments.{module}:{kind}"
        assert kind in environments.__all__


def test_the_package_needs_nothing_until_a_name_is_used():
    """Configurations can be made where Gymnasium is not installed; an environment says what to install."""
    program = """
import sys
sys.modules["gymnasium"] = None
from echo_shm.planning.environments import ShopConfig
assert ShopConfig(products=3).products == 3
from echo_shm.planning import environments
environments.Shop
"""
    line = run_python(program, status=1).stderr.splitlines()[-1]
    assert line.endswith("needs Gymnasium: 'gymnasium' is not there: pip install 'echo-shm[planning-environments]'")


def test_all_names_are_there():
    """Every public name leads to what it says, and there is no other."""
    named = sorted(name for names in environments._NAMES.values() for name in names)
    assert named == environments.__all__ == sorted(set(named))
    packages = ("Alfworld", "ALFWorldEnvironment", "MiniGrid", "MiniGridEnvironment", "TextWorldGames")
    own = [name for name in named if name not in packages]  # those import packages
    assert [getattr(environments, name).__name__ for name in own] == own
    with pytest.raises(AttributeError, match="no attribute 'Casino'"):
        environments.Casino  # noqa: B018
