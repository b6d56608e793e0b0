"""Games of the package textworld: generated ones, and ALFWorld's from a folder that is made here."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.packages import need

from echo_shm.planning.environments import AlfworldConfig, EnvironmentConfig
from echo_shm.planning.environments.alfworld import Alfworld, game_files
from echo_shm.planning.environments.played_games import PlayedGames

#: A room with a desk, on which a mug is, and a closed drawer. The mug is wanted in the drawer.
PROBLEM = """
(define (problem small) (:domain alfred)
  (:objects
    agent1 - agent
    Mug_bar_1 - object
    Desk_bar_1 Drawer_bar_1 - receptacle
    MugType - otype
    DeskType DrawerType SinkBasinType MicrowaveType FridgeType - rtype
    loc_0 loc_1 loc_2 - location
    {more})
  (:init
    (atLocation agent1 loc_0)
    (receptacleType Desk_bar_1 DeskType) (receptacleType Drawer_bar_1 DrawerType)
    (receptacleAtLocation Desk_bar_1 loc_1) (receptacleAtLocation Drawer_bar_1 loc_2)
    (objectType Mug_bar_1 MugType) (pickupable Mug_bar_1) (objectAtLocation Mug_bar_1 loc_1)
    (inReceptacle Mug_bar_1 Desk_bar_1) (openable Drawer_bar_1)
    (canContain DeskType MugType) (canContain DrawerType MugType)
    (= (total-cost) 0))
  (:goal (and (inReceptacle Mug_bar_1 Drawer_bar_1)))
  (:metric minimize (total-cost)))
"""


def write(folder, name, task="pick_and_place_simple", objects=1, **game):
    """A game in ALFWorld's layout."""
    place = folder / "json_2.1.1" / "train" / name / "trial"
    place.mkdir(parents=True)
    poses = [{"objectName": f"Mug_{number}"} for number in range(objects)]
    (place / "traj_data.json").write_text(json.dumps({"task_type": task, "scene": {"object_poses": poses}}))
    (place / "game.tw-pddl").write_text(json.dumps({"solvable": True, **game}))
    return place / "game.tw-pddl"


def test_games_are_found_by_task_and_size(tmp_path, monkeypatch):
    """Those that cannot be solved are left out, as ALFWorld does; no package is needed."""
    mug = write(tmp_path, "a")
    lamp = write(tmp_path, "b", "look_at_obj_in_light", objects=9)
    write(tmp_path, "c", solvable=False)
    write(tmp_path, "d_movable")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert game_files(AlfworldConfig()) == [mug, lamp]
    assert game_files(AlfworldConfig(path=tmp_path, max_objects=5)) == [mug]
    for task in ("look_in_light", "look_at_obj_in_light"):
        assert game_files(AlfworldConfig(task_type=task)) == [lamp]
    with pytest.raises(ValueError, match="no game of task_type='pick_two' with max_objects=None"):
        game_files(AlfworldConfig(task_type="pick_two"))
    lamp.write_text("[")
    with pytest.raises(ValueError, match="is not ALFWorld's"):
        game_files(AlfworldConfig())


def test_without_data_it_says_where_they_come_from(tmp_path, monkeypatch):
    """Of a folder that is not set, and of one that is empty. Nothing is played instead."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for fields in ({}, {"path": tmp_path}):
        with pytest.raises(FileNotFoundError, match=r"pip install 'echo-shm\[alfworld\]', then alfworld-download"):
            Alfworld(**fields)


def test_a_game_of_alfworld_is_played(tmp_path):
    """Its words and commands are those of the package; the reward is 1 when the mug is in the drawer."""
    need("alfworld", "fast_downward")
    import alfworld

    data = Path(alfworld.__file__).parent / "data"
    grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put a mug in a drawer")
    problem, domain = PROBLEM.format(more=""), (data / "alfred.pddl").read_text()
    write(tmp_path, "a", pddl_domain=domain, grammar=grammar, pddl_problem=problem)
    env = Alfworld(path=tmp_path)
    observation, info = env.reset(seed=0)
    assert "Your task is to: put a mug in a drawer." in observation
    assert {"go to desk 1", "go to drawer 1", "look"} <= set(info["admissible_commands"])
    assert env.step("fly \x00 away\n")[1:4] == (0.0, False, False)
    plan = ("go to desk 1", "take mug 1 from desk 1", "go to drawer 1", "open drawer 1", "move mug 1 to drawer 1")
    for command in plan:
        assert command in info["admissible_commands"] or command == plan[1]
        observation, reward, terminated, truncated, info = env.step(command)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True), observation
    env.close()


class Scores(PlayedGames):
    """A game of three steps, which scores 1, 1 and 4 of 4."""

    def _start(self, game):
        scores = iter((0, 1, 1, 4))

        def state():
            score = next(scores)
            return SimpleNamespace(feedback="ok", score=score, max_score=4, won=score == 4, admissible_commands=["go"])

        return SimpleNamespace(reset=state, step=lambda words: (state(), 0, False), close=lambda: None)


def test_rewards_are_shares_of_the_score():
    """Each step has what it adds; they sum to 1."""
    env = Scores(EnvironmentConfig(), 1)
    env.reset(seed=0)
    assert [env.step("go")[1:3] for _ in range(3)] == [(0.25, False), (0.0, False), (0.75, True)]
    env.close()


def test_a_generated_game_is_won():
    """It is compiled by the package, played to its end, the same again, and its files are removed."""
    need("textworld")
    from echo_shm.planning.environments import TextWorldGames

    env = TextWorldGames(rooms=1, max_objects=1, quest_length=1, games=1)
    folder = env._folder
    observation, info = env.reset(seed=0)
    assert "$$" not in observation
    assert ">" not in observation[-3:]
    plan = env.walkthrough()
    assert plan[0] in info["admissible_commands"]
    assert env.step("\x00 nonsense\n")[1:4] == (0.0, False, False)
    total = 0.0
    for command in plan:
        _, reward, terminated, _, info = env.step(command)
        total += reward
    assert (total, terminated, info["success"]) == (1.0, True, True)
    assert env.reset(seed=5)[0] == observation
    assert os.listdir(folder)
    env.close()
    assert not os.path.exists(folder)
