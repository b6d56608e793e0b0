"""Batches that a replay's thread makes before they are asked for."""

import itertools
import threading

import numpy as np
from harness.threads import Background
from harness.waiting import LONG, until

from echo_shm import Replay, Table
from echo_shm.replay import Prioritized, Queue, rings
from echo_shm.replay.ahead import Ahead

STEP = {"a": np.zeros((), np.int64)}
QUEUE = Table("q", rate_limiter=Queue(50))


def sampled(replay, count):
    """Waits until so many items were sampled."""
    until(lambda: replay.info().sampled == count, f"{count} items sampled")


def numbers_of(batch):
    """The numbers of a batch's steps."""
    return batch.data["a"].tolist()


def test_a_thread_makes_batches_ahead():
    """As many as wanted, with the weights that sample() gives, also to what nobody took."""
    tables = [Table("t", sampler=Prioritized(alpha=1, beta=0.5), max_times_sampled=1)]
    with Replay(STEP, 100, tables, thread=True) as replay:
        for number in range(30):
            replay.add({"a": number}, priority=4.0 if number < 15 else 1.0)
        batches = replay.dataset_iter(4, prefetch=3)
        first = next(batches)
        sampled(replay, 16)
        second = next(batches)  # it was ready
        sampled(replay, 20)
        batches.close()
        rest = replay.sample(12)
        assert replay.info().sampled == 20
        last = replay.sample(10)
        assert sorted(n for batch in (first, second, rest, last) for n in numbers_of(batch)) == list(range(30))
        for batch in (first, second, rest):
            assert (batch.weight == np.where(batch.data["a"] < 15, 0.5, 1.0)).all()


def test_what_nobody_took_comes_first():
    """In the order in which it was drawn, before what is drawn later; and the thread makes no more."""
    with Replay(STEP, 100, [QUEUE], thread=True) as replay:
        for number in range(20):
            replay.add({"a": number})
        batches = replay.dataset_iter(2, prefetch=3)
        assert numbers_of(next(batches)) == [0, 1]
        sampled(replay, 8)
        batches.close()
        assert numbers_of(replay.sample(8)) == list(range(2, 10))
        assert replay.info().sampled == 10


def test_batches_ahead_come_in_order():
    """Also when their taker waits for them. The iteration ends with the replay."""
    with Replay(STEP, 100, [QUEUE], thread=True) as replay:
        got = []
        taker = Background(lambda: got.extend(map(numbers_of, replay.dataset_iter(2, prefetch=2))))
        for number in range(200):
            replay.add({"a": number}, timeout=LONG)
        until(lambda: len(got) == 100)
        replay.close()
        taker.result()
        assert list(itertools.chain(*got)) == list(range(200))


def test_a_batch_that_is_made_while_its_taker_waits(monkeypatch):
    """It goes to whoever waits: the table has nothing else."""
    take = Ahead.take

    def late(ahead):
        got = take(ahead)
        if not isinstance(got, tuple):
            replay.extend({"a": np.arange(2)})
            sampled(replay, 2)
        return got

    with Replay(STEP, 100, [QUEUE], thread=True) as replay:
        monkeypatch.setattr(Ahead, "take", late)
        assert numbers_of(next(replay.dataset_iter(2, prefetch=1, timeout=LONG))) == [0, 1]


def test_items_wake_the_thread_that_makes_batches(monkeypatch):
    """It sleeps while the table has too few, and goes on as soon as there are enough."""
    monkeypatch.setattr(rings, "_SLICE", 10 * LONG)
    with Replay(STEP, 100, [QUEUE], thread=True) as replay:
        replay.extend({"a": np.arange(2)})
        batches = replay.dataset_iter(2, prefetch=1)
        next(batches)
        until(lambda: replay._core.waiting)
        replay.extend({"a": np.arange(2)})
        sampled(replay, 4)


def test_no_batch_overtakes_one_made_ahead():
    """A batch that is drawn because none is ready, and one that is made meanwhile, come in the order of their items."""
    numbers = itertools.count()

    class Calls:
        def sample(self, *_args):
            if threading.current_thread() is threading.main_thread():
                maker.start()
                maker.join(0.2)  # it has not finished: it waits until this draw is over
            return (next(numbers),)

    ahead = Ahead(Calls(), 0, 1, 1)
    maker = threading.Thread(target=ahead.make)
    assert ahead.take() == (0,)
    maker.join()
    assert list(ahead._ready) == [(1,)]


def test_an_iteration_that_ends_while_a_batch_is_made():
    """The batch is put back, and no further one is made."""
    back = []

    class Calls:
        def sample(self, *_args):
            ahead.end()
            return (1,)

        def put_back(self, _table, got):
            back.append(got)

    ahead = Ahead(Calls(), 0, 1, 2)
    assert ahead.make()
    assert back == [(1,)]
    assert not ahead.make()
    assert back == [(1,)]
