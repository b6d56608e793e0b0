"""A replay and other processes: workers write steps, clients change items, and the replay's process may be killed."""

import os
import signal
import time

import numpy as np
import pytest
from harness.actors import cast
from harness.processes import stop
from harness.waiting import LONG, until

from echo_shm import ConnectionClosedError, Replay, ReplayClient, SegmentError, Server, SpecMismatchError, Table
from echo_shm._core import lib
from echo_shm.replay import Fifo, HotCold, Prioritized, Queue, Uniform, Writer, store

CAPACITY = 10_000
EXAMPLE = {"obs": np.zeros(3, np.float32), "who": np.array(0, np.int64), "number": np.array(0, np.int64)}


def step(who, number):
    """A step that says where it comes from."""
    return {"obs": np.full(3, who * 1000 + number, np.float32), "who": who, "number": number}


def send(writer, who, count):
    """What a worker does: episodes of 10 steps."""
    for number in range(count):
        writer.add(step(who, number), terminated=number % 10 == 9)
    writer.flush()


def send_block(writer, who, count):
    """The same with one call."""
    numbers = np.arange(count)
    obs = np.repeat((who * 1000 + numbers).astype(np.float32)[:, None], 3, axis=1)
    writer.extend(
        {"obs": obs, "who": np.full(count, who), "number": numbers},
        np.arange(count) + 1.0,
        terminated=numbers % 10 == 9,
    )
    writer.flush()


def fail(writer, who):
    """A worker that fails after its first step."""
    writer.add(step(who, 0))
    raise ValueError("the environment broke")


def contents(replay, table=None):
    """Everything that a Fifo table holds, in order: (who, number)."""
    batch = replay.sample(len(replay), table, timeout=0)
    assert (batch.data["obs"][:, 0] == batch.data["who"] * 1000 + batch.data["number"]).all()
    return list(zip(batch.data["who"].tolist(), batch.data["number"].tolist(), strict=True))


def once(name="all"):
    """A table that hands out everything in order, and keeps it."""
    return Table(name, sampler=Fifo(), replacement=False)


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("work", [send, send_block])
def test_every_step_comes_once(work, thread):
    """Each worker's steps are there in order, and its episodes are counted, with a thread that stores and without."""
    with Replay(EXAMPLE, CAPACITY, [once()], thread=thread) as replay:
        with replay.spawn(work, 3, [1, 2, 3], [500, 300, 0], context="fork") as workers:
            until(lambda: len(replay) == 800)
            workers.join()
        came = contents(replay)
        assert sorted(came) == [(1, i) for i in range(500)] + [(2, i) for i in range(300)]
        assert replay.info().episodes == 80


def test_spawned_workers_and_a_learner():
    """The usual loop. It ends when the workers have, with what is missing said at once."""
    with Replay(EXAMPLE, CAPACITY, [Table("train", Prioritized())]) as replay:
        with replay.spawn(send, 2, [1, 2], [200, 200]) as workers:
            while not workers.finished:
                batch = replay.sample(16)
                replay.update(batch.key, np.ones(16))
        assert len(replay) == 400
        replay.reset()
        with pytest.raises(TimeoutError, match="No worker, client, transport or other thread is there"):
            replay.sample(1)


def test_a_failed_workers_exception():
    """It is raised where the learner waits."""
    with Replay(EXAMPLE, CAPACITY) as replay, replay.spawn(fail, 1, [1], context="fork"):
        replay.sample(1)
        replay.reset()
        with pytest.raises(ValueError, match="the environment broke"):
            replay.sample(1)


def fill(writer, number):
    """Sends until nothing is taken any more: how many were sent in all, and the error."""
    while True:
        try:
            writer.add(step(1, number), timeout=0.2)
        except TimeoutError as error:
            return number, str(error)
        number += 1


def test_what_a_writer_waits_for():
    """Its TimeoutError names the table and the limiter; what other tables may have goes on for a while."""
    tables = [Table("q", rate_limiter=Queue(3), max_size=10), Table("u", Uniform())]
    with Replay(EXAMPLE, 160, tables) as replay, Writer(replay.handle) as writer:
        sent = 0
        while replay.info("q").parked < 40 or sent < 1000:  # then the inbox fills
            writer.add(step(1, sent))
            sent += 1
        sent, error = fill(writer, sent)
        assert "the limiter of table 'q' lets nobody insert" in error
        info = replay.info()
        assert info["q"].size == 3
        assert info["q"].parked == 40
        assert info["u"].size == 43
        assert [int(replay.sample(1, "q").data["number"][0]) for _ in range(sent)] == list(range(sent))


def test_joining_workers_that_wait_for_a_limiter():
    """Nobody but the thread that joins could sample: it is told so, and which limiter it is."""
    with (
        Replay(EXAMPLE, 1, [Table("q", rate_limiter=Queue(1))]) as replay,
        replay.spawn(send, 1, [1], [5], context="fork") as workers,
    ):
        with pytest.raises(TimeoutError, match=r"the limiter of table 'q'.*This thread, which joins, is all"):
            workers.join()
        assert [int(replay.sample(1, "q").data["number"][0]) for _ in range(5)] == list(range(5))
        workers.join()


def test_extend_sends_what_add_sends(monkeypatch):
    """Number in the stream, episode, place in it, how the step ends, and priorities."""
    ends, heads = np.array([False, True, False, True, False]), []
    with Replay(EXAMPLE, 100, [Table("a"), Table("b")]) as replay, Writer(replay.handle) as writer:
        monkeypatch.setattr(writer, "_send", lambda tree, timeout: heads.append(tree[0].copy()))
        monkeypatch.setattr(writer, "_send_many", lambda tree, timeout: heads.extend(tree[0]))
        for number, end in enumerate(ends):
            writer.add(step(1, number), {"b": number + 1.0}, truncated=bool(end))
        writer._heads.number = writer._heads.episode = writer._heads.index = 0
        steps = {name: np.repeat(np.asarray(leaf)[None], 5, axis=0) for name, leaf in EXAMPLE.items()}
        writer.extend(steps, {"b": np.arange(5) + 1.0}, truncated=ends)
    assert (np.array(heads[:5]) == np.array(heads[5:])).all()
    assert [head.view("<u8")[1] for head in heads[:5]] == list(range(5))


def test_other_limits_let_in_what_waits():
    """The thread that stores is woken by the call: it sleeps until then."""
    with (
        Replay(EXAMPLE, 40, [Table("q", rate_limiter=Queue(2))], thread=True) as replay,
        Writer(replay.handle) as writer,
    ):
        wait = replay._rings._feed.wait
        replay._rings._feed.wait = lambda seen, _seconds: wait(seen, 1000.0)
        for number in range(6):
            writer.add(step(1, number))
        until(lambda: replay.info().parked == 4)
        replay.set_limits(None, 0.0, 5.0)
        until(lambda: (replay.info().size, replay.info().parked) == (5, 1))


class Ending:
    """A feed whose replay is closed just before one of the thread's looks at ``seen``, the one with that number."""

    held_back = False

    def __init__(self, rings, number, waits):
        self.rings, self.left, self.waits, self.feed = rings, number, waits, rings.open()

    @property
    def seen(self):
        """That of the feed."""
        self.left -= 1
        if self.left == 0:
            self.rings._closed = True
            self.feed.wake()
        return self.feed.seen

    def wait(self, seen, _seconds):
        """A sleep that nothing ends is one too many."""
        assert not self.rings._closed or seen != self.feed.seen


@pytest.mark.parametrize(("number", "waits"), [(1, None), (1, "the limiter"), (2, None), (2, "the limiter")])
def test_the_thread_does_not_sleep_once_it_is_told_to_end(number, waits):
    """Also where it is told between its look whether it is, and its look at what has come."""
    with Replay(EXAMPLE, 40, [Table("q")]) as replay:
        rings = replay._rings
        rings._run(Ending(rings, number, waits))
        assert rings._closed
        rings._closed = False  # it is open


def test_a_sample_lets_in_what_waits():
    """The thread that stores goes on at once: no sleep ends by its timeout."""
    with (
        Replay(EXAMPLE, 8, [Table("q", rate_limiter=Queue(2))], thread=True) as replay,
        Writer(replay.handle) as writer,
    ):
        slept = []
        wait = replay._rings._feed.wait

        def wait_long(seen, _seconds):
            began = time.monotonic()
            wait(seen, 5.0)
            slept.append(time.monotonic() - began)

        replay._rings._feed.wait = wait_long
        for number in range(1000):
            writer.add(step(1, number))
        assert [int(replay.sample(1, "q", LONG).data["number"][0]) for _ in range(1000)] == list(range(1000))
        assert slept
        assert max(slept) < 5.0


def test_errors_of_a_writer():
    """Wrong steps and priorities are refused before anything is sent, in the words of a step."""
    with Replay(EXAMPLE, 100, [Table("a"), Table("b", Prioritized(alpha=4.0))]) as replay:
        writer = Writer(replay.handle)
        with pytest.raises(SpecMismatchError, match=r"^leaf \['obs'\]: got an array of float64\[3\]"):
            writer.add({**step(1, 0), "obs": np.zeros(3)})
        for priority, text in [
            (-1.0, "finite"),
            (float("nan"), "finite"),
            ({"c": 1.0}, "no table 'c'"),
            (1e300, "'b'"),
        ]:
            with pytest.raises(ValueError, match=text):
                writer.add(step(1, 0), priority)
        writer.add(step(1, 0), {"a": 3.0})
        assert (replay.info("a").size, replay.info("b").size) == (1, 0)
        assert replay.sample(1, "a").priority == 3.0
        replay.close()
        with pytest.raises(ConnectionClosedError, match="closed"):
            writer.add(step(1, 1))
        with pytest.raises(SegmentError, match="no replay is named"):
            ReplayClient(writer._handle)
        writer.close()


def test_the_rings_of_a_replay_are_its_own():
    """Another learner would take steps away."""
    with Replay(EXAMPLE, 100) as replay, pytest.raises(SegmentError, match="belongs to replay"):
        Server.attach(replay.handle.inbox)
    with pytest.raises(ValueError, match="belong to replays"):
        Server(EXAMPLE, 1, name="run.inbox")


def test_a_client_changes_items():
    """Priorities and deletions of another process reach the tables; keys that are gone are ignored."""
    with Replay(EXAMPLE, 1000, [Table("t", Prioritized(1.0))]) as replay:
        replay.extend({name: np.repeat(leaf[None], 600, axis=0) for name, leaf in EXAMPLE.items()})
        keys = np.unique(replay.sample(5000).key)
        with ReplayClient(replay.handle) as client:
            client.update(keys, np.arange(len(keys)) + 2.0)
            client.delete(keys[:100])
            client.update(keys[:10], np.ones(10))
            until(lambda: len(replay) == 500)
            assert (replay.get(keys[100:]).priority == np.arange(100, len(keys)) + 2.0).all()
            until(lambda: [replay.info(), client.info("t").size][1] == 500)
            with pytest.raises(ValueError, match="priorities"):
                client.update(keys, -np.ones(len(keys)))


def test_a_client_is_the_learner():
    """Its updates make items of one table older, as the replay's own do. Other tables are refused."""
    tables = [Table("t", HotCold(5, age=1)), Table("u")]
    with Replay(EXAMPLE, 100, tables) as replay, ReplayClient(replay.handle) as client:
        replay.extend({name: np.repeat(leaf[None], 5, axis=0) for name, leaf in EXAMPLE.items()})
        replay.learned("t")
        client.learned("t")
        until(lambda: replay.info("t").hot_cold.updates == 2)
        assert replay.info("t").hot_cold.cold.size == 5
        for learner in (client, replay):
            with pytest.raises(ValueError, match=r"table 'u': items age only where the sampler is HotCold\(\.\.\.\)"):
                learner.learned("u")
            with pytest.raises(ValueError, match="there is no table 'v'"):
                learner.learned("v")
    with pytest.raises(ConnectionClosedError):
        client.learned("t")


def test_a_stopped_worker_holds_up_nobody():
    """It stops inside its sends; another worker's steps come."""
    with (
        Replay(EXAMPLE, CAPACITY, thread=True) as replay,
        replay.spawn(send, 1, [1], [100_000], context="fork") as workers,
        Writer(replay.handle) as writer,
    ):
        until(lambda: len(replay) > 10)
        stop(workers.pids[0])
        before = replay.info().inserted
        for number in range(3000):
            writer.add(step(3, number), timeout=30)
        writer.flush(30)
        assert replay.info().inserted >= before + 3000
        os.kill(workers.pids[0], signal.SIGCONT)


def test_writers_that_are_gone_take_no_room():
    """Each keeps its last step only until the items of younger steps would have to go."""
    with Replay(EXAMPLE, 10) as replay, ReplayClient(replay.handle) as client:
        for who in range(30):
            with client.writer() as writer:
                writer.add(step(who, 0))
                writer.add(step(who, 1), {})  # in no table
            assert len(replay) == min(who + 1, 5)
        assert sorted(set(replay.sample(100).data["who"].tolist())) == [25, 26, 27, 28, 29]


# --- a replay that is killed ------------------------------------------------------


def run_replay(conn, name, attach):
    """An actor: holds a replay, and stores what comes, in a thread."""
    replay = Replay.attach(name, thread=True) if attach else Replay(
        EXAMPLE, CAPACITY, [once()], store="shm", name=name, thread=True
    )  # fmt: skip
    conn.send(replay.handle)
    conn.recv()


def test_a_killed_replay(name):
    """Its workers wait, and go on with the next one: every step is there once."""
    with cast() as make:
        go_on_after_kills(make, name)


def age_items(conn, name, attach):
    """An actor: holds a replay whose items grow old."""
    replay = Replay.attach(name, thread=True) if attach else Replay(
        EXAMPLE, 100, [Table("t", HotCold(5))], store="shm", name=name, thread=True
    )  # fmt: skip
    conn.send(replay.handle)
    conn.recv()


def test_each_update_of_a_learner_counts_once(name):
    """Its client counts over three replays, two of which are killed meanwhile, wherever they were."""
    with cast() as make:
        replay = make(age_items, name, False)
        with ReplayClient(replay.hear()) as client:
            for number in range(600):
                client.learned()
                if number in (200, 400):
                    replay.kill()
                    replay = make(age_items, name, True)
            replay.hear()
            until(lambda: client.info().hot_cold.updates >= 600)
            assert client.info().hot_cold.updates == 600
            replay.kill()
        with Replay.attach(name) as again:
            assert again.info().hot_cold.updates == 600


def go_on_after_kills(make, name):
    """A writer through three replays."""
    first = make(run_replay, name, False)
    with Writer(first.hear()) as writer:
        for number in range(2000):
            writer.add(step(1, number))
            if number == 1000:
                first.kill()
                second = make(run_replay, name, True)
        writer.flush()
        second.hear()
        second.kill()
        for number in range(2000, 2200):
            writer.add(step(1, number))
        with Replay.attach(name) as replay:
            until(lambda: len(replay) == 2200)
            assert contents(replay) == [(1, i) for i in range(2200)]
            started = time.monotonic()
            writer.flush()
            assert time.monotonic() - started < 5


def test_writers_know_a_replay_that_recovers(name, monkeypatch):
    """It takes its place in their rings before it reads the store, which takes long if that is large."""
    with cast() as make:
        first = make(run_replay, name, False)
        with Writer(first.hear()) as writer:
            first.kill()
            alive = []
            recover = store.Store.open

            def look_and_recover(*args):
                alive.append(lib.es_api_learner_alive(writer._attachment.ring))
                return recover(*args)

            monkeypatch.setattr(store.Store, "open", look_and_recover)
            Replay.attach(name).close()
    assert alive == [1]
