"""Who waits for what in a replay, and since when: what is found, and what is believed of a board."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from echo_shm import Replay, Table
from echo_shm._core import lib
from echo_shm.replay import LimiterInfo, Queue, TableInfo, Writer, feed
from echo_shm.replay.listing import look
from echo_shm.replay.waits import Activity, Wait, Waits, read_activity, read_waits
from echo_shm.ring.batch_names import BatchRing

LIMITER = LimiterInfo(1, 1.0, 0.0, 2.0, 2.0, can_sample=False, can_insert=False)
IDLE = TableInfo(0, 9, 0, 0, 0, 0, 0, 0, LIMITER, 0.0, 64)


def test_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait has its own beginning, and ends when it is not there any more."""
    waits, clock = Waits(), 100.0
    monkeypatch.setattr(time, "time", lambda: clock)
    tables = {"a": replace(IDLE, parked=1), "b": IDLE}
    idle = [(BatchRing(1, 8), lib.ES_OK), (BatchRing(0, 8), lib.ES_FULL), (BatchRing(1, 8, 0, 2), lib.ES_OK)]
    closed = [(BatchRing(2, 8), lib.ES_SHORT)]
    found, _ = waits.look(tables, None, idle + closed)
    assert [(one.who, one.since) for one in found] == [("1 parked item of table 'a'", 100.0)]
    clock = 103.0
    group = BatchRing(1, 8, 2, 4)
    found, _ = waits.look(tables, "no room", [(group, lib.ES_FULL), (BatchRing(1, 4), lib.ES_SHORT)])
    assert found[0] == Wait("writers", "no room", 103.0)
    assert (found[1].who, found[1].since) == ("1 parked item of table 'a'", 100.0)
    assert (found[2].who, found[2].since) == ("the group of 4 for batches of 8 of table 'b'", 103.0)
    assert found[2].what == "it is the turn of rank 2, which has not released its oldest batch"
    assert found[3].who == "learners of batches of 4 of table 'b'"
    clock = 104.0
    found, _ = waits.look({"a": IDLE, "b": IDLE}, None, [(group, lib.ES_SHORT)])
    assert [(one.who, one.since) for one in found] == [("rank 2 of 4, for batches of 8 of table 'b'", 103.0)]


def test_a_wait_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the board, and once: other figures come when they are due. So does all that a thread finds, which goes on."""
    monkeypatch.setattr(feed, "_BOARD_INTERVAL", math.inf)
    step = {"x": np.int64(0)}
    tables = [Table("q", rate_limiter=Queue(2))]
    with Replay(step, 8, tables, store="shm") as replay, Writer(replay.handle) as writer:

        def said() -> list[str]:
            replay._rings.turn()
            return [one.what for one in look(replay.name).waiting if one.who == "writers"]

        for _ in range(10):
            writer.add(step)
        (what,) = said()
        for _ in range(5):
            replay.sample(1)
            assert said() == [what]
        assert replay.info("q").inserted == 7
        replay.sample(1)
        assert said() == []
        replay._rings.idle = False  # a thread goes on
        for _ in range(4):
            writer.add(step)
        assert (said(), replay._rings.open().waits is None) == ([], False)


def test_so_many_waits_are_told_of() -> None:
    """The first ones, so that they fit on the board."""
    tables = {f"{i}": replace(IDLE, parked=1) for i in range(20)}
    found, activity = Waits().look(tables, None, [])
    assert [one.who for one in found] == [f"1 parked item of table '{i}'" for i in range(16)]
    assert len(activity) == 20


def test_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last time that a count has grown. A reset is no use of the table."""
    waits, clock = Waits(), 100.0
    monkeypatch.setattr(time, "time", lambda: clock)
    for now, inserted, sampled, says in (
        (100.0, 0, 0, Activity(None, None)),
        (101.0, 1, 0, Activity(101.0, None)),
        (102.0, 1, 5, Activity(101.0, 102.0)),
        (103.0, 0, 0, Activity(101.0, 102.0)),
        (104.0, 1, 0, Activity(104.0, 102.0)),
    ):
        clock = now
        _, activity = waits.look({"a": replace(IDLE, inserted=inserted, sampled=sampled)}, None, [])
        assert activity == {"a": says}
    _, activity = Waits().look({"a": replace(IDLE, inserted=1)}, None, [])  # it began before the first look
    assert activity == {"a": Activity(104.0, None)}


def test_a_board_is_not_trusted() -> None:
    """What is no wait or no time is left out."""
    good = ["x", "y", 3]
    assert read_waits([good, ["x", "y"], ["x", 1, 2], [1, "y", 2], ["x", "y", math.nan], ["x", "y", "z"], 3]) == (
        Wait(*good),
    )
    assert read_waits({"x": 1}) == ()
    assert read_activity({"a": [1, None]}, "a") == Activity(1, None)
    assert read_activity({"a": [-1, True]}, "a") == Activity(None, None)
    assert read_activity([1], "a") == read_activity({"a": [1]}, "a") == Activity(None, None)
