"""A HotColdReplay beside a slow model, in any order of calls, deaths and checkpoints."""

import shutil
import tempfile

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from echo_shm.planning import HotColdReplay

from .hot_cold_model import EXAMPLE, Model, close, step, steps


class HotColdMachine(RuleBasedStateMachine):
    """One thread uses a replay, which dies and is restored now and then."""

    @initialize(
        hot=st.integers(1, 5), cold=st.integers(1, 5), share=st.sampled_from([0.7, 0.5, 0.0, 1.0]),
        age=st.integers(0, 3), longer=st.sampled_from([None, 0, 2]), aim=st.sampled_from([None, 0.4]),
    )  # fmt: skip
    def create(self, hot, cold, share, age, longer, aim):
        """A replay and its model."""
        max_age = None if longer is None else max(1, age + longer)
        self.target = aim
        self.folder = tempfile.mkdtemp()
        self.model = Model(hot, cold, share, age, max_age, 0.5, 0.9, (2.0, 0.5))
        self.replay = HotColdReplay(
            EXAMPLE, hot, cold, hot_share=share, age_threshold=age, max_age=max_age, temperature=3.0,
            target_effective=aim, beta=0.5, decay=0.9, plan_weight=2.0, reward_weight=0.5, store="shm", seed=5,
        )  # fmt: skip
        self.number, self.all_keys = 0, []

    def teardown(self):
        """Removes everything."""
        if hasattr(self, "replay"):
            self.replay.close()
            shutil.rmtree(self.folder)

    def note(self, n):
        """The model takes the next n steps."""
        rows = steps(self.number, n)
        for i in range(n):
            self.model.add(self.number + i, rows["plan"][i], rows["reward"][i])
            self.all_keys = [*dict.fromkeys([*self.all_keys, *self.model.items])]
        self.number += n

    @rule(ends=st.booleans())
    def add(self, ends):
        """One step."""
        self.replay.add(step(self.number), terminated=ends)
        self.note(1)

    @rule(priority=st.sampled_from([0.0, 2.0, 50.0]))
    def add_with_a_priority(self, priority):
        """A priority of one's own. The shared plan takes the plan all the same."""
        one = step(self.number)
        self.replay.add(one, priority)
        self.model.add(self.number, one["plan"], one["reward"], priority)
        self.all_keys = [*dict.fromkeys([*self.all_keys, *self.model.items])]
        self.number += 1

    @rule(n=st.integers(0, 4))
    def extend(self, n):
        """Several, one after the other."""
        self.replay.extend(steps(self.number, n))
        self.note(n)

    @rule()
    def learned(self):
        """Items grow older."""
        self.replay.learned()
        self.model.learned()

    @rule(data=st.data())
    def update(self, data):
        """New scores, also of items that have moved since, and of those that are gone."""
        keys = data.draw(st.lists(st.sampled_from(self.all_keys), max_size=5)) if self.all_keys else []
        scores = data.draw(st.lists(st.sampled_from([0.0, 1.0, 7.5]), min_size=len(keys), max_size=len(keys)))
        assert self.replay.update(np.array(keys, np.uint64), np.array(scores)) == self.model.update(keys, scores)

    @rule(data=st.data())
    def delete(self, data):
        """Items go."""
        keys = data.draw(st.lists(st.sampled_from(self.all_keys), max_size=2)) if self.all_keys else []
        assert self.replay.delete(np.array(keys, np.uint64)) == self.model.delete(keys)

    @rule(n=st.integers(1, 9), beta=st.sampled_from([None, 1.0]))
    def sample(self, n, beta):
        """A batch has the probabilities that it says, of the whole draw."""
        if not self.model.items:
            return
        whole = self.temperatures()
        batch = self.replay.sample(n, beta=beta)
        self.check(batch, whole)
        close(batch.weight, (len(self.model.items) * batch.probability) ** -(0.5 if beta is None else beta))
        for key, times in zip(batch.key.tolist(), batch.times_sampled.tolist(), strict=True):
            self.model.items[key].times_sampled += 1
            assert times == self.model.items[key].times_sampled

    @rule()
    def die(self):
        """As by a kill. The next one goes on."""
        name = self.replay.name
        self.replay._let_go()
        self.replay = HotColdReplay.attach(name)

    @rule()
    def save(self):
        """A checkpoint becomes a replay that draws the same."""
        self.replay.checkpoint(self.folder)
        other = HotColdReplay.restore(self.folder, store="shm")
        if self.model.items:
            first, second = (replay.sample(5).key.tolist() for replay in (self.replay, other))
            assert first == second
            for key in first:
                self.model.items[key].times_sampled += 1
        self.replay.close()
        self.replay = other

    def temperatures(self):
        """Those of the two parts."""
        return self.replay.parts.hot.temperature, self.replay.parts.cold.temperature

    def check(self, batch, temperatures):
        """What a batch says of its items is what the model says."""
        probabilities = self.model.probabilities(temperatures)
        items = [self.model.items[key] for key in batch.key.tolist()]
        assert batch.data["n"].tolist() == [item.number for item in items]
        rows = [step(item.number) for item in items]
        assert (batch.data["plan"] == [row["plan"] for row in rows]).all()
        close(batch.priority, [item.priority for item in items])
        close(batch.probability, [probabilities[item.key] for item in items])
        assert batch.age.tolist() == [self.model.inserted - item.inserted - 1 for item in items]

    @invariant()
    def the_same_state(self):
        """Replay and model agree on all that can be seen."""
        if not hasattr(self, "replay"):
            return
        model, info = self.model, self.replay.info()
        parts = info.hot_cold
        assert (parts.hot.size, parts.cold.size) == (len(model.part(True)), len(model.part(False)))
        assert (parts.moved, parts.aged, parts.updates) == (model.moved, model.aged, model.updates)
        assert (info.inserted, info.evicted) == (model.inserted, model.evicted)
        assert info.deleted == model.evicted + model.aged + model.deleted
        for hot, part in ((True, parts.hot), (False, parts.cold)):
            assert self.target is not None or part.temperature == 3.0
            close(part.effective_sample_size, model.effective(hot, part.temperature))
        assert self.replay.ema.updates == model.plans
        if model.plans:
            close(self.replay.ema.plan, model.plan)
        if model.items:
            self.check(self.replay.get(np.array(list(model.items), np.uint64)), self.temperatures())


TestHotCold = HotColdMachine.TestCase
TestHotCold.settings = settings(max_examples=16, stateful_step_count=30, deadline=None, derandomize=True)
