"""The small text world: it can be solved, and what it says is so."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning.environments import TextWorld, TextWorldConfig
from echo_shm.planning.environments.text_world_rules import HELD, NONE, OPEN, World

#: A room with a closed box that holds a coin, and a locked door to the next room.
SMALL = World(
    rooms=["hall", "attic"],
    exits=[[("north", 1, 0)], [("south", 0, 0)]],
    containers=[(0, 1)],
    locks=["red door", "oak box"],
    keys=[0, NONE],
    things=["red key", "coin"],
    goal=(1, HELD),
    here=0,
    states=[0, 1],
    places=[0, 2],
)


@pytest.mark.parametrize("task_type", ["pick_and_place", "pick", "visit", "any"])
def test_every_world_can_be_solved(task_type):
    """200 worlds of each task, of small and large sizes: the walkthrough is admissible and reaches the goal."""
    sizes = [(2, 1, 1, 1, 3), (4, 2, 1, 1, 5), (9, 4, 3, 3, 12)]
    lengths = []
    for rooms, containers, doors, locked, things in sizes:
        env = TextWorld(
            task_type=task_type,
            rooms=rooms,
            containers=containers,
            locked_doors=doors,
            locked_containers=locked,
            max_objects=things,
            max_steps=1000,
        )
        for game in range(200 // len(sizes) + 1):
            _, info = env.reset(options={"game": game})
            plan = env.walkthrough()
            assert plan, f"world {game} is solved before it begins"
            for number, command in enumerate(plan):
                assert command in info["admissible_commands"]
                _, reward, terminated, _, info = env.step(command)
                assert terminated == (number == len(plan) - 1), f"world {game}"
            assert reward == 1
            lengths.append(len(plan))
    assert max(lengths) > 20


def test_what_is_said_is_so():
    """A walk through a small world, sentence by sentence."""
    world = SMALL.copy()
    assert world.goal_text() == "Goal: take the coin."
    assert world.room_text() == (
        "You are in the hall. The locked red door leads north. The oak box is closed. You see the red key."
    )
    assert list(world.commands()) == ["open oak box", "take red key", "look", "inventory"]
    said = []
    for command in ("take red key", "inventory", "unlock red door with red key", "open red door", "open oak box"):
        said.append(world.apply(world.commands()[command]))
    assert said == [
        "You take the red key.",
        "You carry the red key.",
        "You unlock the red door.",
        "You open the red door.",
        "You open the oak box. The oak box is open. It holds the coin.",
    ]
    assert not world.is_done()
    assert world.apply(world.commands()["take coin from oak box"]) == "You take the coin."
    assert world.is_done()
    assert world.apply(world.commands()["put coin in oak box"]) == "You put away the coin."
    assert world.apply(world.commands()["close oak box"]) == "You close the oak box."
    assert "take coin from oak box" not in world.commands()
    assert world.apply(world.commands()["go north"]) == "You are in the attic. The open red door leads south."
    assert world.apply(world.commands()["drop red key"]) == "You drop the red key."
    assert world.room_text() == "You are in the attic. The open red door leads south. You see the red key."
    assert SMALL.states == [0, 1], "a copy changes apart"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.randoms(use_true_random=False))
def test_random_play_keeps_the_world_whole(game, rng):
    """Each thing is in one place, locks open in order, and tokens stand for every text and command."""
    env = TextWorld(task_type="any", rooms=6, containers=3, max_objects=8)
    observation, info = env.reset(options={"game": game})
    places = len(env._world.rooms) + len(env._world.containers)
    over = False
    while not over:
        for words in (observation, info["feedback"], *info["admissible_commands"]):
            tokens = env.encode(words)
            assert env.vocabulary.unknown not in tokens
            assert env.decode(tokens) == words
        before = env._world.states[:]
        observation, _, terminated, truncated, info = env.step(rng.choice(info["admissible_commands"]))
        over = terminated or truncated
        changed = [(a, b) for a, b in zip(before, env._world.states, strict=True) if a != b]
        assert changed in ([], [(0, 1)], [(1, OPEN)], [(OPEN, 1)])
        assert all(HELD <= place < places for place in env._world.places)


def test_observations_without_feedback_tell_all_that_is_seen():
    """The same state has the same full observation, however it was reached; feedback differs."""
    env, spare = TextWorld(), TextWorld(full_observations=False)
    first, _ = env.reset(options={"game": 0})
    spare.reset(options={"game": 0})
    world = env._world
    assert first == f"{world.goal_text()} {world.room_text()} {world.carried_text()}"
    assert env.step("inventory")[0] == env.step("dance")[0] == env.step("look")[0] == first
    assert spare.step("dance")[0] == "You cannot do that now."
    assert spare.step("inventory")[0].startswith("You carry")


def test_the_episode_is_truncated_at_its_limit():
    """Not before, and not terminated."""
    env = TextWorld(max_steps=3)
    env.reset(seed=0)
    assert [env.step("look")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rooms": 17}, "rooms=17: use at most 16; there are no more names"),
        ({"locked_doors": 4}, "locked_doors=4: use at most 3, one less than rooms"),
        ({"locked_containers": 3}, "locked_containers=3: use at most 2, as containers"),
        ({"containers": 0, "locked_containers": 0}, "containers=0: use 1 or more with task_type='pick_and_place'"),
        ({"max_objects": 2}, "max_objects=2: use an integer, 3 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, message):
    """The message has the size, and what it may be."""
    with pytest.raises(ValueError, match=message):
        TextWorld(**fields)


def test_a_world_depends_on_its_number_and_sizes_alone():
    """Not on what was played before, nor on Python's own random numbers."""
    config = TextWorldConfig(rooms=5)
    random.seed(1)
    one = TextWorld(config).reset(options={"game": 9})[0]
    random.seed(2)
    env = TextWorld(config)
    env.reset(options={"game": 8})
    assert env.reset(options={"game": 9})[0] == one
    assert TextWorld(config, rooms=6).reset(options={"game": 9})[0] != one


def test_tokens():
    """What is not a word is unknown; what is not a token is refused; an end ends."""
    words = TextWorld.vocabulary
    assert words.encode("take the zebra.") == [*words.encode("take the"), words.unknown, *words.encode(".")]
    assert words.decode([words.pad, *words.encode("go north"), words.end, 5]) == "go north"
    with pytest.raises(ValueError, match=f"token {len(words)}: use 0 to {len(words) - 1}"):
        words.decode([len(words)])
    with pytest.raises(ValueError, match="call reset"):
        TextWorld().walkthrough()
