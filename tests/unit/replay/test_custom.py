"""Selectors written in Python: they are told of every change, choose as they say, and may fail at any point."""

import gc
import glob
import math
import os
import threading
import weakref

import numpy as np
import pytest
from harness.python_selectors import PythonFifo, PythonPrioritized, PythonUniform
from harness.threads import Background
from harness.waiting import until

from echo_shm import ConnectionClosedError, EchoShmError, Replay, SegmentError, Table
from echo_shm.replay import CustomSelector, Fifo, Queue, ReplayClient

EXAMPLE = np.zeros((), np.int64)


@pytest.fixture
def name(name):
    """A name; what is left of its store is removed after the test."""
    yield name
    for file in glob.glob(f"/dev/shm/echo_shm*{name}*"):
        os.unlink(file)


def sampled_by(sampler, **options):
    """A replay in memory of five steps, whose only table has that sampler."""
    replay = Replay(EXAMPLE, 10, [Table("a", sampler, **options)], seed=1)
    replay.extend(np.arange(5), [1.0, 2.0, 0.5, 4.0, 1.0])
    return replay


# -- what they choose


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("twin", [PythonFifo, PythonUniform, PythonPrioritized])
def test_a_twin_chooses_as_the_c_core_does(twin, replacement):
    """As sampler and as remover, with the same seed: the same items and probabilities, after every kind of change."""

    def life(make):
        tables = [
            Table("a", make(), make(), max_size=300, replacement=replacement),
            Table("b", make(), make(), max_size=20, max_times_sampled=2, replacement=replacement),
        ]
        rng = np.random.default_rng(3)
        with Replay(EXAMPLE, 400, tables, seed=5) as replay:
            for _ in range(6):
                replay.extend(np.arange(70), rng.choice([0.0, 0.5, 1.0, 3.0], 70))
                for table in "ab":
                    batch = replay.sample(15 if table == "b" else 300, table)
                    got = replay.get(batch.key[:1], table) if table == "a" else batch
                    yield [column.tolist() for column in (*batch, *got)]
                    replay.update(batch.key[::3], rng.choice([0.0, 2.0], len(batch.key[::3])), table)
                    replay.delete(batch.key[1::7], table)
            replay.reset("a")
            replay.extend(np.arange(9), np.ones(9))
            yield [column.tolist() for column in replay.sample(30, "a")]

    for mine, theirs in zip(life(twin), life(lambda: twin.like), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-12)


def test_numbers_are_the_tables_own():
    """One for each draw, from 0 to 1, the same for the same seed however draws are divided, and others for another."""

    def numbers(seed, *sizes):
        seen = []

        class Noting(PythonFifo):
            def draw(self, numbers):
                assert numbers.dtype == np.float64
                seen.append(numbers)  # it is the selector's own to keep
                return super().draw(numbers)

        with Replay(EXAMPLE, 10, [Table("a", Noting())], seed=seed) as replay:
            replay.add(np.int64(0))
            for size in sizes:
                replay.sample(size)
        return np.concatenate(seen).tolist()

    whole = numbers(1, 600)
    assert len(set(whole)) == 600
    assert min(whole) >= 0
    assert 0.4 < np.mean(whole) < 0.6
    assert max(whole) < 1
    assert numbers(1, *[1] * 100, 300, 200) == whole
    assert numbers(2, 600) != whole


def test_what_a_batch_and_info_say():
    """Weights are 1, and the effective sample size is unknown."""
    with sampled_by(PythonPrioritized()) as replay:
        batch = replay.sample(100, beta=1.0)
        assert batch.weight.tolist() == [1.0] * 100
        assert sorted(set(batch.probability)) == [0.5 / 8.5, 1 / 8.5, 2 / 8.5, 4 / 8.5]
        assert math.isnan(replay.info().effective_sample_size)


def test_large_steps():
    """A call that gives up the GIL calls selectors, too."""
    with Replay(np.zeros(20_000), 4, [Table("a", PythonFifo(), PythonFifo(), max_size=2)]) as replay:
        for value in range(4):
            replay.add(np.full(20_000, float(value)))
        assert replay.sample(3).data[:, 0].tolist() == [2.0, 2.0, 2.0]


def test_a_closed_replay_lets_go_of_its_selectors():
    """Nothing of it stays."""
    selector = PythonFifo()
    gone = weakref.ref(selector)
    sampled_by(selector).close()
    del selector
    assert gone() is None


# -- what is refused


def test_where_there_is_no_call_to_raise_in(name):
    """A thread that stores by itself is refused, and nothing is left."""
    with pytest.raises(ValueError, match="thread=True: table 'a' has a selector written in Python"):
        Replay(EXAMPLE, 10, [Table("a", remover=PythonFifo())], store="shm", name=name, thread=True)
    assert glob.glob(f"/dev/shm/*{name}*") == []
    with pytest.raises(SegmentError, match="no replay"):
        Replay.attach(name, samplers={"a": PythonFifo()}, thread=True)


def test_what_is_no_selector():
    """A class, and a class that lacks methods."""
    with pytest.raises(TypeError, match=r"sampler=PythonFifo is a class: use an instance"):
        Table("a", PythonFifo)

    class Unfinished(CustomSelector):
        def insert(self, key, priority):
            pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()


def test_an_object_is_used_once():
    """Not for two roles, nor for two tables, nor again for another replay. The failure itself does not use it up."""
    one, other = PythonFifo(), PythonFifo()
    for tables in ([Table("a", one, one)], [Table("a", one), Table("b", one)]):
        with pytest.raises(
            ValueError, match=r"sampler of table 'a', PythonFifo\(\), has the members .* make a new one"
        ):
            Replay(EXAMPLE, 10, tables)
    sampled_by(one).close()
    with pytest.raises(ValueError, match=r"sampler of table 'a', PythonFifo\(\), has the members"):
        sampled_by(one)
    sampled_by(other).close()


def killed(name, *selectors):
    """A store whose replay let go of it: table "a" has these as sampler and remover, and "b" has none of Python's."""
    tables = [Table("a", *selectors, max_size=3), Table("b", Fifo())]
    replay = Replay(EXAMPLE, 10, tables, store="shm", name=name)
    replay.extend(np.arange(5))
    return replay


class Broken(PythonFifo):
    """Does what it should ``left`` times, then raises."""

    def __init__(self, left=0, error=None):
        super().__init__()
        self.left, self.error, self.calls = left, error or ZeroDivisionError("the cause"), []

    def called(self, what):
        """Raises when it is time."""
        self.calls.append(what)
        if self.left == len(self.calls) - 1:
            raise self.error

    def insert(self, key, priority):
        """See CustomSelector."""
        self.called("insert")
        super().insert(key, priority)

    def update(self, key, priority):
        """See CustomSelector."""
        self.called("update")
        super().update(key, priority)

    def remove(self, key):
        """See CustomSelector."""
        super().remove(key)
        self.called("remove")

    def draw(self, numbers):
        """See CustomSelector."""
        self.called("draw")
        return super().draw(numbers)


def test_attach_needs_the_selectors_again(name):
    """The error names the table and what to pass. One too many is refused, and so is what is no selector."""
    replay = killed(name, PythonFifo(), Broken(left=14))
    with pytest.raises(ConnectionClosedError):
        replay.extend(np.arange(9))
    for given, error, message in [
        ({}, ValueError, "the sampler of table 'a' is written in Python: pass a new one, samplers={'a': ...}"),
        ({"samplers": {"a": PythonFifo()}}, ValueError, "the remover of table 'a' .* removers={'a': ...}"),
        ({"samplers": {"a": PythonFifo(), "b": PythonFifo()}}, ValueError, "sampler of that table is not written"),
        ({"samplers": {"c": PythonFifo()}}, ValueError, "there is no table 'c'"),
        ({"samplers": {"a": Fifo()}, "removers": {"a": PythonFifo()}}, TypeError, "subclass of CustomSelector"),
        ({"samplers": {"a": PythonFifo()}, "thread": True}, ValueError, "thread=True"),
    ]:
        with pytest.raises(error, match=message):
            Replay.attach(name, **given)
    with Replay.attach(name, samplers={"a": PythonFifo()}, removers={"a": PythonFifo()}) as again:
        assert again.info("a").size == 3


# -- what they return


NO_MEMBER, KINDS, PROBABILITY = "which no member has", "returned keys of", "returned the probability"


@pytest.mark.parametrize(
    ("drawn", "error", "message"),
    [
        (([77], [1.0]), ValueError, f"returned key 77, {NO_MEMBER}"),
        (([0], [1.0]), ValueError, NO_MEMBER),
        (([2**64 - 1], [1.0]), ValueError, NO_MEMBER),
        ((["1 << 32"], [1.0]), ValueError, KINDS),
        (([-1], [1.0]), ValueError, KINDS),
        (([1.0], [1.0]), ValueError, KINDS),
        (([], [1.0]), ValueError, rf"{KINDS} float64\[0\]: expected a tuple of keys, uint64\[1\]"),
        ((2**32, 1.0), ValueError, KINDS),
        (([2**32], [0.0]), ValueError, f"{PROBABILITY} 0.0: expected more than 0, up to 1"),
        (([2**32], [1.5]), ValueError, PROBABILITY),
        (([2**32], [math.nan]), ValueError, PROBABILITY),
        (([2**32], [1.0, 1.0]), ValueError, "returned probabilities of"),
        (([2**32], ["1"]), ValueError, "returned probabilities of"),
        (2**32, TypeError, "returned 4294967296: expected a tuple"),
        (None, TypeError, "returned None: expected a tuple"),
    ],
)
@pytest.mark.parametrize("replacement", [True, False])
def test_draws_that_cannot_be(drawn, error, message, replacement):
    """Each is an error that names the class, the method and the table. Nothing has changed."""

    class Odd(PythonFifo):
        odd = True

        def draw(self, numbers):
            return drawn if self.odd else super().draw(numbers)

    selector = Odd()
    with sampled_by(selector, replacement=replacement) as replay:
        before = replay.info().sampled
        with pytest.raises(error, match=rf"Odd\.draw, the sampler of table 'a',.*{message}"):
            replay.sample(1)
        assert replay.info().sampled == before
        selector.odd = False
        assert replay.sample(1).data.tolist() == [0]


def test_an_item_that_is_gone_is_no_member():
    """Its record has another item by now, of another generation."""

    class Stale(PythonFifo):
        def draw(self, numbers):
            return [1 << 32] * len(numbers), [1.0] * len(numbers)

    with sampled_by(Stale()) as replay:
        key = replay.sample(1).key
        replay.delete(key)
        replay.add(np.int64(9))
        with pytest.raises(ValueError, match=f"returned key {key[0]}, {NO_MEMBER}"):
            replay.sample(1)


@pytest.mark.parametrize("probability", [-0.5, 1.5, math.nan, None])
def test_probabilities_that_cannot_be(probability):
    """``get`` says so, and goes on with the next call."""
    selector = PythonFifo()
    with sampled_by(selector) as replay:
        key = replay.sample(1).key
        selector.probability = lambda key: probability
        with pytest.raises((ValueError, TypeError), match=r"expected 0 to 1|NoneType"):
            replay.get(key)
        del selector.probability
        assert replay.get(key).probability.tolist() == [1.0]


# -- what they raise


def test_a_draw_that_raises_changes_nothing():
    """The exception itself comes out. What was drawn before it comes first in the next batch."""
    selector = Broken(left=5 + 2 * 2 + 2)  # two items were drawn, and set aside; one more draw
    selector.error = KeyError("mine")
    with sampled_by(selector, replacement=False) as replay:
        assert replay.sample(2).data.tolist() == [0, 1]
        selector.left = len(selector.calls) + 2
        with pytest.raises(KeyError, match="mine") as caught:
            replay.sample(3)
        assert caught.value is selector.error
        assert replay.info().sampled == 3
        assert replay.sample(3).data.tolist() == [2, 3, 4]
        # All have been drawn. The next round begins, and its first draw fails.
        selector.left = len(selector.calls) + 5
        with pytest.raises(KeyError, match="mine"):
            replay.sample(1)
        assert sorted(replay.sample(5).data.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("replacement", [True, False])
def test_a_batch_that_fails_in_its_second_part(replacement):
    """A batch of many is drawn in parts. The error of a later one is raised, too, and the first one is kept."""
    selector = Broken()
    with Replay(EXAMPLE, 1000, [Table("a", selector, replacement=replacement)]) as replay:
        selector.left = -1
        replay.extend(np.arange(1000))
        selector.left = len(selector.calls) + (1 if replacement else 600)
        with pytest.raises(ZeroDivisionError, match="the cause"):
            replay.sample(500)
        assert 0 < replay.info().sampled < 500
        assert len(replay.sample(500).key) == 500
        assert replay.info().sampled == 500


class Life:
    """A replay that goes through every kind of change, and goes on with new selectors when one has closed it.

    Args:
        name: Of its store.
        role: What fails: the samplers or the removers.
        left: At which call of table "a"'s it fails. -1: never.

    """

    def __init__(self, name, role, left):
        self.name, self.role, self.failures = name, role, 0
        self.broken = Broken(left)
        chosen = self.selectors()
        chosen[role]["a"] = self.broken
        tables = [
            Table("a", chosen["samplers"]["a"], chosen["removers"]["a"], max_size=3, replacement=False),
            Table("b", chosen["samplers"]["b"], chosen["removers"]["b"]),
        ]
        self.replay = Replay(EXAMPLE, 20, tables, store="shm", name=name)

    @staticmethod
    def selectors():
        """Those of all tables, which do not fail."""
        return {role: {table: PythonFifo() for table in "ab"} for role in ROLES}

    def live(self):
        """Does it all, and closes the replay. What can be seen of the tables then."""
        first = np.arange(4, dtype=np.uint64) + (1 << 32)
        try:
            self.add(range(5))
            self.do(lambda replay: replay.update(first, [9.0, 8.0, 7.0, 6.0], "a"))
            self.do(lambda replay: replay.sample(2, "a"))
            self.do(lambda replay: replay.delete(first[3:], "a"))
            self.do(lambda replay: replay.sample(1, "a"))
            self.do(lambda replay: replay.reset("b"))
            self.add(range(5, 9))
            self.do(lambda replay: replay.sample(1, "b"))
            self.calls = len(self.broken.calls)
            self.broken.left = -1
            return [self.seen(table) for table in "ab"]
        finally:
            self.replay.close()

    def add(self, numbers):
        """Some steps."""
        for number in numbers:
            self.do(lambda replay, number=number: replay.add(np.int64(number), {"a": float(number), "b": 1.0}))

    def seen(self, table):
        """A table's items and figures."""
        batch, info = self.replay.sample(6, table), self.replay.info(table)
        return batch.data.tolist(), batch.priority.tolist(), info.size, info.inserted, info.evicted

    def do(self, call):
        """A call. If it closes the replay, it is done already."""
        try:
            call(self.replay)
        except ZeroDivisionError:  # a draw, which has changed nothing
            call(self.replay)
        except ConnectionClosedError as error:
            self.go_on(error)

    def go_on(self, error):
        """All calls say what has happened. Then attaches again."""
        assert isinstance(error.__cause__, ZeroDivisionError)
        said = rf"replay '{self.name}' is closed: Broken\.\w+, the {self.role[:-1]} of table 'a', raised ZeroDivision"
        for again in (lambda: self.replay.add(np.int64(0)), lambda: self.replay.sample(1, "b"), self.replay.info):
            with pytest.raises(ConnectionClosedError, match=said):
                again()
        self.replay.close()  # as a `with` block does; the store stays
        self.replay = Replay.attach(self.name, **self.selectors())
        self.failures += 1


ROLES = ("samplers", "removers")


@pytest.mark.parametrize("role", ROLES)
def test_a_failure_anywhere_leaves_a_whole_store(name, role):
    """At any call of a selector. The store has what the call did, and goes on as if nothing had failed."""
    whole = Life(name, role, -1)
    expected = whole.live()
    assert whole.calls > 15
    failures = 0
    for k in range(whole.calls):
        life = Life(name, role, k)
        assert life.live() == expected, f"after call {k}"
        failures += life.failures
    assert failures > whole.calls // 2


def test_the_store_stays_when_attach_fails(name):
    """Whoever attaches next finds it."""
    replay = killed(name, PythonFifo(), Broken(left=14))
    with pytest.raises(ConnectionClosedError, match=rf"Its store is whole: Replay.attach\('{name}', ...\) goes on"):
        replay.extend(np.arange(9))
    for left in range(3):
        with pytest.raises(ConnectionClosedError, match=r"Broken.insert, the sampler of table 'a', raised") as caught:
            Replay.attach(name, samplers={"a": Broken(left)}, removers={"a": PythonFifo()})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    del replay
    gc.collect()
    with Replay.attach(name, samplers={"a": PythonFifo()}, removers={"a": PythonFifo()}) as again:
        assert again.num_steps > 5


def test_a_store_in_memory_is_gone():
    """The error says so, and how to keep the next one. sample() and the iterator raise it, too."""
    replay = sampled_by(Broken(left=5))
    with pytest.raises(ConnectionClosedError, match=r"raised ZeroDivisionError.*Its steps are gone: store='shm' keeps"):
        replay.extend(np.arange(3))
    with pytest.raises(ConnectionClosedError, match="Its steps are gone"):
        replay.sample(1)
    with pytest.raises(ConnectionClosedError, match="Its steps are gone"):
        next(replay.dataset_iter(1))
    replay.close()


def test_extend_says_how_many_are_stored():
    """The message has the cause and the number."""
    with Replay(EXAMPLE, 10, [Table("a", Broken(left=3))]) as replay:
        with pytest.raises(ConnectionClosedError, match=r"Broken.insert.*; 3 of 6 steps are stored") as caught:
            replay.extend(np.arange(6))
        assert caught.value.sent == 3
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_interrupt_stays_an_interrupt():
    """Ctrl-C inside a selector: the call raises it as it is. In a draw it closes nothing."""
    selector = Broken(left=5, error=KeyboardInterrupt())
    with sampled_by(selector) as replay:
        with pytest.raises(KeyboardInterrupt):
            replay.sample(1)
        selector.left = len(selector.calls)
        with pytest.raises(KeyboardInterrupt):
            replay.add(np.int64(1))
        with pytest.raises(ConnectionClosedError, match="raised KeyboardInterrupt"):
            replay.add(np.int64(1))


# -- from where they run


USES = {
    "add": lambda replay: replay.add(np.int64(1)),
    "extend": lambda replay: replay.extend(np.arange(2)),
    "sample": lambda replay: replay.sample(1),
    "update": lambda replay: replay.update([1], [1.0]),
    "delete": lambda replay: replay.delete([1]),
    "get": lambda replay: replay.get([1]),
    "reset": lambda replay: replay.reset(),
    "info": lambda replay: replay.info(),
    "num_steps": lambda replay: replay.num_steps,
    "can_sample": lambda replay: replay.can_sample(),
    "end_episode": lambda replay: replay.end_episode(),
    "close": lambda replay: replay.close(),
    "handle": lambda replay: replay.handle,
}


@pytest.mark.parametrize("use", USES)
def test_a_selector_may_not_use_its_replay(use, name):
    """The call says so, in the middle of a draw and of a turn, and nothing is harmed by it."""
    raised = []

    class Curious(PythonFifo):
        def look(self):
            with pytest.raises(EchoShmError, match=r"by a selector, or by what interrupted it. Selectors must not use"):
                USES[use](replay)
            raised.append(use)

        def insert(self, key, priority):
            super().insert(key, priority)
            self.look()

        def draw(self, numbers):
            self.look()
            return super().draw(numbers)

    replay = Replay(EXAMPLE, 10, [Table("a", Curious())], store="shm", name=name)
    with replay:
        replay.add(np.int64(0))
        with ReplayClient(replay.handle) as client, client.writer() as writer:
            writer.add(np.int64(7))
            assert replay.num_steps == 2
        assert replay.sample(2).data.tolist() == [0, 0]
        assert len(raised) == 3


def test_other_threads_wait_for_a_selector():
    """A call that comes while a selector runs, and lets other threads run, goes on after it."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(PythonFifo):
        def insert(self, key, priority):
            super().insert(key, priority)
            if len(self.members) == 6:
                entered.set()
                assert go_on.wait(30)

    with sampled_by(Slow()) as replay:
        adds = Background(lambda: replay.add(np.int64(5)))
        assert entered.wait(30)
        asks = Background(lambda: replay.num_steps)
        go_on.set()
        assert adds.result(30) is None
        assert asks.result(30) == 6


def test_what_workers_send(name):
    """It is stored inside the replay's own calls. If a selector fails then, each step is there once after attach."""

    def selectors(left=-1):
        return {"samplers": {"a": Broken(left)}}

    replay = Replay(EXAMPLE, 100, [Table("a", *selectors(3)["samplers"].values())], store="shm", name=name)
    with ReplayClient(replay.handle) as client, client.writer() as writer:
        for number in range(10):
            writer.add(np.int64(number))
        with pytest.raises(ConnectionClosedError, match=r"Broken.insert, the sampler of table 'a'"):
            assert replay.num_steps
        with pytest.raises(ConnectionClosedError, match=r"Broken.insert"):
            replay.sample(1)
        replay = Replay.attach(name, **selectors())
        with replay:
            writer.add(np.int64(10))
            assert replay.num_steps == 11
            assert sorted(replay.get(np.arange(11, dtype=np.uint64) + (1 << 32)).data.tolist()) == list(range(11))


def test_what_clients_iterate_over(name):
    """A replay draws for them inside its own calls. What a draw raises comes out there. A later call draws again."""
    selector, raised = Broken(left=-1), 0
    with Replay(EXAMPLE, 10, [Table("a", selector)], store="shm", name=name) as replay:
        replay.extend(np.arange(5))
        selector.left = len(selector.calls)
        with ReplayClient(replay.handle) as client:
            takes = Background(lambda: next(client.dataset_iter(3)).data.tolist())

            def turn():
                nonlocal raised
                try:
                    assert replay.num_steps == 5
                except ZeroDivisionError:
                    raised += 1
                return not takes.runs

            until(turn)
            assert takes.result(30) == [0, 0, 0]
        assert raised == 1


def test_limiters_and_parked_items(name):
    """Items that wait for the limiter are no members before it lets them in."""
    selector = PythonFifo()
    with Replay(EXAMPLE, 100, [Table("a", selector, rate_limiter=Queue(2))], store="shm", name=name) as replay:
        with ReplayClient(replay.handle) as client, client.writer() as writer:
            for number in range(5):
                writer.add(np.int64(number))
            assert replay.info().parked == 3
            assert len(selector.members) == 2
            assert [replay.sample(1).data[0] for _ in range(5)] == [0, 1, 2, 3, 4]
        assert selector.members == {}
