"""What a replay has drawn, and no learner has taken, goes to the next replay, or back to learners: each item once."""

import contextlib
import math

import numpy as np
import pytest
from harness.waiting import until

from echo_shm import Replay, ReplayClient, SegmentError, Table
from echo_shm._core import lib
from echo_shm.replay import Queue
from echo_shm.replay.stock import LocalStock
from echo_shm.replay.untaken import UNTAKEN, read

STEP = {"k": np.int64(0), "x": np.zeros(3, np.float32)}
TABLES = [Table("other"), Table("q", rate_limiter=Queue(100))]
ROOM = 12


@pytest.fixture
def stack():
    """What ends with the test."""
    with contextlib.ExitStack() as ending:
        yield ending


@pytest.fixture
def replay(stack):
    """Twenty items of a queue."""
    made = stack.enter_context(Replay(STEP, 100, TABLES, store="shm", thread=True))
    for k in range(20):
        made.add({"k": np.int64(k), "x": np.full(3, k, np.float32)})
    return made


@pytest.fixture
def stock(stack, replay):
    """A learner that has taken two of the queue's items, and leased three more."""
    client = stack.enter_context(ReplayClient(replay.handle))
    made = until(lambda: client._stock("q", ROOM, 0.1))
    until(lambda: made.count(5) == 5)
    assert [int(made.take().data["k"][0]) for _ in range(2)] == [0, 1]
    until(lambda: replay.info("q").sampled == ROOM)
    return made


def draw_no_more(replay):
    """Whatever learners release, nothing is drawn."""
    replay._set_limits("q", math.inf, math.inf)


def shut_out(replay):
    """Nothing is drawn any more, and nothing comes."""
    draw_no_more(replay)
    replay._rings.shut_out()


def keys(batches):
    """Of batches of one item."""
    return [int(one.data["k"][0]) for one in batches]


def saved_keys(path):
    """What a file has of the queue."""
    saved = read(path)
    return saved[1].leaves[0].view(np.int64).ravel().tolist() if saved else []


def test_it_goes_to_another_replay(replay, stock, stack, tmp_path):
    """All that no learner has leased is what comes first there, with all that is said of it, and counts as no draw."""
    shut_out(replay)
    replay._rings.hold_untaken(["other", "q"]).save(tmp_path / UNTAKEN)
    own = stock.close()
    assert (keys(own), saved_keys(tmp_path / UNTAKEN)) == ([2, 3, 4], list(range(5, ROOM)))
    assert own[0].data["x"].tolist() == [[2.0] * 3]
    next_one = stack.enter_context(Replay(STEP, 100, TABLES, store="shm"))
    next_one._rings.put_untaken(tmp_path / UNTAKEN)
    next_one._rings.put_untaken(tmp_path / UNTAKEN)
    assert (next_one.info("q").sampled, next_one.info("q").inserted) == (0, 0)
    next_one._rings.start()
    client = stack.enter_context(ReplayClient(next_one.handle))
    there = until(lambda: client._stock("q", 3 * ROOM, 0.1))
    assert there.count(ROOM) == ROOM - 5
    came = [there.take() for _ in range(ROOM - 5)]
    assert keys(came) == list(range(5, ROOM))
    assert [one.data["x"].tolist() for one in came] == [[[float(k)] * 3] for k in range(5, ROOM)]
    assert [one.times_sampled.tolist() for one in came] == [[1]] * 7
    assert len({int(one.key[0]) for one in came}) == 7
    assert [int(one.table_size[0]) for one in came] == list(range(15, 8, -1))
    there.close()


def test_it_goes_back(replay, stock, tmp_path):
    """Learners get what was held."""
    draw_no_more(replay)
    held = replay._rings.hold_untaken(["q"])
    stock.done()
    assert stock.count(ROOM) == 3
    held.give_back()
    assert stock.count(ROOM) == ROOM - 2
    assert keys([stock.take() for _ in range(ROOM - 2)]) == list(range(2, ROOM))
    stock.close()
    replay._rings.hold_untaken(["other"]).save(tmp_path / UNTAKEN)
    assert (read(tmp_path / UNTAKEN), list(tmp_path.iterdir())) == ({}, [])


def test_a_ring_that_was_about_to_go(replay, stock, stack, tmp_path):
    """The replay was killed when it had ended the ring, and had not removed it. The next one makes another."""
    draw_no_more(replay)
    replay._rings.hold_untaken(["q"]).save(tmp_path / UNTAKEN)
    (ring,) = replay._rings.open()._batches.rings
    lib.es_api_close(ring)
    replay._let_go()
    next_one = stack.enter_context(Replay.attach(replay.name, STEP))
    next_one._rings.put_untaken(tmp_path / UNTAKEN)
    next_one._rings.start()
    client = stack.enter_context(ReplayClient(next_one.handle))
    there = until(lambda: client._stock("q", ROOM, 0.1))
    assert there.count(ROOM) == ROOM - 5
    assert keys([there.take() for _ in range(ROOM - 5)]) == list(range(5, ROOM))
    there.close()


def test_a_learner_gives_back_too_late(replay, stock, tmp_path):
    """What it gives back while the replay shuts out whoever sends, it has again, unless the replay has it."""
    shut_out(replay)
    shut = iter([False])
    late = LocalStock(stock._source, stock._build, stock._check, lambda: next(shut, True))
    late._ready, late._taken = stock._ready, stock._taken
    own = keys(late.close())
    replay._rings.hold_untaken(["q"]).save(tmp_path / UNTAKEN)
    assert own[:3] == [2, 3, 4]
    assert own + saved_keys(tmp_path / UNTAKEN) == list(range(2, ROOM))


def test_damage(replay, tmp_path):
    """A file that is none, or is of another replay, is refused."""
    path = tmp_path / UNTAKEN
    path.write_bytes(b"PK no archive")
    with pytest.raises(SegmentError, match="damaged"):
        read(path)
    with path.open("wb") as file:
        np.savez(file, **{"1": np.array(4), "1.0": np.zeros((2, 8), np.uint8)})
    with pytest.raises(SegmentError, match="another replay"):
        replay._rings.put_untaken(path)
