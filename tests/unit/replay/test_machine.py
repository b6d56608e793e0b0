"""Random sequences of calls on a replay, beside a model that says exactly what each call must do."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
from harness.python_selectors import PythonFifo, PythonUniform
from harness.replay_model import Impossible, Model, Refused
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_shm import EchoShmError, Replay, Table
from echo_shm.replay import (
    CustomSelector,
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

EXAMPLE = {"n": np.zeros((), np.int64), "v": np.zeros(3, np.float32)}
SELECTORS = [
    Uniform(),
    Prioritized(0.6, 0.4),
    Prioritized(0.0, 1.0),
    Softmax(0.5, 0.3),
    Fifo(),
    Lifo(),
    MinHeap(),
    MaxHeap(),
    PythonFifo,
    PythonUniform,
]
LIMITERS = [
    *[MinSize(1)] * 4,
    MinSize(2),
    SampleToInsertRatio(1.5, 2, 3.0),
    SampleToInsertRatio(0.5, 1, (-1.0, 4.0)),
    RateLimiter(1, 2.0, 0.0, 6.0),
    Queue(2),
    Stack(3),
]
LIMITS = st.sampled_from([-math.inf, -4.0, -0.5, 0.0, 1.0, 2.5, 6.0, 30.0, math.inf])
PRIORITIES = st.sampled_from([0, 0.0, 0.25, 1, 1.0, 2.0, 3.5, 100.0])
BAD_PRIORITIES = st.sampled_from([-1.0, math.nan, math.inf, -math.inf])


def row(number):
    """The step of a number."""
    return {"n": np.int64(number), "v": np.full(3, number, np.float32)}


def close(got, expected, abs_tol=0.0):
    """Whether numbers are equal, but for rounding."""
    pairs = zip(got, expected, strict=True)
    return all(math.isclose(one, other, rel_tol=1e-9, abs_tol=abs_tol) for one, other in pairs)


@st.composite
def tables(draw, capacity):
    """The tables of a replay: small ones, of every kind."""

    def selector():
        chosen = draw(st.sampled_from([None, *SELECTORS]))
        return chosen() if isinstance(chosen, type) else chosen  # one that is written in Python is used once

    made = []
    for name in ["a", "b", "c"][: draw(st.sampled_from([1, 1, 1, 2, 3]))]:
        limiter = draw(st.sampled_from([limiter for limiter in LIMITERS if limiter.min_size <= capacity]))
        made.append(
            Table(
                name,
                sampler=selector(),
                remover=selector(),
                max_size=draw(st.one_of(st.none(), st.integers(limiter.min_size, 8))),
                rate_limiter=limiter,
                max_times_sampled=draw(st.sampled_from([None, None, 0, 1, 2, 3])),
                replacement=draw(st.booleans()),
                protected=draw(st.sampled_from([False, False, True])),
            )
        )
    return made


class Keys:
    """The keys of a table's items. They are tried out: a key is index:32 | generation:32, and both are small here."""

    def __init__(self, replay, table):
        self.replay, self.table = replay, table
        self.living, self.all = {}, {}  # by step
        self.generations = Counter()  # the last one that was seen at an index
        self.offered = 0  # steps that may have an item

    def step_of(self, key):
        """The step of the item with that key, or None."""
        try:
            return int(self.replay.get(np.array([key], np.uint64), self.table).data["n"][0])
        except KeyError:
            return None

    def look(self, new=0):
        """Finds the items that live now, after ``new`` more steps."""
        self.living = {step: key for step, key in self.living.items() if self.step_of(key) == step}
        self.offered += new
        size, index = self.replay.info(self.table).size, 0
        while len(self.living) < size:
            assert index < 100, f"{size} items in {self.table}, and these can be found: {self.living}"
            for generation in range(self.generations[index], self.offered + 1):
                key = generation << 32 | index
                step = self.step_of(key) if key not in self.living.values() else None
                if step is not None:
                    assert step not in self.all, "a step has two items in a table"
                    self.living[step] = self.all[step] = key
                    self.generations[index] = generation
            index += 1


class ReplayMachine(RuleBasedStateMachine):
    """One thread adds, samples, updates and deletes in any order."""

    @initialize(data=st.data(), capacity=st.sampled_from([12, 8, 5, 3, 2, 1]), seed=st.integers(0, 2**63 - 1))
    def create(self, data, capacity, seed):
        """A replay and its model."""
        configs = data.draw(tables(capacity))
        least = max(table.rate_limiter.min_size for table in configs)
        max_items = data.draw(st.one_of(st.none(), st.none(), st.integers(least, capacity * len(configs) + 1)))
        self.replay = Replay(EXAMPLE, capacity, configs, max_items=max_items, store="memory", seed=seed)
        self.model = Model.of(capacity, configs, max_items)
        self.keys = {table.name: Keys(self.replay, table.name) for table in configs}
        self.versions = []  # of each step's weights
        self.extend_by(data.draw(st.integers(0, capacity)), None, None)

    def teardown(self):
        """Closes the replay."""
        if hasattr(self, "replay"):
            self.replay.close()

    # --- inserting

    def settle(self, play, new):
        """Plays what the replay has done on the model. The removers' choices are those after which the same items
        live as in the replay."""
        for keys in self.keys.values():
            keys.look(new)
        script = []  # [choice, of how many], for each time that a remover had a choice
        while True:
            model, place = copy.deepcopy(self.model), 0

            def choose(table, possible):
                nonlocal place
                gone = sorted(set(possible) - set(self.keys[table.config.name].living))
                if not gone:
                    raise Impossible(f"{table.config.remover} removed none of {possible}")
                if place == len(script):
                    script.append([0, len(gone)])
                place += 1
                return gone[script[place - 1][0]]

            try:
                play(model, choose)
                for name, table in model.tables.items():
                    if set(table.items) != set(self.keys[name].living):
                        raise Impossible(f"in {name}: {sorted(table.items)}, not {sorted(self.keys[name].living)}")
            except Impossible:
                while script and script[-1][0] + 1 == script[-1][1]:
                    script.pop()
                if not script:
                    raise
                script[-1][0] += 1
            else:
                self.model = model
                return

    def note_versions(self):
        """The steps that came since the last time have the version that the replay has now."""
        self.versions += [self.replay.version] * (self.model.next_step - len(self.versions))

    @rule(version=st.sampled_from([0, 1, 5, 2**32 - 1]))
    def set_version(self, version):
        """The next steps are made with other weights."""
        self.replay.version = version

    def numbered(self, given, i=None):
        """Priorities by table, of what ``add`` got, or for step i of what ``extend`` got."""
        by_table = given if isinstance(given, dict) else dict.fromkeys(self.model.tables, given)
        return {name: value[i] if isinstance(value, list) else value for name, value in by_table.items()}

    @rule(data=st.data(), terminated=st.booleans(), truncated=st.booleans())
    def add(self, data, terminated, truncated):
        """One step into all tables, into some, or into none."""
        names = st.sampled_from(list(self.model.tables))
        some = st.dictionaries(names, st.one_of(st.none(), PRIORITIES))
        given = data.draw(st.one_of(st.none(), st.none(), PRIORITIES, some))
        got = None
        try:
            self.replay.add(row(self.model.next_step), priority=given, terminated=terminated, truncated=truncated)
        except (TimeoutError, EchoShmError) as error:
            got = error

        def play(model, choose):
            try:
                model.add(self.numbered(given), choose, ends=terminated or truncated)
            except Refused as refused:
                kind, what = (EchoShmError, "full") if refused.table is None else (TimeoutError, repr(refused.table))
                if not isinstance(got, kind) or what not in str(got):
                    raise Impossible(f"{refused.table} must refuse it, and the call said {got!r}") from None
            else:
                if got is not None:
                    raise Impossible(f"{got}: nothing forbids it")

        self.settle(play, 1)
        self.note_versions()

    @rule(n=st.integers(0, 6), data=st.data())
    def extend(self, n, data):
        """Several steps, as far as the limiters allow."""
        several = st.lists(PRIORITIES, min_size=n, max_size=n)
        names = st.sampled_from(list(self.model.tables))
        given = data.draw(st.one_of(st.none(), several, st.dictionaries(names, st.one_of(st.none(), several))))
        ends = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=n, max_size=n)))
        self.extend_by(n, given, ends)

    def extend_by(self, n, given, ends):
        """The call, and what the model must do."""
        first, sent = self.model.next_step, n
        steps = {
            "n": np.arange(first, first + n),
            "v": np.repeat(np.arange(first, first + n, dtype=np.float32)[:, None], 3, axis=1),
        }
        try:
            self.replay.extend(steps, given, terminated=None if ends is None else np.array(ends, bool))
        except (TimeoutError, EchoShmError) as error:
            sent = error.sent

        def play(model, choose):
            for i in range(n):
                try:
                    model.add(self.numbered(given, i), choose, ends=ends is not None and ends[i])
                except Refused as refused:
                    if i != sent:
                        raise Impossible(f"{refused.table} let it in") from None
                    return
                if i == sent:
                    raise Impossible("it was refused, and nothing forbids it")

        self.settle(play, n)
        self.note_versions()

    @precondition(lambda self: self.model.next_step % 4 == 2)
    @rule(bad=BAD_PRIORITIES, data=st.data())
    def wrong_priorities(self, bad, data):
        """A priority that cannot be changes nothing."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        number = self.model.next_step
        with pytest.raises(ValueError, match="priorit"):
            self.replay.add(row(number), priority=bad)
        with pytest.raises(ValueError, match="priorit"):
            self.replay.add(row(number), priority={**dict.fromkeys(self.model.tables, 1.0), name: bad})
        with pytest.raises(ValueError, match="priorit"):
            self.replay.extend({"n": np.zeros(2, np.int64), "v": np.zeros((2, 3), np.float32)}, [1.0, bad])
        keys = list(self.keys[name].living.values())
        if keys:
            with pytest.raises(ValueError, match="priorit"):
                self.replay.update(np.array(keys, np.uint64), [1.0] * (len(keys) - 1) + [bad], name)

    # --- sampling

    def check(self, name, batch, values, beta):
        """What a batch says is what the model says."""
        keys, sampler = self.keys[name], self.model.tables[name].config.sampler
        steps = [value.step for value in values]
        assert batch.data["n"].tolist() == steps
        assert (batch.data["v"] == np.float32(steps)[:, None]).all()
        assert batch.key.tolist() == [keys.all[step] for step in steps]
        for field in ("priority", "times_sampled", "table_size", "age"):
            assert getattr(batch, field).tolist() == [getattr(value, field) for value in values], field
        assert close(batch.probability, [value.probability for value in values])
        exponent = getattr(sampler, "beta", 0.0) if beta is None else beta
        assert close(batch.weight, [value.weight(exponent) for value in values])
        assert batch.versions.tolist() == [self.versions[step] for step in steps]
        types = {getattr(batch, field).dtype for field in ("probability", "priority", "weight")}
        assert types == {np.dtype(np.float64)}

    @rule(n=st.integers(1, 7), beta=st.sampled_from([None, None, 0.0, 1.0, 0.7]), data=st.data())
    def sample(self, n, beta, data):
        """A batch, or what a limiter lets through of one."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        table, keys = self.model.tables[name], self.keys[name]
        try:
            batch = self.replay.sample(n, name, timeout=0, beta=beta)
        except TimeoutError:
            assert table.num_pending < n
            keys.look()
            counts = Counter()
            for step, item in table.items.items():
                if step in keys.living:
                    times = int(self.replay.get(np.array([keys.all[step]], np.uint64), name).times_sampled[0])
                else:
                    times = table.config.max_times_sampled
                counts[step] = times - item.times_sampled
            assert all(count >= 0 for count in counts.values())
            assert table.num_pending + counts.total() < n
            table.cut_short(counts)
        else:
            self.check(name, batch, table.serve(batch.data["n"].tolist()), beta)
            keys.look()
        self.model.settle()

    # --- changing

    def some_keys(self, data, name):
        """Keys of items that live, and of some that are gone; some of them twice."""
        keys = self.keys[name]
        known = [*sorted(keys.living), *sorted(set(keys.all) - set(keys.living))[-2:]]
        steps = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6)) if known else []
        return steps, np.array([keys.all[step] for step in steps], np.uint64)

    @rule(data=st.data())
    def update(self, data):
        """New priorities."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        steps, keys = self.some_keys(data, name)
        priorities = data.draw(st.lists(PRIORITIES, min_size=len(steps), max_size=len(steps)))
        count = self.model.tables[name].update(list(zip(steps, priorities, strict=True)))
        assert self.replay.update(keys, np.array(priorities, np.float64), name) == count

    @rule(data=st.data())
    def delete(self, data):
        """Items go."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        steps, keys = self.some_keys(data, name)
        assert self.replay.delete(keys, name) == self.model.tables[name].delete(steps)
        self.model.settle()
        self.keys[name].look()
        for key in keys:
            with pytest.raises(KeyError):
                self.replay.get([*self.keys[name].living.values(), int(key)], name)

    @precondition(lambda self: self.model.next_step % 4 == 3)
    @rule(data=st.data())
    def reset(self, data):
        """A table is empty again."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        self.replay.reset(name)
        self.model.reset(name)
        self.model.settle()
        self.keys[name].look()

    @rule(low=LIMITS, high=LIMITS, data=st.data())
    def set_limits(self, low, high, data):
        """A limiter gets other limits. Those that are refused forbid all at some difference."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        table = self.model.tables[name]
        if math.inf in (low, -high) or table.halts(low, high):
            with pytest.raises(ValueError, match="min_diff="):
                self.replay.set_limits(name, low, high)
        else:
            self.replay.set_limits(name, low, high)
            table.limits = low, high

    # --- looking

    @invariant()
    def the_same_state(self):
        """Replay and model agree on all that can be seen."""
        if not hasattr(self, "replay"):
            return
        assert self.replay.num_steps == len(self.model.stored())
        assert sum(len(table.items) for table in self.model.tables.values()) <= self.model.max_items
        assert len(self.replay) == max(len(table.items) for table in self.model.tables.values())
        for name, table in self.model.tables.items():
            info = self.replay.info(name)
            assert info.max_size == table.max_size
            assert (info.limiter.min_diff, info.limiter.max_diff) == table.limits
            assert info.limiter.can_sample or info.limiter.can_insert
            for field, value in self.model.info(name).items():
                if field != "effective_sample_size" or not isinstance(table.config.sampler, CustomSelector):
                    assert close([getattr(info, field)], [value], 1e-9 if "log" in field else 0.0), (name, field)
            assert math.isnan(info.log_mass) == math.isnan(info.least_log_weight) == (not table.masses())
            for n in (1, 2, 5):
                waiting = table.num_pending  # they are counted as sampled already
                assert self.replay.can_sample(n, name) == (n <= waiting or table.can_sample(n - waiting))
                assert self.replay.can_insert(n, name) == table.can_insert(n)
            keys = self.keys[name]
            assert set(keys.living) == set(table.items)
            assert len(set(keys.all.values())) == len(keys.all), "a key came twice"
            steps = sorted(table.items)
            if not steps:
                continue
            batch = self.replay.get(np.array([keys.all[step] for step in steps], np.uint64), name)
            self.check(name, batch, [table.values(step) for step in steps], None)


TestReplay = ReplayMachine.TestCase
TestReplay.settings = settings(max_examples=70, stateful_step_count=40, deadline=None, derandomize=True)
