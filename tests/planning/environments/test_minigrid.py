"""MiniGrid: its tasks are played, and each view tells what is there."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from harness.packages import need

need("minigrid")

from minigrid.core.world_object import Door, Key  # noqa: E402

from echo_shm.planning.environments import MiniGrid  # noqa: E402
from echo_shm.planning.environments.minigrid import _TASKS, ACTIONS  # noqa: E402

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)


@pytest.mark.parametrize("observation", ["flat", "symbolic", "text"])
@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_finds_nothing(observation):
    """Spaces, seeds and what is returned are as Gymnasium wants them."""
    check_env(MiniGrid(grid_size=5, observation=observation), skip_render_check=True)


@pytest.mark.parametrize("task_type", _TASKS)
def test_each_task_is_played(task_type):
    """At random, until an episode ends; observations are of their space."""
    for observation, view in (("flat", "agent"), ("symbolic", "full"), ("text", "full")):
        env = MiniGrid(task_type=task_type, observation=observation, view=view, max_steps=20)
        seen, _ = env.reset(seed=1)
        over = False
        while not over:
            assert env.observation_space.contains(seen)
            action = env.np_random.integers(env._actions)
            seen, _, terminated, truncated, _ = env.step(ACTIONS[action] if observation == "text" else action)
            over = terminated or truncated


def solve(env):
    """Plays the door-key task of width 5 with what MiniGrid itself knows; the actions that were taken, and the end."""
    task, taken = env.unwrapped._task, []

    def act(action):
        taken.append(action)
        return env.step(ACTIONS[action] if env.config.observation == "text" else action)

    def face(cell):
        while tuple(task.front_pos) != cell:
            want = [tuple(task.agent_pos + step) for step in np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])].index(cell)
            act(RIGHT if (want - task.agent_dir) % 4 < 3 else LEFT)

    def walk(goals, free):
        """Goes, by breadth first search, to a cell of some."""
        start = tuple(int(one) for one in task.agent_pos)
        came = {start: None}
        queue = [start]
        for x, y in queue:
            for cell in ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1)):
                if cell not in came and free(cell):
                    came[cell] = (x, y)
                    queue.append(cell)
        cell = next(one for one in queue if one in goals)
        path = []
        while cell != start:
            path.append(cell)
            cell = came[cell]
        result = None
        for cell in reversed(path):
            face(cell)
            result = act(FORWARD)
        return result

    def cells(kind):
        return [(x, y) for x in range(5) for y in range(5) if isinstance(task.grid.get(x, y), kind)]

    def beside(cell):
        return {(cell[0] + dx, cell[1] + dy) for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1))}

    def free(cell):
        there = task.grid.get(*cell)
        return there is None or there.can_overlap()

    (key,), (door,) = cells(Key), cells(Door)
    walk(beside(key), free)
    face(key)
    act(PICKUP)
    walk(beside(door), free)
    face(door)
    act(TOGGLE)
    return taken, walk({(3, 3)}, free)


@pytest.mark.parametrize("observation", ["flat", "text"])
def test_a_solver_opens_the_door(observation):
    """The reward is MiniGrid's own: 1 - 0.9 * steps / max_steps."""
    for seed in range(5):
        env = MiniGrid(grid_size=5, observation=observation)
        env.reset(seed=seed)
        taken, (_, reward, terminated, truncated, info) = solve(env)
        assert (terminated, truncated, info["success"]) == (True, False, True)
        assert reward == pytest.approx(1 - 0.9 * len(taken) / 250)


def test_the_flat_view_is_one_hot():
    """Each cell has one object and colour; doors have a state; what is carried is in it."""
    env = MiniGrid(grid_size=5, view="full")
    flat, _ = env.reset(seed=0)
    cells, rest = flat[: 25 * 20].reshape(25, 20), flat[25 * 20 :]
    assert (cells[:, :11].sum(axis=1) == 1).all()
    assert (cells[:, 11:17].sum(axis=1) == 1).all()
    assert cells[:, 17:].sum() == cells[:, 4].sum() == 1
    assert rest[:4].sum() == 1
    assert rest[4:].sum() == 0
    env._task.carrying = Key("yellow")
    flat, *_ = env.step(LEFT)
    assert np.flatnonzero(flat[25 * 20 + 4 :]).tolist() == [5, 11 + 4]  # a key, yellow


def test_words_say_where_things_are():
    """Of a key before the agent, and a door to its right, by hand."""
    env = MiniGrid(task_type="empty", grid_size=7, observation="text")
    env.reset(seed=0)
    task = env._task
    task.grid.set(3, 1, Key("red"))
    task.grid.set(2, 3, Door("blue", is_locked=True))
    for view in ("agent", "full"):
        env = MiniGrid(env.config, view=view)
        env.reset(seed=0)
        env._task.grid = task.grid
        said = env.step("drop")[0]  # there is nothing to drop
        assert said.startswith("Mission: get to the green goal square. You face east. You carry nothing. ")
        assert "A red key is 2 ahead. " in said
        assert "A locked blue door is 1 ahead, 2 right. " in said
        assert said.endswith(" You can go 1 forward.")
        assert "You face north." in env.step("left")[0]


def test_both_views_say_the_same_of_what_the_agent_sees():
    """Wherever it stands and looks: what it sees is where the whole grid has it."""
    rng, sentences, headings = np.random.default_rng(0), 0, set()
    for seed in range(6):
        envs = [MiniGrid(task_type="multi_object", observation="text", view=view) for view in ("agent", "full")]
        for env in envs:
            env.reset(seed=seed)
        for _ in range(25):
            action = ACTIONS[rng.integers(3)]
            seen, whole = ({*env.step(action)[0].split(". ")} for env in envs)
            things = {one for one in seen if one.startswith("A ")}
            assert things <= whole
            sentences += len(things)
            headings.add(int(envs[0]._task.agent_dir))
    assert sentences > 100
    assert headings == {0, 1, 2, 3}


def test_nonsense_does_nothing_but_counts():
    """The grid stays, and the episode is truncated in the end."""
    env = MiniGrid(observation="text", grid_size=5, max_steps=3, task_type="go_to_door")
    first, _ = env.reset(seed=0)
    results = [env.step("dance") for _ in range(3)]
    assert {one[0] for one in results} == {first}
    assert [one[2:4] for one in results] == [(False, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task_type": "chess"}, "task_type='chess': use one of key_door"),
        ({"grid_size": 4}, "grid_size=4: use 5 or more with 'key_door'"),
        ({"task_type": "four_rooms", "grid_size": 9}, "grid_size=9: 'four_rooms' is always 19 wide"),
        ({"task_type": "navigation", "grid_size": 8}, "grid_size=8: use an odd one"),
        ({"observation": "smell"}, "observation='smell': use one of symbolic, flat, text"),
    ],
)
def test_what_minigrid_does_not_have_is_refused(fields, message):
    """The message says what there is."""
    with pytest.raises(ValueError, match=message):
        MiniGrid(**fields)


def test_an_action_that_is_none_is_refused():
    """It would be another one in numpy's and Python's lists."""
    env = MiniGrid()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action=7: use 0 to 6"):
        env.step(7)
    assert env._steps == 0
