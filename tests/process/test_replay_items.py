"""Items of several steps, where writers, replays and learners are processes; and environments of Gymnasium."""

import gymnasium
import numpy as np
import optree
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import item_model
from harness.actors import cast

from echo_shm import Replay, ReplayClient, Table
from echo_shm.replay import Episode, Fifo, NStep, Sequence, Step, Writer
from echo_shm.replay.sources import inbox_slots
from echo_shm.spec import Spec

EXAMPLE = {
    "obs": np.zeros(2, np.float32),
    "act": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
    "core": np.zeros((), np.float32),
}
ITEMS = {
    "step": Step(),
    "n_step": NStep(3, 0.5, "obs", stack={"obs": 2}),
    "sequence": Sequence(4, 2, state="core"),
    "episode": Episode(5),
}


def tables():
    """One of each kind, which hands out its items in order."""
    return [Table(name, Fifo(), replacement=False, item=item) for name, item in ITEMS.items()]


def step(number):
    """A step that says its number."""
    return {"obs": np.full(2, number, np.float32), "act": number, "reward": number % 4, "core": -number}


def expected(name, episodes):
    """All items of episodes of so many steps, and what they end with: each begins where the one before has ended."""
    parts, first = [], 0
    for steps, end in episodes:
        numbers = np.arange(first, first + steps + 1)
        rows = {
            "obs": np.stack([numbers, numbers], 1).astype(np.float32),
            "act": numbers,
            "reward": (numbers % 4).astype(np.float32),
            "core": -numbers.astype(np.float32),
        }
        found = item_model.parts(ITEMS[name], steps, end)
        if found:
            parts.append(item_model.data_of(ITEMS[name], found, rows))
        first += steps
    return optree.tree_map(lambda *leaves: np.concatenate(leaves), *parts)


def add(writer, first, steps, n):
    """Steps from ``first`` on; every n-th one ends an episode, which ends with what the next one begins with."""
    for number in range(first, first + steps):
        last = number % n == n - 1
        final = {"obs": np.full(2, number + 1, np.float32)} if last else None
        writer.add(step(number), truncated=last, final=final)


def settled(replay):
    """The replay, which has stored everything that has come: a call stores only some."""
    before = None
    while before != (before := replay.num_steps):
        pass
    return replay


def run_replay(conn, name, attach):
    """An actor: holds a replay."""
    replay = Replay.attach(name, thread=True) if attach else Replay(
        EXAMPLE, 1000, tables(), store="shm", name=name, thread=True
    )  # fmt: skip
    conn.send(replay.handle)
    conn.recv()


def test_a_killed_replay_goes_on_with_items_of_all_kinds(name):
    """A transition and a sequence that have begun before the kill end after it, and the learner's batches go on."""
    with cast() as make:
        first = make(run_replay, name, False)
        handle = first.hear()
        with Writer(handle) as writer, ReplayClient(handle) as learner:
            batches = learner.dataset_iter(2, "n_step", prefetch=1)
            add(writer, 0, 24, 7)
            got = [optree.tree_map(np.copy, next(batches).data) for _ in range(5)]
            writer.flush(30)
            first.kill()
            second = make(run_replay, name, True)
            second.hear()
            add(writer, 24, 26, 7)
            got += [optree.tree_map(np.copy, next(batches).data) for _ in range(18)]
            writer.flush(30)
            batches.close()
            second.kill()
    with Replay.attach(name) as replay:
        episodes = [*[(7, "truncated, final")] * 7, (1, "open")]
        assert replay.num_steps == 50 + 7
        for table in ITEMS:
            count = replay.info(table).size
            got_here = replay.get(np.unique(replay.sample(2 * count, table).key), table).data
            wanted = expected(table, episodes)
            order = np.argsort(first_of(got_here, table))
            optree.tree_map(lambda one, other, o=order: np.testing.assert_array_equal(one[o], other), got_here, wanted)
    together = optree.tree_map(lambda *leaves: np.concatenate(leaves), *got)
    wanted = optree.tree_map(lambda leaf: leaf[:46], expected("n_step", episodes))
    optree.tree_map(np.testing.assert_array_equal, together, wanted)


def first_of(data, table):
    """The number of each item's first step."""
    return data["act"] if ITEMS[table].kind in ("step", "n_step") else data["act"][:, 0]


@pytest.mark.parametrize("table", ITEMS)
def test_learners_get_items_of_each_kind(table):
    """What a ring of batches brings is what the replay itself returns."""
    with Replay(EXAMPLE, 1000, tables(), thread=True) as replay, ReplayClient(replay.handle) as learner:
        add(replay, 0, 49, 7)
        batches = learner.dataset_iter(5, table)
        for _ in range(3):
            batch = next(batches)
            assert type(batch.data) is dict
            optree.tree_map(np.testing.assert_array_equal, batch.data, replay.get(batch.key, table).data)
            del batch
        batches.close()


def stacked(numbers):
    """Steps with these numbers, one for each environment."""
    rows = [step(number) for number in numbers]
    return {name: np.array([row[name] for row in rows], leaf.dtype) for name, leaf in EXAMPLE.items()}


@pytest.mark.parametrize("priorities", [None, np.ones(5)], ids=["common", "not common"])
def test_a_vector_that_is_cut_short(priorities):
    """What was not sent goes first in the next call, whichever it is. Nothing is lost, and nothing comes twice."""
    n = 5
    ended = np.arange(n) % 2 == 0
    with (
        Replay(EXAMPLE, 9000, [Table("a", Fifo(), max_times_sampled=1, item=NStep(1, 1.0, "obs"))]) as replay,
        Writer(replay.handle) as writer,
    ):
        got, number, cut, told = [], 0, [], set()
        while number < 3000:
            rows = stacked(range(number, number + n))
            try:
                writer.add_vector(
                    rows, ended, ~ended, "disabled", final={"obs": rows["obs"]}, priorities=priorities, timeout=0
                )
            except TimeoutError as error:
                cut.append(error.sent)
                told.add("the others go first with the next call: do not add them again" in str(error))
                number += n if error.sent else 0
                if error.sent:
                    with pytest.raises(TimeoutError) as again:
                        writer.add(step(-1), timeout=0)
                    assert not getattr(again.value, "sent", 0)
                got += replay.sample(settled(replay).info().size).data["act"].tolist()
            else:
                number += n
        writer.add(step(-1), truncated=True)  # what is left goes first
        got += replay.sample(settled(replay).info().size).data["act"].tolist()
        assert sorted(got) == list(range(number))
        assert len(set(cut)) > 1
        assert 0 < max(cut) < 2 * n
        assert told == {bool(sent) for sent in cut}


def test_a_last_step_that_is_cut_short():
    """The step is sent, and its final observations go first with the next call."""
    item, final = NStep(1, 1.0, "obs"), {"obs": np.full(2, 7, np.float32)}
    with Replay(EXAMPLE, 9000, [Table("a", Fifo(), item=item)]) as replay, Writer(replay.handle) as writer:
        slots = inbox_slots(Spec.from_example(EXAMPLE))
        for number in range(slots - 1):
            writer.add(step(number), timeout=0)
        with pytest.raises(TimeoutError) as cut:
            writer.add(step(slots - 1), terminated=True, final=final, timeout=0)
        assert cut.value.sent == 1
        assert settled(replay).info().size == slots - 1  # nobody knows yet what follows the last step
        writer.end_episode()
        writer.add(step(slots))
        assert settled(replay).info().size == slots


class Count(gymnasium.Env):
    """Its observation says in which episode and at which step it is. Its episodes have n steps."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-(2**20), 2**20, (2,), np.float32)

    def __init__(self, n):
        self.n, self.episode, self.t = n, -1, 0

    def _now(self):
        return np.array([self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        """The next episode."""
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._now(), {}

    def step(self, action):
        """Every other episode is truncated."""
        self.t += 1
        over = self.t == self.n
        return self._now(), float(self.t), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_environments_of_gymnasium(mode):
    """The loop of the documentation, in each mode: each transition leads to what its action has led to."""
    lengths = (1, 3, 4)
    envs = SyncVectorEnv([lambda n=n: Count(n) for n in lengths], autoreset_mode=AutoresetMode[mode.upper()])
    example = {"obs": np.zeros(2, np.float32), "env": np.zeros((), np.int64), "reward": np.zeros((), np.float32)}
    table, calls = Table("a", Fifo(), max_times_sampled=1, item=NStep(2, 0.5, ["obs"])), 40
    with Replay(example, 1000, [table]) as replay, Writer(replay.handle) as writer:
        obs, _ = envs.reset()
        for _ in range(calls):
            next_obs, reward, terminated, truncated, infos = envs.step(np.zeros(3, np.int64))
            final = infos.get("final_obs") if mode == "same_step" else next_obs
            given = {"obs": obs, "env": np.arange(3), "reward": reward.astype(np.float32)}
            writer.add_vector(given, terminated, truncated, mode, final={"obs": final})
            obs = next_obs
            if mode == "disabled" and (terminated | truncated).any():
                obs, _ = envs.reset(options={"reset_mask": terminated | truncated})
        batch = replay.sample(settled(replay).info().size).data
        seen = {(int(e), *map(int, o)): i for i, (e, o) in enumerate(zip(batch["env"], batch["obs"], strict=True))}
        for env, n in enumerate(lengths):
            per_episode = n + 1 if mode == "next_step" else n  # calls
            for episode in range(calls // per_episode):
                for t in range(n):
                    i = seen.pop((env, episode, t))
                    k = min(2, n - t)
                    assert batch["n"][i] == k
                    assert batch["next"]["obs"][i].tolist() == [episode, t + k]
                    assert batch["reward"][i] == sum(0.5**j * (t + j + 1) for j in range(k))
                    terminal = t + k == n and episode % 2 == 0
                    assert batch["discount"][i] == (0 if terminal else 0.5**k)
        assert all(key[1] == calls // (lengths[key[0]] + (mode == "next_step")) for key in seen)  # the last episodes
