"""The model of a replay, by scenarios whose outcome can be told by hand."""

from collections import Counter

import pytest

from echo_shm import Table
from echo_shm.replay import (
    Fifo,
    Lifo,
    MaxHeap,
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
from harness.replay_model import Impossible, Model, Refused


def oldest(table, possible):
    """A remover's choice."""
    return min(possible)


def model_of(*tables, capacity=100):
    """A model, and its first table."""
    model = Model.of(capacity, list(tables))
    return model, next(iter(model.tables.values()))


def filled(table, *priorities, capacity=100):
    """A table with one item for each priority."""
    model, made = model_of(table, capacity=capacity)
    for priority in priorities:
        model.add({table.name: priority}, oldest)
    return made


def emptied(table):
    """The items in the order in which a deterministic selector draws them, each removed then."""
    order = []
    while table.items:
        (step,) = table.draws()
        order.append(step)
        table.delete([step])
    return order


def test_a_queue_blocks_and_goes_on():
    """Ten fit into a queue of ten; one sample makes room for one more; all come in order, and then none."""
    model, table = model_of(Table("q", max_size=10, rate_limiter=Queue(10)))
    for _ in range(10):
        model.add({"q": 1.0}, oldest)
    with pytest.raises(Refused):
        model.add({"q": 1.0}, oldest)
    assert table.serve([0])[0].table_size == 10
    model.add({"q": 1.0}, oldest)
    with pytest.raises(Refused):
        model.add({"q": 1.0}, oldest)
    table.serve(list(range(1, 11)))
    assert not table.can_sample(1)
    assert table.items == {}


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("buffer", [3.0, (0.0, 20.0)])
def test_the_ratio_is_kept_within_the_buffer(ratio, buffer):
    """However often both sides try, neither gets ahead of the other by more than the error buffer."""
    limiter = SampleToInsertRatio(ratio, 4, buffer)
    model, table = model_of(Table("a", rate_limiter=limiter), capacity=1000)
    for _ in range(4):
        assert not table.can_sample(1)
        model.add({"a": 1.0}, oldest)
    for _ in range(5):
        while table.can_insert(1):
            model.add({"a": 1.0}, oldest)
        assert limiter.max_diff - ratio < table.inserted * ratio - table.sampled <= limiter.max_diff
        while table.can_sample(1):
            table.serve([0])
        assert limiter.min_diff <= table.inserted * ratio - table.sampled < limiter.min_diff + 1


def test_deletions_open_the_first_stage_again():
    """Below the minimum insertions are free and samples forbidden, also when it had been reached."""
    table = filled(Table("a", rate_limiter=RateLimiter(2, 1.0, 0.0, 3.0)), 1, 1, 1)
    assert (table.can_insert(1), table.can_sample(1)) == (False, True)
    table.delete([0, 1, 2])
    assert (table.can_insert(2), table.can_insert(3), table.can_sample(1)) == (True, False, False)


def test_the_remover_may_pick_the_newcomer():
    """The item is inserted first, and the remover picks then."""
    model, table = model_of(Table("a", remover=Lifo(), max_size=2))
    for _ in range(4):
        model.add({"a": 1.0}, oldest)
    assert list(table.items) == [0, 1]
    assert (table.inserted, table.deleted, table.evicted) == (4, 2, 2)
    assert model.stored() == [0, 1, 3]  # the last step is kept although no item refers to it


def test_ties_of_heaps():
    """Among equals the one inserted or updated longest ago comes first."""
    table = filled(Table("a", sampler=MinHeap()), 300, 1, 20, 1, 20, 1)
    table.update([(1, 1.0)])
    assert emptied(table) == [3, 5, 1, 2, 4, 0]
    table = filled(Table("a", sampler=MaxHeap()), 1, 1, 1, 2)
    table.update([(0, 1.0), (3, 1.0), (1, 1.0)])
    assert emptied(table) == [2, 0, 3, 1]


def test_orders_do_not_move_by_an_update():
    """Fifo and Lifo look at insertions alone."""
    for sampler, order in ((Fifo(), [0, 1, 2]), (Lifo(), [2, 1, 0])):
        table = filled(Table("a", sampler=sampler), 1, 2, 3)
        table.update([(0, 9.0), (2, 0.0)])
        assert emptied(table) == order


def test_probabilities_and_weights():
    """By priorities; zero is never drawn unless all are zero."""
    table = filled(Table("a", sampler=Prioritized(0.5, 1.0)), 4, 0, 16)
    assert table.draws() == {0: 2 / 6, 2: 4 / 6}
    assert [table.values(step).weight(0.5) for step in range(3)] == [1.0, 1.0, 2**-0.5]
    with pytest.raises(Impossible):
        table.draw(1)
    assert filled(Table("a", sampler=Prioritized(0.0)), 4, 0).draws() == {0: 1.0}
    assert filled(Table("a", sampler=Prioritized(1.0)), 0, 0).draws() == {0: 0.5, 1: 0.5}
    assert filled(Table("a", sampler=Softmax(0.5)), 1e4, 0).draws() == {0: 1.0}
    assert filled(Table("a"), 1, 0).draws() == {0: 0.5, 1: 0.5}


def test_rounds():
    """Each living item once before any again; newcomers join; weight 0 comes last."""
    model, table = model_of(Table("a", sampler=Prioritized(1.0), replacement=False))
    for priority in (1.0, 3.0, 0.0):
        model.add({"a": priority}, oldest)
    assert table.draw(1).probability == 0.75
    model.add({"a": 2.0}, oldest)
    assert table.draws() == {0: 1 / 3, 3: 2 / 3}
    table.serve([3, 0, 2])
    model.add({"a": 5.0}, oldest)
    assert table.draws() == {4: 1.0}  # the round goes on: all others were drawn, it was not
    table.serve([4])
    assert table.draws() == {}
    assert table.draw(3).probability == 2 / 11  # the next round


def test_a_batch_cut_short():
    """What was drawn comes first, as it was then; a reset drops it."""
    model, table = model_of(Table("a", max_times_sampled=1))
    for _ in range(2):
        model.add({"a": 4.0}, oldest)
    table.cut_short(Counter([0, 1]))
    assert (table.num_pending, len(table.items), table.sampled) == (2, 0, 2)
    model.add({"a": 4.0}, oldest)
    with pytest.raises(Impossible):
        table.serve([2])
    found = table.serve([1, 0, 2])
    assert [(v.step, v.probability, v.table_size) for v in found] == [(1, 0.5, 2), (0, 1.0, 1), (2, 1.0, 1)]
    model.add({"a": 4.0}, oldest)
    with pytest.raises(Impossible, match="stuck"):
        table.cut_short(Counter())
    table.cut_short(Counter([3]))
    model.reset("a")
    assert (table.num_pending, table.highest) == (0, 1.0)


def test_capacity_takes_the_oldest_steps():
    """First the items of the oldest steps that are not protected, then the step that the writer keeps."""
    model, table = model_of(Table("a"), Table("b", protected=True), capacity=3)
    model.add({"a": 1.0, "b": 1.0}, oldest)
    model.add({"a": 1.0}, oldest)
    model.add({"b": 1.0}, oldest)
    model.add({}, oldest)  # evicts both items of a
    assert (list(table.items), table.evicted, model.stored()) == ([], 2, [0, 2, 3])
    model.add({"b": 1.0}, oldest)  # takes the place of the kept step
    assert model.stored() == [0, 2, 4]
    with pytest.raises(Refused) as refused:
        model.add({"a": 1.0}, oldest)
    assert refused.value.table is None


def test_the_number_of_items_is_bounded():
    """Those of the oldest steps go; what is protected does not, and then nothing enters."""
    model = Model.of(100, [Table("a"), Table("b", max_size=3, protected=True)], max_items=3)
    model.add({"a": 1.0, "b": 1.0}, oldest)
    model.add({"a": 1.0, "b": 1.0}, oldest)
    assert [list(table.items) for table in model.tables.values()] == [[1], [0, 1]]
    model.add({"b": 1.0}, oldest)
    with pytest.raises(Refused):
        model.add({"a": 1.0}, oldest)
    model.add({"b": 1.0}, oldest)  # the table is full: its remover makes room
    assert [list(table.items) for table in model.tables.values()] == [[], [1, 2, 3]]


def test_a_remover_goes_first():
    """A table that is as large as the replay loses what its remover picks, not its oldest item."""
    model, table = model_of(Table("a", remover=MinHeap(), protected=True), capacity=2)
    for priority in (3.0, 1.0, 2.0, 4.0):
        model.add({"a": priority}, oldest)
    assert list(table.items) == [0, 3]
    model.add({"a": 1.0}, oldest)  # is picked, and makes way for the step that cannot go
    assert model.stored() == [0, 3]


def test_a_step_enters_all_tables_or_none():
    """A table that forbids it keeps it out of the others."""
    model, table = model_of(Table("a"), Table("b", rate_limiter=Queue(1)))
    model.add({"a": 1.0, "b": 1.0}, oldest)
    with pytest.raises(Refused, match="b"):
        model.add({"a": 1.0, "b": 1.0}, oldest)
    model.add({"a": 1.0}, oldest)
    assert len(table.items) == 2


def test_highest_priority():
    """It starts at 1, survives deletions, and counts what updates set."""
    model, table = model_of(Table("a", sampler=Uniform(), rate_limiter=MinSize(2)))
    for priority in (None, 0.5, 3.0, None):
        model.add({"a": priority}, oldest)
    assert [item.priority for item in table.items.values()] == [1.0, 0.5, 3.0, 3.0]
    assert table.update([(0, 9.0), (7, 50.0), (0, 4.0)]) == 1
    assert table.delete([0, 0, 7]) == 1
    model.add({"a": None}, oldest)
    assert (table.items[4].priority, table.items.get(0)) == (4.0, None)


def test_stacks_and_ages():
    """The newest first; an age counts the items inserted since."""
    table = filled(Table("a", rate_limiter=Stack(3)), 1, 1, 1)
    assert [(v.step, v.age, v.times_sampled) for v in table.serve([2, 1, 0])] == [(2, 0, 1), (1, 1, 1), (0, 2, 1)]


def test_episodes():
    """Those of the living items."""
    model, table = model_of(Table("a"))
    for ends in (False, True, True, False):
        model.add({"a": 1.0}, oldest, ends=ends)
    assert model.info("a")["episodes"] == 3
    table.delete([2])
    assert model.info("a")["episodes"] == 2
