"""A replay's figures: who is counted, rates, waits, and ages."""

from dataclasses import replace
from typing import Any

import pytest

from echo_shm import Replay
from echo_shm.cli import console, replay_figures, replay_top
from echo_shm.replay.waits import Wait
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.metrics import Owner

from .kept import STEP, TABLES, screen_of


def _owner(index: int, role: str, **figures: Any) -> Owner:
    """A process that is attached to a ring."""
    values = {"samples": 0, "blocked": 0, "blocked_time": 0.0, "waiting": False, "held": 0, "held_time": 0.0}
    return Owner(index, role, 100 + index, 0, 1.0, **{**values, "is_bridge": False, **figures})


def _reading(reading: replay_figures.Reading, time: float, **rings: Any) -> replay_figures.Reading:
    """A reading at that time. ``rings``: for each ring, by its ending without dots, what is in it."""
    made = {
        f".{ending.replace('_', '.')}": replay_figures.Ring(**{
            "occupancy": 0, "capacity": 4, "owners": [], "batches_taken": 0, "remotes": 0, "refused": 0,
            "age": float("nan"), "versions": (0.0, 0), **figures,
        })
        for ending, figures in rings.items()
    }  # fmt: skip
    batches = {".0x2.batches": BatchRing(0, 2)} if ".0x2.batches" in made else {}
    return reading._replace(time=time, rings=made, batches=batches)


def test_who_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers without bridges, bridges that live, learners that live and what they hold; what one did before counts."""
    bridge = {"is_bridge": True}
    owners = [
        (_owner(0, "learner"), "running"),
        (_owner(1, "producer", samples=50, blocked_time=3.0), "running"),
        (_owner(2, "producer", samples=7), "waiting"),
        (_owner(3, "producer"), "stopped"),
        (_owner(4, "producer"), "dead"),
        (_owner(5, "producer", **bridge), "running"),
        (_owner(6, "producer", **bridge), "dead"),
    ]
    learners = [
        (_owner(0, "producer", held=7, held_time=80.0), "running"),
        (_owner(1, "learner", held=2, held_time=3.0), "running"),
        (_owner(2, "learner", held=1, held_time=5.0, **bridge), "stopped"),
        (_owner(3, "learner", held=4, held_time=90.0), "dead"),
        (_owner(4, "learner"), "running"),
    ]
    clients = [(_owner(0, "producer"), "running"), (_owner(1, "producer"), "dead")]
    monkeypatch.setattr(replay_top, "_MOST_WRITERS", 3)
    monkeypatch.setattr(replay_top, "_MOST_BATCHES", 1)
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        watch = replay_top.ReplayWatch(name)
    rings = {"inbox": {"owners": owners, "remotes": 3}, "updates": {"owners": clients}}
    rings["0x2_batches"] = {"owners": learners, "batches_taken": 30, "occupancy": 3}
    watch._latest = _reading(watch._latest, 10.0, **rings)
    began = [(_owner(1, "producer", samples=10, blocked_time=2.0), "running")]
    before = {"inbox": {"owners": began}, "updates": {}, "0x2_batches": {"batches_taken": 10}}
    for earlier, taken, sent in (
        (_reading(watch._latest, 6.0, **before), "5.0", ["10", "50", "25", "%", "running"]),
        (_reading(watch._latest, 6.0), "0.0", ["0", "50", "0", "%", "running"]),  # nothing was there
        (watch._latest, "0.0", ["0", "50", "0", "%", "running"]),  # the first look
    ):
        watch._earlier = earlier
        lines = [line.split() for line in screen_of(watch).splitlines()]
        assert ["writers", "3", "waiting", "1", "stopped", "1", "dead", "1", "clients", "1"] in lines
        assert ["bridges", "1", "remote", "3", "refused", "0"] in lines
        assert ["main", "\N{MULTIPLICATION SIGN}", "2", "3", "of", "4", taken, "-", "3", "3", "5", "s"] in lines
        assert ["process", "101", *sent] in lines
        assert ["process", "102", "0", "7", "0", "%", "waiting"] in lines
        assert [line for line in lines if line[-1:] == ["more"]] == [["and", "1", "more"]]  # of the writers
        assert not [line for line in lines if line[:2] in (["process", "104"], ["process", "105"])]
        assert watch.other_lines == 14 + (2 + 1) + (2 + 3 + 1)
    monkeypatch.setattr(replay_top, "_MOST_WRITERS", 4)
    assert watch.other_lines == 14 + (2 + 1) + (2 + 4)
    lines = [line.split() for line in screen_of(watch).splitlines()]
    assert ["batches", "drawn", "ahead", "batches/s", "age", "learners", "held", "held", "for"] in lines
    assert ["writer", "steps/s", "steps", "blocked", "state"] in lines
    assert not [line for line in lines if line[-1:] == ["more"]]
    assert "; 3 writers and 3 remote; 3 learners" in replay_figures.line(watch._earlier, watch._latest)
    watch._latest = _reading(watch._latest, 11.0, inbox={"owners": owners[6:]}, updates={})
    lines = [line.split() for line in screen_of(watch).splitlines()]
    assert ["writers", "0", "waiting", "0", "stopped", "0", "dead", "0", "clients", "0"] in lines
    assert not [line for line in lines if line[:1] == ["bridges"]], "none lives"
    idle = {"inbox": {"owners": owners[5:]}, "0x2_batches": {"owners": learners[4:]}}
    watch._latest = _reading(watch._latest, 11.5, **idle)
    lines = [line.split() for line in screen_of(watch).splitlines()]
    assert ["bridges", "1", "remote", "0", "refused", "0"] in lines
    assert ["main", "\N{MULTIPLICATION SIGN}", "2", "0", "of", "4", "0.0", "-", "1", "0", "-"] in lines
    watch._latest = _reading(watch._latest, 12.0)  # its rings are gone
    shown = screen_of(watch)
    assert ["writers", "0", "waiting", "0"] in [line.split()[:4] for line in shown.splitlines()]
    assert "inbox" not in shown
    assert "blocked" not in shown


def test_rates(name: str) -> None:
    """Between what the board said at two readings. Of a table that was reset, or with nothing said before: none."""
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        now = replay_figures.read(name)

    def said(heard: float | None, inserted: int, sampled: int) -> replay_figures.Reading:
        info = replace(now.seen.tables["main"], inserted=inserted, sampled=sampled)
        return now._replace(seen=now.seen._replace(heard=heard, tables={"main": info}))

    latest, nothing = said(14.0, 30, 50), now._replace(seen=now.seen._replace(heard=10.0, tables={}))
    assert replay_figures.rates(said(10.0, 10, 40), latest, "main") == (5.0, 2.5)
    assert replay_figures.rates(said(10.0, 30, 60), latest, "main") == (0.0, 0.0)
    assert replay_figures.rates(said(10.0, 30, 40), latest, "main") == (0.0, 2.5)
    for earlier in (said(None, 10, 40), said(10.0, 31, 40), said(14.0, 10, 40), nothing):
        assert replay_figures.rates(earlier, latest, "main") == (0.0, 0.0)
    nothing = nothing._replace(seen=nothing.seen._replace(heard=14.0))
    assert replay_figures.rates(said(10.0, 10, 40), nothing, "main") == (0.0, 0.0)


def test_waits_and_the_line_of_the_log(name: str) -> None:
    """Who waits and for how long; the log leaves out waits of less than a second, and says what is known."""
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        now = replay_figures.read(name)
    info = {"size": 3, "inserted": 30, "sampled": 50}
    tables = {"main": replace(now.seen.tables["main"], **info)}
    waiting = Wait("writers", "no room", 10.0), Wait("the group of 2", "its turn", 13.5)
    latest = now._replace(
        seen=now.seen._replace(heard=14.0, waiting=waiting, tables=tables, steps=2_000, capacity=9_000)
    )
    long, short = (f"wait for {console.duration(4.0)}: no room", f"waits for {console.duration(0.5)}: its turn")
    assert list(replay_figures.waits(latest)) == [f"writers {long}", f"the group of 2 {short}"]
    assert list(replay_figures.waits(latest, 4.0)) == [f"writers {long}"]
    unheard = latest._replace(seen=latest.seen._replace(heard=None))
    assert [wait.split(":")[0][-3:] for wait in replay_figures.waits(unheard)] == ["0 s", "0 s"]
    tables = {"main": replace(tables["main"], inserted=10, sampled=40)}
    earlier = now._replace(seen=now.seen._replace(heard=10.0, tables=tables))
    begin = f"2,000 of 9,000 steps; table 'main': 3 items, {console.amount(5.0)}/s in, {console.amount(2.5)}/s out; "
    one = [(_owner(0, "producer"), "running")]
    for rings, who in (
        ({}, "0 learners"),
        ({"inbox": {"owners": one}}, "1 writer; 0 learners"),
        ({"inbox": {"owners": [], "remotes": 2}}, "0 writers and 2 remote; 0 learners"),
    ):
        said = replay_figures.line(earlier, _reading(latest, 0.0, **rings))
        assert said == f"{begin}{who}; writers {long}"


def test_the_age_of_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In items that came after them, and in time if items come; of a table that is not known, in items alone."""
    monkeypatch.setattr(replay_figures, "rates", lambda *_: (10.0, 0.0))
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        watch = replay_top.ReplayWatch(name)
        assert watch._age(BatchRing(0, 2), 600.0) == f"600 ({console.duration(60.0)})"
        assert watch._age(BatchRing(2, 2), 600.0) == "600"
        assert [watch._label(BatchRing(i, 3)).split()[0] for i in range(3)] == ["main", "\\[red]", "2"]
        assert watch._age(BatchRing(0, 2), float("nan")) == "-"
        monkeypatch.setattr(replay_figures, "rates", lambda *_: (0.0, 0.0))
        assert watch._age(BatchRing(0, 2), 600.0) == "600"
