"""Steps of several environments that the replay's own process stores. Their items are in test_items_machine.py."""

import sys
from collections import Counter

import numpy as np
import optree
import pytest

from echo_shm import ConnectionClosedError, EchoShmError, Replay, Table
from echo_shm.replay import Fifo, NStep, Queue, Sequence
from echo_shm.replay.inserting import Inserting

EXAMPLE = {"obs": np.zeros(2, np.float32), "act": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}
NO, YES = np.zeros(1, bool), np.ones(1, bool)


def rows(*numbers):
    """A row for each number."""
    return {
        "obs": np.array([[number, -number] for number in numbers], np.float32).reshape(-1, 2),
        "act": np.array(numbers, np.int64),
        "reward": np.array(numbers, np.float32),
    }


def flags(*ends):
    """An array of them."""
    return np.array(ends, bool)


def transitions(**options):
    """A table of them, sampled in the order of insertion."""
    return Table("t", Fifo(), max_times_sampled=1, item=NStep(1, 0.5, ["obs"]), **options)


def pairs(replay):
    """The transitions: what was seen, what followed, and its discount."""
    data = replay.sample(replay.info("t").size, "t").data
    return list(
        zip(data["obs"][:, 0].tolist(), data["next"]["obs"][:, 0].tolist(), data["discount"].tolist(), strict=True)
    )


def numbers_of(replay):
    """For each environment, its episodes' steps and how they end."""
    found = {}
    for one in replay.episodes():
        end = "terminated" if one.terminated else "truncated" if one.truncated else ""
        found.setdefault(one.environment, []).append((one.steps["act"].tolist(), end))
    return found


def test_a_final_observation_comes_with_its_row():
    """Both are stored before the next row, and transitions lead to it. The leaves that it does not have are zeros."""
    with Replay(EXAMPLE, 20, [transitions()]) as replay:
        replay.add_vector(
            rows(1, 2), flags(True, False), flags(False, False), "disabled", final={"obs": rows(8, 9)["obs"]}
        )
        replay.add_vector(
            rows(3, 4), flags(False, False), flags(False, True), "disabled", final={"obs": rows(6, 7)["obs"]}
        )
        assert pairs(replay) == [(1, 8, 0), (2, 4, 0.5), (4, 7, 0.5)]
        finals = [one.final for one in replay.episodes() if one.final is not None]
        assert [(one["obs"].tolist(), int(one["act"])) for one in finals] == [([8, -8], 0), ([7, -7], 0)]


def test_some_environments_step():
    """Those that are not named stay where they are. New ones come at any time, with any numbers."""
    with Replay(EXAMPLE, 50, [transitions()]) as replay:
        for environments, numbers in [([0, 1], (1, 2)), ([1], (3,)), ([7, 0], (4, 5)), ([1_048_575, 1], (6, 7))]:
            none = np.zeros(len(environments), bool)
            replay.add_vector(rows(*numbers), none, none, environments=np.array(environments))
        replay.add_vector(rows(8, 9, 10), None, None)
        assert pairs(replay) == [(2, 3, 0.5), (1, 5, 0.5), (3, 7, 0.5), (5, 8, 0.5), (7, 9, 0.5)]
        last = {environment: found[-1][0][-1] for environment, found in numbers_of(replay).items()}
        assert last == {0: 8, 1: 9, 2: 10, 7: 4, 1_048_575: 6}


def test_add_is_environment_0():
    """So is extend. A step that is added is one, also where the row of a vector would be a reset."""
    with Replay(EXAMPLE, 50, [Table("t", item=Sequence(9))]) as replay:
        replay.add({name: leaf[0] for name, leaf in rows(1).items()})
        replay.add_vector(rows(2, 12), flags(True, True), None)
        replay.extend(rows(3, 4))
        replay.add_vector(rows(5, 15), None, None)  # of environment 1, it is a reset
        replay.add_vector(rows(6, 16), None, None)
        assert numbers_of(replay) == {
            0: [([1, 2], "terminated"), ([3, 4, 5, 6], "")],
            1: [([12], "terminated"), ([16], "")],
        }


def test_episodes_end_by_hand():
    """Those of all environments, or of some. Then no row is a reset."""
    with Replay(EXAMPLE, 50, [Table("t", item=Sequence(9))]) as replay:
        replay.add_vector(rows(1, 2, 3), flags(False, False, True), None)
        replay.end_episode([1, 2, 500])
        replay.add_vector(rows(4, 5, 6), None, None)
        replay.end_episode()
        replay.add_vector(rows(7, 8, 9), None, None)
        assert numbers_of(replay) == {
            0: [([1, 4], ""), ([7], "")],
            1: [([2], ""), ([5], ""), ([8], "")],
            2: [([3], "terminated"), ([6], ""), ([9], "")],
        }
        with pytest.raises(ValueError, match=r"environments: got float64\[1\], expected int64\[n\]"):
            replay.end_episode([0.5])
        with pytest.raises(ValueError, match=r"environments\[0\] is -1"):
            replay.end_episode([-1])


@pytest.mark.parametrize("slowly", [False, True])
def test_a_vector_that_a_limiter_cuts_short(slowly):
    """``sent`` says how many rows are done, resets among them. The rest goes on from there."""
    priorities = np.ones(4) if slowly else None
    with Replay(EXAMPLE, 50, [Table("q", rate_limiter=Queue(4)), Table("t", item=NStep(1, 1.0, "obs"))]) as replay:
        replay.add_vector(rows(0, 1), flags(False, True), None, final={"obs": rows(8, 9)["obs"]})
        assert replay.sample(1, "q").data["act"] == [0]
        ended = flags(False, False, True, False)
        arguments = {"final": {"obs": rows(5, 6, 7, 8)["obs"]}, "priorities": priorities}
        replay.add({name: leaf[0] for name, leaf in rows(2).items()})
        with pytest.raises(TimeoutError, match=r"table 'q' lets nobody insert.*3 of 4 rows are done") as caught:
            replay.add_vector(rows(3, 4, 5, 6), ended, None, **arguments)
        assert caught.value.sent == 3
        assert replay.num_steps == 2 + 1 + 1 + 2 + 1  # and two final observations
        with pytest.raises(TimeoutError) as again:
            replay.add_vector(rows(6), NO, NO, environments=[3])
        assert again.value.sent == 0
        assert replay.sample(2, "q").data["act"].tolist() == [1, 2]
        replay.add_vector(rows(6), NO, NO, environments=[3])
        assert replay.sample(2, "q").data["act"].tolist() == [3, 5]
        replay.add_vector(rows(12, 13), None, None, environments=[1, 2])
        assert replay.sample(2, "q").data["act"].tolist() == [6, 12]  # row 13 was a reset


def test_a_row_and_its_final_observation_are_stored_together():
    """Where one of both has no room, neither comes."""
    with Replay(EXAMPLE, 3, [Table("t", item=NStep(1, 1.0, "obs"), protected=True)]) as replay:
        replay.add_vector(rows(1), YES, NO, "disabled", final={"obs": rows(2)["obs"]})
        with pytest.raises(EchoShmError, match=r"is full.*0 of 1 rows are done"):
            replay.add_vector(rows(3), YES, NO, "disabled", final={"obs": rows(4)["obs"]})
        assert replay.num_steps == 2
        assert replay.info().size == 1


def test_many_leaves_and_rows():
    """More than fit into the memory that is at hand."""
    names = [f"leaf {i}" for i in range(20)]
    n = 30
    example = {name: np.zeros(2, np.float32) for name in names}
    table = Table("t", item=NStep(1, 1.0, names[1:], names[0]))
    given = {name: np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 100 * i for i, name in enumerate(names)}
    final = {name: leaf + 50 for name, leaf in given.items()}
    with Replay(example, 100, [table]) as replay:
        replay.add_vector(given, np.arange(n) % 2 == 0, None, "same_step", final=final)
        data = replay.sample(300).data
        assert {int(row) for row in data["leaf 0"][:, 0]} == set(range(0, 2 * n, 4))
        for i, name in enumerate(names[1:], 1):
            assert (data[name] == data["leaf 0"] + 100 * i).all()
            assert (data["next"][name] == data[name] + 50).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"terminated": NO, "truncated": YES, "final": {"obs": rows(2)["obs"]}},
        {"terminated": NO, "final": {"obs": None}},
        {"environments": np.array([3])},
        {"environments": np.array([3]), "truncated": YES, "autoreset": "same_step", "final": rows(1)},
    ],
)
def test_what_most_callers_give_is_not_looked_at_in_python(arguments, monkeypatch):
    """It costs a few microseconds."""
    monkeypatch.delattr(Inserting, "_add_vector_slowly")
    with Replay(EXAMPLE, 10, [transitions()]) as replay:
        replay.add_vector(**{"steps": rows(1), "terminated": None, "truncated": None, **arguments})
        assert replay.num_steps > 0


def test_nothing_is_kept():
    """A call, whether it stores anything or not, leaves no reference behind."""
    given, final, mine = rows(1, 2), rows(3, 4), np.arange(2)
    ended = flags(True, False)
    with Replay(EXAMPLE, 10, [transitions()]) as replay:
        leaves = [*optree.tree_leaves(given), *optree.tree_leaves(final), mine, ended]
        before = Counter(map(sys.getrefcount, leaves))
        for _ in range(50):
            replay.add_vector(given, ended, None, "disabled", final=final, environments=mine)
            with pytest.raises(ValueError, match="expected bool"):
                replay.add_vector(given, ended[:1], None, "disabled", final=final, environments=mine)
        assert Counter(map(sys.getrefcount, leaves)) == before


def test_no_rows():
    """They change nothing."""
    with Replay(EXAMPLE, 10, [transitions()]) as replay:
        replay.add_vector(rows(), flags(), flags())
        replay.add_vector(rows(), flags(), flags(), environments=np.zeros(0, np.int64), priorities=[])
        assert replay.num_steps == 0


def test_a_closed_replay_takes_no_vector():
    """It says so."""
    replay = Replay(EXAMPLE, 10)
    replay.close()
    with pytest.raises(ConnectionClosedError):
        replay.add_vector(rows(1), NO, NO)
    with pytest.raises(ConnectionClosedError):
        replay.end_episode([0])


def test_more_environments_than_there_can_be():
    """Nothing is stored."""
    n = 2**20 + 1
    with (
        Replay({"v": np.zeros((), np.uint8)}, 10) as replay,
        pytest.raises(ValueError, match="got steps of 1,048,577 environments, and a replay can have 1,048,576"),
    ):
        replay.add_vector({"v": np.zeros(n, np.uint8)}, None, None)
    with Replay({"v": np.zeros((), np.uint8)}, 10) as replay:
        replay.add_vector({"v": np.zeros(n - 1, np.uint8)}, None, None)
        assert replay.info().inserted == n - 1
