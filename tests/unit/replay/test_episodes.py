"""The episodes that are stored: their order, their ends, and steps that go while they are read."""

import numpy as np
import pytest

from echo_shm import ConnectionClosedError, Replay, Table
from echo_shm.replay import Fifo, NStep, Writer
from echo_shm.replay import episodes as module

EXAMPLE = {"obs": np.zeros(2, np.float32), "reward": np.zeros((), np.float32)}


def step(number):
    """A step that says which one it is."""
    return {"obs": np.array([number, -number], np.float32), "reward": np.float32(number)}


def steps_of(episode):
    """Which steps an episode has. All leaves agree."""
    numbers = episode.steps["obs"][:, 0].tolist()
    np.testing.assert_array_equal(episode.steps["obs"][:, 1], -episode.steps["obs"][:, 0])
    np.testing.assert_array_equal(episode.steps["reward"], episode.steps["obs"][:, 0])
    assert len(episode) == len(numbers)
    return numbers


def test_ends_and_finals():
    """Each episode says how it ended, and with which observation if that is known."""
    table = Table("t", item=NStep(2, 0.9, ["obs"], "reward"))
    with Replay(EXAMPLE, 100, [table]) as replay:
        replay.add(step(0))
        replay.add(step(1), terminated=True)
        replay.add(step(2), truncated=True, final={"obs": np.array([7, 8], np.float32)})
        replay.add(step(3), terminated=True, final={"obs": np.array([9, 9], np.float32)})
        replay.add(step(4))
        replay.end_episode()
        replay.add(step(5))
        got = list(replay.episodes())
    assert [steps_of(one) for one in got] == [[0, 1], [2], [3], [4], [5]]
    assert [(one.terminated, one.truncated) for one in got] == [
        (True, False), (False, True), (True, False), (False, False), (False, False)
    ]  # fmt: skip
    assert [None if one.final is None else one.final["obs"].tolist() for one in got] == [
        None, [7, 8], [9, 9], None, None
    ]  # fmt: skip
    assert got[1].final["reward"].tolist() == 0  # it was not given
    assert [one.first for one in got] == [0] * 5
    assert len({one.stream for one in got}) == 1


ENDS = [(True, False), (False, True), (True, True), (False, False)]


@pytest.mark.parametrize("via", ["add", "writer", "vector", "own vector"])
def test_the_end_outlives_the_final_observation(via):
    """No item of single steps refers to a final observation, so it goes. The step before says how the episode ended."""
    with Replay(EXAMPLE, 100, store="shm") as replay, Writer(replay.handle) as writer:
        for i, (terminated, truncated) in enumerate(ENDS):
            final = {"obs": np.full(2, 9, np.float32)} if terminated or truncated else None
            if "vector" in via:
                rows = {"obs": np.array([[i, -i]], np.float32), "reward": np.float32([i])}
                ends = np.array([terminated]), np.array([truncated])
                each = None if final is None else {"obs": final["obs"][None]}
                (writer if via == "vector" else replay).add_vector(rows, *ends, autoreset="disabled", final=each)
            else:
                (replay if via == "add" else writer).add(
                    step(i), terminated=terminated, truncated=truncated, final=final
                )
        got = list(replay.episodes())
    assert [steps_of(one) for one in got] == [[0], [1], [2], [3]]
    assert [(one.terminated, one.truncated) for one in got] == ENDS
    assert [one.final for one in got] == [None] * 4


def test_the_end_outlives_the_item_that_had_the_final_observation(tmp_path):
    """So it is where the table of transitions is smaller than that of steps, also in a checkpoint."""
    tables = [Table("steps"), Table("few", max_size=1, item=NStep(1, 0.9, ["obs"], "reward"))]
    with Replay(EXAMPLE, 100, tables) as replay:
        for i in range(4):
            replay.add(step(i), truncated=i % 2 == 0, terminated=i % 2 == 1, final=step(7))
        replay.checkpoint(tmp_path / "saved")
        first = list(replay.episodes())
    with Replay.restore(tmp_path / "saved") as replay:
        again = list(replay.episodes())
    for got in (first, again):
        assert [steps_of(one) for one in got] == [[0], [1], [2], [3]]
        assert [one.final is None for one in got] == [True, True, False, False]  # a writer keeps its last steps
        assert [(one.terminated, one.truncated) for one in got] == [(False, True), (True, False)] * 2


def test_streams_and_environments_are_kept_apart():
    """Steps that writers and their environments took in turns come as whole episodes, ordered by their first steps."""
    with Replay(EXAMPLE, 100, store="shm") as replay, Writer(replay.handle) as one, Writer(replay.handle) as other:
        none = np.zeros(2, bool)
        for i in range(3):
            rows = {"obs": np.array([[i, -i], [10 + i, -10 - i]], np.float32), "reward": np.float32([i, 10 + i])}
            one.add_vector(rows, np.array([False, i == 1]), none, autoreset="disabled")
            other.add(step(20 + i))
        got = list(replay.episodes())  # it takes what the writers have sent
    assert sorted(steps_of(episode) for episode in got) == [[0, 1, 2], [10, 11], [12], [20, 21, 22]]
    assert steps_of(got[-1]) == [12]  # its first step came last
    assert [steps_of(e) for e in got if e.environment == 1] == [[10, 11], [12]]
    assert len({episode.stream for episode in got}) == 2


def test_what_is_left_of_an_episode():
    """Once the oldest steps are gone, an episode begins above 0; if only its final observation is left, it is none."""
    with Replay(EXAMPLE, 5, [Table("t", item=NStep(1, 0.9, ["obs"], "reward"))]) as replay:
        for i in range(4):
            replay.add(step(i))
        replay.add(step(4), truncated=True, final=step(5))
        replay.add(step(6))
        replay.add(step(7))
        first = {steps_of(one)[0]: one.first for one in replay.episodes()}
        assert first[6] == 0
        assert min(first) == first[min(first)] > 0
        for i in range(8, 11):
            replay.add(step(i))
        assert [steps_of(one) for one in replay.episodes()] == [[6, 7, 8, 9, 10]]
        assert replay.num_steps == 5


@pytest.mark.parametrize("chunk", [1, 3 * 12, module.CHUNK])
def test_steps_that_go_while_they_are_read(chunk, monkeypatch):
    """A step that went after the listing is left out, though another one has its place. It cuts its episode in two."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    table = Table("t", Fifo(), remover=Fifo())
    with Replay(EXAMPLE, 8, [table]) as replay:
        for i in range(4):
            replay.add(step(i), terminated=i == 1)
        for i in range(4, 8):
            replay.add(step(i), truncated=i == 7)
        iterator = replay.episodes()
        assert steps_of(next(iterator)) == [0, 1]
        replay.add(step(8))  # in the place of 0
        replay.add(step(9))
        replay.add(step(10))  # in the place of 2
        (rest,) = iterator
    assert steps_of(rest) == [3, 4, 5, 6, 7]
    assert (rest.first, rest.truncated) == (1, True)


def test_a_gap_in_the_middle(monkeypatch):
    """Steps on both sides of one that is gone are two episodes. Only the second one says how it ended."""
    with Replay(EXAMPLE, 10, [Table("t")]) as replay:
        for i in range(5):
            replay.add(step(i), terminated=i == 4)
        listed = np.frombuffer(replay._core.list_steps(), module._STORED).copy()
        listed["arrival"][listed["index"] == 2] += 1000  # as if another step were in its place by now
        monkeypatch.setattr(module.np, "frombuffer", lambda *_: listed)
        got = list(replay.episodes())
    assert [(steps_of(one), one.first, one.terminated) for one in got] == [([0, 1], 0, False), ([3, 4], 3, True)]


def test_a_final_observation_alone_is_no_episode(monkeypatch):
    """If all steps before it are gone, there is nothing that ended with it."""
    with Replay(EXAMPLE, 10, [Table("t", item=NStep(1, 0.9, ["obs"], "reward"))]) as replay:
        replay.add(step(0), truncated=True, final=step(1))
        replay.add(step(2))
        listed = np.frombuffer(replay._core.list_steps(), module._STORED).copy()
        listed["arrival"][(listed["episode"] == 0) & (listed["index"] == 0)] += 1000
        monkeypatch.setattr(module.np, "frombuffer", lambda *_: listed)
        assert [steps_of(one) for one in replay.episodes()] == [[2]]


@pytest.mark.parametrize("differs", ["stream", "environment", "episode"])
def test_each_number_keeps_episodes_apart(differs):
    """Steps whose numbers follow each other are of one episode only if all else is the same."""
    steps = np.zeros(2, module._STORED)
    steps["number"] = 4, 5
    assert len(module._runs(steps)) == 1
    steps["number"] = 4, 6
    assert len(module._runs(steps)) == 2
    steps["number"] = 4, 5
    steps[differs] = 6, 7
    assert len(module._runs(steps)) == 2


def test_a_piece_is_as_long_as_asked():
    """Long episodes come in pieces, which say that they go on. A final observation comes with its step."""
    with Replay(EXAMPLE, 20, [Table("t", item=NStep(1, 0.9, ["obs"], "reward"))]) as replay:
        for i in range(7):
            replay.add(step(i), terminated=i == 4)
        replay.add(step(7), truncated=True, final=step(8))
        got = [
            (piece.leaves[1].tolist(), piece.goes_on, piece.terminated, piece.truncated, piece.final)
            for piece in module.pieces(replay, 2)
        ]
    assert got == [
        ([0, 1], False, False, False, False),
        ([2, 3], True, False, False, False),
        ([4], True, True, False, False),
        ([5, 6], False, False, False, False),
        ([7, 8], True, False, True, True),
    ]
    with Replay(EXAMPLE, 20, [Table("t", item=NStep(1, 0.9, ["obs"], "reward"))]) as replay:
        replay.add(step(0))
        replay.add(step(1), truncated=True, final=step(2))
        assert [piece.leaves[1].tolist() for piece in module.pieces(replay, 2)] == [[0], [1, 2]]
        assert [piece.leaves[1].tolist() for piece in module.pieces(replay, 1)] == [[0], [1, 2]]


def test_nothing_stored_and_closed():
    """Of an empty replay there is no episode. Of a closed one there is an error."""
    with Replay(EXAMPLE, 3) as replay:
        assert list(replay.episodes()) == []
    with pytest.raises(ConnectionClosedError, match="closed"):
        next(replay.episodes())
