"""Learners in other processes than their replay: they take batches that it draws into shared memory."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from harness.actors import cast
from harness.leases import leased
from harness.python_selectors import PythonFifo
from harness.threads import Background
from harness.waiting import LONG, until

from echo_shm import ConnectionClosedError, Replay, ReplayClient, SegmentError, Server, ShmClient, Table
from echo_shm.replay import Fifo, MinSize, Prioritized, Queue, ways
from echo_shm.replay.batch_rings import BatchRings
from echo_shm.ring import lockfile

SHM = Path("/dev/shm")

EXAMPLE = {"obs": np.zeros(3, np.float32), "number": np.array(0, np.int64)}


def step(number):
    """A step that says its number."""
    return {"obs": np.full(3, number, np.float32), "number": number}


def numbers_of(batch):
    """The numbers of a batch's steps."""
    assert (batch.data["obs"] == batch.data["number"][:, None]).all()
    return batch.data["number"].tolist()


def learn(conn, handle, n, timeout=None, group=None):
    """An actor: takes batches, and says what is in them. It goes on when it is told to."""
    with ReplayClient(handle) as replay:
        for batch in replay.dataset_iter(n, timeout=timeout, **group or {}):
            conn.send(numbers_of(batch))
            conn.recv()
    conn.send("over")


def run_replay(conn, name, attach):
    """An actor: holds a replay whose items are handed out once each, in order."""
    replay = Replay.attach(name, thread=True) if attach else Replay(
        EXAMPLE, 1000, [Table("q", rate_limiter=Queue(1000))], store="shm", name=name, thread=True
    )  # fmt: skip
    conn.send(replay.handle)
    conn.recv()


def test_batches():
    """They are trees of the user's arrays, with all columns; what a learner sets, the replay has."""
    table = Table("t", sampler=Prioritized(alpha=1, beta=0.5))
    with Replay(EXAMPLE, 100, [table], thread=True) as replay, ReplayClient(replay.handle) as learner:
        for number in range(10):
            replay.add(step(number), priority=4.0 if number < 5 else 1.0)
        batches = learner.dataset_iter(64, prefetch=2)
        batch = next(batches)
        numbers = np.array(numbers_of(batch))
        assert batch.data["obs"].shape == (64, 3)
        assert batch.key.dtype == np.uint64
        assert len(set(numbers)) > 5
        there = replay.get(batch.key)
        assert (there.data["number"] == numbers).all()
        assert (batch.priority == np.where(numbers < 5, 4.0, 1.0)).all()
        assert (batch.probability == batch.priority / 25).all()
        assert (batch.weight == np.where(numbers < 5, 0.5, 1.0)).all()
        assert (batch.table_size == 10).all()
        assert (batch.age == 9 - numbers).all()
        assert batch.times_sampled.tolist() == [1 + list(numbers[:i]).count(number) for i, number in enumerate(numbers)]
        batch.data["obs"][:] = 7  # it is the learner's
        learner.update(batch.key[:1], [9.0])
        key = batch.key[:1].copy()
        until(lambda: replay.get(key).priority[0] == 9)
        assert replay.info().sampled == 3 * 64  # the one that is held, and two ahead
        del batch
        until(lambda: replay.info().sampled == 4 * 64)
        batches.close()
        learner.close()


def test_learners_share_a_queue():
    """Each item goes to one of them. All end with the replay."""
    with cast() as make, Replay(EXAMPLE, 5000, [Table("q", rate_limiter=Queue(5000))], thread=True) as replay:
        learners = [make(learn, replay.handle, 8) for _ in range(3)]
        for number in range(4000):
            replay.add(step(number))
        got = [number for learner in learners for number in learner.hear()]  # nobody is late for the end
        for learner in learners:
            learner.say()
        while len(got) < 4000:
            for learner in learners:
                if not learner.is_silent(0.001):
                    got += learner.hear()
                    learner.say()
        assert sorted(got) == list(range(4000))
        replay.close()
        for learner in learners:
            assert learner.hear() == "over"


def test_deaths(name):
    """A learner and two replays are killed. Only what the dead learner had taken comes twice."""
    with cast() as make:
        first = make(run_replay, name, False)
        handle = first.hear()
        with ReplayClient(handle) as feeder, feeder.writer() as writer:
            for number in range(500):
                writer.add(step(number))
            dies, lives = make(learn, handle, 8), make(learn, handle, 8)
            dies.hear()
            got = lives.hear()
            lives.say()
            first.kill()
            dies.kill()
            second = make(run_replay, name, True)
            second.hear()
            while len(got) < 200:
                got += lives.hear()
                lives.say()
            second.kill()
            for number in range(500, 600):
                writer.add(step(number))
            third = make(run_replay, name, True)
            third.hear()
            while len(got) < 600:
                got += lives.hear()
                lives.say()
            assert sorted(got) == list(range(600))
            third.say()
            third.end()


class Dying(PythonFifo):
    """Its process is killed while its 12th item is drawn: the store does not have the item any more."""

    def remove(self, key):
        """See CustomSelector."""
        super().remove(key)
        if len(self.members) == 40 - 12:
            os.kill(os.getpid(), signal.SIGKILL)


def run_dying(conn, name):
    """An actor: holds a replay that dies in the middle of the second batch of 8."""
    tables = [Table("q", Dying(), remover=Fifo(), max_times_sampled=1)]
    replay = Replay(EXAMPLE, 100, tables, store="shm", name=name)
    for number in range(40):
        replay.add(step(number))
    conn.send(replay.handle)
    while True:
        replay.can_sample()  # a call, in which it draws


def test_what_a_dead_replay_has_drawn_is_delivered(name):
    """The next one delivers it where it belongs, and draws on after it."""
    with cast() as make:
        first = make(run_dying, name)
        with ReplayClient(first.hear()) as learner:
            batches = learner.dataset_iter(8, timeout=LONG)
            taken = Background(lambda: [numbers_of(next(batches)) for _ in range(5)])
            assert first.end() == -signal.SIGKILL
            with Replay.attach(name, samplers={"q": PythonFifo()}) as second:
                until(lambda: second.can_sample() or not taken.runs)
                got = taken.result()
            batches.close()
    assert got == [list(range(8 * i, 8 * i + 8)) for i in range(5)]


def test_the_replay_reaps_dead_learners():
    """Nobody else is there to do so. The batch is the next learner's."""
    with cast() as make, Replay(EXAMPLE, 100, [Table("q", rate_limiter=Queue(100))], thread=True) as replay:
        for number in range(16):
            replay.add(step(number))
        dies = make(learn, replay.handle, 8)
        assert dies.hear() == list(range(8))
        until(lambda: leased(replay) == 1)
        dies.kill()
        until(lambda: leased(replay) == 0)
        with ReplayClient(replay.handle) as learner:
            batches = learner.dataset_iter(8, timeout=LONG)
            assert numbers_of(next(batches)) == list(range(8))


def test_a_replay_without_a_thread():
    """It draws in its calls."""
    with Replay(EXAMPLE, 10) as replay, ReplayClient(replay.handle) as learner:
        replay.add(step(1))
        got = []
        thread = threading.Thread(target=lambda: got.extend(next(learner.dataset_iter(2, timeout=LONG)).data["number"]))
        thread.start()
        until(lambda: replay.can_sample() and not thread.is_alive())
        assert got == [1, 1]


def test_a_limiter_lets_a_batch_be_completed():
    """What was drawn stays, and the rest follows with the next items."""
    table = Table("t", sampler=Fifo(), max_times_sampled=1, rate_limiter=MinSize(2))
    with Replay(EXAMPLE, 10, [table], thread=True) as replay, ReplayClient(replay.handle) as learner:
        for number in range(3):
            replay.add(step(number))
        assert list(learner.dataset_iter(4, timeout=0.2)) == []
        assert replay.info().sampled == 2
        for number in range(3, 6):
            replay.add(step(number))
        assert numbers_of(next(learner.dataset_iter(4))) == [0, 1, 2, 3]


def test_what_is_refused():
    """Each error says what to do."""
    with Replay(EXAMPLE, 10, thread=True) as replay, ReplayClient(replay.handle) as learner:
        replay.add(step(1))
        with pytest.raises(SegmentError, match=r"cannot make batches of 1073741824 items .*smaller n or prefetch"):
            next(learner.dataset_iter(2**30))
        with pytest.raises(ValueError, match="prefetch"):
            learner.dataset_iter(2, prefetch=0)
        with pytest.raises(ValueError, match="'nope'"):
            learner.dataset_iter(2, "nope")
        batches = learner.dataset_iter(2)
        assert numbers_of(next(batches)) == [1, 1]
        ring = next(name for name in lockfile.names() if name.endswith(lockfile.BATCHES))
        for join in (Server.attach, ShmClient):
            with pytest.raises(SegmentError, match="belongs to a replay"):
                join(ring)
        for n in range(3, 34):
            next(learner.dataset_iter(n))
        with pytest.raises(SegmentError, match=r"32 rings of batches.*fewer different batch sizes"):
            next(learner.dataset_iter(34))
        replay.close()
        assert list(learner.dataset_iter(2)) == []


def test_a_ring_that_another_process_wrote_into(monkeypatch):
    """The learner is told, and the ring is removed."""
    monkeypatch.setattr(BatchRings, "_connect", lambda *_: False)
    with Replay(EXAMPLE, 10, thread=True) as replay, ReplayClient(replay.handle) as learner:
        replay.add(step(1))
        with pytest.raises(SegmentError, match=r"cannot make batches of 2 items .*another process has written into"):
            next(learner.dataset_iter(2, timeout=LONG))
        assert not any(name.startswith(f"{learner.name}.0x2") for name in lockfile.names())


def test_nobody_comes_after_a_kill(name, monkeypatch):
    """The learner waits for the next replay, but not forever."""
    monkeypatch.setattr(ways, "_GRACE", 0.3)
    with cast() as make:
        replay = make(run_replay, name, False)
        with ReplayClient(replay.hear()) as learner:
            batches = learner.dataset_iter(2)
            with learner.writer() as writer:
                for number in range(4):
                    writer.add(step(number))
                assert numbers_of(next(batches)) == [0, 1]
            os.kill(replay.pid, signal.SIGKILL)
            replay.end()
            assert numbers_of(next(batches)) == [2, 3]
            with pytest.raises(ConnectionClosedError, match=rf"replay '{name}' was killed, and no other one came"):
                next(batches)
            with pytest.raises(ConnectionClosedError, match="no other one came"):
                next(learner.dataset_iter(3))
        Replay.attach(name).close()


def test_a_replay_that_was_killed_while_it_made_a_ring(name):
    """The next one makes the ring anew."""
    with cast() as make:
        first = make(run_replay, name, False)
        first.hear()
        first.kill()
        half = make(half_a_ring, f"{name}.0x2.batches")
        half.hear()
        half.kill()
        with Replay.attach(name, thread=True) as replay, ReplayClient(replay.handle) as learner:
            replay.add(step(1))
            replay.add(step(2))
            assert numbers_of(next(learner.dataset_iter(2, timeout=LONG))) == [1, 2]


def half_a_ring(conn, name):
    """An actor: leaves what a replay leaves that is killed while it makes a ring of batches."""
    lock = lockfile.open_lockfile(name, create=True)
    (SHM / f"echo_shm.{name}").write_bytes(bytes(4096))
    assert lock.try_lock(lockfile.CREATOR_BYTE)
    conn.send("made")
    conn.recv()


# --- groups -----------------------------------------------------------------------


def share(rank, world_size, n, first, last):
    """What a rank's batches ``first`` to ``last - 1`` hold, of items that are drawn in order."""
    return [list(range((k * world_size + rank) * n, (k * world_size + rank + 1) * n)) for k in range(first, last)]


def test_each_rank_has_its_share():
    """Whatever the order in which they take."""
    with cast() as make, Replay(EXAMPLE, 5000, [Table("q", rate_limiter=Queue(5000))], thread=True) as replay:
        ranks = [
            make(learn, replay.handle, 4, None, {"prefetch": 2, "rank": rank, "world_size": 3}) for rank in range(3)
        ]
        for number in range(3 * 4 * 40):
            replay.add(step(number))
        got = [[], [], []]
        for turn in range(40):
            for rank in (2, 0, 1) if turn % 2 else (1, 2, 0):
                got[rank].append(ranks[rank].hear())
                ranks[rank].say()
        assert got == [share(rank, 3, 4, 0, 40) for rank in range(3)]
        replay.close()
        assert [rank.hear() for rank in ranks] == ["over"] * 3


def test_a_rank_that_is_slow_holds_up_the_others():
    """They get what was drawn for them, and wait. Nothing of its share goes to them."""
    with cast() as make, Replay(EXAMPLE, 500, [Table("q", rate_limiter=Queue(500))], thread=True) as replay:
        for number in range(200):
            replay.add(step(number))
        fast = make(learn, replay.handle, 4, 0.3, {"prefetch": 2, "rank": 1, "world_size": 2})
        got = []
        while (batch := fast.hear()) != "over":
            got.append(batch)
            fast.say()
        assert got == share(1, 2, 4, 0, 3)  # as many as rank 0 has places for
        assert replay.info().sampled == 4 * 6
        slow = make(learn, replay.handle, 4, None, {"prefetch": 2, "rank": 0, "world_size": 2})
        assert [slow.hear()] == share(0, 2, 4, 0, 1)


def test_deaths_in_a_group(name):
    """A rank and the replay are killed. The next one of that rank begins with what the dead one had not released."""
    with cast() as make:
        first = make(run_replay, name, False)
        handle = first.hear()
        with ReplayClient(handle) as feeder, feeder.writer() as writer:
            for number in range(800):
                writer.add(step(number))
            lives, dies = (make(learn, handle, 4, None, {"rank": rank, "world_size": 2}) for rank in range(2))
            got = [[], []]
            for _ in range(10):
                for rank, learner in ((0, lives), (1, dies)):
                    got[rank].append(learner.hear())
                    learner.say()
            assert [dies.hear()] == share(1, 2, 4, 10, 11)  # it has released the one before, and not this one
            first.kill()
            dies.kill()
            heir = make(learn, handle, 4, None, {"rank": 1, "world_size": 2})
            second = make(run_replay, name, True)
            second.hear()
            for _ in range(60):
                for rank, learner in ((0, lives), (1, heir)):
                    got[rank].append(learner.hear())
                    learner.say()
            assert got == [share(rank, 2, 4, 0, 70) for rank in range(2)]
            second.say()
            second.end()


def test_a_rank_is_one_client():
    """A second client of that rank is refused as long as the first one iterates; then it goes on."""
    with Replay(EXAMPLE, 500, [Table("q", rate_limiter=Queue(500))], thread=True) as replay:
        for number in range(100):
            replay.add(step(number))
        with ReplayClient(replay.handle) as learner:
            one, other = (learner.dataset_iter(4, timeout=LONG, rank=0, world_size=1) for _ in range(2))
            assert [numbers_of(next(one))] == share(0, 1, 4, 0, 1)
            with pytest.raises(SegmentError, match=r"rank 0 of 1 in replay .* is taken: this process iterates"):
                next(other)
            one.close()
            again = learner.dataset_iter(4, timeout=LONG, rank=0, world_size=1)
            assert [numbers_of(next(again))] == share(0, 1, 4, 1, 2)
            again.close()


def test_groups_have_rings_of_their_own():
    """One of another size begins with the next draw."""
    with Replay(EXAMPLE, 500, [Table("q", rate_limiter=Queue(500))], thread=True) as replay:
        for number in range(100):
            replay.add(step(number))
        with ReplayClient(replay.handle) as learner:
            alone = learner.dataset_iter(4, prefetch=1, timeout=LONG, rank=0, world_size=1)
            assert numbers_of(next(alone)) == [0, 1, 2, 3]
            until(lambda: replay.info().sampled == 12)
            alone.close()
            pair = [learner.dataset_iter(4, timeout=LONG, rank=rank, world_size=2) for rank in range(2)]
            assert [numbers_of(next(one)) for one in pair] == [[12, 13, 14, 15], [16, 17, 18, 19]]
            for one in pair:
                one.close()


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ({"rank": 0}, "rank=0, world_size=None: use both, or neither"),
        ({"world_size": 2}, "rank=None, world_size=2: use both, or neither"),
        ({"rank": 2, "world_size": 2}, "rank=2: use 0 to 1, below world_size=2"),
        ({"rank": -1, "world_size": 2}, "rank=-1: use an integer, 0 or more"),
        ({"rank": 0, "world_size": 33}, "world_size=33: use at most 32"),
        ({"rank": 0, "world_size": 1.5}, "world_size=1.5: use an integer, 1 or more"),
    ],
)
def test_refused_groups(group, problem):
    """A rank without a group, or one that the group does not have."""
    with (
        Replay(EXAMPLE, 10) as replay,
        ReplayClient(replay.handle) as learner,
        pytest.raises(ValueError, match=problem),
    ):
        learner.dataset_iter(1, **group)


def test_no_more_rings_than_a_replay_has():
    """A group needs a ring for each rank. It is refused as a whole."""
    with Replay(EXAMPLE, 10, thread=True) as replay, ReplayClient(replay.handle) as learner:
        replay.add(step(1))
        next(learner.dataset_iter(2, timeout=LONG))
        with pytest.raises(SegmentError, match="it has 1, and 32 more are asked for"):
            next(learner.dataset_iter(2, rank=3, world_size=32))
        next(learner.dataset_iter(3, timeout=LONG))
