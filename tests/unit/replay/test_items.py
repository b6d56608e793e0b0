"""Items of several steps: what each kind gives, at every border of an episode, element by element."""

import collections
import itertools
import json

import numpy as np
import optree
import pytest
from harness import item_model
from harness.item_model import ENDS, LEFT, OPEN

from echo_shm import Replay, ReplayClient, SegmentError, SpecMismatchError, Table
from echo_shm.replay import Episode, Fifo, NStep, Sequence, Step
from echo_shm.replay.item import item_from
from echo_shm.replay.layout import data_structure, lay_out
from echo_shm.spec import Spec

EXAMPLE = {
    "obs": np.zeros(2, np.float32),
    "act": np.zeros((), np.int64),
    "reward": np.zeros(2, np.float32),
    "core": np.zeros(3, np.uint8),
}

#: Every kind, with every small number.
ITEMS = [
    Step(),
    *(
        NStep(n, 0.5, ["obs"], stack=stack, pad=pad)
        for n in range(1, 5)
        for stack, pad in [({}, "first"), *itertools.product([{"obs": 1}, {"obs": 2}, {"obs": 3}], ["first", "zero"])]
    ),
    *(
        Sequence(length, period, pad, ["core"])
        for length in range(1, 5)
        for period in range(1, length + 1)
        for pad in ("zero", None)
    ),
    *(Episode(length) for length in (1, 3, 6)),
]


def rows(first, n):
    """n steps that differ from all others; by leaf."""
    numbers = np.arange(first, first + n)
    return {
        "obs": np.stack([numbers, -numbers], 1).astype(np.float32),
        "act": numbers,
        "reward": np.stack([numbers % 8 + 1, numbers % 5], 1).astype(np.float32),
        "core": np.stack([numbers, numbers >> 8, numbers >> 16], 1).astype(np.uint8),
    }


def row(of, i):
    """One of them."""
    return {name: one[i] for name, one in of.items()}


def table_of(i, item, **options):
    """A table that gives its items once, in order of insertion."""
    return Table(str(i), Fifo(), max_times_sampled=1, item=item, **options)


def drained(replay, table):
    """The data of all items of a table, in order."""
    return replay.sample(replay.info(table).size, table).data


def same(got, expected):
    """Whether two trees have the same arrays, with their dtypes."""
    optree.tree_map(np.testing.assert_array_equal, got, expected)
    return all(
        one.dtype == other.dtype
        for one, other in zip(optree.tree_leaves(got), optree.tree_leaves(expected), strict=True)
    )


def joined(batches):
    """One batch of several."""
    return optree.tree_map(lambda *leaves: np.concatenate(leaves), *batches)


def add_episode(add, end_episode, of, steps, end):
    """Adds an episode, one step at a time. Row ``steps`` is what it ends with."""
    for t in range(steps):
        last = t == steps - 1
        ends = {
            "terminated": last and end.startswith("terminated"),
            "truncated": last and end.startswith("truncated"),
        }
        final = {"obs": of["obs"][steps]} if last and "final" in end else None
        add(row(of, t), **ends, final=final)
    if end == LEFT:
        end_episode()


def pairs(kinds):
    """A sequence in which each kind follows each other one, and itself, but for the last, which the first would follow."""
    return [one for i, a in enumerate(kinds) for one in (a, *(x for b in kinds[i + 1 :] for x in (a, b)))]


def check(replay, episodes, made):
    """Each table of the replay has the items of all these episodes, in order."""
    for i, item in enumerate(ITEMS):
        expected = []
        for (steps, end), of in zip(episodes, made, strict=True):
            found = item_model.parts(item, steps, end)
            if found:
                expected.append(item_model.data_of(item, found, of))
        assert replay.can_sample(1, str(i)) == bool(expected), item
        assert not expected or same(drained(replay, str(i)), joined(expected)), item


ENDED = [(steps, end) for steps in range(1, 7) for end in ENDS[1:]]


@pytest.mark.parametrize("episodes", [[*pairs(ENDED), (4, OPEN)], *([(n, OPEN)] for n in range(1, 7))], ids=len)
def test_every_border(episodes):
    """All episodes of up to 6 steps, one after each other one; and one that goes on."""
    made, first = [], 0
    with Replay(EXAMPLE, 5_000, [table_of(i, item) for i, item in enumerate(ITEMS)]) as replay:
        for steps, end in episodes:
            made.append(rows(first, steps + 1))
            first += steps + 1
            add_episode(replay.add, replay.end_episode, made[-1], steps, end)
        assert replay.num_steps == sum(steps + ("final" in end) for steps, end in episodes)
        check(replay, episodes, made)


# --- writers -----------------------------------------------------------------


def vectors(rng, n, length, mode):
    """Calls of add_vector() of n environments, and the episodes that they are: for each environment in order."""
    calls, episodes, first = [], [], 0
    now = [[] for _ in range(n)]  # the rows of each environment's episode
    resets = [False] * n
    for _ in range(length):
        step, final = rows(first, n), rows(first + n, n)["obs"]
        first += 2 * n
        ends = rng.choice(3, n, p=[0.7, 0.15, 0.15])
        for i in range(n):
            if mode == "next_step" and resets[i]:
                ends[i] = 0
                resets[i] = False
                continue
            now[i].append(row(step, i))
            if ends[i]:
                end = "terminated, final" if ends[i] == 1 else "truncated, final"
                episodes.append((i, end, now[i], final[i]))
                now[i], resets[i] = [], True
        calls.append((step, ends == 1, ends == 2, final))
    return calls, [*episodes, *((i, OPEN, now[i], None) for i in range(n) if now[i])]


def finals_of(mode, final, ended):
    """The observations that episodes end with, as Gymnasium gives them."""
    if mode != "same_step":
        return final
    objects = np.full(len(ended), None)
    for i in np.flatnonzero(ended):
        objects[i] = final[i]
    return objects if ended.any() else None


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_vectors(mode):
    """Several environments, whose episodes end at different times, each in the way of its mode."""
    calls, episodes = vectors(np.random.default_rng(0), 5, 60, mode)
    items = ITEMS[::7]
    tables = [table_of(i, item) for i, item in enumerate(items)]
    with Replay(EXAMPLE, 1000, tables) as replay, ReplayClient(replay.handle) as client, client.writer() as writer:
        for step, terminated, truncated, final in calls:
            given = {"obs": finals_of(mode, final, terminated | truncated)}
            writer.add_vector(step, terminated, truncated, mode, final=given)
            replay.can_sample(1, "0")  # the inbox is small
        for i, item in enumerate(items):
            got, expected = drained(replay, str(i)), []
            for _, end, of, final in episodes:
                found = item_model.parts(item, len(of), end)
                if found:
                    ends = [*of, {**of[-1], "obs": of[-1]["obs"] if final is None else final}]
                    expected.append(item_model.data_of(item, found, {k: np.stack([r[k] for r in ends]) for k in of[0]}))
            assert sorted_rows(got) == sorted_rows(joined(expected)), item


def sorted_rows(data):
    """The items of a batch without their order: environments take turns."""
    leaves = optree.tree_leaves(data)
    return sorted(b"".join(leaf[i].tobytes() for leaf in leaves) for i in range(len(leaves[0])))
