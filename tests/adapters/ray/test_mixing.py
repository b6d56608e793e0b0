"""Draws over shards are those of one table with all items. No cluster is needed: a shard is any replay."""

from collections import Counter

import numpy as np
import pytest
from harness.packages import need
from harness.peers import KEY
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st

need("ray")

from echo_shm import Replay, ReplayClient, Table, TcpTransport  # noqa: E402
from echo_shm.adapters.ray.merging import Merger  # noqa: E402
from echo_shm.adapters.ray.mixing import Mixer  # noqa: E402
from echo_shm.adapters.ray.shares import Mass, Shares, mass_of  # noqa: E402
from echo_shm.adapters.ray.sources import prefetch_of, stock_of  # noqa: E402
from echo_shm.replay import MaxHeap, Prioritized, Softmax, Uniform  # noqa: E402

#: With so many draws of so many items, a right sampler exceeds this one time in ten thousand (normal approximation).
FAR = 3.7


class Part:
    """A replay in this process as a shard; and which of its batches were asked for."""

    def __init__(self, replay):
        self.replay, self.sizes, self.batches_made = replay, [], []
        self.away = False

    def mass(self):
        """As a report has it."""
        return mass_of(self.replay.info())

    def ask(self, n):
        """Notes the size."""
        self.sizes.append(n)

    def next(self):
        """What the replay draws now."""
        if self.away:
            return None
        try:
            self.batches_made.append(self.replay.sample(self.sizes[-1], timeout=0))
        except TimeoutError:  # there are fewer
            return None
        return self.batches_made[-1]

    def close(self):
        """Does nothing."""


class Parts:
    """All shards. They are looked at when ``look()`` is called, and before the first draw."""

    def __init__(self, parts):
        self.parts, self.age = dict(enumerate(parts)), 0.0
        self.look()

    def look(self):
        """Asks all of them."""
        self.found = {number: part.mass() for number, part in self.parts.items()}

    def masses(self):
        """Those of the last look."""
        return self.found, self.age

    def source(self, number):
        """The shard."""
        return self.parts[number]


def replays(sampler, priorities):
    """A replay for each list of priorities, and one with all of them. Step k of shard s is ``[s, k]``."""
    example = {"x": np.zeros(2, np.int64)}
    made = [Replay(example, 5000, [Table("t", sampler=sampler)], seed=s) for s in range(len(priorities) + 1)]
    for shard, some in enumerate(priorities):
        for k, priority in enumerate(some):
            for replay in (made[shard], made[-1]):
                replay.add({"x": np.array([shard, k])}, priority)
    return made[:-1], made[-1]


def mixer(parts, n, sampler=None, seed=0, least=1):
    """Over them."""
    beta = getattr(sampler, "beta", 0.0)
    return Mixer(parts if isinstance(parts, Parts) else Parts(parts), n, beta, least, np.random.default_rng(seed))


def columns(batch):
    """What a batch says of each of its items."""
    return {
        tuple(x): (probability, weight)
        for x, probability, weight in zip(
            batch.data["x"].tolist(), batch.probability.tolist(), batch.weight.tolist(), strict=True
        )
    }


SAMPLERS = [
    Uniform(),
    Prioritized(alpha=0.7, beta=0.5),
    Prioritized(alpha=2.0, beta=1.0),
    Softmax(temperature=0.5, beta=0.5),
]
PRIORITIES = st.lists(st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.5]), max_size=4), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(PRIORITIES, st.sampled_from(SAMPLERS))
def test_probabilities_and_weights_are_those_of_one_table(priorities, sampler):
    """Also with empty shards, and where some or all items have no weight."""
    shards, whole = replays(sampler, priorities)
    mixed = mixer([Part(one) for one in shards], 40, sampler)
    if not any(priorities):
        assert mixed.next() is None
        return
    batch, expected = mixed.next(), columns(whole.sample(400))
    for item, (probability, weight) in columns(batch).items():
        assert probability == pytest.approx(expected[item][0], rel=1e-12) if item in expected else probability > 0
        assert weight == pytest.approx(expected[item][1], rel=1e-12) if item in expected else weight <= 1
    assert set(batch.table_size.tolist()) == {sum(map(len, priorities))}
    assert [tuple(key) for key in batch.key["shard"][:, None]] == [(shard,) for shard, _ in batch.data["x"].tolist()]


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(alpha=1.0), Softmax(temperature=2.0)])
def test_each_item_comes_as_often_as_from_one_table(sampler):
    """Shards that differ by 1000 to 1: chi-square over all items, and over the shards."""
    random = np.random.default_rng(3)
    priorities = [random.exponential(size=n).tolist() for n in (1000, 30, 1)]
    shards, whole = replays(sampler, priorities)
    mixed, seen = mixer([Part(one) for one in shards], 64, sampler), Counter()
    for _ in range(800):
        seen.update(map(tuple, mixed.next().data["x"].tolist()))
    keys = whole.sample(50_000)
    expected = {item: probability * 800 * 64 for item, (probability, _) in columns(keys).items()}
    large = {item for item, count in expected.items() if count >= 5}
    chi = sum((seen[item] - expected[item]) ** 2 / expected[item] for item in large)
    assert abs(chi - len(large)) < FAR * (2 * len(large)) ** 0.5
    for shard in range(3):
        mean = sum(count for item, count in expected.items() if item[0] == shard)
        count = sum(count for item, count in seen.items() if item[0] == shard)
        assert abs(count - mean) < FAR * mean**0.5 + 0.01 * mean


def test_places_in_a_batch_are_alike():
    """The first items of batches come from all shards, as the last ones do."""
    shards, _ = replays(Uniform(), [[1.0] * 10] * 2)
    mixed = mixer([Part(one) for one in shards], 8)
    places = sum((mixed.next().key["shard"].astype(int) for _ in range(400)), np.zeros(8, int))
    assert (abs(places - 200) < FAR * 10).all()


def test_a_shard_draws_little_ahead():
    """As many at a time as are expected of it in a batch, as a power of four."""
    shards, _ = replays(Uniform(), [[1.0] * 90, [1.0] * 9, [1.0]])
    parts = [Part(one) for one in shards]
    mixed = mixer(parts, 64)
    for _ in range(200):
        mixed.next()
    assert [one.sizes for one in parts] == [[16], [4], [1]]


def test_what_is_of_one_shard_comes_without_a_copy():
    """The batch's arrays are the shard's, of as many items as were asked for; the others' are new."""
    shards, _ = replays(Uniform(), [[1.0] * 9, []])
    parts = [Part(one) for one in shards]
    mixed = mixer(parts, 16)
    for _ in range(3):
        batch = mixed.next()
        assert parts[0].sizes == [16]
        assert np.shares_memory(batch.data["x"], parts[0].batches_made[-1].data["x"])


def test_the_last_shard_that_is_left():
    """What is left of its smaller draws is dropped, and its batches come whole from then on."""
    shards, _ = replays(Uniform(), [[1.0] * 9, [1.0] * 9])
    parts = Parts([Part(one) for one in shards])
    mixed, part = mixer(parts, 16), parts.parts[0]
    while mixed._drawn.get(0) is None or mixed._drawn[0].batch is None:
        mixed.next()
    del parts.parts[1]
    parts.look()
    mixed.next()  # it may have been begun before
    for _ in range(3):
        batch = mixed.next()
        assert part.sizes[-1] == 16
        assert np.shares_memory(batch.data["x"], part.batches_made[-1].data["x"])


class Drawing:
    """A shard with a client, whose ring has room for few batches."""

    def __init__(self, client):
        self.client, self.coming = client, None

    def ask(self, n):
        """Begins anew."""
        self.coming = self.client._polled(n, "t", 4, 0.001)

    def next(self):
        """The next batch, if it comes soon."""
        return next(self.coming)

    def close(self):
        """Does nothing."""


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("sampler", [Uniform(), MaxHeap()])
def test_learners_that_take_turns(sampler, is_near):
    """One thread has two. What the first one has not used of a shard's batch does not keep the other one waiting."""
    table, transports = Table("t", sampler=sampler), [TcpTransport(0, authkey=KEY) for _ in range(2)]
    replays = [
        Replay({"x": np.zeros(2, np.int64)}, 90, [table], thread=True, store="shm", transport=transport)
        for transport in transports
    ]
    for shard, replay in enumerate(replays):
        for k in range(90):
            replay.add({"x": np.array([shard, k])}, float(k))
    places = [replay.handle if is_near else f"tcp://127.0.0.1:{replay.port}" for replay in replays]
    clients = [ReplayClient(place, authkey=None if is_near else KEY) for place in places]
    learners = []
    for seed in range(2):
        parts = Parts([Part(replay) for replay in replays])
        parts.parts = dict(enumerate(map(Drawing, clients)))
        made = mixer(parts, 64, seed=seed) if isinstance(sampler, Uniform) else Merger(parts, 63, sampler, 1)
        learners.append(made)
    for learner in [learners[turn % 10 > 0] for turn in range(30)]:
        until(learner.next)
    for one in (*clients, *replays):
        one.close()


def test_how_many_batches_are_drawn_ahead():
    """A few of large ones, and of those on this node; more of small ones elsewhere."""
    assert [prefetch_of(nbytes, is_near=True) for nbytes in (0, 1, 1 << 30)] == [4, 4, 4]
    sizes = (0, 1, 1 << 15, 1 << 16, 1 << 18, 1 << 30)
    assert [prefetch_of(nbytes, is_near=False) for nbytes in sizes] == [32, 32, 32, 16, 4, 4]


def test_places_of_single_items():
    """Eight batches, or what 64 MiB hold; but two, or four of the only shard."""
    sizes = (0, 1, 1 << 15, 1 << 16, 1 << 17, 1 << 30)
    assert [stock_of(256, nbytes, is_alone=False) - 1 for nbytes in sizes] == [2048, 2048, 2048, 1024, 512, 512]
    assert [stock_of(256, nbytes, is_alone=True) - 1 for nbytes in sizes] == [2048, 2048, 2048, 1024, 1024, 1024]


def test_masses_are_looked_at_again():
    """Each batch says how many items there were by the masses that it used, and how old these were."""
    shards, _ = replays(Uniform(), [[1.0], [1.0]])
    parts = Parts([Part(one) for one in shards])
    mixed = mixer(parts, 64)
    assert set(mixed.next().table_size.tolist()) == {2}
    for k in range(98):
        shards[1].add({"x": np.array([1, k])})
    parts.age = 0.75
    batch = mixed.next()
    assert (set(batch.table_size.tolist()), set(batch.mass_age.tolist())) == ({2}, {0.75})
    parts.look()
    batch = mixed.next()
    assert set(batch.table_size.tolist()) == {100}
    assert (batch.key["shard"] == 1).mean() > 0.9


def test_draws_of_a_shard_that_goes_are_of_the_others():
    """Also in the middle of a batch, which waits for the shard until then."""
    shards, _ = replays(Prioritized(), [[1.0] * 5, [1.0] * 5, [2.0]])
    parts = Parts([Part(one) for one in shards])
    mixed = mixer(parts, 32)
    assert mixed.next() is not None
    parts.parts[1].away = True
    while mixed.next() is not None:  # what it had drawn before
        pass
    assert mixed.next() is None
    del parts.parts[1]
    parts.look()
    batch = mixed.next()
    assert set(batch.key["shard"].tolist()) >= {0, 2}
    alone = mixer(Parts([Part(shards[0]), Part(shards[2])]), 4000).next()
    later = mixed.next()
    assert set(later.key["shard"].tolist()) == {0, 2}
    assert set(later.probability.round(12)) == set(alone.probability.round(12))


def test_a_table_waits_for_all_its_items():
    """``min_size`` is that of all shards together: each of them may have one."""
    shards, _ = replays(Uniform(), [[1.0], [1.0] * 2])
    parts = Parts([Part(one) for one in shards])
    mixed = mixer(parts, 4, least=4)
    assert mixed.next() is None
    shards[0].add({"x": np.array([0, 1])})
    parts.look()
    assert mixed.next() is not None


def test_weights_that_probabilities_cannot_hold():
    """Importance weights also where the least likely item has a probability that float64 takes for 0."""
    sampler = Softmax(temperature=1.0, beta=0.01)
    shards, _ = replays(sampler, [[0.0], [800.0]])
    batch = mixer([Part(one) for one in shards], 8, sampler).next()
    assert batch.probability == pytest.approx(1.0)
    assert batch.weight == pytest.approx(np.exp(-0.01 * 800))


def test_shares():
    """Where there are weights they count, else sizes; nothing where there are no items."""

    def shares(*masses):
        with np.errstate(divide="ignore"):
            given = {
                number: Mass(size, float(np.log(mass)), float(np.log(least)))
                for number, (size, mass, least) in enumerate(masses)
            }
        return Shares(given, 1.0, 0.0).share

    assert shares((1, 3.0, 3.0), (9, 1.0, 0.1)) == pytest.approx({0: 0.75, 1: 0.25})
    assert shares((1, 0.0, 0.0), (3, 0.0, 0.0)) == pytest.approx({0: 0.25, 1: 0.75})
    assert shares((1, 0.0, 0.0), (3, 2.0, 0.0)) == {1: 1.0}
    assert shares((0, 0.0, 0.0), (0, 0.0, 0.0)) == {}
    far = Shares({0: Mass(1, -5000.0, -5000.0), 1: Mass(1, 5000.0, 5000.0), 2: Mass(1, 5000.0, 5000.0)}, 1.0, 0.0)
    assert far.share == {1: 0.5, 2: 0.5}
