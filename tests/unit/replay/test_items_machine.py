"""Random episodes of several writers in tables of all kinds, beside a model that says exactly which items live."""

from tempfile import TemporaryDirectory

import numpy as np
import optree
from harness.item_model import LEFT, OPEN
from harness.stream_model import StreamModel, span
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_shm import Replay, Table
from echo_shm.replay import Episode, Fifo, Lifo, NStep, Sequence, Step, Writer

EXAMPLE = {
    "obs": np.zeros(2, np.float32),
    "act": np.zeros((), np.int64),
    "reward": np.zeros(2, np.float32),
    "core": np.zeros(3, np.uint8),
}
ITEMS = [
    Step(),
    NStep(1, 1.0, "obs"),
    NStep(2, 0.5, "obs", stack={"obs": 3}, pad="zero"),
    NStep(3, 0.5, "obs", stack={"obs": 2}),
    Sequence(1),
    Sequence(3, 1, state="core"),
    Sequence(4, 1, pad=None),
    Sequence(3, 2, pad=None),
    Sequence(4, 3),
    Episode(2),
    Episode(5),
]
ENDS = st.sampled_from([OPEN] * 6 + ["terminated", "truncated", "terminated, final", "truncated, final", LEFT])
NUM_ENVIRONMENTS = 3
OVER = {1: "terminated", 2: "truncated"}


class ItemsMachine(RuleBasedStateMachine):
    """One thread adds through several writers, updates, deletes and opens the store anew, in any order."""

    @initialize(data=st.data(), seed=st.integers(0, 99))
    def create(self, data, seed):
        """A replay, its writers, and its model."""
        items = data.draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4))
        capacity = data.draw(st.integers(1, 30)) + max(map(span, items))
        # Which of several items of a step goes first is not the same after the store was opened. What a table's own
        # limit does would depend on that.
        self.may_reopen = data.draw(st.booleans())
        limits = st.none() if self.may_reopen else st.one_of(st.none(), st.integers(1, 6))
        removers = st.sampled_from([Fifo(), Fifo(), Lifo()])
        tables = [
            self.table(str(i), item, data.draw(limits), data.draw(st.integers(0, 2)) > 0, data.draw(removers))
            for i, item in enumerate(items)
        ]
        self.replay = Replay(EXAMPLE, capacity, tables, store="shm", seed=seed)
        self.writers = [Writer(self.replay.handle) for _ in range(2)]
        self.model = StreamModel(capacity, tables, self.is_gone)
        self.streams = [self.model.stream() for _ in range(2)]
        self.environments = [self.model.stream() for _ in range(NUM_ENVIRONMENTS)]
        self.skips = set()  # those of the writer's whose next row is none
        self.begin_own()
        self.number = 1

    def table(self, name, item, max_size, windows, remover=None):
        """One whose items can be told from each other. windows: those of one length, without records of each."""
        if windows and isinstance(item, Sequence) and item.period == 1:
            return Table(name, max_size=max_size, item=item)
        return Table(name, Fifo(), remover or Fifo(), max_size, replacement=False, item=item)

    def begin_own(self):
        """The replay's own environments have no steps yet. Its ``add`` is that of the first one."""
        self.own = [self.streams[0], *(self.model.stream() for _ in range(NUM_ENVIRONMENTS - 1))]
        self.resets = set()  # those whose next row is none

    def end_own(self, some=range(NUM_ENVIRONMENTS)):
        """The next steps of the replay's own environments begin episodes."""
        for i in some:
            self.model.end_episode(self.own[i])
            self.resets.discard(i)

    def teardown(self):
        """Closes all."""
        if hasattr(self, "replay"):
            for writer in self.writers:
                writer.close()
            self.replay.close()

    def is_gone(self, item):
        """Whether an item is not in its table any more."""
        self.settle()
        if item.key is None:  # nobody has seen it yet: no two items have the same data
            keys, _, data = self.items(item.table.config.name)
            if not len(keys):
                return True
            same = [
                (leaf == wanted).reshape(len(leaf), -1).all(1)
                for leaf, wanted in zip(optree.tree_leaves(data), optree.tree_leaves(item.data), strict=True)
            ]
            return not np.logical_and.reduce(same).any()
        try:
            self.replay.get([item.key], item.table.config.name)
        except KeyError:
            return True
        return False

    def rows(self, n):
        """The next n steps."""
        numbers = np.arange(self.number, self.number + n)
        self.number += n
        return {
            "obs": np.stack([numbers, -numbers], 1).astype(np.float32),
            "act": numbers,
            "reward": np.stack([numbers % 8, numbers % 5], 1).astype(np.float32),
            "core": np.stack([numbers, numbers >> 8, numbers >> 16], 1).astype(np.uint8),
        }

    def row(self, rows, i):
        """One of several steps."""
        return {name: leaf[i] for name, leaf in rows.items()}

    def priorities(self, data):
        """What some tables get, or all."""
        names = list(self.model.tables)
        given = data.draw(
            st.dictionaries(st.sampled_from(names), st.one_of(st.none(), st.sampled_from([0.5, 2.0, 7.0])))
        )
        return given if given and data.draw(st.integers(0, 5)) == 0 else dict.fromkeys(names)

    # --- inserting

    @rule(which=st.integers(0, 1), ends=st.lists(ENDS, min_size=1, max_size=8), data=st.data())
    def add(self, which, ends, data):
        """Some steps of the replay itself, or of a writer."""
        writer, stream = (self.replay, self.writers[0])[which], self.streams[which]
        for end in ends:
            row, final = self.row(self.rows(1), 0), self.rows(1)["obs"][0]
            final = final if "final" in end else None
            given = self.priorities(data)
            writer.add(
                row,
                given,
                terminated=end.startswith("terminated"),
                truncated=end.startswith("truncated"),
                final=None if final is None else {"obs": final},
            )
            self.model.add(stream, row, given, OPEN if end == LEFT else end, final)
            if which == 0:
                self.resets.discard(0)
            if end == LEFT:
                writer.end_episode()
                self.model.end_episode(stream)
                if which == 0:
                    self.end_own()

    @rule(which=st.integers(0, 1), ends=st.lists(st.integers(0, 9), min_size=1, max_size=8))
    def extend(self, which, ends):
        """A block of steps."""
        writer, stream, n = (self.replay, self.writers[0])[which], self.streams[which], len(ends)
        rows, ends = self.rows(n), np.array(ends)
        writer.extend(rows, terminated=ends == 1, truncated=ends == 2)
        if which == 0:
            self.resets.discard(0)
        for i in range(n):
            end = OVER.get(int(ends[i]), OPEN)
            self.model.add(stream, self.row(rows, i), dict.fromkeys(self.model.tables), end, None)

    @rule(
        ends=st.lists(st.integers(0, 9), min_size=NUM_ENVIRONMENTS, max_size=NUM_ENVIRONMENTS),
        mode=st.sampled_from(["next_step", "next_step", "same_step", "disabled"]),
        known=st.sampled_from(["no", "arrays", "arrays", "objects"]),
        data=st.data(),
    )
    def add_vector(self, ends, mode, known, data):
        """A step of each environment: first all steps are sent, then what episodes end with."""
        skipped = self.skips if mode == "next_step" else set()
        ends = np.array([0 if i in skipped else end for i, end in enumerate(ends)])
        rows, finals = self.rows(NUM_ENVIRONMENTS), self.rows(NUM_ENVIRONMENTS)["obs"]
        given = self.priorities(data)
        self.writers[1].add_vector(
            rows, ends == 1, ends == 2, mode, final=self.final(finals, ends, known), priorities=self.each(given, ends)
        )
        later = []
        for i, stream in enumerate(self.environments):
            end = OVER.get(int(ends[i]), OPEN)
            if i in skipped:
                continue
            if end == OPEN or known == "no":
                self.model.add(stream, self.row(rows, i), given, end, None)
            else:
                later.append(self.model.begin_last(stream, self.row(rows, i), given, end + ", final", finals[i]))
        for finish in later:
            finish()
        self.skips = {i for i, end in enumerate(ends) if end in OVER} if mode == "next_step" else set()

    def final(self, finals, ends, known):
        """What episodes end with, as one of the forms in which it may be given."""
        objects = np.full(len(ends), None)
        for i in np.flatnonzero((ends == 1) | (ends == 2)):
            objects[i] = finals[i]
        return {"no": None, "arrays": {"obs": finals}, "objects": {"obs": objects}}[known]

    def each(self, given, ends):
        """The same priorities for each row; None if all tables get their highest."""
        if set(given.values()) == {None} and len(given) == len(self.model.tables):
            return None
        return {name: None if value is None else np.full(len(ends), value) for name, value in given.items()}

    @rule()
    def end_vector(self):
        """The next step of each environment begins an episode."""
        self.writers[1].end_episode()
        self.skips = set()
        for stream in self.environments:
            self.model.end_episode(stream)

    @rule(
        some=st.one_of(st.none(), st.permutations(range(NUM_ENVIRONMENTS))),
        ends=st.lists(st.integers(0, 5), min_size=1, max_size=NUM_ENVIRONMENTS),
        mode=st.sampled_from(["next_step", "next_step", "same_step", "disabled"]),
        known=st.sampled_from(["no", "arrays", "objects"]),
        data=st.data(),
    )
    def add_own_vector(self, some, ends, mode, known, data):
        """A step of each of some environments of the replay's own: each is followed by what its episode ends with."""
        n = len(ends)
        chosen = list(range(n)) if some is None else some[:n]
        skipped = self.resets & set(chosen) if mode == "next_step" else set()
        ends = np.array([0 if i in skipped else end for i, end in zip(chosen, ends, strict=True)])
        rows, finals = self.rows(n), self.rows(n)["obs"]
        given = self.priorities(data)
        self.replay.add_vector(
            rows,
            ends == 1,
            ends == 2,
            mode,
            final=self.final(finals, ends, known),
            priorities=self.each(given, ends),
            environments=None if some is None else chosen,
        )
        for i, environment in enumerate(chosen):
            if environment in skipped:
                continue
            end = OVER.get(int(ends[i]), OPEN)
            final = finals[i] if end != OPEN and known != "no" else None
            end += ", final" if final is not None else ""
            self.model.add(self.own[environment], self.row(rows, i), given, end, final)
            if end != OPEN and mode == "next_step":
                self.resets.add(environment)
            else:
                self.resets.discard(environment)
        self.resets -= skipped

    @rule(some=st.one_of(st.none(), st.sets(st.integers(0, NUM_ENVIRONMENTS - 1), min_size=1)))
    def end_own_vector(self, some):
        """The next steps of all environments of the replay's own begin episodes, or of some."""
        self.replay.end_episode(some if some is None else sorted(some))
        self.end_own() if some is None else self.end_own(some)

    # --- changing

    def items(self, name):
        """All items of a table, in order of insertion: keys, priorities, and data."""
        size = self.replay.info(name).size
        if not size:
            return [], [], None
        ages, drawn = (), 2 * size
        while len(ages) < size:
            batch = self.replay.sample(drawn, name)
            ages, first = np.unique(batch.age, return_index=True)
            drawn *= 2
            assert drawn < 2000 * size
        first = first[::-1]
        return batch.key[first], batch.priority[first].tolist(), optree.tree_map(lambda leaf: leaf[first], batch.data)

    @rule(data=st.data())
    def change(self, data):
        """New priorities, or none at all."""
        name = data.draw(st.sampled_from(list(self.model.tables)))
        keys, _, _ = self.items(name)
        if not len(keys):
            return
        i, table = data.draw(st.integers(0, len(keys) - 1)), self.model.tables[name]
        if data.draw(st.booleans()):
            assert self.replay.update(keys[i : i + 1], [3.0], name) == 1
            table.change_priority(table.items[i], 3.0)
        else:
            assert self.replay.delete(keys[i : i + 1], name) == 1
            self.model.remove(table.items[i])

    @rule(data=st.data())
    def reset(self, data):
        """A table begins anew."""
        table = data.draw(st.sampled_from(list(self.model.tables.values())))
        if data.draw(st.integers(0, 3)) == 0:
            self.settle()
            self.replay.reset(table.config.name)
            for item in list(table.items):
                self.model.remove(item)
            table.highest = 1.0

    @precondition(lambda self: self.may_reopen)
    @rule(data=st.data())
    def restore(self, data):
        """A checkpoint becomes another replay. Windows get records there, or lose them."""
        self.settle()
        tables = [
            self.table(name, table.config.item, None, data.draw(st.booleans()), table.config.remover)
            for name, table in self.model.tables.items()
        ]
        for writer in self.writers:
            writer.close()
        with TemporaryDirectory() as folder:
            self.settle()
            self.replay.checkpoint(folder)
            self.replay.close()
            self.replay = Replay.restore(folder, tables, store="shm", same_episode=True)
        assert sum(self.replay.restored.items_dropped.values()) == 0
        self.model.restore(tables)
        self.writers = [Writer(self.replay.handle) for _ in range(2)]
        self.streams[1] = self.model.stream()
        self.environments = [self.model.stream() for _ in range(NUM_ENVIRONMENTS)]
        self.skips = set()

    @precondition(lambda self: self.may_reopen)
    @rule()
    def reopen(self):
        """The store is left as by a killed process, and attached."""
        name, replay = self.replay.name, self.replay
        self.settle()
        replay._rings.leave()
        replay._core.close()
        replay._store.release()
        replay._end.detach()
        self.replay = Replay.attach(name)
        self.model.reopen()
        self.streams[0] = self.model.stream()  # its own steps are another stream
        self.begin_own()

    # --- looking

    def settle(self):
        """Stores all that has come."""
        before = None
        while before != (before := self.replay.num_steps):
            pass

    @invariant()
    def the_same_items(self):
        """Each table has the model's items, in order, element by element."""
        if not hasattr(self, "replay"):
            return
        self.settle()
        for name, table in self.model.tables.items():
            keys, priorities, data = self.items(name)
            assert len(priorities) == len(table.items), name
            for key, item in zip(keys, table.items, strict=True):
                assert item.key in (None, key)
                item.key = key
            assert priorities == [item.priority for item in table.items]
            if table.items:
                expected = optree.tree_map(lambda *leaves: np.concatenate(leaves), *(i.data for i in table.items))
                optree.tree_map(np.testing.assert_array_equal, data, expected)
        assert self.replay.num_steps == len(self.model.living())


TestItems = ItemsMachine.TestCase
TestItems.settings = settings(max_examples=40, stateful_step_count=15, deadline=None, derandomize=True)
