"""``echo-shm top``: what it says of replays."""

import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.actors import Actor
from harness.programs import run
from harness.waiting import until

from echo_shm import Replay, SpecMismatchError, Table, TcpTransport
from echo_shm.cli import console, replay_figures, replay_top
from echo_shm.replay import HotCold, RemoteWriter, ReplayClient
from echo_shm.replay.waits import Activity
from echo_shm.ring import lockfile

from .kept import STEP, TABLES, files_of, run_cli, screen_of


def test_top_shows_ages_once_there_are_weights(name: str) -> None:
    """Those of the steps in the inbox, against the latest version of the replay's weights."""
    with Replay(STEP, 11, name=name) as replay, ReplayClient(replay.handle) as client, client.writer() as writer:
        watch = replay_top.ReplayWatch(name)
        assert watch.look()
        lines = watch.other_lines
        assert " version " not in screen_of(watch)
        assert "mean age" not in screen_of(watch)
        publisher = replay.publisher(np.zeros(3))
        for _ in range(4):
            publisher.publish(np.zeros(3))
        assert watch.look()
        assert ["version", "4", "age", "-", "oldest", "0"] in [line.split() for line in screen_of(watch).splitlines()]
        for writer.version in (1, 3):
            writer.add(STEP)
        assert watch.look()
        assert ["version", "4", "age", "2.0", "oldest", "3"] in [line.split() for line in screen_of(watch).splitlines()]
        assert watch.other_lines == lines + 2
        assert re.search(r"mean age +█ +at most 2.0 in", screen_of(watch))


def test_top_shows_tables_limiters_and_writers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, rates between two looks, where each limiter stands, who is attached, and what they wait for."""
    with Replay(STEP, 11, TABLES, store="shm", name=name) as replay:  # at most 2 items of a table are parked
        feed = replay._rings._feed
        assert feed is not None
        client = ReplayClient(replay.handle)
        with client, client.writer() as writer:
            feed.publish()
            watch = replay_top.ReplayWatch(name)
            for _ in range(6):
                writer.add(STEP)
            assert replay.num_steps == 5
            replay.sample(1, "main")
            feed.publish()
            assert watch.look()
            out = screen_of(watch)
    lines = [line.split() for line in out.splitlines()]
    span = watch._latest.seen.heard - watch._earlier.seen.heard
    assert f"process {os.getpid()}" in out
    assert "5 of 11 steps" in out
    assert "1 of 1,024 slots" in out  # the sixth step
    (main,) = [line for line in lines if line[:2] == ["main", "3"]]
    assert main[1:3] == ["3", "50"]
    assert main[3] == console.amount(3 / span)
    assert main[4] == console.amount(1 / span)
    assert main[5:7] == ["0", "2"]
    assert ["main", "1", "2", "5", "0..6", "sample"] in lines
    assert ["[red]", "1", "1", "5", "any", "insert", "and", "sample"] in lines
    (used,) = [line for line in lines if line[:1] == ["main"] and "ago" in line]
    assert used[3:] == ["0", "s", "ago", "0", "s", "ago", "0", "0.33"]
    (unused,) = [line for line in lines if line[:1] == ["[red]"] and "ago" in line]
    assert unused[3:] == ["0", "s", "ago", "-", "0", "0.00"]
    (each,) = [line for line in lines if line[:2] == ["process", str(os.getpid())] and len(line) > 2]
    assert each[3:] == ["6", "0", "%", "running"]
    assert ["writers", "1", "waiting", "0", "stopped", "0", "dead", "0", "clients", "1"] in lines
    assert "writers wait for 0 s: the limiter of table 'main'" in out
    assert "2 parked items of table 'main' wait for 0 s: the limiter of table 'main'" in out
    assert not [line for line in lines if line[:1] in (["bridges"], ["none"])]
    assert watch.other_lines == 14 + (3 + 1) + (2 + 1) + 4 * 2  # three figures over time, a writer, and two waits
    assert re.search(r"inserted/s +█ +at most [\d.,k M]+ in ", out)
    assert re.search(r"sampled/s +█ ", out)
    assert re.search(r"steps +▅ +at most 5.0 in", out)  # of 11
    monkeypatch.setattr(replay_top, "_MOST_WRITERS", 0)
    assert "and 1 more" in screen_of(watch)


def test_top_shows_hot_and_cold_parts(name: str) -> None:
    """Of each table that has them; others have no such line."""
    tables = [Table("plain"), Table("plans", HotCold(hot_size=50, age=1, temperature=0.25), max_size=100)]
    with Replay(STEP, 111, tables, name=name) as replay:
        for i in range(5):
            replay.add(STEP, 1.0)
            if i < 3:
                replay.learned("plans")
        feed = replay._rings._feed
        assert feed is not None
        feed.publish()
        watch = replay_top.ReplayWatch(name)
        out = screen_of(watch)
        parts = replay.info("plans").hot_cold
        assert parts is not None
        hot, cold, moved = parts.hot.size, parts.cold.size, parts.moved
        assert (hot, cold, moved) == (3, 2, 2)
    lines = [line.split() for line in out.splitlines()]
    part = "temperature", "effective"
    at = lines.index(["parts", "of", "hot", *part, "cold", *part, "moved", "aged"])
    assert lines[at + 1] == ["plans", "3", "0.25", "3", "2", "0.25", "2", "2", "0"]
    assert not [line for line in lines[at + 2 :] if line[:1] == ["plain"]]
    assert watch.other_lines == 14 + 2


def _send_too_much(conn: Any, name: str) -> None:
    """Adds steps until the inbox is full, and then waits."""
    with ReplayClient(name) as client, client.writer() as writer:
        conn.send("ready")
        with contextlib.suppress(TimeoutError):
            while True:
                writer.add(STEP)


def test_top_names_the_writers_that_wait(name: str, act: Callable[..., Actor]) -> None:
    """A writer that waits for a second is named by its process, with what the replay says that it waits for."""
    with Replay(STEP, 11, TABLES, store="shm", name=name) as replay:
        process = act(_send_too_much, name)
        assert process.hear() == "ready"
        feed = replay._rings._feed
        assert feed is not None
        watch = replay_top.ReplayWatch(name)

        def is_named() -> bool:
            assert replay.num_steps <= 11  # it takes what fits
            feed.publish()
            assert watch.look()
            return f"writer {process.pid} waits for" in " ".join(screen_of(watch).split())

        until(is_named)
        assert "writers wait" not in screen_of(watch)
        process.kill()


def test_top_shows_the_bridge(name: str) -> None:
    """A bridge is no writer; its clients are counted, and those that were refused."""
    with Replay(STEP, 11, TABLES, store="shm", name=name, transport=TcpTransport(0)) as replay:
        with pytest.raises(SpecMismatchError):
            RemoteWriter("127.0.0.1", replay.port, np.zeros(77))
        with RemoteWriter("127.0.0.1", replay.port, STEP):
            lines = [line.split() for line in screen_of(replay_top.ReplayWatch(name)).splitlines()]
    assert ["bridges", "1", "remote", "1", "refused", "1"] in lines
    assert ["writers", "0", "waiting", "0", "stopped", "0", "dead", "0", "clients", "0"] in lines


def _draw(conn: Any, name: str) -> None:
    """An actor: a replay that draws batches for others."""
    replay = Replay(STEP, 100, store="shm", name=name, thread=True)
    replay.add(STEP)
    conn.send(None)
    conn.recv()


def _learn(conn: Any, name: str) -> None:
    """An actor: a learner that has taken a batch."""
    with ReplayClient(name) as client:
        batches = client.dataset_iter(2)
        next(batches)
        conn.send(None)
        conn.recv()


def test_rings_of_batches(
    name: str, act: Callable[..., Actor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are parts of their replay: in ls, in top, and when gc removes a dead one."""
    everything = lockfile.names
    monkeypatch.setattr(
        lockfile, "names", lambda files=lockfile.SEGMENT: [one for one in everything(files) if one.startswith(name)]
    )
    process, sizes = act(_draw, name), range(1, 10)
    process.hear()
    with ReplayClient(name) as client:
        for n in sizes:
            next(client.dataset_iter(n, prefetch=1, timeout=10))
        held = client.dataset_iter(2)
        assert next(held).key.shape == (2,)
        learner = act(_learn, name)
        learner.hear()
        rings = [line.split()[:2] for line in run_cli("ls", capsys=capsys)[1].splitlines() if ".batches" in line]
        assert rings == [["ring", f".0x{n}.batches"] for n in sizes]
        top = replay_top.ReplayWatch(name)
        batch = next(held)
        until(lambda: replay_figures.read(name).rings[".0x2.batches"].occupancy == 4, "the replay draws the next batch")
        assert top.look()
        shown = screen_of(top)
        assert top.other_lines == 14 + (3 + 1) + 2 + 8 + 1
        del batch
        process.kill()
        learner.kill()
        # Nobody has reaped the dead one.
        until(lambda: top.look() and top._latest.rings[".0x2.batches"].alive("learner") == 1)
        held.close()
    lines = [line.split() for line in shown.splitlines()]
    times = "\N{MULTIPLICATION SIGN}"
    (mine,) = [line for line in lines if line[:3] == ["default", times, "2"]]
    assert mine[3:6] == ["4", "of", "4"]
    assert float(mine[6]) > 0
    assert mine[7:10] == ["0", "2", "1"]  # age, learners, held
    (other,) = [line for line in lines if line[:3] == ["default", times, "8"]]
    assert other[6:] == ["0.0", "0", "0", "0", "-"]
    assert ["and", "1", "more"] in lines
    assert run(sys.executable, "-m", "echo_shm", "gc", name).returncode == 0
    assert files_of(name) == []


def test_top_of_a_dead_replay(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It says that the process is dead and the store stays; once the store is removed, top ends."""
    process, _ = keeper(name)
    watch = replay_top.ReplayWatch(name)
    process.kill()
    assert watch.look()
    assert f"process {process.pid} dead, its store stays: Replay.attach({name!r})" in screen_of(watch)
    assert run_cli("gc", name, capsys=capsys)[0] == 0
    assert not watch.look()


def test_top_of_a_dead_replay_without_a_store(keeper: Callable[..., Any]) -> None:
    """Nothing is left of its steps."""
    process, handle = keeper()
    watch = replay_top.ReplayWatch(handle.name)
    process.kill()
    assert watch.look()
    shown = " ".join(screen_of(watch).split())
    assert "dead, nobody is attached: `echo-shm gc` removes it" in shown
    assert "its store stays" not in shown


def test_top_says_how_old_its_figures_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are of just now; and how many tables there is no room for."""
    with Replay(STEP, 11, TABLES, store="shm", name=name) as replay:
        assert replay._rings._feed is not None
        replay._rings._feed.publish()
        watch = replay_top.ReplayWatch(name)
        heard = watch._latest.seen.heard
        assert heard is not None
        for later, old in ((1.0, False), (60.0, True)):
            monkeypatch.setattr(replay_top.time, "time", lambda now=heard + later: now)
            assert (f"figures of {console.duration(later)} ago" in screen_of(watch)) is old
            assert "it has said nothing yet" not in screen_of(watch)
        assert re.search(r"and -?\d+ more", screen_of(watch)) is None
        terminal = console.open_console()
        with terminal.capture() as captured:
            terminal.print(watch.render(3))
        assert "and 1 more" in captured.get()
        used = {**watch._latest.seen.activity, "main": Activity(heard - 60.0, None)}
        for said, ago in ((heard, console.duration(60.0)), (None, console.duration(0.0))):
            watch._latest = watch._latest._replace(seen=watch._latest.seen._replace(heard=said, activity=used))
            lines = [" ".join(line.split()) for line in screen_of(watch).splitlines()]
            assert [line for line in lines if line.startswith("main") and line.endswith(f" {ago} ago - 0 -")]
        assert "it has said nothing yet" in screen_of(watch)


def test_top_of_figures_that_are_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a board does not say is shown as such, and so is what is wrong with a store."""
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        watch = replay_top.ReplayWatch(name)
        seen = watch._latest.seen._replace(fault="its [records] are damaged", tables={}, steps=None)
        watch._latest = watch._latest._replace(seen=seen)
        shown = screen_of(watch)
    assert "its [records] are damaged" in shown
    assert "- of 11 steps" in shown
    assert ["none"] in [line.split() for line in shown.splitlines()]
    for what, said in (
        ({"directory": "/[x]"}, "files in /[x], B in all process P dead, its files stay: Replay.attach('/[x]')"),
        ({"has_store": False, "attached": True}, "its own memory, B in all process P dead"),
    ):
        watch._latest = watch._latest._replace(seen=seen._replace(alive=False, heard=0.0, **what))
        shown = re.sub(r"[\d.]+ MB in all", "B in all", screen_of(watch)).replace(f"{os.getpid()} dead", "P dead")
        assert f"replay in {said}, figures of " in " ".join(shown.split())


def test_top_without_a_name_finds_the_only_replay(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay's rings do not count as rings of their own, and a dead replay is not in use."""
    process, _ = keeper(name)
    assert run_cli("top", "--once", "--interval", "0.01", capsys=capsys)[1].startswith(f"{name}  replay in a store of")
    process.kill()
    assert "no ring and no replay is in use" in run_cli("top", capsys=capsys)[1]
