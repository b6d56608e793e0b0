"""Items of several steps: what each kind gives, at every border of an episode, element by element."""

import collections
import itertools
import json

import numpy as np
import optree
import pytest
from harness import item_model
from harness.item_model import ENDS, LEFT, OPEN

from echo_shm import Replay, SpecMismatchError, Table
from echo_shm.replay import Episode, Fifo, NStep, Sequence, Step, Writer
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
    """A sequence in which each kind follows each other one, and itself; the first would follow the last."""
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
SOME = [(steps, end) for steps in (1, 2, 5) for end in ENDS[1:]]


@pytest.mark.parametrize("episodes", [[*ENDED, *pairs(SOME), (4, OPEN)], *([(n, OPEN)] for n in range(1, 7))])
def test_every_border(episodes):
    """All episodes of up to 6 steps, many of them one after each other one; and one that goes on."""
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


@pytest.mark.parametrize("via", ["writer", "replay"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_vectors(mode, via):
    """Several environments, whose episodes end at different times, each in the way of its mode."""
    calls, episodes = vectors(np.random.default_rng(0), 5, 60, mode)
    items = ITEMS[::7]
    tables = [table_of(i, item) for i, item in enumerate(items)]
    with Replay(EXAMPLE, 1000, tables) as replay, Writer(replay.handle) as writer:
        for step, terminated, truncated, final in calls:
            given = {"obs": finals_of(mode, final, terminated | truncated)}
            (replay if via == "replay" else writer).add_vector(step, terminated, truncated, mode, final=given)
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


def test_writers_take_turns():
    """Episodes of several writers, one step of each at a time, and of the replay itself."""
    items = [NStep(3, 0.5, "obs", stack={"obs": 2}), Sequence(4, 2, state="core")]
    made = {name: [rows(1000 * i + 100 * j, 8) for j in range(2)] for i, name in enumerate("abc")}
    with (
        Replay(EXAMPLE, 1000, [table_of(i, item) for i, item in enumerate(items)]) as replay,
        Writer(replay.handle) as a,
        Writer(replay.handle) as b,
    ):
        adds = {"a": a.add, "b": b.add, "c": replay.add}
        for j in range(2):
            for t in range(7):
                for name, add in adds.items():
                    final = {"obs": made[name][j]["obs"][7]} if t == 6 else None
                    add(row(made[name][j], t), terminated=t == 6, final=final)
        assert replay.num_steps == 3 * 2 * 8
        for i, item in enumerate(items):
            found = item_model.parts(item, 7, "terminated, final")
            expected = joined([item_model.data_of(item, found, of) for each in made.values() for of in each])
            assert sorted_rows(drained(replay, str(i))) == sorted_rows(expected)


def test_extend_is_add_n_times():
    """Blocks that end within episodes, at their ends and at both, of a replay and of a writer."""
    episodes = [(3, "terminated"), (1, "truncated"), (4, "terminated"), (2, "truncated"), (5, OPEN)]
    ends = np.cumsum([steps for steps, _ in episodes])[:-1] - 1
    terminated, truncated = np.zeros(15, bool), np.zeros(15, bool)
    terminated[ends[::2]], truncated[ends[1::2]] = True, True
    made = [rows(int(end) - steps + 1, steps + 1) for end, (steps, _) in zip([*ends, 14], episodes, strict=True)]
    for cuts in ([15], [1, 2, 1, 4, 5, 2], [4, 4, 7]):
        tables = [table_of(i, item) for i, item in enumerate(ITEMS)]
        with Replay(EXAMPLE, 100, tables) as replay, Writer(replay.handle) as writer:
            for extend in (replay.extend, writer.extend):
                at = 0
                for n in cuts:
                    block = slice(at, at + n)
                    extend(rows(at, n), terminated=terminated[block], truncated=truncated[block])
                    at += n
                check(replay, episodes, made)


def test_items_have_the_priority_of_the_step_that_completes_them():
    """Also where several are completed by one step, or none goes into some table."""
    names = ("a", "b")
    with Replay(EXAMPLE, 100, [table_of(name, NStep(3, 0.5, "obs")) for name in names]) as replay:
        of = rows(0, 8)
        for t in range(5):
            given = {"a": float(t), **({} if t == 3 else {"b": 10.0 + t})}
            replay.add(row(of, t), given, terminated=t == 4, final={"obs": of["obs"][5]} if t == 4 else None)
        batches = [replay.sample(replay.info(name).size, name) for name in names]
        assert [batch.data["act"].tolist() for batch in batches] == [[0, 1, 2, 3, 4], [1, 2, 3, 4]]
        assert [batch.priority.tolist() for batch in batches] == [[3, 4, 4, 4, 4], [14, 14, 14, 14]]


# --- the tree of a batch -----------------------------------------------------

Pair = collections.namedtuple("Pair", ["obs", "reward"])

TREES = {
    "nested": (
        {"obs": {"image": np.zeros((2, 2), np.uint8), "speed": np.zeros(3)}, "more": [{"reward": np.zeros(())}]},
        NStep(2, 1.0, [("obs", "image")], ("more", 0, "reward"), {("obs", "image"): 3}),
        {
            "obs": {"image": (3, 2, 2), "speed": (3,)},
            "more": [{"reward": ()}],
            "next": {"obs": {"image": (3, 2, 2)}},
            "discount": (),
            "n": (),
        },
    ),
    "a subtree": (
        {"obs": {"image": np.zeros((2, 2), np.uint8), "speed": np.zeros(3)}, "reward": np.zeros(())},
        NStep(2, 1.0, "obs", stack={"obs": 2}),
        {
            "obs": {"image": (2, 2, 2), "speed": (2, 3)},
            "reward": (),
            "next": {"obs": {"image": (2, 2, 2), "speed": (2, 3)}},
            "discount": (),
            "n": (),
        },
    ),
    "a tuple": (
        (np.zeros(3), np.zeros((), np.float32)),
        NStep(2, 1.0, [0], 1),
        {"step": ((3,), ()), "next": {0: (3,)}, "discount": (), "n": ()},
    ),
    "a named tuple": (
        Pair(np.zeros(3), np.zeros(())),
        NStep(2, 1.0, ["obs"]),
        {"step": Pair((3,), ()), "next": {"obs": (3,)}, "discount": (), "n": ()},
    ),
    "an array": (np.zeros(3), Sequence(4), {"step": (4, 3), "mask": (4,)}),
    "a state": (
        {"h": (np.zeros(5), np.zeros(6)), "x": np.zeros(())},
        Sequence(4, 2, state=["h"]),
        {"h": ((5,), (6,)), "x": (4,), "mask": (4,)},
    ),
    "an episode": ({"x": np.zeros(2)}, Episode(7), {"x": (7, 2), "mask": (7,), "length": ()}),
}


@pytest.mark.parametrize("kind", TREES)
def test_the_tree_of_a_batch(kind):
    """Its containers, shapes and dtypes; and whoever knows a step's structure alone finds the same tree."""
    example, item, expected = TREES[kind]
    spec = Spec.from_example(example)
    data = lay_out(item, spec).data
    shapes = data.structure.unflatten([leaf.shape for leaf in data.leaves])
    assert shapes == expected
    assert data_structure(item, spec.structure) == data.structure
    step = optree.tree_map(lambda leaf: np.ones(leaf.shape, leaf.dtype), example)
    with Replay(example, 100, [Table("a", item=item)]) as replay:
        for _ in range(8):
            replay.add(step)
        replay.end_episode()
        replay.add(step)
        batch = replay.sample(5)
        got = optree.tree_map(lambda leaf: leaf.shape[1:], batch.data)
        assert got == expected
        assert [leaf.dtype for leaf in optree.tree_leaves(batch.data)] == [leaf.dtype for leaf in data.leaves]
        out = optree.tree_map(np.empty_like, batch.data)
        again = replay.sample(5, out=out)
        assert again.data is out
        assert same(out, replay.get(again.key).data)
        with pytest.raises(SpecMismatchError, match="structure of out is not that of the table's batches"):
            replay.sample(5, out={"other": np.zeros(3)})
        with pytest.raises(SpecMismatchError, match=r"out, leaf .*expected an array of .*\[4"):
            replay.sample(4, out=out)


@pytest.mark.parametrize("item", ITEMS[::3])
def test_items_are_described_in_json(item):
    """For those who open a store, or a ring of batches."""
    assert item_from(json.loads(json.dumps(item.describe()))) == item
    assert eval(repr(item)) == item
    assert hash(item) == hash(item_from(item.describe()))


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        ["step"],
        ["step", None],
        ["step", {"n": 1}],
        ["trajectory", {}],
        [["step"], {}],
        ["sequence", {"length": "4"}],
        ["sequence", {"length": 4, "period": 5}],
        ["n_step", {"n": 1, "gamma": 1.0, "observation": [["obs", None]]}],
        ["n_step", {"n": 1, "gamma": 1.0, "observation": 3}],
        ["n_step", {"n": 1, "gamma": 1.0, "observation": [["obs"]], "stack": {"obs": 2}}],
        ["n_step", {"n": 2**20, "gamma": 1.0, "observation": [["obs"]]}],
    ],
)
def test_a_damaged_description_is_no_item(said):
    """Whoever has written it."""
    with pytest.raises(ValueError, match="no kind of item"):
        item_from(said)


# --- what is wrong -----------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NStep(0, 1.0, "obs"), ValueError, "n=0: use an integer, 1 or more"),
        (lambda: NStep(2**20, 1.0, "obs"), ValueError, "n=1048576: use an integer below 1048576"),
        (lambda: NStep(1, 1.5, "obs"), ValueError, "gamma=1.5: use a number from 0 to 1"),
        (lambda: NStep(1, 1.0, []), ValueError, "observation=.*name at least one leaf"),
        (lambda: NStep(1, 1.0, [()]), ValueError, "an empty tuple names nothing"),
        (lambda: NStep(1, 1.0, 3), TypeError, "observation=3: use a list of names"),
        (lambda: NStep(1, 1.0, [None]), TypeError, "None is no name: use a key"),
        (lambda: NStep(1, 1.0, "obs", stack={"obs": 0}), ValueError, r"stack\['obs'\]=0: use an integer, 1 or more"),
        (lambda: NStep(1, 1.0, "obs", stack=4), TypeError, "stack=4: use a dict"),
        (lambda: NStep(1, 1.0, "obs", pad=None), ValueError, "pad=None: use 'first' or 'zero'"),
        (lambda: Sequence(0), ValueError, "length=0: use an integer"),
        (lambda: Sequence(3, 4), ValueError, "period=4: use at most length=3"),
        (lambda: Sequence(3, pad="first"), ValueError, "pad='first': use 'zero' or None"),
        (lambda: Episode(0), ValueError, "max_length=0: use an integer"),
    ],
)
def test_values_out_of_range(make, error, message):
    """What cannot work is refused where it is written."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (NStep(1, 1.0, "image"), ValueError, r"table 'a': observation: .* no 'image': there are 'act', 'core', 'mask'"),
        (NStep(1, 1.0, [("obs", 0)]), ValueError, r"no \('obs', 0\): there are 'act'"),
        (NStep(1, 1.0, "obs", "r"), ValueError, "reward: the steps have no 'r'"),
        (NStep(1, 1.0, "obs", "act"), TypeError, "table 'a': reward='act': .*has dtype int64: use float32 or float64"),
        (NStep(1, 1.0, "obs", "pair"), ValueError, "reward='pair': it has 2 leaves: name one"),
        (NStep(1, 1.0, "obs", stack={"reward": 2}), ValueError, "is the reward, which is summed: it cannot be stacked"),
        (NStep(1, 1.0, "obs", stack={"pair": 2, ("pair", 1): 3}), ValueError, r"leaf \['pair'\]\[1\] is named twice"),
        (Sequence(2, state=["x"]), ValueError, "state: the steps have no 'x'"),
        (Sequence(2), ValueError, "the steps have a key 'mask', which batches of such items use: rename it"),
    ],
)
def test_what_does_not_fit_the_steps_is_refused_at_creation(item, error, message):
    """The message names the table, and what there is."""
    example = {**EXAMPLE, "mask": np.zeros(()), "pair": (np.zeros(()), np.zeros(()))}
    with pytest.raises(error, match=message):
        Replay(example, 10, [Table("a", item=item)])


FINALS = {
    "not an end": ({"obs": np.zeros(2, np.float32)}, {}, ValueError, "the step ends no episode"),
    "a leaf is missing": (
        {"act": np.int64(3)},
        {"terminated": True},
        SpecMismatchError,
        r"final: \['obs'\] is missing",
    ),
    "no such key": (
        {"image": 3},
        {"truncated": True},
        SpecMismatchError,
        "final: steps have no 'image': they have 'act",
    ),
    "another dtype": ({"obs": np.zeros(2)}, {"truncated": True}, SpecMismatchError, r"leaf \['obs'\]: got .*float64"),
    "no dict": (
        np.zeros(2, np.float32),
        {"terminated": True},
        SpecMismatchError,
        "final: got ndarray, expected a dict",
    ),
}


@pytest.mark.parametrize("kind", FINALS)
def test_a_bad_final_changes_nothing(kind):
    """Whoever adds it, the message says what is wrong."""
    final, ends, error, message = FINALS[kind]
    with (
        Replay(EXAMPLE, 10, [Table("a", item=NStep(1, 1.0, "obs"))]) as replay,
        Writer(replay.handle) as writer,
    ):
        for add in (replay.add, writer.add):
            with pytest.raises(error, match=message):
                add(row(rows(0, 1), 0), **ends, final=final)
        assert replay.num_steps == 0


VECTORS = {
    "another n": (
        {"steps": rows(0, 3), "terminated": np.zeros(3, bool), "truncated": None},
        ValueError,
        "got steps of 3 environments, and 2 in the calls before",
    ),
    "a mode": ({"autoreset": "never"}, ValueError, "autoreset='never': use 'next_step', 'same_step', 'disabled'"),
    "no reset": ({"terminated": np.array([False, True])}, ValueError, "row 1 ends an episode, and so did the call bef"),
    "flags": ({"terminated": np.zeros(2, int)}, ValueError, r"terminated: got int64\[2\], expected bool\[2\]"),
    "final": (
        {"truncated": np.array([True, False]), "final": {"obs": np.zeros((2, 3), np.float32)}},
        SpecMismatchError,
        r"leaf \['obs'\]: got an array of float32\[2, 3\], expected float32\[2, 2\]",
    ),
    "objects": (
        {"truncated": np.array([True, False]), "final": {"obs": np.array([None, 3])}},
        SpecMismatchError,
        r"leaf \['obs'\]: got NoneType",
    ),
}


OWN_VECTORS = {kind: VECTORS[kind] for kind in VECTORS if kind != "another n"} | {
    f"environments, {kind}": ({"environments": environments}, ValueError, message)
    for kind, environments, message in [
        ("below 0", [0, -1], r"environments\[1\] is -1: use numbers from 0 to 1,048,575"),
        ("too large", [2**20, 0], r"environments\[0\] is 1048576: use numbers from 0 to 1,048,575"),
        ("far too large", np.array([0, 2**64 - 1], np.uint64), r"environments\[1\] is 18446744073709551615: use num"),
        ("twice", [5, 5], r"environments\[1\] is 5, which is there before"),
        ("shape", [0], r"environments: got int64\[1\], expected int64\[2\]: a different number for each row"),
        ("floats", [0.0, 1.0], r"environments: got float64\[2\], expected int64\[2\]: a different number"),
        ("bools", [True, False], r"environments: got bool\[2\], expected int64\[2\]"),
    ]
}
OWN_VECTORS["rows"] = (
    {"steps": {**rows(0, 2), "act": np.arange(3)}},
    SpecMismatchError,
    r"leaf \['act'\].* has 3 steps, and .* has 2|has 2 steps, and .* has 3",
)
OWN_VECTORS["priorities"] = ({"priorities": [1.0, -1.0]}, ValueError, r"priorities\[1\]")
OWN_VECTORS["timeout"] = ({"timeout": -1}, ValueError, "timeout")
OWN_VECTORS["final, a leaf is missing"] = (
    {"truncated": np.array([True, False]), "final": {"act": np.arange(2)}},
    SpecMismatchError,
    r"final: \['obs'\] is missing",
)


@pytest.mark.parametrize(
    ("via", "kind"), [("writer", kind) for kind in VECTORS] + [("own", kind) for kind in OWN_VECTORS]
)
def test_a_bad_vector_changes_nothing(via, kind):
    """Nothing was sent, and the environments are where they were."""
    arguments, error, message = (VECTORS if via == "writer" else OWN_VECTORS)[kind]
    no = np.zeros(2, bool)
    good = {"steps": rows(0, 2), "terminated": no, "truncated": no, "final": {"obs": np.zeros((2, 2), np.float32)}}
    with Replay(EXAMPLE, 10, [table_of(0, NStep(1, 1.0, "obs"))]) as replay, Writer(replay.handle) as remote:
        writer = remote if via == "writer" else replay
        writer.add_vector(**{**good, "terminated": np.array([False, True])})
        with pytest.raises(error, match=message):
            writer.add_vector(**{**good, **arguments})
        writer.add_vector(**good)  # the second row is a reset
        writer.end_episode()
        writer.add_vector(**good)
        assert replay.num_steps == 3 + 1 + 2
        assert drained(replay, "0")["act"].tolist() == [1, 0]


@pytest.mark.parametrize("via", ["writer", "replay"])
def test_which_rows_of_a_vector_are_resets(via):
    """Those after an end, with "next_step" alone; and none after end_episode()."""
    ended, no = np.array([True, False]), np.zeros(2, bool)
    with Replay(EXAMPLE, 20, [table_of(0, Step())]) as replay, Writer(replay.handle) as remote:
        writer, sent = remote if via == "writer" else replay, 0
        for ends, mode, after, expected in [
            (ended, "next_step", writer.end_episode, 2),
            (ended, "next_step", None, 2),
            (no, "next_step", None, 1),
            (no, "next_step", None, 2),
            (ended, "same_step", None, 2),
            (no, "next_step", None, 2),
            (ended, "disabled", None, 2),
            (~no, "disabled", None, 2),
            (no, "next_step", None, 2),
            (~no, "next_step", None, 2),
            (no, "next_step", None, 0),
        ]:
            writer.add_vector(rows(0, 2), ends, no, mode)
            sent += expected
            assert replay.info().inserted == sent
            if after is not None:
                after()
