"""HotColdReplay: what it scores, moves and draws, and what of it outlives its process."""

import contextlib
import copy
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from harness.waiting import until

from echo_shm import SegmentError
from echo_shm.planning import HotColdReplay, SurpriseWriter
from echo_shm.replay import HotCold, NStep, Replay, ReplayClient, Sequence, Softmax, Table, Uniform
from echo_shm.spec import Spec

from .hot_cold_model import DIM, EXAMPLE, Model, close, step, steps


def test_draws_are_as_likely_as_the_batch_says():
    """30,000 draws of both parts against their probabilities: chi-square. Each batch has its share of hot items."""
    with HotColdReplay(EXAMPLE, 40, 60, hot_share=0.7, temperature=20.0, seed=11) as replay:
        replay.extend(steps(0, 100))
        counts, whole = np.zeros(100), np.zeros(100)
        for n in [7] * 300 + [256] * 109:
            batch = replay.sample(n)
            np.add.at(counts, batch.data["n"], 1)
            whole[batch.data["n"]] = batch.probability
            assert abs((batch.data["n"] >= 60).sum() - 0.7 * n) <= 3
        assert abs(whole.sum() - 1) < 1e-9
        expected = counts.sum() * whole
        assert 40 < ((counts - expected) ** 2 / expected).sum() < 160  # 99 degrees of freedom; 4 deviations are 56


def test_weights_undo_the_bias():
    """The weighted mean over batches is the mean over the items, with beta 1."""
    with HotColdReplay(EXAMPLE, 50, 50, temperature=20.0, seed=2) as replay:
        replay.extend(steps(0, 100))
        batch = replay.sample(200_000, beta=1.0)
        assert abs((batch.weight * batch.data["n"]).mean() - 49.5) < 0.7


def test_few_items_move_at_once():
    """A backlog goes in pieces of 4,096: cold first, and away when they are older."""
    with HotColdReplay(EXAMPLE, 20_000, 1, age_threshold=2, max_age=5, seed=1) as replay:
        replay.extend({name: np.repeat(rows, 10_000, axis=0) for name, rows in steps(0, 1).items()})
        seen = []
        for _ in range(8):
            replay.learned()
            seen.append((replay.parts.cold.size, replay.parts.aged))
        assert seen == [
            (0, 0), (0, 0), (4096, 0), (8192, 0), (10_000, 0), (5904, 4096), (1808, 8192), (0, 10_000),
        ]  # fmt: skip


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_temperatures_fit_the_scores(scale):
    """With a target each part has about so many effective items, at any scale; without, at most a few."""
    rng = np.random.default_rng(4)
    rows = {"n": np.arange(4000), "reward": scale * rng.exponential(size=4000) ** 2, "plan": np.zeros((4000, DIM))}
    with HotColdReplay(EXAMPLE, 2000, 2000, target_effective=0.1, seed=1) as replay:
        replay.extend(rows)
        keys = replay.sample(1).key
        for _ in range(1100):  # the next time that temperatures are chosen is at most as far away
            replay.update(keys, [scale])
        for part in (replay.parts.hot, replay.parts.cold):
            assert 0.095 < part.effective_sample_size / part.size < 0.105


def test_temperatures_outlive_their_process(tmp_path):
    """Whoever goes on has the temperatures that were chosen, and draws the same."""
    replay = HotColdReplay(EXAMPLE, 30, 30, target_effective=0.3, store="shm")
    replay.extend(steps(0, 50))
    before = replay.parts
    assert before.hot.temperature != 1.0 != before.cold.temperature
    replay.checkpoint(tmp_path)
    replay._let_go()
    with HotColdReplay.attach(replay.name) as attached, HotColdReplay.restore(tmp_path) as restored:
        assert attached.parts == restored.parts == before
        assert (attached.sample(64).key == restored.sample(64).key).all()


def test_a_softmax_table_with_a_target():
    """Any table can have a target; it is reported."""
    with Replay(EXAMPLE, 100, [Table("a", Softmax(target_effective=0.25))]) as replay:
        replay.extend(steps(0, 64), np.arange(64.0) ** 3)
        replay.update(replay.sample(1).key, [1.0])
        info = replay.info()
        assert info.hot_cold is None
        assert info.temperature > 1e3
        assert 10 < info.effective_sample_size < 25


def test_add_vector_scores_rows_together():
    """Rows of a call are compared with one shared plan; a row that is a reset is no step, and its plan is not taken."""
    model = Model(50, 50, 0.7, 9, None, 0.4, 0.99, (1.0, 1.0))
    with HotColdReplay(EXAMPLE, 50, 50) as replay:
        ended = np.zeros(3, bool)
        for call in range(6):
            rows, over = steps(3 * call, 3), np.array([call % 3 == 1, False, call == 2])
            replay.add_vector(rows, over, np.zeros(3, bool), "next_step", final={name: rows[name] for name in EXAMPLE})
            scores = [model.score(rows["plan"][i], rows["reward"][i]) for i in range(3)]
            for i in np.flatnonzero(~ended):
                model.add(3 * call + i, rows["plan"][i], rows["reward"][i], scores[i])
            ended = over & ~ended
        assert replay.ema.updates == model.plans
        close(replay.ema.plan, model.plan)
        batch = replay.get(np.array(list(model.items), np.uint64))
        close(batch.priority, [item.priority for item in model.items.values()])


def test_a_step_that_is_refused_is_not_taken():
    """After an exception the shared plan is what it was."""
    with HotColdReplay(EXAMPLE, 5, 5) as replay:
        replay.add(step(0))
        before = replay.ema.plan
        with pytest.raises(ValueError, match="final"):
            replay.add(step(1), final={"n": np.int64(3)})
        with pytest.raises(ValueError, match="terminated"):
            replay.extend(steps(1, 2), terminated=[True])
        with pytest.raises(ValueError, match="use finite numbers"):
            replay.add({**step(1), "plan": np.full(DIM, np.nan)})
        assert replay.ema.updates == replay.info().inserted == 1
        assert (replay.ema.plan == before).all()


@pytest.mark.parametrize(
    "item", [Sequence(5, 1), Sequence(4), NStep(3, 0.9, "plan", stack={"plan": 2})], ids=["overlap", "apart", "n_step"]
)
def test_there_is_room_for_all_items(item):
    """The items with the highest scores stay, however far apart they are."""
    rng, example = np.random.default_rng(0), {"reward": np.zeros(()), "plan": np.zeros(DIM)}
    with HotColdReplay(example, 200, 200, item=item, temperature=1e9) as replay:
        for _ in range(8):
            replay.extend({"reward": np.zeros(1000), "plan": np.zeros((1000, DIM))}, rng.random(1000))
        info = replay.info()
        assert info.size == 400
        assert replay.sample(2000).priority.min() > 1 - 1.2 * 400 / info.inserted


def test_spare_steps_are_taken_as_they_are():
    """A number is the caller's own choice."""
    with HotColdReplay(EXAMPLE, 20, 20, item=Sequence(5, 1), spare_steps=7) as replay:
        assert replay.capacity == 47


@pytest.mark.parametrize("by_writer", [False, True], ids=["replay", "writer"])
def test_rows_that_are_refused_say_why(by_writer):
    """The message is that of any replay, whatever else is wrong with what was given."""
    with HotColdReplay(EXAMPLE, 5, 5) as replay, ReplayClient(replay.handle) as client, client.writer() as plain:
        into = SurpriseWriter(plain, replay.scoring) if by_writer else replay
        with pytest.raises((TypeError, ValueError), match="terminated"):
            into.add_vector(steps(0, 2), np.array([0, 1]), np.zeros(2, bool))
        assert into.ema.updates == 0


def _send(writer, first):
    rows = steps(first, 10)
    for i in range(5):
        writer.add({name: rows[name][i] for name in rows}, terminated=i == 4)
    writer.extend({name: values[5:] for name, values in rows.items()})
    writer.flush()


def test_workers_score_with_shared_plans_of_their_own():
    """What spawn() gives to a worker is such a writer. The learner's shared plan takes what it is told of."""
    model, rows = Model(50, 50, 0.7, 9, None, 0.4, 0.9, (1.0, 1.0)), steps(0, 10)
    for i in range(10):
        model.add(i, rows["plan"][i], rows["reward"][i])
    right = [item.priority for item in model.items.values()]
    with HotColdReplay(EXAMPLE, 50, 50, decay=0.9, temperature=1e3) as replay:
        with replay.spawn(_send, 1, [0]) as group:
            group.join()
        batch = replay.sample(500)
        assert set(batch.data["n"].tolist()) == set(range(10))
        close(batch.priority, [right[number] for number in batch.data["n"].tolist()])
        assert replay.ema.plan is None
        replay.observe(batch.data["plan"][:2])
        assert replay.ema.updates == 2
        with ReplayClient(replay.handle) as client, client.writer() as plain:
            writer = SurpriseWriter(plain, replay.scoring)
            writer.adopt(replay.ema.state)
            writer.add(step(77))
        assert replay.info().inserted == 11
        batch, one = replay.sample(500), step(77)
        priority = batch.priority[batch.data["n"] == 77]
        assert len(priority) > 0
        close(priority, np.full(len(priority), replay.surprise(one["plan"], one["reward"])))


class _Caller:
    """A function with an attribute that the library has a name for, too."""

    def __init__(self, fn):
        self._fn = fn

    def __call__(self, writer, number):
        writer.flush()
        self._fn(writer, number + 10)


def test_workers_run_what_they_are_given():
    """A callable's own attributes are its own."""
    with HotColdReplay(EXAMPLE, 50, 50, temperature=1e3) as replay:
        with replay.spawn(_Caller(_send), 1, [0]) as group:
            group.join()
        assert replay.sample(100).data["n"].min() >= 10


class _Slow:
    """A writer whose extend() lets another thread run first."""

    _steps = Spec.from_example(EXAMPLE)

    def __init__(self, meanwhile):
        self._meanwhile = meanwhile

    def extend(self, *_, **__):
        self._meanwhile.start()
        self._meanwhile.join(0.05)
        raise InterruptedError


def test_a_state_that_is_adopted_meanwhile_stays():
    """A call of another thread, which restores what was before it, does not undo it."""
    with HotColdReplay(EXAMPLE, 5, 5) as replay:
        scoring = replay.scoring
    state = {"plan": np.full(DIM, 7.0), "updates": np.array(1000)}
    other = threading.Thread(target=lambda: writer.adopt(state))
    writer = SurpriseWriter(_Slow(other), scoring)
    with contextlib.suppress(InterruptedError):
        writer.extend(steps(0, 3))
    other.join()
    assert writer.ema.updates == 1000
    assert writer.ema.plan.tolist() == [7.0] * DIM


def test_a_surprise_writer_is_used_as_a_writer():
    """A block closes the writer. A copy is one more way to the same writer."""
    with HotColdReplay(EXAMPLE, 5, 5) as replay, ReplayClient(replay.handle) as client, client.writer() as plain:
        with SurpriseWriter(plain, replay.scoring) as writer:
            assert copy.copy(writer).ema is writer.ema
            assert not writer.ring_closed
        with pytest.raises(AttributeError, match="_there_is_none"):
            _ = writer._there_is_none
        with pytest.raises(Exception, match="closed"):
            plain.add(step(0))


def _add_for_ever(name, pipe):
    replay = HotColdReplay(EXAMPLE, 30, 30, store="shm", name=name, age_threshold=2, decay=0.9)
    pipe.send("ready")
    for number in range(1_000_000):
        replay.add(step(number))
        if number % 7 == 0:
            replay.learned()


def test_a_killed_replay_is_attached():
    """After SIGKILL the shared plan has taken the plans of all steps, or of all but the last one."""
    name = f"test-hot-cold-{os.getpid()}"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_add_for_ever, args=(name, theirs))
    process.start()
    try:
        assert ours.recv() == "ready"
        process.join(0.2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with HotColdReplay.attach(name) as replay:
        info, taken = replay.info(), replay.ema.updates
        assert info.inserted - taken in (0, 1)
        model = Model(30, 30, 0.7, 2, None, 0.4, 0.9, (1.0, 1.0))
        for number in range(taken):
            model.observe(step(number)["plan"])
        close(replay.ema.plan, model.plan)
        assert info.hot_cold.hot.size + info.hot_cold.cold.size == info.size == min(60, info.inserted)
        assert info.hot_cold.updates in ((info.inserted - 1) // 7, (info.inserted - 1) // 7 + 1)


def test_other_replays_are_not_taken_for_one():
    """A plain replay says what to do; one whose notes are damaged, that it is."""
    with Replay(EXAMPLE, 10, store="shm") as plain:
        plain._let_go()
        with pytest.raises(SegmentError, match=r"no HotColdReplay.*Replay\.attach"):
            HotColdReplay.attach(plain.name)
        Replay.attach(plain.name).close()
    replay = HotColdReplay(EXAMPLE, 5, 5, store="shm")
    notes = replay._notes()
    notes[8:20] = 0xFF
    replay._core.set_notes(notes)
    replay._let_go()
    with pytest.raises(SegmentError, match="damaged"):
        HotColdReplay.attach(replay.name)
    Replay.attach(replay.name).close()


def test_it_has_parts_when_it_is_restored(tmp_path):
    """A table that has none is refused at once."""
    name = f"test-parts-{os.getpid()}"
    with HotColdReplay(EXAMPLE, 5, 5) as replay:
        replay.checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"table 'experience' has another sampler: use HotCold\(\.\.\.\)"):
        HotColdReplay.restore(tmp_path, [Table("experience", Uniform())], store="shm", name=name)
    with pytest.raises(SegmentError, match=name):  # nothing is left
        Replay.attach(name)
    with pytest.raises(ValueError, match=r"has one table, and these are 2: 'experience', 'b'"):
        HotColdReplay.restore(tmp_path, [Table("experience", HotCold(3)), Table("b", HotCold(3))])
    with HotColdReplay.restore(tmp_path, [Table("experience", HotCold(3))]) as restored:
        assert restored.parts.hot.size == 0


def test_clients_and_top_see_the_parts():
    """What the board says is what the replay says."""
    with HotColdReplay(EXAMPLE, 5, 5) as replay:
        replay.extend(steps(0, 8))
        with ReplayClient(replay.handle) as client:
            until(lambda: client.info() == replay.info())
            assert client.info().hot_cold.hot.size == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hot_size": 0}, "hot_size=0: use an integer, 1 or more"),
        ({"cold_size": 0}, "cold_size=0: use an integer, 1 or more"),
        ({"hot_share": 1.5}, r"^hot_share=1\.5: use a number from 0 to 1"),
        ({"age_threshold": -1}, "age=-1: use an integer, 0 or more"),
        ({"age_threshold": 9, "max_age": 8}, "max_age=8 is below age=9"),
        ({"temperature": 0}, "temperature=0: use a finite number above 0"),
        ({"target_effective": 1.01}, "target_effective=1.01: use a share of the items"),
        ({"beta": -1}, "beta=-1: use a finite number, 0 or more"),
        ({"decay": 1.0}, "decay=1.0"),
        ({"plan_weight": float("nan")}, "plan_weight=nan"),
        ({"plan": "n"}, "plan='n': the leaf is int64: use float32 or float64"),
        ({"plan": "reward"}, r"plan='reward': the leaf has shape \(\): use \(dim,\)"),
        ({"plan": "idea"}, "plan: the steps have no 'idea'"),
        ({"reward": "plan"}, r"reward='plan': the leaf has shape \(3,\): use \(\)"),
        ({"spare_steps": 0}, "spare_steps=0: use an integer, 1 or more"),
    ],
)
def test_bad_input(changes, message):
    """The message says what was got, and what to use."""
    with pytest.raises((ValueError, TypeError), match=message):
        HotColdReplay(EXAMPLE, **{"hot_size": 5, "cold_size": 5, **changes})


def test_where_parts_cannot_be():
    """A remover has none, a table without replacement neither, and items of other tables do not age."""
    with pytest.raises(ValueError, match="only a sampler has parts"):
        Table("a", remover=HotCold(3))
    with pytest.raises(ValueError, match="chooses its temperature"):
        Table("a", remover=Softmax(target_effective=0.5))
    with pytest.raises(ValueError, match="use replacement=True"):
        Table("a", HotCold(3), replacement=False)
    with Replay(EXAMPLE, 5) as replay, pytest.raises(ValueError, match="items age only where the sampler is HotCold"):
        replay.learned()
