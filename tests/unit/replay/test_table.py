"""What describes a table: samplers, removers, rate limiters, and the table itself."""

import math
import pickle
import typing

import numpy as np
import pytest

import echo_shm.replay
from echo_shm import Table
from echo_shm.replay import (
    Fifo,
    Lifo,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    RateLimiter,
    SampleToInsertRatio,
    Softmax,
    Stack,
    Uniform,
)
from echo_shm.replay.item import NStep, Sequence, Step
from echo_shm.replay.table import check_tables, lay_out_table, table_config
from echo_shm.spec import Spec

INF, NAN = math.inf, math.nan
STEP = Spec.from_example({"obs": np.zeros(3), "reward": np.zeros(())})


def config(table, capacity, max_items=None):
    """What the C core gets of a table."""
    return table_config(table, lay_out_table(table, STEP), capacity, max_items)


def test_defaults():
    """A table needs a name alone."""
    table = Table("a")
    assert (table.sampler, table.remover, table.rate_limiter) == (Uniform(), Fifo(), MinSize(1))
    assert (table.max_size, table.max_times_sampled, table.replacement, table.protected) == (None, 0, True, False)
    assert table.item == Step()


@pytest.mark.parametrize(("limiter", "rule"), [(Queue(3), Fifo()), (Stack(3), Lifo())], ids=repr)
def test_queues_and_stacks(limiter, rule):
    """Such a table samples each item once, in the order of its name; what the table says itself goes first."""
    table = Table("a", rate_limiter=limiter)
    assert (table.sampler, table.remover, table.max_times_sampled) == (rule, rule, 1)
    told = Table("a", rate_limiter=limiter, sampler=Uniform(), remover=MinHeap(), max_times_sampled=0)
    assert (told.sampler, told.remover, told.max_times_sampled) == (Uniform(), MinHeap(), 0)


@pytest.mark.parametrize(
    ("limiter", "numbers"),
    [
        (MinSize(5), (5, 1, -INF, INF)),
        (Queue(4), (1, 1, 0, 4)),
        (Queue(1), (1, 1, 0, 1)),
        (Stack(4), (1, 1, 0, 4)),
        (SampleToInsertRatio(8, 100, 50), (100, 8, 750, 850)),
        (SampleToInsertRatio(0.5, 10, 1), (10, 0.5, 4, 6)),
        (SampleToInsertRatio(1, 10, (7, 12)), (10, 1, 7, 12)),
        (SampleToInsertRatio(np.float32(2), np.int32(3), INF), (3, 2, -INF, INF)),
        (RateLimiter(1, 3, 0, 3), (1, 3, 0, 3)),  # a queue of one whose items are sampled three times
    ],
    ids=repr,
)
def test_the_numbers_of_limiters(limiter, numbers):
    """Each limiter is four numbers, as in Reverb."""
    assert (limiter.min_size, limiter.ratio, limiter.min_diff, limiter.max_diff) == numbers
    assert limiter == pickle.loads(pickle.dumps(limiter)) == eval(repr(limiter), {**vars(echo_shm.replay), "inf": INF})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinSize(0), "min_size=0: use an integer, 1 or more"),
        (lambda: MinSize(1.5), "min_size=1.5: use an integer"),
        (lambda: MinSize(2**63), r"min_size=\d+: use an integer below 2\*\*63"),
        (lambda: MinSize(True), "min_size=True: use an integer"),
        (lambda: Queue(0), "size=0: use an integer, 1 or more"),
        (lambda: Stack(-1), "size=-1: use an integer, 1 or more"),
        (lambda: SampleToInsertRatio(1, 0, 10), "min_size=0: use an integer"),
        (lambda: SampleToInsertRatio(0, 1, 10), "ratio=0: use a finite number above 0"),
        (lambda: SampleToInsertRatio(INF, 1, 10), "ratio=inf: use a finite number above 0"),
        (lambda: SampleToInsertRatio(10**400, 1, 10), "ratio does not fit into a float64"),
        (lambda: SampleToInsertRatio(5, 10, 4), r"error_buffer=4: use 5.0 or more \(max\(1, ratio\)\)"),
        (lambda: SampleToInsertRatio(0.5, 10, 0.9), "error_buffer=0.9: use 1.0 or more"),
        (lambda: SampleToInsertRatio(1, 10, NAN), "error_buffer=nan: use a number"),
        (lambda: SampleToInsertRatio(1, 10, "12"), "error_buffer='12': use a number"),
        (lambda: SampleToInsertRatio(1, 10, (1, 2, 3)), "use a number, or a pair of them"),
        (lambda: SampleToInsertRatio(5, 10, (46, 55)), "at least 10.0 apart"),
        (lambda: SampleToInsertRatio(0.1, 10, (0, 1.9)), "at least 2.0 apart"),
        (lambda: SampleToInsertRatio(1, 10, (5, 9)), "around ratio"),  # Reverb only warns
        (lambda: SampleToInsertRatio(1, 10, (11, 15)), "around ratio"),
        (lambda: RateLimiter(1, 1, 5, 10), r"contains ratio \* min_size = 1.0"),
        (lambda: RateLimiter(1, 1, NAN, 10), "min_diff=nan: use a number"),
        (lambda: RateLimiter(1, 1, 0.2, 1.1), "neither an insertion nor a sample"),  # blocks at 1
        (lambda: RateLimiter(2, 0.5, 0, 1), "neither an insertion nor a sample"),  # blocks at 0.75 if ever there
        (lambda: Prioritized(-0.1), "alpha=-0.1: use a finite number, 0 or more"),
        (lambda: Prioritized(beta=INF), "beta=inf"),
        (lambda: Prioritized("1"), "alpha='1': use a number"),
        (lambda: Softmax(0), "temperature=0: use a finite number above 0"),
        (lambda: Softmax(beta=NAN), "beta=nan"),
        (lambda: Table(""), "name='': use a name"),
        (lambda: Table("a\0b"), "without NUL"),
        (lambda: Table("é" * 32), "has 64 bytes in UTF-8: use at most 63"),
        (lambda: Table("\ud800"), "UTF-8"),
        (lambda: Table("a", max_size=0), "max_size=0: use an integer, 1 or more"),
        (lambda: Table("a", max_times_sampled=-1), "max_times_sampled=-1: use an integer, 0 or more"),
        (lambda: Table("a", replacement=1), "replacement=1: use True or False"),
        (lambda: Table("a", max_size=9, rate_limiter=MinSize(10)), "waits for 10 items.*at most max_size=9"),
        (lambda: config(Table("a", rate_limiter=MinSize(10)), 9), "waits for 10 items.*capacity=9"),
        (lambda: config(Table("a", rate_limiter=MinSize(5)), 9, 4), "waits for 5 items.*max_items=4 items"),
        (lambda: config(Table("a", item=Sequence(9)), 9), "item of Sequence.* refers to 9 steps, and.*capacity=9"),
        (lambda: config(Table("a", item=NStep(3, 1, "obs")), 4), "refers to 4 steps, with the one after it, and"),
        (
            lambda: config(Table("a", item=NStep(3, 1, "obs", stack={"obs": 4})), 7),
            "refers to 7 steps, with those that",
        ),
        (
            lambda: config(Table("a", item=Sequence(4, 3, pad=None), rate_limiter=MinSize(3)), 9),
            "waits for 3 items of Sequence.* at least 10 steps, and the replay holds at most capacity=9",
        ),
        (lambda: check_tables([]), "got 0 tables: use 1 to 64"),
        (lambda: check_tables([Table("a"), Table("b"), Table("a")]), "2 tables have the name 'a'"),
    ],
)
def test_values_out_of_range(make, message):
    """What cannot work is refused where it is written, with what to use instead."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Table(3), "name=3: use a string"),
        (lambda: Table("a", sampler=Uniform), r"sampler=Uniform is a class: use an instance, for example Uniform\(\)"),
        (lambda: Table("a", remover="fifo"), "remover='fifo': use a Selector"),
        (lambda: Table("a", rate_limiter=3), "rate_limiter=3: use a RateLimiter"),
        (lambda: Table("a", item=Step), r"item=Step is a class: use an instance, for example Step\(\)"),
        (lambda: check_tables(Table("a")), "use a list of Table"),
        (lambda: check_tables(["a"]), "use a list of Table"),
    ],
)
def test_other_types(make, message):
    """Something that is no selector, limiter or table is refused by its type."""
    with pytest.raises(TypeError, match=message):
        make()


def test_what_the_core_gets():
    """The fields of the C core's struct; a table without a size of its own holds as many items as there are steps."""
    no_parts = {"target": 0.0, "share": 0.0, "hot_size": 0, "age": 0, "max_age": 0}
    table = Table("é" * 31, Prioritized(0.5, 0.25), Softmax(2.0), None, Queue(3), 0, replacement=False, protected=True)
    assert config(table, 100) == {
        "name": b"\xc3\xa9" * 31,
        "sampler": {"kind": 2, "parameter": 0.5, "beta": 0.25, **no_parts},
        "remover": {"kind": 3, "parameter": 2.0, "beta": 0.0, **no_parts},
        "max_size": 100,
        "max_times_sampled": 0,
        "min_size": 1,
        "ratio": 1.0,
        "min_diff": 0.0,
        "max_diff": 3.0,
        "max_parked": 25,
        "replacement": 0,
        "is_protected": 1,
        "item": {
            "kind": 1,
            "length": 1,
            "period": 1,
            "before": 0,
            "padded": 0,
            "num_outputs": 2,
            "gamma": 0.0,
        },
    }
    assert config(Table("a", max_size=200), 100)["max_size"] == 200


@pytest.mark.parametrize("name", echo_shm.replay.__all__)
def test_public_names_are_the_packages_own(name):
    """A public name gives the package that users import it from as its module, and pickles find it there."""
    public = getattr(echo_shm.replay, name)
    assert public.__module__ == ("echo_shm" if name in echo_shm.__all__ else "echo_shm.replay")
    assert pickle.loads(pickle.dumps(public)) is public
    typing.get_type_hints(public)
