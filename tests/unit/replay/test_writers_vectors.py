"""Steps of several environments that a writer sends: what the extension sends at once, and what it leaves to Python.

Their items are in test_items_machine.py.
"""

import os
import sys
import threading
from collections import Counter

import numpy as np
import optree
import pytest

from echo_shm import ConnectionClosedError, ForkedError, Replay, Table
from echo_shm.replay import Fifo, NStep, Writer
from echo_shm.replay.sources import inbox_slots
from echo_shm.replay.vector import Vector
from echo_shm.spec import Spec

EXAMPLE = {"obs": np.zeros(2, np.float32), "act": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}


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


def transitions():
    """A table of them."""
    return Table("t", Fifo(), max_times_sampled=1, item=NStep(1, 0.5, ["obs"]))


def settle(replay):
    """Stores all that has come: how many steps there are."""
    before = None
    while before != (before := replay.num_steps):
        pass
    return before


def numbers_of(replay):
    """For each environment, its episodes' steps and how they end."""
    found = {}
    for one in replay.episodes():
        end = "terminated" if one.terminated else "truncated" if one.truncated else ""
        found.setdefault(one.environment, []).append((one.steps["act"].tolist(), end))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"terminated": flags(False, True), "truncated": flags(True, False)},
        {"terminated": flags(False, True), "final": {"obs": rows(2, 3)["obs"]}},
        {"terminated": flags(False, False), "final": {"obs": None}},
        {"truncated": flags(True, True), "autoreset": "same_step", "final": rows(1, 2), "timeout": 1},
    ],
)
def test_what_most_callers_give_is_not_looked_at_in_python(arguments, monkeypatch):
    """It costs a few microseconds."""
    with Replay(EXAMPLE, 10, [transitions()]) as replay, Writer(replay.handle) as writer:
        writer.add_vector(rows(1, 2), None, None)
        monkeypatch.delattr(Vector, "rows")
        writer.add_vector(**{"steps": rows(1, 2), "terminated": None, "truncated": None, **arguments})
        assert replay.num_steps > 2


@pytest.mark.parametrize("ways", [(0,), (0, 1), (1, 0), (0, 2), (2, 0, 1), (1,)])
def test_calls_of_all_kinds_may_follow_each_other(ways):
    """Common ones (0), with priorities (1), with objects (2): the environments' steps, episodes and resets go on."""
    calls = [
        ((1, 11), (False, True), "next_step"),
        ((2, -1), (True, False), "next_step"),
        ((-1, 12), (False, False), "next_step"),
        ((3, 13), (True, True), "same_step"),
        ((4, 14), (True, False), "next_step"),
        ((5, 15), (False, False), "disabled"),  # the first row is a step after all
        ((6, 16), (False, True), "next_step"),
    ]
    with Replay(EXAMPLE, 100, [transitions()]) as replay, Writer(replay.handle) as writer:
        for i in range(6 * len(calls)):
            numbers, ends, mode = calls[i % len(calls)]
            final = rows(*(100 + number for number in numbers))["obs"]
            way = ways[i % len(ways)]
            if way == 2:
                final = np.array([*final, None], object)[:2]
            writer.add_vector(
                rows(*numbers),
                flags(*ends),
                flags(False, False),
                mode,
                final={"obs": final},
                priorities=[1.0, 2.0] if way == 1 else None,
            )
            if i % len(calls) == len(calls) - 1:
                writer.end_episode()
                expected = {
                    0: [([1, 2], "terminated"), ([3], "terminated"), ([4], "terminated"), ([5, 6], "")],
                    1: [([11], "terminated"), ([12, 13], "terminated"), ([14, 15, 16], "terminated")],
                }
                got = numbers_of(replay)
                assert {one: episodes[-len(expected[one]) :] for one, episodes in got.items()} == expected
        data = replay.sample(replay.info().size).data
        assert all(float(o[0]) + 100 == float(f[0]) for o, f, d in ends_of(data) if d == 0)


def ends_of(data):
    """What was seen, what it led to, and the discount."""
    return zip(data["obs"], data["next"]["obs"], data["discount"], strict=True)


def test_many_leaves_and_rows():
    """More than fit into the memory that is at hand, and a leaf without bytes."""
    names, n = [f"leaf {i}" for i in range(20)], 30
    example = {**{name: np.zeros(2, np.float32) for name in names}, "none": np.zeros((0, 3))}
    table = Table("t", item=NStep(1, 1.0, names[1:], names[0]))
    given = {name: np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 100 * i for i, name in enumerate(names)}
    final = {name: leaf + 50 for name, leaf in given.items()}
    given["none"] = np.zeros((n, 0, 3))
    with Replay(example, 200, [table]) as replay, Writer(replay.handle) as writer:
        for _ in range(2):
            writer.add_vector(given, np.arange(n) % 2 == 0, None, "same_step", final=final)
        batch = replay.sample(300)
        data = batch.data
        assert set(batch.priority) == {1}  # the table's highest
        assert {int(row) for row in data["leaf 0"][:, 0]} == set(range(0, 2 * n, 2))
        for i, name in enumerate(names[1:], 1):
            assert (data[name] == data["leaf 0"] + 100 * i).all()
            over = data["discount"] == 0
            assert (data["next"][name][over] == data[name][over] + 50).all()


def test_a_full_ring_in_the_middle_of_a_call():
    """The call waits for room with the rest of its rows: each comes once, in order."""
    n, calls = 7, 3000
    with Replay(EXAMPLE, n * calls, [transitions()], thread=True) as replay, Writer(replay.handle) as writer:
        for first in range(0, n * calls, n):
            writer.add_vector(rows(*range(first, first + n)), None, None)
        writer.flush()
        assert numbers_of(replay) == {i: [(list(range(i, n * calls, n)), "")] for i in range(n)}


def test_what_a_cut_call_says():
    """It counts all rows of the call, whoever has sent them."""
    slots = inbox_slots(Spec.from_example(EXAMPLE))
    with Replay(EXAMPLE, 2 * slots) as replay, Writer(replay.handle) as writer:
        for _ in range((slots - 2) // 3):
            writer.add_vector(rows(1, 2, 3), None, None, timeout=0)
        for _ in range((slots - 2) % 3):
            writer.add(optree.tree_map(lambda leaf: leaf[0], rows(0)))
        with pytest.raises(TimeoutError, match=r"; 2 of 3 samples were sent.*the others go first") as cut:
            writer.add_vector(rows(4, 5, 6), None, None, timeout=0)
        assert cut.value.sent == 2
        settle(replay)
        writer.add_vector(rows(7, 8, 9), None, None)
        assert settle(replay) == slots + 1 + 3
        vectors = [one.steps["act"].tolist() for one in replay.episodes() if len(one.steps["act"]) > 2]
        assert sorted(numbers[-3:] for numbers in vectors) == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


def test_threads_that_share_a_writer():
    """Each call is a step of each environment, though the rows are so large that others may run meanwhile."""
    n, calls, example = 4, 30, {**EXAMPLE, "obs": np.zeros(30_000, np.uint8)}

    def work(writer, thread):
        for i in range(calls):
            number = thread * calls + i
            given = {**rows(*[number] * n), "obs": np.full((n, 30_000), number, np.uint8)}
            over = np.full(n, number % 3 == 0)
            writer.add_vector(given, over, None, "disabled", final={"obs": given["obs"]})

    with Replay(example, 1000, [transitions()], thread=True) as replay, Writer(replay.handle) as writer:
        threads = [threading.Thread(target=work, args=(writer, thread)) for thread in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.flush()
        found = numbers_of(replay)
        streams = [[number for steps, _ in found[i] for number in steps] for i in range(n)]
        assert streams == [streams[0]] * n
        assert sorted(streams[0]) == list(range(3 * calls))


def test_nothing_is_kept():
    """A call, whether it sends anything or not, leaves no reference behind."""
    given, final, ended = rows(1, 2), rows(3, 4), flags(True, False)
    with Replay(EXAMPLE, 1000) as replay, Writer(replay.handle) as writer:
        leaves = [*optree.tree_leaves(given), *optree.tree_leaves(final), ended]
        before = Counter(map(sys.getrefcount, leaves))
        for _ in range(50):
            writer.add_vector(given, ended, None, "disabled", final=final)
            with pytest.raises(ValueError, match="expected bool"):
                writer.add_vector(given, ended[:1], None, "disabled", final=final)
        assert Counter(map(sys.getrefcount, leaves)) == before


def test_a_closed_writer_and_a_forked_child():
    """Both are refused; the parent goes on."""
    with Replay(EXAMPLE, 10) as replay, Writer(replay.handle) as writer:
        writer.add_vector(rows(1, 2), None, None)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(ForkedError):
                    writer.add_vector(rows(3, 4), None, None)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        writer.add_vector(rows(5, 6), None, None)
        assert numbers_of(replay) == {0: [([1, 5], "")], 1: [([2, 6], "")]}
        writer.close()
        with pytest.raises(ConnectionClosedError):
            writer.add_vector(rows(7, 8), None, None)
