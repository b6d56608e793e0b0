"""Checkpoints: what is restored is what was saved, whatever others do meanwhile, and goes on as if nothing had been."""

import errno
import functools
import itertools
import json
import math
import os
import random
import shutil
import signal
import threading

import numpy as np
import optree
import pytest
from harness.programs import ECHO_SHM, run, run_python
from harness.python_selectors import PythonFifo, PythonUniform
from harness.waiting import until
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from echo_shm import ConnectionClosedError, EchoShmError, Replay, SegmentError, SpecMismatchError, Table
from echo_shm.replay import (
    Column,
    Episode,
    Fifo,
    HotCold,
    Lifo,
    MaxHeap,
    NStep,
    Prioritized,
    Queue,
    RateLimiter,
    SampleToInsertRatio,
    Sequence,
    Softmax,
    Trajectory,
    Uniform,
    Writer,
    checkpoint,
)
from echo_shm.replay.store import FILES
from echo_shm.ring import lockfile

CAPACITY = 12
ITEMS = {
    "step": None,
    "n_step": NStep(2, 0.9, ["obs"], stack={"obs": 2}),
    "sequence": Sequence(3, 2),
    "episode": Episode(4),
    "windows": Sequence(3, 1),
}


def example(wide):
    """One step. A wide one is so large that few of them are copied at once."""
    return {"obs": np.zeros(100_000 if wide else 3, np.float32), "reward": np.zeros((), np.float32)}


def step(number, wide):
    """The step of a number."""
    return {"obs": np.full(100_000 if wide else 3, number, np.float32), "reward": np.float32(number)}


def make(configs, wide=False, max_items=None):
    """A replay with such tables."""
    return Replay(example(wide), CAPACITY, [Table(**config) for config in configs], max_items=max_items, seed=7)


@pytest.fixture
def small_chunks(monkeypatch):
    """Files of rows have two or three steps each."""
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 70)


# --- twins ---------------------------------------------------------------------

SELECTORS = st.sampled_from([None, Uniform(), Prioritized(0.6, 0.4), Softmax(0.5, 0.3), Fifo(), Lifo(), MaxHeap()])
PRIORITY = st.sampled_from([None, 0.0, 0.5, 1.0, 7.0])


@st.composite
def tables(draw):
    """The settings of some tables."""
    names = draw(st.lists(st.sampled_from(sorted(ITEMS)), min_size=1, max_size=3, unique=True))
    plain = {"sampler": None, "remover": None, "rate_limiter": None, "max_times_sampled": None, "replacement": True}
    return [
        {"name": name, "item": ITEMS[name], "max_size": draw(st.sampled_from([None, None, 3, 5])), **plain}
        if name == "windows" and draw(st.booleans())  # they have no records then
        else {
            "name": name,
            "item": ITEMS[name],
            "sampler": draw(SELECTORS),
            "remover": draw(SELECTORS),
            "max_size": draw(st.sampled_from([None, None, 3, 5])),
            "rate_limiter": draw(st.sampled_from([None, None, None, Queue(3), SampleToInsertRatio(1.5, 1, 8.0)])),
            "max_times_sampled": draw(st.sampled_from([None, 0, 2])),
            "replacement": draw(st.sampled_from([True, True, False])),
            "protected": draw(st.sampled_from([False, False, False, True])),
        }
        for name in names
    ]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PRIORITY, st.sampled_from(["", "", "", "terminated", "truncated", "final"])),
        st.tuples(st.just("extend"), st.integers(1, 6), st.booleans()),
        st.tuples(
            st.just("add_vector"), st.integers(1, 7), st.sampled_from(["", "", "disabled", "next_step", "final"])
        ),
        st.tuples(st.just("sample"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("update"), st.integers(0, 2), st.sampled_from([0.0, 2.0, 9.0])),
        st.tuples(st.just("delete"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("end_episode"), st.just(0), st.just(0)),
        st.tuples(st.just("reset"), st.sampled_from([None, None, 0]), st.just(0)),
        st.tuples(st.just("set_limits"), st.integers(0, 2), st.sampled_from([0.0, 2.5, math.inf])),
    ),
    max_size=25,
)


class Player:
    """Plays operations on a replay. What they return depends on the replay alone."""

    def __init__(self, replay, wide, before=None):
        self.replay, self.wide = replay, wide
        self.number = before.number if before else 0
        self.keys = {name: list(keys) for name, keys in before.keys.items()} if before else {}

    def play(self, operation):
        """What it returns, as something that can be compared."""
        kind, first, second = operation
        try:
            return getattr(self, kind)(first, second)
        except (EchoShmError, TimeoutError, KeyError, ValueError) as error:
            return type(error).__name__, str(error)

    def table(self, number):
        """One of the tables."""
        return self.replay.tables[number % len(self.replay.tables)]

    def add(self, priority, end):
        """A step."""
        self.number += 1
        final = {"obs": step(self.number + 0.5, self.wide)["obs"]} if end == "final" else None
        self.replay.add(
            step(self.number, self.wide),
            priority,
            terminated=end == "terminated",
            truncated=end in ("truncated", "final"),
            final=final,
        )

    def extend(self, n, ends):
        """Several steps."""
        first, self.number = self.number, self.number + n
        steps = optree.tree_map(lambda *rows: np.stack(rows), *[step(first + i, self.wide) for i in range(1, n + 1)])
        self.replay.extend(steps, terminated=np.array([ends and i == n - 1 for i in range(n)]))

    def add_vector(self, some, how):
        """Steps of the environments whose bits are set. Those of odd numbers may end their episodes."""
        environments = np.flatnonzero([some >> i & 1 for i in range(3)])
        first, self.number = self.number, self.number + len(environments)
        numbers = range(first + 1, self.number + 1)
        steps = optree.tree_map(lambda *rows: np.stack(rows), *[step(number, self.wide) for number in numbers])
        none = np.zeros(len(environments), bool)
        ends = none if how == "" else np.array([number % 2 == 1 for number in numbers])
        mode = "disabled" if how == "disabled" else "next_step"
        final = {"obs": steps["obs"] + np.float32(0.5)} if how == "final" else None
        self.replay.add_vector(steps, none, ends, mode, final=final, environments=environments)

    def sample(self, number, n):
        """A batch."""
        name = self.table(number)
        batch = self.replay.sample(n, name, timeout=0)
        self.keys.setdefault(name, []).extend(batch.key.tolist())
        return seen(batch)

    def some(self, number, n):
        """Keys of items that were drawn."""
        return np.array(self.keys.get(self.table(number), [])[-n:], np.uint64)

    def update(self, number, priority):
        """New priorities."""
        keys = self.some(number, 4)
        return self.replay.update(keys, np.full(len(keys), priority), self.table(number))

    def delete(self, number, n):
        """Items go."""
        return self.replay.delete(self.some(number, n), self.table(number))

    def end_episode(self, *_):
        """The episode ends."""
        self.replay.end_episode()

    def set_limits(self, number, high):
        """A limiter gets other limits."""
        self.replay.set_limits(self.table(number), high - 4 if high < math.inf else -math.inf, high)

    def reset(self, number, _):
        """Perhaps a table is emptied."""
        if number is not None:
            self.replay.reset(self.table(number))


def seen(batch):
    """All that a batch says."""
    arrays = [np.asarray(leaf) for leaf in optree.tree_leaves(batch.data)]
    columns = [getattr(batch, name).tolist() for name in ("probability", "weight", "priority", "times_sampled", "age")]
    return batch.key.tolist(), [(array.dtype, array.shape, array.tobytes()) for array in arrays], columns


def everything(replay):
    """All items of a replay, by their keys, and what it says of its tables. Keys are small here: they are tried out."""
    found = {"steps": replay.num_steps}
    for name in replay.tables:
        info = replay.info(name)
        items, index = {}, 0
        while len(items) < info.size:
            assert index < 100, f"{info.size} items in {name}, and found {len(items)}"
            for generation in range(1, 200):
                try:
                    key = generation << 32 | index
                    items[key] = seen(replay.get(np.array([key], np.uint64), name))
                    break
                except KeyError:
                    continue
            index += 1
        # What is private may have other sizes, and the effective sample size depends on the past by a millionth.
        about = {"bytes": 0, "effective_sample_size": f"{info.effective_sample_size:.4g}"}
        found[name] = repr({**vars(info), **about}), items
    return found


def same(one, other, operations, wide, before):
    """Asserts that two replays are the same, and stay so. They are closed then."""
    with one, other:
        assert everything(one) == everything(other)
        players = [Player(replay, wide, before) for replay in (one, other)]
        for operation in operations:
            results = [player.play(operation) for player in players]
            assert results[0] == results[1], operation
        assert everything(one) == everything(other)


def in_a_thread(work):
    """Runs it in another thread, and returns when it has ended."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(st.data())
def test_a_restored_replay_is_the_one_that_was_saved(tmp_path_factory, data):
    """Operations before a checkpoint, while it is written, and after it; then a second one that shares files with it.
    Each is what a replay is that stopped there, element by element, and goes on like that one. And the replay that was
    saved goes on as if it had not been."""
    path = tmp_path_factory.mktemp("checkpoints")
    wide = data.draw(st.sampled_from([False, False, True]))
    configs = data.draw(tables())
    max_items = data.draw(st.sampled_from([None, None, 9]))
    one, other, during, after = (data.draw(OPERATIONS) for _ in range(4))
    chunk_bytes = data.draw(st.sampled_from([1, 70, 200, checkpoint.CHUNK_BYTES]))

    def fresh(*parts):
        player = Player(make(configs, wide, max_items), wide)
        for operation in itertools.chain(*parts):
            player.play(operation)
        return player

    saved = fresh()
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHUNK_BYTES", chunk_bytes * (400_000 // 12 if wide else 1))
        for before in (one, other):
            for operation in before:
                saved.play(operation)
            waiting = list(during)

            def meanwhile(done, total, waiting=waiting):
                assert 0 <= done <= total
                for operation in (waiting.pop(0) for _ in range(min(len(waiting), 9))):
                    in_a_thread(functools.partial(saved.play, operation))

            results.append(saved.replay.checkpoint(path, progress=meanwhile))
            for operation in waiting:
                saved.play(operation)
    assert results == [str(path / "000001"), str(path / "000002")]
    for result, parts in zip(results, ([one], [one, during, other]), strict=True):
        twin = fresh(*parts)
        restored = Replay.restore(result, same_episode=True)
        assert restored.restored.changes == ()
        same(twin.replay, restored, after, wide, twin)
    twin = fresh(one, during, other, during)
    same(twin.replay, saved.replay, after, wide, twin)
    shutil.rmtree(path)


def test_what_was_drawn_comes_first(tmp_path):
    """What a batch that was cut short has drawn comes first in the next one, of the restored replay, too."""
    with make([{"name": "q", "rate_limiter": Queue(3)}]) as replay:
        for number in (1, 2):
            replay.add(step(number, False))
        with pytest.raises(TimeoutError):
            replay.sample(3, timeout=0)
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path) as other:
        assert other.info("q").size == 0
        other.add(step(3, False))
        assert other.sample(3, timeout=0).data["reward"].tolist() == [1.0, 2.0, 3.0]


def test_items_of_one_step_go_in_the_same_order(tmp_path):
    """Which of a step's items goes first for want of room does not change."""

    def tables():
        return [{"name": "e", "item": Episode(2)}, {"name": "s"}, {"name": "n", "item": ITEMS["n_step"]}]

    with make(tables(), max_items=5) as replay:
        for number in range(2):
            replay.add(step(number, False), terminated=True)
        replay.checkpoint(tmp_path)
        with Replay.restore(tmp_path) as other:
            for one in (replay, other):
                one.add(step(2, False), priority={"s": 1.0})
            assert everything(replay) == everything(other)


def test_an_episode_goes_on_if_asked(tmp_path):
    """With ``same_episode`` the next step follows the last one. Otherwise no item has steps from both sides."""
    for same_episode in (False, True):
        with make([{"name": "a", "item": Sequence(2, 1, pad=None)}]) as replay:
            for number in range(3):
                replay.add(step(number, False))
            replay.checkpoint(tmp_path)
        with Replay.restore(tmp_path, same_episode=same_episode) as other:
            before = other.info("a").size
            other.add(step(3, False))
            assert other.info("a").size == before + same_episode


def test_a_fork_in_the_history_shares_no_rows(tmp_path, small_chunks):
    """Two replays that go on from the same checkpoint have steps of the same numbers of arrival, with other rows."""
    with make([{"name": "a"}]) as first:
        for number in range(5):
            first.add(step(number, False))
        start = first.checkpoint(tmp_path / "c")
        for number in range(100, 106):
            first.add(step(number, False))
        first.checkpoint(tmp_path / "c")
    for numbers in (range(200, 206), range(300, 306)):
        with Replay.restore(start) as other:
            for number in numbers:
                other.add(step(number, False))
            other.checkpoint(tmp_path / "c", keep=9)
            expected = everything(other)
        with Replay.restore(tmp_path / "c") as restored:
            assert everything(restored) == expected


def test_files_of_steps_that_are_stored_are_linked(tmp_path, small_chunks):
    """The next checkpoint has the complete files of the one before, by hard links, and only those with living steps."""
    with make([{"name": "a"}]) as replay:
        for number in range(CAPACITY):
            replay.add(step(number, False))
        one = tmp_path / "c" / "000001"
        assert replay.checkpoint(tmp_path / "c") == str(one)
        for number in range(5):
            replay.add(step(100 + number, False))
        two = tmp_path / "c" / "000002"
        assert replay.checkpoint(tmp_path / "c") == str(two)
        rows = {path.name for path in one.glob("rows-*")}, {path.name for path in two.glob("rows-*")}
        linked = {name for name in rows[0] & rows[1] if (one / name).samefile(two / name)}
        assert linked
        assert rows[0] - rows[1], "files whose steps are all gone are left out"
        assert rows[1] - rows[0], "files of new steps"
        replay.checkpoint(tmp_path / "c", incremental=False)
        assert not any((two / name).samefile(tmp_path / "c" / "000003" / name) for name in rows[1])


def test_the_newest_stay(tmp_path):
    """``keep`` checkpoints stay; what somebody else has put beside them stays, too."""
    foreign = tmp_path / "000900"
    foreign.mkdir()
    (foreign / "notes").write_text("mine")
    with make([{"name": "a"}]) as replay:
        for _ in range(3):
            replay.add(step(0, False))
            replay.checkpoint(tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["000900", "000902", "000903"]
        replay.checkpoint(tmp_path, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["000900", "000904"]


def test_a_checkpoint_that_is_read_is_not_removed(tmp_path, small_chunks):
    """A checkpoint that somebody restores stays, even if it is too old."""
    with make([{"name": "a"}]) as replay:
        for number in range(CAPACITY):
            replay.add(step(number, False))
        expected = everything(replay)
        old = replay.checkpoint(tmp_path, keep=1)

        def overtake(done, total):
            if len(os.listdir(tmp_path)) == 1:
                in_a_thread(lambda: replay.checkpoint(tmp_path, keep=1))

        with Replay.restore(old, progress=overtake) as restored:
            assert everything(restored) == expected
        assert sorted(os.listdir(tmp_path)) == ["000001", "000002"]


# --- while others go on --------------------------------------------------------


def test_threads_go_on(tmp_path):
    """While threads add and sample, what is saved is one moment: steps that follow each other, each whole."""
    capacity, done = 20_000, threading.Event()
    with Replay({"n": np.zeros(64, np.int64)}, capacity, [Table("a", item=Sequence(2, 1))]) as replay:
        replay.extend({"n": np.repeat(np.arange(capacity), 64).reshape(capacity, 64)})

        def add():
            number = capacity
            while not done.is_set():
                replay.add({"n": np.full(64, number)})
                number += 1

        thread = threading.Thread(target=add)
        thread.start()
        try:
            paths = [replay.checkpoint(tmp_path, keep=9) for _ in range(4)]
        finally:
            done.set()
            thread.join()
        assert replay.info("a").inserted > capacity + 100
    for path in paths:
        with Replay.restore(path) as restored:
            size, inserted = restored.info("a").size, restored.info("a").inserted
            data = restored.sample(5 * size, "a").data["n"]
            assert restored.num_steps == capacity
            assert (data == data[:, :1, :1] + np.arange(2)[None, :, None]).all()
            assert inserted - size <= data[:, 0, 0].min()
            assert data[:, 1, 0].max() <= inserted


def test_a_replay_that_is_closed_meanwhile(tmp_path):
    """The call says so, and leaves nothing."""
    replay = make([{"name": "a"}])
    replay.add(step(1, False))
    with pytest.raises(ConnectionClosedError, match="closed"):
        replay.checkpoint(tmp_path / "c", progress=lambda done, total: replay.close())
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConnectionClosedError):
        replay.checkpoint(tmp_path / "c")


def test_a_callback_that_fails(tmp_path):
    """Its exception is raised, nothing is left, and the next checkpoint is written."""

    def fail(done, total):
        raise ZeroDivisionError

    with make([{"name": "a"}]) as replay:
        for number in range(5):
            replay.add(step(number, False))
        with pytest.raises(ZeroDivisionError):
            replay.checkpoint(tmp_path / "a" / "b", progress=fail)
        assert os.listdir(tmp_path) == []
        for number in range(30):
            replay.add(step(number, False))
        replay.checkpoint(tmp_path / "a" / "b")


@pytest.mark.parametrize("when", ["first", "later"])
def test_a_directory_that_goes_away_meanwhile(tmp_path, when):
    """The call says so. Nothing is left but what was there, and the replay goes on."""
    with make([{"name": "a"}], wide=True) as replay:
        for number in range(CAPACITY):
            replay.add(step(number, True))
        good = replay.checkpoint(tmp_path)
        for number in range(CAPACITY // 2):
            replay.add(step(number, True))
        expected = everything(replay)
        told = []

        def remove(done, total):
            told.append(done)
            if len(told) == (1 if when == "first" else 3):
                (unfinished,) = (path for path in tmp_path.iterdir() if str(path) != good)
                shutil.rmtree(unfinished)

        with pytest.raises(SegmentError, match="those that are there stay"):
            replay.checkpoint(tmp_path, incremental=False, progress=remove)
        assert [str(path) for path in tmp_path.iterdir()] == [good]
        assert everything(replay) == expected
        newest = replay.checkpoint(tmp_path)
    with Replay.restore(newest) as restored:
        assert everything(restored) == expected


def test_progress_ends_with_all(tmp_path):
    """The last call says that all bytes are done, also those that need not be written."""
    told = []
    with make([{"name": "a"}], wide=True) as replay:
        for number in range(CAPACITY):
            replay.add(step(number, True))
        for _ in range(2):
            told.clear()
            replay.checkpoint(tmp_path, progress=lambda *both: told.append(both))
            assert len(told) >= 2
            assert [done for done, _ in told] == sorted(done for done, _ in told)
            assert told[-1][0] == told[-1][1] > CAPACITY * 400_000


def test_another_writer_is_refused(tmp_path):
    """Two replays do not write to one path at a time."""
    with make([{"name": "a"}]) as one, make([{"name": "a"}]) as two:

        def both(done, total):
            with pytest.raises(SegmentError, match="being written"):
                two.checkpoint(tmp_path)

        one.checkpoint(tmp_path, progress=both)
        two.checkpoint(tmp_path)


# --- other tables, another capacity --------------------------------------------


def filled(steps=30, **config):
    """A replay with two tables."""
    replay = make([{"name": "a", **config}, {"name": "b", "item": ITEMS["n_step"], "sampler": Prioritized(1, 1)}])
    for number in range(steps):
        replay.add(step(number, False), priority=1.0 + number, truncated=number % 7 == 6)
    return replay


def test_a_smaller_capacity_keeps_the_newest_steps(tmp_path):
    """Items that refer to no others come with them, with their priorities."""
    with filled() as replay:
        before, steps = {name: replay.info(name) for name in "ab"}, replay.num_steps
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path, capacity=5) as small:
        restored = small.restored
        assert (restored.steps, restored.steps_dropped) == (5, steps - 5)
        assert "capacity=5, and was 12" in restored.changes
        for name in "ab":
            assert restored.items[name] + restored.items_dropped[name] == before[name].size
            assert small.info(name).inserted == before[name].inserted
            assert small.info(name).size == restored.items[name] > 0
        batch = small.sample(200, "a")
        assert set(batch.data["reward"].tolist()) == {25.0, 26.0, 27.0, 28.0, 29.0}
        batch = small.sample(200, "b")
        assert batch.data["obs"].min() >= 25
        assert (batch.data["obs"][:, 1, 0] + 1 + batch.data["n"] <= batch.priority).all()
        for number in range(40):
            small.add(step(number, False))


def test_a_larger_capacity_keeps_keys(tmp_path):
    """All items come, with their keys, and there is room for more."""
    with filled() as replay:
        expected = everything(replay)
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path, capacity=50) as large:
        got = everything(large)
        for name in "ab":
            assert got[name][1] == expected[name][1]
        for number in range(50):
            large.add(step(number, False))
        assert large.num_steps == 50
        assert large.info("a").max_size == large.info("a").size == 50


def test_other_tables(tmp_path, caplog):
    """Tables are matched by name and by what an item is. The new settings count, and what differs is said."""
    with filled() as replay:
        size, inserted = replay.info("b").size, replay.info("b").inserted
        newest = [said for key, _, said in everything(replay)["b"][1].values() if said[4][0] < 4]
        replay.checkpoint(tmp_path)
    new = [
        Table("b", Fifo(), item=NStep(2, 0.5, ["obs"], stack={"obs": 2}), max_size=4, max_times_sampled=1),
        Table("c"),
        Table("a", item=Sequence(2, 1)),
    ]
    with Replay.restore(tmp_path, new) as other:
        assert other.tables == ("b", "c", "a")
        assert other.restored.items == {"b": 4, "c": 0, "a": 0}
        assert other.restored.items_dropped["b"] == size - 4
        text = "\n".join(other.restored.changes)
        parts = ("table 'c' is new", "table 'a' has items of Sequence", "max_size=4", "another sampler", "gamma=0.5")
        for part in parts:
            assert part in text
            assert part in caplog.text
        assert other.info("b").inserted == inserted
        assert other.sample(4, "b").priority.tolist() == [said[2][0] for said in sorted(newest, key=lambda x: -x[4][0])]
    with Replay.restore(tmp_path, [Table("z")]) as other:
        assert other.num_steps <= 1
        assert "table 'a' is no more" in "\n".join(other.restored.changes)


def test_ages_begin_where_there_were_none(tmp_path):
    """Items of a table that drew each once are young in one with two parts. A hot part that is smaller now empties."""
    with make([{"name": "a", "replacement": False}]) as old:
        for number in range(8):
            old.add(step(number, False))
        for _ in range(3):
            old.sample(6)  # the items have rounds, and the table is in its third one
        old.checkpoint(tmp_path)
    with Replay.restore(tmp_path, [Table("a", HotCold(8, age=1))]) as first:
        assert first.info().hot_cold.hot.size == 8
        first.learned()
        first.learned()
        assert first.info().hot_cold.cold.size == 8
        for number in range(8, 12):
            first.add(step(number, False))
        first.checkpoint(tmp_path)
    with Replay.restore(tmp_path, [Table("a", HotCold(2, age=1))]) as second:
        sizes = []
        for number in range(12, 16):
            sizes.append(second.info().hot_cold.hot.size)
            second.add(step(number, False))
        assert sizes == [4, 3, 2, 2]
        assert second.info().hot_cold.updates == 2
        second.checkpoint(tmp_path)
    with Replay.restore(tmp_path, [Table("a", replacement=False)]) as third:
        assert third.info().size == 12
        assert len(set(third.sample(12).key.tolist())) == 12


def test_windows_get_records_and_lose_them(tmp_path):
    """A table of all windows has no record of each, unless its settings need them. Another one has the same, the
    oldest first, and their keys as long as there is room for as many."""

    def windows(replay):
        """Those of all keys, in order of age: without what only records have."""
        items = everything(replay)["w"][1]
        ages = sorted(items, key=lambda key: -items[key][2][4][0])
        return {key: items[key][1] for key in ages}

    def table(records):
        return Table("w", item=Sequence(3, 1), max_times_sampled=10**9 if records else 0)

    with Replay(example(False), CAPACITY, [table(records=False)], seed=7) as replay:
        for number in range(40):
            replay.add(step(number, False), priority={} if number % 6 == 5 else 2.0, truncated=number % 8 == 1)
        replay.delete(replay.sample(1).key)
        expected, inserted = windows(replay), replay.info().inserted
        assert len(expected) > 4
        replay.checkpoint(tmp_path)
    for records in (True, True, False, False, True):
        with Replay.restore(tmp_path, [table(records)], same_episode=True) as other:
            assert other.restored.items == {"w": len(expected)}
            assert windows(other) == expected
            assert list(windows(other)) == list(expected)
            assert other.info().inserted == inserted
            assert (other.sample(1).times_sampled[0] == -1) != records
            other.checkpoint(tmp_path)
    with Replay.restore(tmp_path, [table(records=False)], capacity=6) as small:
        kept = list(windows(small).values())
        assert kept == list(expected.values())[-len(kept) :]
        assert small.restored.items == {"w": len(kept)}
        assert len(kept) >= 2
        for number in range(20):
            small.add(step(number, False))
        assert small.info().size == 4


def test_parked_windows_come_in(tmp_path):
    """What waits for a limiter comes into a table that has none."""
    limited = Table("w", item=Sequence(2, 1), rate_limiter=SampleToInsertRatio(1.0, 1, 2.0))
    with Replay(example(False), CAPACITY, [limited]) as replay:
        with Writer(replay.handle) as writer:
            for number in range(6):
                writer.add(step(number, False))
        until(lambda: replay.num_steps >= 6)
        assert (replay.info().inserted, replay.info().parked) == (3, 2)
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path, [Table("w", item=Sequence(2, 1))]) as other:
        assert (other.info().inserted, other.info().size) == (5, 5)
        assert {tuple(pair) for pair in other.sample(200).data["reward"].tolist()} == {(i, i + 1) for i in range(5)}


def test_limits_come_with_the_limiter(tmp_path):
    """A table that is given has those that its limiter got while it was used, unless it has another limiter."""

    def table(max_diff=math.inf, **options):
        return Table("t", item=Sequence(2, 1), rate_limiter=RateLimiter(1, 1.0, -math.inf, max_diff), **options)

    def restored(table):
        with Replay.restore(tmp_path, [table]) as other:
            limiter = other.info().limiter
            return limiter.min_diff, limiter.max_diff, other.restored.changes

    with Replay(example(False), CAPACITY, [table(protected=True)]) as replay:
        replay.set_limits(None, -3.0, 8.0)
        replay.checkpoint(tmp_path)
    assert restored(table(protected=True)) == (-3.0, 8.0, ())
    assert restored(table(5.0, protected=True)) == (
        -math.inf,
        5.0,
        ("table 't': min_diff=-inf, and was -3.0, max_diff=5.0, and was 8.0",),
    )
    assert restored(table()) == (  # it has no records now
        -math.inf,
        math.inf,
        ("table 't': min_diff=-inf, and was -3.0, max_diff=inf, and was 8.0, is_protected=0, and was 1",),
    )


def test_selectors_written_in_python(tmp_path):
    """They are given anew, and are told of all members."""
    with make([{"name": "a", "sampler": PythonUniform(), "remover": PythonFifo()}]) as replay:
        for number in range(20):
            replay.add(step(number, False))
        expected = everything(replay)
        replay.checkpoint(tmp_path)
        draws = replay.sample(20).key.tolist()
    with pytest.raises(ValueError, match="written in Python"):
        Replay.restore(tmp_path)
    with Replay.restore(tmp_path, samplers={"a": PythonUniform()}, removers={"a": PythonFifo()}) as other:
        assert everything(other) == expected
        assert other.sample(20).key.tolist() == draws


@pytest.mark.parametrize("saved", ["memory", "shm", "files"])
@pytest.mark.parametrize("restored", ["memory", "shm", "files"])
def test_any_store_into_any_other(tmp_path, name, small_chunks, saved, restored):
    """The store can be another kind than the one that was saved, and its steps are overwritten while they are saved."""
    example = {"b": np.zeros(3, np.uint8), "obs": np.zeros((2, 5), np.float32), "n": np.zeros((), np.int64)}
    tables = [
        {"name": "a"},
        {"name": "s", "item": Sequence(2, 1), "sampler": Prioritized(0.6, 0.4)},
        {"name": "w", "item": Sequence(2, 1)},
    ]

    def opened(kind):
        kind = f"{tmp_path}/{kind}-{len(os.listdir(tmp_path))}/" if kind == "files" else kind
        return Replay(example, CAPACITY, [Table(**table) for table in tables], store=kind, seed=3)

    def add(replay, first, last):
        for n in range(first, last):
            one = {"b": np.full(3, n, np.uint8), "obs": np.full((2, 5), n, np.float32), "n": n}
            replay.add(one, priority=float(n % 5), truncated=n % 7 == 6)

    def contents(replay):
        """As everything(). But windows without records are named by where their steps lie: in files that is not the
        same, because rows wait for the disk."""
        found = everything(replay)
        return {**found, "w": (found["w"][0], sorted(item[1:] for item in found["w"][1].values()))}

    waiting = [(20, 40)]

    def overwrite(done, total):
        while waiting:
            add(one, *waiting.pop())

    with opened(saved) as one, opened("memory") as twin:
        add(one, 0, 20)
        one.checkpoint(tmp_path / "c", progress=overwrite)
        assert not waiting
        add(twin, 0, 20)
        kind = f"{tmp_path}/restored/" if restored == "files" else restored
        with Replay.restore(tmp_path / "c", store=kind, name=name, same_episode=True, thread=True) as other:
            assert other.name == name
            assert other.restored.changes == ()
            for first in (20, 60):
                assert contents(other) == contents(twin)
                for replay in (other, twin):
                    add(replay, first, first + 40)
            for table in "s" if "files" in (saved, restored) else "sw":
                assert seen(other.sample(9, table)) == seen(twin.sample(9, table))
        if restored == "files":
            with Replay.attach(kind) as again:
                assert contents(again) == contents(twin)


def test_items_that_writers_describe(tmp_path):
    """They come with their columns, whatever else is stored meanwhile."""
    table = Table("free", item=Trajectory({"few": Column("obs", 3), "last": Column("reward")}, 10))
    with Replay(example(False), CAPACITY, [table]) as replay, replay.spawn(describe, 1):
        while replay.info("free").size < 5:
            replay.sample(1, "free", timeout=30)
        path = replay.checkpoint(tmp_path)
    with Replay.restore(path) as restored:
        assert restored.info("free").size > 3
        data = restored.sample(100, "free").data
        assert (data["few"][:, :, 0] == data["last"][:, None] + np.array([-4, -2, 0])).all()
        path = restored.checkpoint(tmp_path)
        with Replay.restore(path, capacity=40) as again:
            assert everything(again)["free"][1] == everything(restored)["free"][1]


def describe(writer):
    """A worker: items of every other step, up to the last one."""
    for number in itertools.count():
        writer.append(step(number, False))
        if number >= 4:
            h = writer.history
            writer.create_item("free", None, {"few": h["obs"][-5::2], "last": h["reward"][-1]})


def test_a_copy_of_a_directory_shares_no_rows(tmp_path, small_chunks):
    """Two that go on from the same files have steps of the same numbers of arrival, with other rows."""
    paths = [f"{tmp_path}/{n}/" for n in range(2)]
    with Replay(example(False), CAPACITY, store=paths[0]) as replay:
        for number in range(5):
            replay.add(step(number, False))
        replay.checkpoint(tmp_path / "c")
    shutil.copytree(*paths)
    for path, first in zip(paths, (100, 200), strict=True):
        with Replay.attach(path) as replay:
            for number in range(first, first + 6):
                replay.add(step(number, False))
            replay.checkpoint(tmp_path / "c")
            expected = everything(replay)
        with Replay.restore(tmp_path / "c") as restored:
            assert everything(restored) == expected


#: Restores a checkpoint, and is killed before all rows are there.
KILLED = """
import os, signal, sys
from echo_shm import Replay
path, store, name = sys.argv[1:]
Replay.restore(path, store=store, name=name, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize("kind", ["shm", "files"])
def test_nobody_goes_on_with_a_store_that_was_never_filled(tmp_path, name, kind):
    """A process is killed while it restores: what it has left is no store."""
    store = "shm" if kind == "shm" else f"{tmp_path}/files/"
    with filled() as replay:
        replay.checkpoint(tmp_path / "c")
    run_python(KILLED, str(tmp_path / "c"), store, name, status=-signal.SIGKILL)
    with pytest.raises(SegmentError, match=r"has not finished|is being made"):
        Replay.attach(name if kind == "shm" else store)
    if kind == "shm":
        run(*ECHO_SHM, "gc", name)
        assert name not in lockfile.names(FILES)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"capacity": 0}, ValueError),
        ({"capacity": 2}, ValueError),
        ({"tables": [Table("a")], "samplers": {"a": None}}, ValueError),
        ({"name": "a/b"}, ValueError),
        ({"example": {"obs": np.zeros(4, np.float32), "reward": np.zeros((), np.float32)}}, SpecMismatchError),
    ],
)
def test_wrong_arguments(tmp_path, arguments, error):
    """They are refused before anything is made."""
    with filled() as replay:
        replay.checkpoint(tmp_path)
    with pytest.raises(error):
        Replay.restore(tmp_path, **arguments)


# --- what cannot be restored -----------------------------------------------------


def test_no_checkpoint(tmp_path):
    """A directory without one, and none."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SegmentError, match=r"no complete checkpoint|No such file"):
            Replay.restore(path)


def test_every_damaged_file_is_refused(tmp_path, small_chunks):
    """One byte more or less, or changed, or no file: the message names the file, and another checkpoint. A row is
    noticed when it is read, so steps that are gone do not matter."""
    with filled(8) as replay:
        replay.checkpoint(tmp_path)
        newest = tmp_path / "000002"
        assert replay.checkpoint(tmp_path, incremental=False) == str(newest)
    names = sorted(os.listdir(newest))
    assert len(names) >= 7
    for name in names:
        whole = (newest / name).read_bytes()
        middle = 4096 + 4 if name.startswith("rows-") else len(whole) // 2
        changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for spoilt in (whole[:-1], whole + b"\0", changed, None):
            (newest / name).unlink()
            if spoilt is not None:
                (newest / name).write_bytes(spoilt)
            with pytest.raises(SegmentError, match="damaged") as caught:
                Replay.restore(newest)
            assert "000001" in str(caught.value)
        (newest / name).write_bytes(whole)
    Replay.restore(newest).close()


def test_another_version_is_refused(tmp_path):
    """The message says which versions these are."""
    with filled() as replay:
        path = replay.checkpoint(tmp_path)
    manifest = json.loads((tmp_path / "000001" / "manifest.json").read_bytes())
    manifest["version"] = 99
    (tmp_path / "000001" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SegmentError, match=r"version 99 .* version 2: restore it with the echo_shm that wrote it"):
        Replay.restore(path)


def test_records_of_somebody_hostile(tmp_path):
    """Records that were changed, with checksums that fit: they are refused, or restored as something else; no crash."""
    with filled() as replay:
        path = tmp_path / replay.checkpoint(tmp_path)
    whole = bytearray((path / "records").read_bytes())
    used = [at for at in range(0, len(whole), 8) if whole[at : at + 8] != bytes(8)]
    play = random.Random(3)
    outcomes = {"refused": 0, "restored": 0}
    for _ in range(300):
        spoilt = bytearray(whole)
        for _ in range(play.randint(1, 3)):
            at = play.choice(used) if play.random() < 0.7 else play.randrange(0, len(whole), 8)
            word = play.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, play.randrange(64), play.getrandbits(64)])
            spoilt[at : at + 8] = word.to_bytes(8, "little")
        (path / "records").write_bytes(spoilt)
        manifest = json.loads((path / "manifest.json").read_bytes())
        fd = os.open(path / "records", os.O_RDONLY)
        manifest["files"]["records"]["crc32"] = checkpoint.files.crc_of_file(fd)
        os.close(fd)
        data = checkpoint.files.manifest_bytes(manifest)
        (path / "manifest.json").write_bytes(data)
        (path / "DONE").write_bytes(checkpoint.files.done_bytes(data))
        try:
            Replay.restore(path).close()
            outcomes["restored"] += 1
        except (SegmentError, ValueError):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10, outcomes


def test_a_disk_that_cannot_be_written(tmp_path):
    """A file in the place of the directory."""
    (tmp_path / "file").write_text("")
    with filled() as replay, pytest.raises(SegmentError) as caught:
        replay.checkpoint(tmp_path / "file")
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
