"""Items that are drawn a limited number of times: each comes once, whoever waits for whom. No cluster is needed."""

from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
from harness.packages import need
from harness.peers import KEY
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st

need("ray")

from echo_shm import Replay, ReplayClient, Table, TcpTransport  # noqa: E402
from echo_shm.adapters.ray import drawing, limited  # noqa: E402
from echo_shm.adapters.ray.limited import LimitedMerger, LimitedMixer  # noqa: E402
from echo_shm.adapters.ray.shares import mass_of  # noqa: E402
from echo_shm.replay import Fifo, MaxHeap, MinHeap, MinSize, Queue, Uniform  # noqa: E402


class Shard:
    """A replay and its ring, of a model: places are filled in order, and a learner has its share of them at most."""

    def __init__(self, replay, room=1000):
        self.replay, self.room = replay, room
        self.drawn, self.held, self.next = {}, {}, 0  # items by their numbers, drawn and held; the next number
        self.learners, self.is_away, self.is_settling = 0, False, False

    def fill(self):
        """Draws while the next place is free."""
        while self.next - self.room not in self.drawn and self.next - self.room not in self.held:
            try:
                self.drawn[self.next] = self.replay.sample(1, timeout=0)
            except TimeoutError:
                return
            self.next += 1


class Held:
    """What a learner has of a shard: a model of a stock."""

    def __init__(self, shard):
        self.shard, self.ready, self.taken, self.is_short = shard, [], [], False
        shard.learners += 1

    @property
    def is_settling(self):
        """Whether the shard is about to be handed over."""
        return self.shard.is_settling

    @property
    def share(self):
        """Of the places."""
        return max(1, self.shard.room // self.shard.learners)

    def count(self, wanted):
        """Takes what there is, up to the share, and gives back what is too much."""
        shard = self.shard
        while len(self.ready) > max(0, min(wanted, self.share - len(self.taken))):
            number = self.ready.pop()
            shard.drawn[number] = shard.held.pop(number)
        while len(self.ready) < wanted and len(self.ready) + len(self.taken) < self.share and not shard.is_away:
            shard.fill()
            if not shard.drawn:
                break
            number = min(shard.drawn)
            shard.held[number] = shard.drawn.pop(number)
            self.ready.append(number)
        self.is_short = len(self.ready) < wanted
        return 0 if shard.is_away else len(self.ready)

    @property
    def is_full(self):
        """Whether it has its share, and is short; or the next place."""
        blocks = self.shard.learners > 1 and self.shard.next - self.shard.room in (*self.ready, *self.taken)
        return blocks or (self.is_short and len(self.ready) + len(self.taken) >= self.share)

    def peek(self):
        """The next one."""
        return self.shard.held[self.ready[0]] if self.ready else None

    def take(self):
        """Takes it."""
        item = self.peek()
        if item is not None:
            self.taken.append(self.ready.pop(0))
        return item

    def done(self):
        """All that was taken."""
        for number in self.taken:
            del self.shard.held[number]
        self.taken.clear()

    def close(self):
        """What was not taken goes back."""
        self.done()
        self.count(0)
        self.shard.learners -= 1
        return []


class Shards:
    """All shards, as one learner sees them."""

    def __init__(self, shards, stocks=None):
        self.shards, self.make, self.stocks = dict(enumerate(shards)), stocks, {}
        self.look()

    def look(self):
        """Asks all of them."""
        self.found = {number: mass_of(shard.replay.info()) for number, shard in self.shards.items()}

    def masses(self):
        """Those of the last look."""
        return self.found, 0.0

    def is_known(self, number):
        """Whether it is one of them."""
        return number in self.shards

    def stock(self, number):
        """The items of one."""
        self.stocks[number] = Held(self.shards[number]) if self.make is None else self.make[number]()
        return self.stocks[number]

    @property
    def taken(self):
        """What is taken and not done."""
        held = [(one.shard, number) for one in self.stocks.values() for number in one.taken]
        return Counter(tuple(shard.held[number].data["x"][0].tolist()) for shard, number in held)


def queue_of(shard, numbers, sampler, **options):
    """A replay whose items are drawn once each, in an order."""
    table = Table("t", sampler=sampler, rate_limiter=MinSize(1), max_times_sampled=1)
    replay = Replay({"x": np.zeros(2, np.int64)}, 500, [table], **options)
    for number in numbers:
        replay.add({"x": np.array([shard, number])}, float(number))
    return replay


def mixed(shards, n, sampler, left=None, seed=0):
    """Batches over them."""
    left = deque() if left is None else left
    if isinstance(sampler, Uniform):
        return LimitedMixer(shards, n, 0.0, np.random.default_rng(seed), left)
    return LimitedMerger(shards, n, sampler, left)


def pairs(batch):
    """What is in it. Its keys say from which shard."""
    assert batch.key["shard"].tolist() == batch.data["x"][:, 0].tolist()
    return list(map(tuple, batch.data["x"].tolist()))


class Clock:
    """The time, as it is told."""

    now = 0.0

    def monotonic(self):
        """The time."""
        return self.now


@pytest.fixture(autouse=True, scope="module")
def clock():
    """Whoever waits has waited long enough, unless a test sets the clock."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited, "time", clock)
        patch.setattr(limited, "PATIENCE", -1.0)
        yield clock


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4), st.integers(1, 6))
def test_heaps_over_shards(numbers, n):
    """Items come as from one heap, each once."""
    for sampler, sign in ((MaxHeap(), -1), (MinHeap(), 1)):
        shards = Shards([Shard(queue_of(shard, some, sampler)) for shard, some in enumerate(numbers)])
        merger, came = mixed(shards, n, sampler), []
        while (batch := merger.next()) is not None:
            came += [number for _, number in pairs(batch)]
        together = sorted((number for some in numbers for number in some), key=lambda number: sign * number)
        assert len(together) - len(came) < n  # a batch is whole
        assert came == together[: len(came)]


def test_queues_over_shards():
    """Each shard's items come in their order, and those of all wait equally long; what is there is not waited for."""
    counts = 40, 20, 0
    shards = Shards([Shard(queue_of(shard, range(count), Fifo())) for shard, count in enumerate(counts)])
    merger, came = mixed(shards, 6, Fifo()), []
    while (batch := merger.next()) is not None:
        came += pairs(batch)
    assert sorted(came) == [(0, k) for k in range(40)] + [(1, k) for k in range(20)]
    for shard in (0, 1):
        assert [k for one, k in came if one == shard] == sorted(k for one, k in came if one == shard)
    first = [shard for shard, _ in came[:30]]
    assert abs(first.count(0) - 20) <= 2


SAMPLERS = st.sampled_from([Uniform(), Fifo(), MaxHeap()])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(1, 9),
    SAMPLERS,
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 4), st.none() | st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=8,
    ),
)
def test_iterations_that_follow_each_other(counts, room, sampler, iterations):
    """Each item comes once, whoever is away, and however little room there is.

    What was taken is done when the next batch is asked for, and not before, unless there is no room for a whole batch.
    """
    there = [Shard(queue_of(shard, range(count), sampler), room) for shard, count in enumerate(counts)]
    left, came, more = deque(), Counter(), list(counts)

    def iterate(n, most, away, new):
        for number, shard in enumerate(there):
            shard.is_away = number == away
        shards = Shards(there)
        batches = mixed(shards, n, sampler, left, seed=n)
        kept = Counter(tuple(one.item.data["x"][0].tolist()) for one in left)
        for _ in range(most):
            batch = batches.next()
            if batch is not None:
                items = Counter(pairs(batch))
                came.update(items)
                assert shards.taken == items - kept or n >= room
            elif n < room:
                assert not shards.taken
            if new:
                there[0].replay.add({"x": np.array([0, more[0]])}, 1.0)
                more[0] += 1
                new = False
            shards.look()
            if away is not None:
                shards.found.pop(away, None)
        batches.close()

    for one in iterations:
        iterate(*one)
    for _ in range(200):
        iterate(1, 3, None, False)
    assert came == Counter((shard, k) for shard, count in enumerate(more) for k in range(count))
    assert not left
    assert not any(shard.held for shard in there)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    SAMPLERS,
    st.randoms(use_true_random=False),
)
def test_learners_that_share_shards(sizes, rooms, sampler, random):
    """They do not wait for each other without end, whatever they need, and whatever room there is."""
    there = [Shard(queue_of(shard, range(60), sampler), room) for shard, room in enumerate(rooms)]
    views = [Shards(there) for _ in sizes]
    learners = [mixed(view, n, sampler, seed=k) for k, (view, n) in enumerate(zip(views, sizes, strict=True))]
    came, idle = Counter(), 0
    while 60 * len(rooms) - came.total() >= sum(sizes):  # each could have a batch of what is left
        which = random.randrange(len(sizes))
        views[which].look()
        batch = learners[which].next()
        idle = 0 if batch is not None else idle + 1
        came.update([] if batch is None else pairs(batch))
        assert idle < 2000, "they wait for each other"
    for one in learners:
        one.close()
        came.update(tuple(left.item.data["x"][0].tolist()) for left in one._left)
    last = mixed(Shards(there), 1, sampler)
    for _ in range(3 * 60 * len(rooms)):
        batch = last.next()
        came.update([] if batch is None else pairs(batch))
        last._shards.look()
    assert came == Counter((shard, k) for shard in range(len(rooms)) for k in range(60))


def test_a_batch_is_whole_before_any_of_it_is_taken():
    """A learner that waits holds nothing that others could not have."""
    there = [Shard(queue_of(0, range(3), Uniform())), Shard(queue_of(1, (), Uniform()))]
    shards = Shards(there)
    batches = mixed(shards, 5, Uniform())
    assert batches.next() is None
    assert not shards.taken
    for number in (3, 4):
        there[1].replay.add({"x": np.array([1, number])}, 1.0)
    shards.look()
    assert sorted(k for _, k in pairs(batches.next())) == [0, 1, 2, 3, 4]
    assert [len(shards.stocks[one].taken) for one in (0, 1)] == [3, 2]
    assert batches.next() is None
    assert not shards.taken


@pytest.mark.parametrize("sampler", [Uniform(), Fifo()])
def test_a_shard_that_is_handed_over(sampler):
    """A learner takes what is there, though it makes no batch, and also once nothing is drawn of it any more."""
    shard, other = Shard(queue_of(0, range(5), sampler)), Shard(queue_of(1, range(3), sampler))
    shards = Shards([shard, other])
    shard.is_settling, shards.found[0] = True, mass_of(queue_of(0, (), sampler).info())
    left = deque()
    batches = mixed(shards, 20, sampler, left)
    for _ in range(3):
        assert batches.next() is None
    assert (shard.drawn, shard.held) == ({}, {})
    for number in (5, 6):
        shard.replay.add({"x": np.array([0, number])}, 1.0)
    shard.fill()
    batches._of(0).count(1)
    shards.found = {1: shards.found[1]}
    assert batches.next() is None
    assert (shard.drawn, shard.held) == ({}, {})
    batches.close()
    again = mixed(Shards([other]), 1, sampler, left)
    kept = [one.number for one in left]
    assert kept.count(0) == 7
    assert again.next() is not None


@pytest.mark.parametrize("sampler", [Uniform(), Fifo()])
def test_a_shard_that_is_absent_for_a_while(sampler):
    """What is done of it is not forgotten: the shard would deliver that again."""
    there = [Shard(queue_of(0, range(9), sampler)), Shard(queue_of(1, range(99), sampler))]
    shards = Shards(there)
    batches = mixed(shards, 12, sampler)
    assert 0 in [shard for shard, _ in pairs(batches.next())]
    known = shards.stocks[0]
    there[0].is_away, shards.found = True, {1: shards.found[1]}
    assert {shard for shard, _ in pairs(batches.next())} == {1}
    assert batches._stocks[0] is known
    del shards.shards[0]
    shards.look()
    batches.next()
    assert list(batches._stocks) == [1]
    batches.close()


def test_room_in_a_shard_that_is_absent():
    """Nobody waits for it, so nothing is taken before the batch is whole."""
    shard = Shard(queue_of(0, range(9), Fifo()), 3)
    shards = Shards([shard, Shard(queue_of(1, (), Fifo()))])
    batches = mixed(shards, 12, Fifo())
    assert batches._of(0).count(4) == 3
    shards.found = {1: shards.found[1]}
    assert batches.next() is None
    assert len(shard.held) == 3
    shards.look()
    assert batches.next() is None
    assert not shard.held


def test_patience(clock, monkeypatch):
    """A learner that needs more than its share waits for others a while, from when the last item came."""
    monkeypatch.setattr(limited, "PATIENCE", 5.0)
    shard = Shard(queue_of(0, range(2), Fifo()), 3)
    shards = Shards([shard])
    batches = mixed(shards, 4, Fifo())

    def look(now):
        clock.now = now
        assert batches.next() is None
        return len(shard.held)

    assert look(10.0) == 2
    assert look(20.0) == 2  # there is room
    shard.replay.add({"x": np.array([0, 2])}, 1.0)
    assert look(21.0) == 3
    assert look(25.9) == 3
    assert look(26.1) == 0
    for number in (3, 4, 5, 6):
        shard.replay.add({"x": np.array([0, number])}, 1.0)
    clock.now = 30.0
    assert pairs(batches.next()) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert look(40.0) == 3  # the same number as before: it is another wait
    assert look(44.9) == 3


@pytest.mark.watchdog(120)
@pytest.mark.parametrize("sampler", [Uniform(), Fifo()])
def test_learners_of_two_replays(sampler, monkeypatch):
    """With real rings, near and far: more learners than there is room for, each of which needs items of both."""
    monkeypatch.setattr(limited, "PATIENCE", -1.0)
    transports = [TcpTransport(0, authkey=KEY) for _ in range(2)]
    table = Table("t", sampler=sampler, rate_limiter=Queue(200), max_times_sampled=1)
    options = {"thread": True, "seed": 1}
    replays = [Replay({"x": np.zeros(2, np.int64)}, 500, [table], transport=one, **options) for one in transports]
    for shard, replay in enumerate(replays):
        for number in range(150):
            replay.add({"x": np.array([shard, number])}, 1.0)
    clients, learners = [], []
    for k in range(6):
        ways = [client_of(replay, is_far=(k + shard) % 3 > 0) for shard, replay in enumerate(replays)]
        clients += ways
        there = [Shard(replay) for replay in replays]
        learners.append(mixed(Shards(there, [stock_of(way) for way in ways]), 8, sampler, seed=k))
    came = Counter()

    def turn():
        for one in learners:
            one._shards.look()
            batch = one.next()
            came.update([] if batch is None else pairs(batch))
        return came.total() > 300 - 6 * 8

    until(turn)
    for one in learners:
        one.close()
        came.update(tuple(left.item.data["x"][0].tolist()) for left in one._left)
    assert max(came.values()) == 1
    for one in (*clients, *replays):
        one.close()


def client_of(replay, is_far):
    """On another host, or on this one."""
    return ReplayClient(f"tcp://127.0.0.1:{replay.port}" if is_far else replay.handle, authkey=KEY)


def stock_of(client):
    """Makes what takes items from a replay."""

    def make():
        stock = until(lambda: client._stock("t", 9, 0.1))
        stock.is_settling = False
        return stock

    return make


def test_a_worker_that_fails_costs_no_batch(monkeypatch):
    """What a worker raises comes before the batch is drawn, which would be lost."""
    monkeypatch.setattr(drawing, "_WORKERS", -1.0)
    shards = Shards([Shard(queue_of(0, range(4), Fifo()))])
    failures = [ValueError("a worker"), None, None]

    def check():
        failed = failures.pop(0)
        if failed is not None:
            raise failed

    left = deque()
    with pytest.raises(ValueError, match="a worker"):
        next(drawing.batches(mixed(shards, 4, Fifo(), left), None, check, SimpleNamespace(closed=False)))
    again = drawing.batches(mixed(shards, 4, Fifo(), left), None, check, SimpleNamespace(closed=False))
    assert [k for _, k in pairs(next(again))] == [0, 1, 2, 3]
    again.close()
