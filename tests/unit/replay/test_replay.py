"""A replay in its own process: what goes in, what comes out, who waits, and what is refused."""

import collections
import functools
import gc
import math
import os
import threading
import time
import weakref

import numpy as np
import optree
import pytest
from harness.threads import Background
from harness.waiting import until

from echo_shm import ConnectionClosedError, EchoShmError, ForkedError, Replay, SpecMismatchError, Table
from echo_shm.replay import (
    Fifo,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Sequence,
    Softmax,
    Uniform,
    waiting,
)

EXAMPLE = {"obs": np.zeros(3, np.float32), "act": np.zeros((), np.int64)}


def step(value):
    """The step of a number: exact arrays."""
    return {"obs": np.full(3, value, np.float32), "act": np.array(value)}


def steps(*values):
    """The steps of numbers, stacked."""
    return {"obs": np.repeat(np.float32(values)[:, None], 3, 1), "act": np.array(values)}


def fifo(name="default", **options):
    """A table that is sampled in the order of insertion."""
    return Table(name, sampler=Fifo(), **options)


def by_priority(*names):
    """Tables that are sampled by priority, so that zero is never drawn beside others."""
    return [Table(name, sampler=Prioritized(1.0, 1.0)) for name in names]


# -- in and out


def test_a_batch_is_the_steps_tree_and_eight_columns():
    """Each leaf has a leading n, and each column is of its dtype; keys name the items."""
    with Replay(EXAMPLE, 10, [fifo(max_times_sampled=1)]) as replay:
        for value in range(5):
            replay.add(step(value))
        batch = replay.sample(4)
        assert batch.data["act"].tolist() == [0, 1, 2, 3]
        assert batch.data["obs"].tolist() == [[value] * 3 for value in range(4)]
        assert batch.data["obs"].dtype == np.float32
        kinds = {name: column.dtype.str[1:] for name, column in batch._asdict().items() if name != "data"}
        assert kinds == {
            "key": "u8",
            "probability": "f8",
            "weight": "f8",
            "priority": "f8",
            "times_sampled": "i8",
            "table_size": "i8",
            "age": "i8",
            "versions": "i8",
        }
        assert all(column.shape == (4,) for column in batch[1:])
        assert len(set(batch.key.tolist())) == 4
        assert batch.times_sampled.tolist() == [1] * 4
        assert batch.table_size.tolist() == [5, 4, 3, 2]
        assert batch.age.tolist() == [4, 3, 2, 1]
        assert (len(replay), replay.num_steps) == (1, 1)


@pytest.mark.parametrize("size", [1, 3, 200])
def test_each_draw_of_an_item_counts(size):
    """Also several in one batch, one after the other."""
    with Replay(EXAMPLE, size) as replay:
        replay.extend(steps(*range(size)))
        counts = collections.Counter()
        for n in (300, 1, 9):
            batch = replay.sample(n)
            for key, times in zip(batch.key.tolist(), batch.times_sampled.tolist(), strict=True):
                counts[key] += 1
                assert times == counts[key]
        assert replay.info().sampled == 310


def test_columns_are_not_mixed_up():
    """Probability, weight and priority are each in its own column."""
    with Replay(EXAMPLE, 10, by_priority("default")) as replay:
        replay.extend(steps(0, 1), [1.0, 3.0])
        batch = replay.sample(100)
        three = batch.data["act"] == 1
        assert 0 < three.sum() < 100
        assert set(batch.priority[three]) == {3.0}
        assert batch.probability[three] == pytest.approx(0.75)
        assert batch.weight[three] == pytest.approx(1 / 3)
        assert batch.weight[~three] == pytest.approx(1)
        assert replay.sample(20, beta=0.0).weight.tolist() == [1.0] * 20


@pytest.mark.parametrize(
    "tree",
    [
        {"obs": np.full((3, 2), 7, np.float32)[:, 0], "act": np.array(7)},
        {"obs": np.full(3, 7, np.float32), "act": 7},
        {"act": np.int64(7), "obs": np.full(3, 7, np.float32)},
    ],
    ids=["strided", "Python number", "other order"],
)
def test_leaves_need_not_be_exact(tree):
    """A strided array and a scalar go in as on the ring."""
    with Replay(EXAMPLE, 10) as replay:
        replay.add(tree)
        batch = replay.sample(1)
        assert batch.data["obs"].tolist() == [[7, 7, 7]]
        assert batch.data["act"].tolist() == [7]


@pytest.mark.parametrize(
    "tree",
    [
        {"obs": np.zeros(3, np.float64), "act": 1},
        {"obs": np.zeros(4, np.float32), "act": 1},
        {"obs": np.zeros(3, np.float32)},
        {"obs": np.zeros(3, np.float32), "act": 1.5},
    ],
    ids=["dtype", "shape", "structure", "scalar"],
)
def test_another_tree_is_refused(tree):
    """Nothing is cast, and nothing of the step is stored."""
    with Replay(EXAMPLE, 10) as replay:
        with pytest.raises(SpecMismatchError, match=r"obs|act"):
            replay.add(tree)
        assert replay.num_steps == 0


Pair = collections.namedtuple("Pair", ["left", "right"])


def numbered(count):
    """Arrays that differ."""
    return [np.full(2, float(i)) for i in range(count)]


TREES = {
    "array": lambda a: a[0],
    "list": lambda a: a[:3],
    "tuple": lambda a: (a[0], [a[1], {}], {"x": a[2]}),
    "None": lambda a: {"x": a[0], "nothing": None, "y": a[1]},
    "integer keys": lambda a: {2: a[0], 1: a[1]},
    "many leaves": lambda a: {f"k{i}": array for i, array in enumerate(a)},
    "named tuple": lambda a: Pair(a[0], Pair(a[1], [a[2]])),
    "ordered dict": lambda a: collections.OrderedDict(z=a[0], a=a[1]),
    "deep": lambda a: functools.reduce(lambda inner, _: [inner], range(150), a[0]),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_any_tree(tree):
    """Each leaf comes back in its place, whether C, generated code or optree takes the tree apart."""
    with Replay(tree(numbered(20)), 4) as replay:
        replay.add(tree(numbered(20)))
        replay.extend(optree.tree_map(lambda leaf: leaf[None], tree(numbered(20))))
        data = replay.sample(3).data
        assert repr(data) == repr(tree([np.repeat(leaf[None], 3, 0) for leaf in numbered(20)]))


A = np.zeros(2)


@pytest.mark.parametrize(
    ("example", "wrong"),
    [
        ({"x": A, "y": A}, {"x": A}),
        ({"x": A, "y": A}, {"x": A, "y": A, "z": A}),
        ({"x": A, "y": A}, {"x": A, "z": A}),
        ({"x": A, "y": A}, [A, A]),
        ([A, A], (A, A)),
        ([A, A], [A]),
        ([A, A], [A, A, A]),
        ((A, A), Pair(A, A)),
        (Pair(A, A), (A, A)),
        ({"x": A, "n": None}, {"x": A, "n": A}),
        ({"x": A, "n": {}}, {"x": A, "n": None}),
        (A, None),
        (A, [A]),
        ([A, [A]], [A, A]),
    ],
    ids=str,
)
def test_another_structure_is_refused(example, wrong):
    """Nothing of it is stored."""
    with Replay(example, 4) as replay:
        with pytest.raises(SpecMismatchError, match=r"structure|expected"):
            replay.add(wrong)
        assert replay.num_steps == 0


def test_a_tree_that_changes_while_it_is_taken_apart():
    """A key whose comparison runs code may empty the tree. The arrays that were there are stored."""

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            tree["w"].clear()
            return str(self) == other

    with Replay({"w": [A, A, A], "x": A}, 4) as replay:
        tree = {"w": numbered(3), Key("x"): A}
        replay.add(tree)
        assert tree["w"] == []
        assert [leaf.tolist() for leaf in replay.sample(1).data["w"]] == [[[0, 0]], [[1, 1]], [[2, 2]]]


def test_a_tree_whose_keys_fail():
    """The exception of a key's comparison is no crash."""

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            raise ZeroDivisionError

    with Replay({"x": A}, 4) as replay:
        with pytest.raises((SpecMismatchError, ZeroDivisionError)):
            replay.add({Key("x"): A})
        assert replay.num_steps == 0


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), "soon", True, 10**400])
def test_a_bad_timeout_of_add_is_refused(timeout):
    """Also where nobody has to wait, and then nothing is stored."""
    with Replay(EXAMPLE, 4) as replay:
        with pytest.raises((ValueError, OverflowError)):
            replay.add(step(1), timeout=timeout)
        with pytest.raises((ValueError, OverflowError)):
            replay.extend(steps(1), timeout=timeout)
        with pytest.raises((ValueError, OverflowError)):
            replay.add_vector(steps(1), None, None, timeout=timeout)
        assert replay.num_steps == 0


def test_extend_is_add_for_each_step():
    """Steps go in in order, with their flags and priorities; a chunk holds only a part of them."""
    replay = Replay(EXAMPLE, 100, [fifo(max_times_sampled=1)])
    replay._chunk = 3
    replay.extend(steps(*range(8)), np.arange(8.0), terminated=np.arange(8) == 4, truncated=np.arange(8) == 6)
    assert replay.info().episodes == 3
    batch = replay.sample(8)
    assert batch.data["act"].tolist() == list(range(8))
    assert batch.priority.tolist() == list(range(8))
    replay.extend({"obs": np.zeros((0, 3), np.float32), "act": np.zeros(0, np.int64)})
    assert len(replay) == 0


def test_flags_of_add_end_an_episode():
    """terminated and truncated end it; the step after belongs to the next."""
    with Replay(EXAMPLE, 10) as replay:
        for flags in ({}, {"terminated": np.True_}, {"truncated": True}, {}):
            replay.add(step(1), **flags)
        assert replay.info().episodes == 3


def test_out_is_written_into():
    """sample() fills the caller's arrays, and returns their tree."""
    with Replay(EXAMPLE, 10) as replay:
        replay.add(step(5))
        out = {"obs": np.zeros((4, 3), np.float32), "act": np.zeros(4, np.int64)}
        batch = replay.sample(4, out=out)
        assert batch.data is out
        assert out["act"].tolist() == [5] * 4
        for wrong in (np.zeros(4, np.int32), np.zeros(3, np.int64), [0] * 4):
            with pytest.raises(SpecMismatchError, match="act"):
                replay.sample(4, out={**out, "act": wrong})
        for wrong in (np.zeros(8, np.int64)[::2], np.broadcast_to(np.int64(1), 4)):
            with pytest.raises(ValueError, match=r"act.*C-contiguous and writable"):
                replay.sample(4, out={**out, "act": wrong})


def test_the_same_seed_gives_the_same_batches():
    """And another seed gives others."""

    def keys(seed):
        with Replay(EXAMPLE, 100, seed=seed) as replay:
            replay.extend(steps(*range(100)))
            return replay.sample(50).key.tolist()

    assert keys(1) == keys(1) != keys(2)


# -- priorities


def test_a_priority_for_each_table():
    """A number counts for all tables; a dict for those it names, and the others get no item; None: the highest."""
    with Replay(EXAMPLE, 10, by_priority("a", "b")) as replay:
        replay.add(step(1), 5.0)
        replay.add(step(2), {"b": 2.0})
        replay.add(step(3))
        replay.add(step(4), {"a": None})
        found = {}
        for name in ("a", "b"):
            batch = replay.sample(200, name)
            found[name] = dict(zip(batch.data["act"].tolist(), batch.priority.tolist(), strict=True))
        assert found == {"a": {1: 5.0, 3: 5.0, 4: 5.0}, "b": {1: 5.0, 2: 2.0, 3: 5.0}}
        replay.reset("b")
        replay.extend(steps(7, 8), {"b": [1.0, 3.0]})
        assert sorted(set(replay.sample(100, "b").priority)) == [1.0, 3.0]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1e300, True, "high"])
def test_a_bad_priority_changes_nothing(bad):
    """It is refused in every call that takes one, whatever is good beside it. The message names the index."""
    with Replay(EXAMPLE, 10, [Table("default", sampler=Prioritized(2.0))]) as replay:
        replay.add(step(0))
        key = replay.sample(1).key
        with pytest.raises(ValueError, match=r"priority="):
            replay.add(step(1), bad)
        if not isinstance(bad, float):
            return
        with pytest.raises(ValueError, match=r"priorities\[1\]="):
            replay.extend(steps(1, 2), [1.0, bad])
        with pytest.raises(ValueError, match=r"priority\['default'\]="):
            replay.add(step(1), {"default": bad})
        for dtype in (np.float64, np.float32, object):
            with pytest.raises(ValueError, match=r"priorities"), np.errstate(over="ignore"):
                replay.update(np.repeat(key, 2), np.array([7.0, bad]).astype(dtype))
        assert (len(replay), replay.get(key).priority.tolist()) == (1, [1.0])


def test_update_reads_any_array_of_floats():
    """float32, strided, a list: all are converted. The last priority of a key counts, once."""
    with Replay(EXAMPLE, 10, by_priority("default")) as replay:
        replay.extend(steps(1, 2, 3))
        keys = np.sort(np.unique(replay.sample(200).key))
        for priorities in (
            np.array([1.0, 2.0, 3.0]),
            np.array([4.0, 5.0, 6.0], np.float32),
            np.array([[7.0, 8.0, 9.0]] * 2).T[:, 0],
            [10, 11, 12],
            np.arange(700.0, 1300.0)[::200],
            np.arange(13.0, 16.0).astype(">f8"),
        ):
            assert replay.update(keys, priorities) == 3
            assert replay.get(keys).priority.tolist() == list(priorities)
        many = np.tile(keys, 300)
        assert replay.update(many, np.arange(900, dtype=np.float32)) == 3
        assert replay.get(keys).priority.tolist() == [897, 898, 899]
        assert replay.update(keys[:0], []) == 0
        with pytest.raises(ValueError, match=r"expected float64\[3\]"):
            replay.update(keys, [1.0])
        with pytest.raises(ValueError, match="expected uint64"):
            replay.update(keys.astype(float), [1.0, 2.0, 3.0])


def test_keys_of_items_that_are_gone():
    """update and delete count what is there; get raises KeyError."""
    with Replay(EXAMPLE, 10, [fifo()]) as replay:
        replay.extend(steps(1, 2))
        keys = replay.get(replay.sample(1).key).key
        assert replay.delete(keys) == 1
        assert (replay.delete(keys), replay.update(keys, [2.0]), len(replay)) == (0, 0, 1)
        with pytest.raises(KeyError, match=rf"keys\[0\]={int(keys[0])} is not in table 'default'"):
            replay.get(keys)
        with pytest.raises(ValueError, match="expected at least one"):
            replay.get([])
        assert replay.info().sampled == 1


# -- tables


def test_a_table_must_be_named_where_there_are_several():
    """The error lists them, and so does that of an unknown table."""
    keys = np.zeros(1, np.uint64)
    with Replay(EXAMPLE, 10, [Table("a"), Table("b")]) as replay:
        replay.add(step(1))
        for call in (
            lambda **table: replay.sample(1, **table),
            lambda **table: replay.update(keys, [1.0], **table),
            lambda **table: replay.delete(keys, **table),
            lambda **table: replay.get(keys, **table),
            lambda **table: replay.reset(**table),
            lambda **table: replay.can_sample(1, **table),
            lambda **table: replay.can_insert(1, **table),
            lambda **table: replay.dataset_iter(1, **table),
        ):
            with pytest.raises(ValueError, match=r"the tables 'a', 'b': say which one"):
                call()
            with pytest.raises(ValueError, match=r"no table 'c': this replay has the tables 'a', 'b'"):
                call(table="c")
        with pytest.raises(ValueError, match=r"no table 'c'"):
            replay.add(step(1), {"c": 1.0})
        assert {name: info.size for name, info in replay.info().items()} == {"a": 1, "b": 1}
        assert replay.tables == ("a", "b")


def test_info_has_the_limiter_and_the_figures():
    """Sizes, counts and what the limiter allows."""
    with Replay(EXAMPLE, 4, [fifo(max_size=2, rate_limiter=SampleToInsertRatio(1.0, 1, 2.0))]) as replay:
        replay.extend(steps(1, 2, 3))
        info = replay.info()
        assert (info.size, info.max_size, info.inserted, info.sampled, info.deleted, info.evicted) == (2, 2, 3, 0, 1, 1)
        assert (info.limiter.diff, info.limiter.min_diff, info.limiter.max_diff) == (3.0, -1.0, 3.0)
        assert (info.limiter.can_sample, info.limiter.can_insert) == (True, False)
        assert (replay.can_sample(4), replay.can_sample(5), replay.can_insert()) == (True, False, False)
        assert info.bytes > 0


@pytest.mark.parametrize(
    "sampler", [Uniform(), Prioritized(0.6, 0.4), Softmax(0.5, 0.3)], ids=lambda one: repr(one)[:7]
)
def test_masses_of_a_round(sampler):
    """Probabilities and weights follow from them. What was drawn in this round has no part in the first, and the least
    weight of all."""
    with Replay(EXAMPLE, 10, [Table("t", sampler, replacement=False)]) as replay:
        replay.extend(steps(*range(5)), np.full(5, 3.0))
        drawn = replay.sample(3)
        replay.update(drawn.key, [0.5, 4.0, 5.0])
        info, items = (
            replay.info(),
            replay.get(drawn.key.min() + np.arange(5, dtype=np.uint64) - drawn.key.min() % 2**32),
        )
        weights = {
            Uniform: np.ones(5),
            Prioritized: items.priority**0.6,
            Softmax: np.exp(items.priority / 0.5),
        }[type(sampler)]
        left = ~np.isin(items.key, drawn.key)
        np.testing.assert_allclose(items.probability, left * np.exp(np.log(weights) - info.log_mass))
        beta = getattr(sampler, "beta", 0.0)
        np.testing.assert_allclose(items.weight, np.exp(-beta * (np.log(weights) - info.least_log_weight)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"capacity": 2**40}, r"capacity=\d+.*out of range"),
        ({"max_items": 0}, "max_items=0"),
        ({"store": "disk"}, "store='disk'"),
        ({"name": "a/b"}, "bad replay name"),
        ({"store": "shm", "name": "a/b"}, "bad replay name"),
        ({"seed": -1}, "seed=-1"),
        ({"tables": []}, "0 tables"),
        ({"tables": [Table("a", rate_limiter=MinSize(11))]}, "waits for 11 items"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_creation(options, message):
    """With a message that names the argument."""
    with pytest.raises(ValueError, match=message):
        Replay(EXAMPLE, **{"capacity": 10, **options})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"n": -3}, "n=-3"),
        ({"n": 1.5}, "n=1.5"),
        ({"n": True}, "n=True"),
        ({"beta": -1.0}, "beta=-1.0"),
        ({"beta": "x"}, "beta='x'"),
        ({"timeout": -1}, "timeout=-1"),
    ],
    ids=str,
)
def test_bad_numbers_of_sample_are_refused(arguments, message):
    """With a message that names the argument."""
    with Replay(EXAMPLE, 10) as replay:
        replay.add(step(1))
        with pytest.raises(ValueError, match=message):
            replay.sample(**{"n": 1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", 0.0, 9.0), "'x'"),
        ((None, 0.0, 9.0), "say which one"),
        (("a", math.nan, 9.0), "min_diff=nan"),
        (("a", 0.0, "9"), "max_diff='9'"),
        (("a", math.inf, math.inf), "min_diff below inf"),
        (("a", -math.inf, -math.inf), "max_diff above -inf"),
        (("a", 7.0, 7.5), r"min_diff=7.0, max_diff=7.5: use a range of 2.0 or more \(1 \+ ratio\)"),
        (("w", -9.0, 9.0), r"table 'w' has no records.*max_times_sampled"),
    ],
    ids=str,
)
def test_bad_limits_are_refused(arguments, message):
    """With a message that names the argument. Nothing changes."""
    with Replay(EXAMPLE, 10, [Table("a"), Table("w", item=Sequence(2, period=1))]) as replay:
        before = replay.info()
        with pytest.raises(ValueError, match=message):
            replay.set_limits(*arguments)
        assert replay.info() == before


# -- who waits


def test_sample_raises_at_once_where_nobody_could_add():
    """The message names the limiter and its numbers."""
    with Replay(EXAMPLE, 10, [Table("train", rate_limiter=MinSize(3))]) as replay:
        replay.add(step(1))
        for timeout in (None, 0, 1000):
            with pytest.raises(TimeoutError, match=r"table 'train' holds 1 items.*min_size=3.*1 inserted"):
                replay.sample(1, timeout=timeout)
        assert list(replay.dataset_iter(1, timeout=1000)) == []
        with pytest.raises(TimeoutError, match="No other thread"):
            next(replay.dataset_iter(1))


def test_transports_feed_the_inbox():
    """They are started with its handle and shut down once, and sample() waits for them."""
    calls = []

    class Fake:
        port = 4711

        def start(self, handle):
            calls.append(handle)

        def shutdown(self):
            calls.append("shutdown")

    with Replay(EXAMPLE, 10, transport=[Fake(), Fake()]) as replay:
        assert (replay.port, calls) == (4711, [replay.handle.inbox] * 2)
        with pytest.raises(TimeoutError, match=r"It stayed so for 0\.2 s"):
            replay.sample(1, timeout=0.2)
        replay.close()
    assert calls[2:] == ["shutdown"] * 2
    with Replay(EXAMPLE, 10) as replay, pytest.raises(RuntimeError, match=r"pass one to Replay\(transport=\.\.\.\)"):
        _ = replay.port
    with pytest.raises(TypeError, match="a transport is an instance"):
        Replay(EXAMPLE, 10, transport=Fake)


def test_what_a_short_batch_had_drawn_comes_first():
    """A TimeoutError takes nothing, and the next call may ask for another number."""
    with Replay(EXAMPLE, 10, [Table("q", rate_limiter=Queue(5))]) as replay:
        replay.extend(steps(1, 2))
        with pytest.raises(TimeoutError, match="table 'q'"):
            replay.sample(3)
        replay.add(step(3))
        assert replay.sample(1).data["act"].tolist() == [1]
        assert replay.sample(2).data["act"].tolist() == [2, 3]


def test_add_raises_at_once_where_a_limiter_forbids_it():
    """It would wait for itself. Nothing is stored, and extend says how many are in."""
    with Replay(EXAMPLE, 10, [Table("all"), Table("q", rate_limiter=Queue(2))]) as replay:
        with pytest.raises(TimeoutError, match=r"table 'q' lets nobody insert.*max_diff=2.*; 2 of 3 steps") as caught:
            replay.extend(steps(1, 2, 3))
        assert caught.value.sent == 2
        with pytest.raises(TimeoutError, match=r"table 'q'.*Sample first"):
            replay.add(step(3))
        for timeout in (1000, None):
            with pytest.raises(TimeoutError, match=r"table 'q'.*No other thread"):
                replay.add(step(3), timeout=timeout)
        assert (replay.num_steps, replay.info("all").size) == (2, 2)
        assert replay.can_insert(1, "all")
        assert not replay.can_insert(1, "q")


@pytest.fixture
def woken(monkeypatch):
    """Threads that wait go on only when another one wakes them."""
    monkeypatch.setattr(waiting, "_SLICE", 1000.0)


INSERTS = {
    "exact": lambda replay, i: replay.add(step(i), timeout=None),
    "numbers": lambda replay, i: replay.add({"obs": np.full(3, i, np.float32), "act": i}, timeout=None),
    "strided": lambda replay, i: replay.add({"obs": np.full(6, i, np.float32)[::2], "act": i}, timeout=None),
    "extend": lambda replay, i: replay.extend(steps(i), timeout=None),
    "vector": lambda replay, i: replay.add_vector(steps(i), None, None, timeout=None),
    "vector of lists": lambda replay, i: replay.add_vector(steps(i), [False], [i % 2 == 0], "disabled", timeout=None),
}


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())
def test_sample_and_add_wait_for_other_threads(background, woken, insert):
    """Each wakes the other: a queue of one item hands over many."""
    with Replay(EXAMPLE, 10, [Table("q", rate_limiter=Queue(1))]) as replay:
        other = background(lambda: [insert(replay, i) for i in range(200)])
        assert [int(replay.sample(1).data["act"][0]) for _ in range(200)] == list(range(200))
        other.result()


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())
def test_a_step_wakes_those_that_sample(background, woken, insert):
    """It does so also where it went in without a wait."""
    with Replay(EXAMPLE, 10, [fifo(max_times_sampled=1)]) as replay:
        other = background(lambda: [replay.sample(2).data["act"].tolist() for _ in range(5)])
        for i in range(5):
            until(lambda: replay._core.waiting == 1)
            insert(replay, 2 * i)
            insert(replay, 2 * i + 1)
        assert other.result() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("change", ["delete", "reset", "set_limits"])
def test_what_makes_room_wakes_those_that_insert(background, woken, change):
    """delete, reset and set_limits do, as a sample does."""
    limiter = SampleToInsertRatio(1.0, 2, 2.0)
    with Replay(EXAMPLE, 10, [fifo(rate_limiter=limiter)]) as replay:
        replay.extend(steps(*range(4)))
        key = replay.get(replay.sample(1).key).key
        replay.add(step(4))
        other = background(lambda: replay.add(step(5), timeout=None))
        until(lambda: replay._core.waiting == 1)
        if change == "reset":
            replay.reset()
        elif change == "set_limits":
            replay.set_limits(None, 0.0, 5.0)
        else:
            assert replay.delete(np.concatenate([key, key + np.arange(1, 4, dtype=np.uint64)])) == 4
        other.result()
        assert replay.info().inserted == (1 if change == "reset" else 6)


def test_other_limits_wake_those_that_sample(background, woken):
    """A lower min_diff lets them."""
    with Replay(EXAMPLE, 10, [fifo(rate_limiter=SampleToInsertRatio(1.0, 2, 2.0))]) as replay:
        replay.extend(steps(0, 1))
        other = background(lambda: replay.sample(3).data["act"].tolist())
        until(lambda: replay._core.waiting == 1)
        replay.set_limits(None, -1.0, 4.0)
        assert other.result() == [0, 0, 0]


def test_a_wait_ends_with_its_timeout(background):
    """Also while another thread runs."""
    done = threading.Event()
    other = background(done.wait)
    with Replay(EXAMPLE, 10) as replay:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"stayed so for 0.2 s"):
            replay.sample(1, timeout=0.2)
        assert time.monotonic() - started >= 0.2
        assert list(replay.dataset_iter(1, timeout=0.01)) == []
    done.set()
    other.result()


def test_a_wait_ends_with_the_last_other_thread(background):
    """Nobody is left who could add."""
    with Replay(EXAMPLE, 10) as replay:
        go_on = threading.Event()
        other = background(go_on.wait)
        threading.Timer(0.1, go_on.set).start()
        with pytest.raises(TimeoutError, match="No other thread runs"):
            replay.sample(1)
        other.result()


def test_close_wakes_those_that_wait(background, woken):
    """sample returns None, and add raises."""
    replay = Replay(EXAMPLE, 10, [Table("q", rate_limiter=Queue(1)), Table("b", rate_limiter=MinSize(5))])
    replay.add(step(1))
    sampler = background(lambda: replay.sample(1, "b"))
    adder = background(lambda: replay.add(step(2), timeout=None))
    until(lambda: replay._core.waiting == 2)
    replay.close()
    assert sampler.result() is None
    with pytest.raises(ConnectionClosedError, match="closed"):
        adder.result()


def test_threads_share_a_replay():
    """Large batches are gathered without the GIL, while others add, sample and update. No batch is torn."""
    example = {"image": np.zeros(4096, np.uint8), "act": np.zeros((), np.int64)}
    with Replay(example, 20, by_priority("default")) as replay:
        replay.extend({"image": np.zeros((10, 4096), np.uint8), "act": np.zeros(10, np.int64)})

        def work(seed):
            for i in range(60):
                value = (seed * 60 + i) % 256
                replay.add({"image": np.full(4096, value, np.uint8), "act": np.array(value)})
                batch = replay.sample(100)
                assert (batch.data["image"] == batch.data["act"][:, None]).all()
                replay.update(batch.key, np.full(100, 1.0 + seed))

        workers = [Background(work, seed) for seed in range(4)]
        for worker in workers:
            worker.result()
        assert replay.info().inserted == 250


# -- the end


def test_a_closed_replay():
    """sample returns None, iteration ends, and everything else raises."""
    replay = Replay(EXAMPLE, 10)
    replay.add(step(1))
    batches = replay.dataset_iter(1)
    key = next(batches).key
    replay.close()
    replay.close()
    assert replay.sample(1) is None
    assert list(batches) == []
    assert "closed" in repr(replay)
    for call in (
        lambda: replay.add(step(1)),
        lambda: replay.add({"wrong": 1}),
        lambda: replay.extend(steps(1)),
        lambda: replay.update(key, [1.0]),
        lambda: replay.delete(key),
        lambda: replay.get(key),
        lambda: replay.reset(),
        lambda: replay.info(),
        lambda: replay.can_sample(),
        lambda: len(replay),
        lambda: replay.num_steps,
    ):
        with pytest.raises(ConnectionClosedError, match="this replay is closed"):
            call()


def test_a_replay_that_nobody_refers_to_is_closed():
    """At once, not only when cycles are collected."""
    gc.disable()
    try:
        replay = Replay(EXAMPLE, 10)
        core = replay._core
        gone = weakref.ref(replay)
        del replay
        assert gone() is None
        assert core.closed
    finally:
        gc.enable()


def test_a_forked_child_is_refused():
    """The parent's replay is not the child's, and goes on."""
    with Replay(EXAMPLE, 10) as replay:
        replay.add(step(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in (lambda: replay.add(step(2)), lambda: replay.sample(1), lambda: len(replay)):
                    with pytest.raises(ForkedError):
                        call()
                replay.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert (len(replay), replay.sample(1).data["act"].tolist()) == (1, [1])


def test_a_full_store_of_protected_items():
    """add says whose they are."""
    with Replay(EXAMPLE, 3, [Table("kept", max_size=10, protected=True)]) as replay:
        replay.extend(steps(1, 2, 3))
        with pytest.raises(EchoShmError, match=r"all of its 3 steps belong to protected tables \('kept'\)"):
            replay.add(step(4))
        assert replay.num_steps == 3
    tables = [Table("a", max_size=2, protected=True), Table("b", protected=True)]
    with Replay(EXAMPLE, 100, tables, max_items=4) as replay:
        replay.extend(steps(1, 2))
        with pytest.raises(EchoShmError, match=r"as many items as max_items allows belong to protected tables"):
            replay.add(step(3))  # takes the place of an item of a, and b has room, but all together have none
        replay.add(step(3), priority={"a": 1.0})
        assert [info.size for info in replay.info().values()] == [2, 2]
    with Replay(EXAMPLE, 100, [Table("a"), Table("b")], max_items=1) as replay:
        with pytest.raises(EchoShmError, match=r"no room for the items of one step in all its tables"):
            replay.add(step(1))
        replay.add(step(1), priority={"b": 1.0})
        assert [info.size for info in replay.info().values()] == [0, 1]
    with Replay(EXAMPLE, 100, [*tables, Table("c")], max_items=2) as replay:
        replay.add(step(1), priority={"a": 1.0, "c": 1.0})
        with pytest.raises(EchoShmError, match="as many items as max_items allows"):
            replay.add(step(2), priority={"a": 1.0, "b": 1.0})  # the one item that could go is not enough
        assert [info.size for info in replay.info().values()] == [1, 0, 1]


def test_the_default_table():
    """Without tables there is one, which samples uniformly all that the replay holds."""
    with Replay(EXAMPLE, 3) as replay:
        replay.extend(steps(1, 2, 3, 4))
        assert replay.tables == ("default",)
        assert set(replay.sample(100).data["act"].tolist()) == {2, 3, 4}
        assert replay.info("default") == replay.info()
        assert replay.capacity == 3
        assert Table("default").sampler == Uniform()


def test_an_episode_that_is_ended_by_hand():
    """Steps after it belong to another episode."""
    with Replay(EXAMPLE, 10) as replay:
        for last in (False, True, False):
            replay.add(step(1))
            if last:
                replay.end_episode()
        assert replay.info().episodes == 2
