"""``echo-shm ls``, ``top`` and ``gc``: what they say of replays, and what they remove of them."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.actors import Actor
from harness.programs import run
from harness.waiting import until

from echo_shm import Replay, SegmentError, SpecMismatchError, Table, TcpTransport
from echo_shm.cli import console, replay_figures, replay_top
from echo_shm.cli import main as cli
from echo_shm.replay import RemoteWriter, ReplayClient, ReplayHandle, SampleToInsertRatio
from echo_shm.replay.waits import Activity, Wait
from echo_shm.ring import lockfile
from echo_shm.ring.batch_names import BatchRing
from echo_shm.ring.metrics import Owner

SHM = Path("/dev/shm")
STEP = {"obs": np.zeros(4, np.float32), "act": np.zeros((), np.int64)}

#: It lets nobody insert more than 3 items before one is sampled.
TABLES = [Table("main", max_size=50, rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 6.0))), Table("[red]")]


def _keep(conn: Any, name: str | None) -> None:
    """Has a replay with a step; says its handle, and stays."""
    how: dict[str, Any] = {} if name is None else {"store": "shm", "name": name}
    replay = Replay(STEP, 100, TABLES, **how)
    handle = replay.handle
    replay.add(STEP)
    replay._rings._feed.publish()
    conn.send(handle)
    conn.recv()


@pytest.fixture
def keeper(act: Callable[..., Actor], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts processes that have a replay, with a store of that name or without one. The commands see only these."""
    known: set[str] = set()
    everything = lockfile.names
    monkeypatch.setattr(
        lockfile,
        "names",
        lambda files=lockfile.SEGMENT: [
            one for one in everything(files) if any(one in (name, f"{name}.inbox", f"{name}.updates") for name in known)
        ],
    )

    def start(name: str | None = None) -> tuple[Actor, ReplayHandle]:
        process = act(_keep, name)
        handle = process.hear()
        known.add(handle.name)
        return process, handle

    yield start
    for name in known:
        for file in SHM.glob(f"echo_shm*.{name}*"):
            file.unlink()


def _files(name: str) -> list[str]:
    return sorted(file.name for file in SHM.glob(f"echo_shm*.{name}*"))


def _run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command's status, and all that it printed."""
    status = cli.main([*words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_ls_shows_a_replay_with_its_parts(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay has lines for its tables and its rings, which are not listed as segments of their own; then limiters."""
    process, _ = keeper(name)
    status, out = _run("ls", capsys=capsys)
    header, replay, main, odd, inbox, updates, space, *limits = out.splitlines()
    assert status == 0
    assert header.split() == ["replay", "process", "size", "holds", "state"]
    assert replay.split()[:2] == [name, str(process.pid)]
    assert replay.split()[4:] == ["1", "of", "100", "steps", "in", "use"]
    assert main.split() == ["table", "main", "1", "of", "50", "items"]
    assert odd.split() == ["table", "[red]", "1", "of", "100", "items"]  # a name, not markup
    assert inbox.split()[:2] == ["ring", ".inbox"]
    assert updates.split()[:2] == ["ring", ".updates"]
    assert not space.strip()
    assert [line.split() for line in limits] == [
        ["limiter", "of", "parked", "min_size", "ratio", "diff", "between", "allows"],
        [name],
        ["main", "0", "1", "2", "2", "0..6", "insert", "and", "sample"],
        ["[red]", "0", "1", "1", "1", "any", "insert", "and", "sample"],
    ]


def test_ls_says_what_a_step_waits_for(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Items that are parked, what the limiter forbids, and why the replay takes no step; for scripts, too."""
    everything = lockfile.names
    monkeypatch.setattr(
        lockfile, "names", lambda files=lockfile.SEGMENT: [one for one in everything(files) if one.startswith(name)]
    )
    with Replay(STEP, 11, TABLES, store="shm", name=name) as replay:  # at most 2 items of a table are parked
        assert replay._rings._feed is not None
        with ReplayClient(replay.handle) as client, client.writer() as writer:
            for _ in range(6):
                writer.add(STEP)
            assert replay.num_steps == 5
            replay._rings._feed.publish()
            shown = _run("ls", capsys=capsys)[1].splitlines()
            (said,) = [one for one in json.loads(_run("ls", "--json", capsys=capsys)[1]) if one["kind"] == "replay"]
    assert ["main", "2", "1", "2", "6", "0..6", "sample"] in [line.split() for line in shown]
    assert shown[-1].startswith(f"{name}: it takes no steps: the limiter of table 'main'")
    assert said["waits"].startswith("the limiter of table 'main'")
    main = said["tables"]["main"]
    assert (main["parked"], main["limiter"]["can_insert"], main["limiter"]["diff"]) == (2, False, 6.0)


def test_ls_for_scripts(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The list for scripts has the replay with all figures of its tables, and the rings with the replay's name."""
    process, _ = keeper(name)
    inbox, updates, replay = json.loads(_run("ls", "--json", capsys=capsys)[1])
    assert [inbox["replay"], updates["replay"]] == [name, name]
    assert replay.pop("heard_seconds") >= 0
    tables = replay.pop("tables")
    assert replay == {
        "kind": "replay", "name": name, "state": "in use", "store": "shm", "pid": process.pid, "alive": True,
        "bytes": sum((SHM / f"echo_shm{file}").stat().st_size for file in
                     (f"_replay.{name}", f".{name}.inbox", f".{name}.updates")),
        "steps": 1, "capacity": 100, "waits": None, "fault": None,
    }  # fmt: skip
    assert (tables["main"]["size"], tables["main"]["limiter"]["max_diff"]) == (1, 6.0)
    assert tables["[red]"]["limiter"]["max_diff"] is None  # JSON has no infinity


def test_a_store_that_outlived_its_process(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is listed with what to do. gc keeps it, its rings and its board, and removes all of it by name."""
    process, _ = keeper(name)
    process.kill()
    files = _files(name)
    assert len(files) == 7
    out = _run("ls", capsys=capsys)[1]
    assert f"{process.pid} dead" in out
    assert "orphaned" in out
    assert f"Replay.attach({name!r})" in out
    assert f"`echo-shm gc {name}`" in out
    for words in (["gc"], ["gc", "--dry-run"]):
        status, out = _run(*words, capsys=capsys)
        assert (status, out[: 9 + len(name)], _files(name)) == (0, f"kept     {name}", files)
    assert _run("gc", f"{name}.inbox", capsys=capsys)[0] == 1
    assert _run("gc", name, "--dry-run", capsys=capsys)[1].startswith(f"garbage  {name}")
    assert _files(name) == files
    status, out = _run("gc", name, capsys=capsys)
    assert (status, out[: 9 + len(name)], _files(name)) == (0, f"removed  {name}", [])
    assert _run("gc", name, capsys=capsys) == (
        1, f"echo-shm: no segment and no replay is named {name!r}: `echo-shm ls` lists those that exist\n"
    )  # fmt: skip


def test_gc_refuses_a_living_replay(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By name or without, with a store or without: what a process has stays, and the message names the process."""
    for store in (name, None):
        process, handle = keeper(store)
        files = _files(handle.name)
        assert f"in use   {handle.name}" in _run("gc", capsys=capsys)[1]
        status, out = _run("gc", handle.name, capsys=capsys)
        assert (status, _files(handle.name)) == (1, files)
        assert out.startswith(f"echo-shm: replay {handle.name!r} is in use")
        assert store is None or f"process {process.pid} has it" in out
        process.kill()


def test_gc_refuses_this_process_s_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay of the process that runs gc is in use, and keeps its locks."""
    with Replay(STEP, 10, store="shm", name=name) as replay:
        assert _run("gc", name, capsys=capsys)[0] == 1
        with pytest.raises(SegmentError, match="is in use"):
            Replay.attach(name)
        with ReplayClient(replay.handle) as client:
            assert client.info().size == 0


def test_gc_removes_a_dead_replay_without_a_store(
    keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rings and its board are garbage; but not while a writer is attached to one of the rings."""
    process, handle = keeper()
    with ReplayClient(handle) as client:
        process.kill()
        files = _files(handle.name)
        assert _run("gc", capsys=capsys)[1].startswith(f"in use   {handle.name}")
        assert _files(handle.name) == files
        del client
    assert "garbage" in _run("ls", capsys=capsys)[1]
    assert _run("gc", capsys=capsys)[1].startswith(f"removed  {handle.name}")
    assert _files(handle.name) == []


def test_gc_removes_no_store_whose_clients_wait(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients wait for the next replay. While one is attached nothing is removed, and the next replay finds it all."""
    process, handle = keeper(name)
    with ReplayClient(handle) as client:  # of the second ring; the first one stays, too
        process.kill()
        files = _files(name)
        status, out = _run("gc", name, capsys=capsys)
        assert (status, _files(name)) == (1, files)
        assert f"`echo-shm top {name}.inbox` shows them" in out
        with Replay.attach(name) as replay, client.writer() as writer:
            writer.add(STEP, timeout=10)
            assert replay.num_steps == 2


def test_gc_removes_a_store_that_was_never_made(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A lock file alone holds no steps: its process died before it had made the store."""
    process, _ = keeper(name)
    process.kill()
    (SHM / f"echo_shm_replay.{name}").unlink()
    assert _run("gc", capsys=capsys)[1].startswith(f"removed  {name}")
    assert _files(name) == []


# --- top ----------------------------------------------------------------------


def _shown(watch: replay_top.ReplayWatch) -> str:
    terminal = console.open_console()
    with terminal.capture() as captured:
        terminal.print(watch.render(20))
    return captured.get()


def test_top_shows_ages_once_there_are_weights(name: str) -> None:
    """Those of the steps in the inbox, against the latest version of the replay's weights."""
    with Replay(STEP, 11, name=name) as replay, ReplayClient(replay.handle) as client, client.writer() as writer:
        watch = replay_top.ReplayWatch(name)
        assert watch.look()
        lines = watch.other_lines
        assert " version " not in _shown(watch)
        assert "mean age" not in _shown(watch)
        publisher = replay.publisher(np.zeros(3))
        for _ in range(4):
            publisher.publish(np.zeros(3))
        assert watch.look()
        assert ["version", "4", "age", "-", "oldest", "0"] in [line.split() for line in _shown(watch).splitlines()]
        for writer.version in (1, 3):
            writer.add(STEP)
        assert watch.look()
        assert ["version", "4", "age", "2.0", "oldest", "3"] in [line.split() for line in _shown(watch).splitlines()]
        assert watch.other_lines == lines + 2
        assert re.search(r"mean age +█ +at most 2.0 in", _shown(watch))


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
            out = _shown(watch)
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
    assert "and 1 more" in _shown(watch)


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
            return f"writer {process.pid} waits for" in " ".join(_shown(watch).split())

        until(is_named)
        assert "writers wait" not in _shown(watch)
        process.kill()


def test_top_shows_the_bridge(name: str) -> None:
    """A bridge is no writer; its clients are counted, and those that were refused."""
    with Replay(STEP, 11, TABLES, store="shm", name=name, transport=TcpTransport(0)) as replay:
        with pytest.raises(SpecMismatchError):
            RemoteWriter("127.0.0.1", replay.port, np.zeros(77))
        with RemoteWriter("127.0.0.1", replay.port, STEP):
            lines = [line.split() for line in _shown(replay_top.ReplayWatch(name)).splitlines()]
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
        rings = [line.split()[:2] for line in _run("ls", capsys=capsys)[1].splitlines() if ".batches" in line]
        assert rings == [["ring", f".0x{n}.batches"] for n in sizes]
        top = replay_top.ReplayWatch(name)
        batch = next(held)
        until(lambda: replay_figures.read(name).rings[".0x2.batches"].occupancy == 4, "the replay draws the next batch")
        assert top.look()
        shown = _shown(top)
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
    assert _files(name) == []


def test_top_of_a_dead_replay(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It says that the process is dead and the store stays; once the store is removed, top ends."""
    process, _ = keeper(name)
    watch = replay_top.ReplayWatch(name)
    process.kill()
    assert watch.look()
    assert f"process {process.pid} dead, its store stays: Replay.attach({name!r})" in _shown(watch)
    assert _run("gc", name, capsys=capsys)[0] == 0
    assert not watch.look()


def test_top_of_a_dead_replay_without_a_store(keeper: Callable[..., Any]) -> None:
    """Nothing is left of its steps."""
    process, handle = keeper()
    watch = replay_top.ReplayWatch(handle.name)
    process.kill()
    assert watch.look()
    shown = " ".join(_shown(watch).split())
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
            assert (f"figures of {console.duration(later)} ago" in _shown(watch)) is old
            assert "it has said nothing yet" not in _shown(watch)
        assert re.search(r"and -?\d+ more", _shown(watch)) is None
        terminal = console.open_console()
        with terminal.capture() as captured:
            terminal.print(watch.render(3))
        assert "and 1 more" in captured.get()
        used = {**watch._latest.seen.activity, "main": Activity(heard - 60.0, None)}
        for said, ago in ((heard, console.duration(60.0)), (None, console.duration(0.0))):
            watch._latest = watch._latest._replace(seen=watch._latest.seen._replace(heard=said, activity=used))
            lines = [" ".join(line.split()) for line in _shown(watch).splitlines()]
            assert [line for line in lines if line.startswith("main") and line.endswith(f" {ago} ago - 0 -")]
        assert "it has said nothing yet" in _shown(watch)


def test_top_of_figures_that_are_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a board does not say is shown as such, and so is what is wrong with a store."""
    with Replay(STEP, 11, TABLES, store="shm", name=name):
        watch = replay_top.ReplayWatch(name)
        seen = watch._latest.seen._replace(fault="its [records] are damaged", tables={}, steps=None)
        watch._latest = watch._latest._replace(seen=seen)
        shown = _shown(watch)
    assert "its [records] are damaged" in shown
    assert "- of 11 steps" in shown
    assert ["none"] in [line.split() for line in shown.splitlines()]
    for what, said in (
        ({"directory": "/[x]"}, "files in /[x], B in all process P dead, its files stay: Replay.attach('/[x]')"),
        ({"has_store": False, "attached": True}, "its own memory, B in all process P dead"),
    ):
        watch._latest = watch._latest._replace(seen=seen._replace(alive=False, heard=0.0, **what))
        shown = re.sub(r"[\d.]+ MB in all", "B in all", _shown(watch)).replace(f"{os.getpid()} dead", "P dead")
        assert f"replay in {said}, figures of " in " ".join(shown.split())


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
        lines = [line.split() for line in _shown(watch).splitlines()]
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
    lines = [line.split() for line in _shown(watch).splitlines()]
    assert ["batches", "drawn", "ahead", "batches/s", "age", "learners", "held", "held", "for"] in lines
    assert ["writer", "steps/s", "steps", "blocked", "state"] in lines
    assert not [line for line in lines if line[-1:] == ["more"]]
    assert "; 3 writers and 3 remote; 3 learners" in replay_figures.line(watch._earlier, watch._latest)
    watch._latest = _reading(watch._latest, 11.0, inbox={"owners": owners[6:]}, updates={})
    lines = [line.split() for line in _shown(watch).splitlines()]
    assert ["writers", "0", "waiting", "0", "stopped", "0", "dead", "0", "clients", "0"] in lines
    assert not [line for line in lines if line[:1] == ["bridges"]], "none lives"
    idle = {"inbox": {"owners": owners[5:]}, "0x2_batches": {"owners": learners[4:]}}
    watch._latest = _reading(watch._latest, 11.5, **idle)
    lines = [line.split() for line in _shown(watch).splitlines()]
    assert ["bridges", "1", "remote", "0", "refused", "0"] in lines
    assert ["main", "\N{MULTIPLICATION SIGN}", "2", "0", "of", "4", "0.0", "-", "1", "0", "-"] in lines
    watch._latest = _reading(watch._latest, 12.0)  # its rings are gone
    shown = _shown(watch)
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


def test_top_without_a_name_finds_the_only_replay(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay's rings do not count as rings of their own, and a dead replay is not in use."""
    process, _ = keeper(name)
    assert _run("top", "--once", "--interval", "0.01", capsys=capsys)[1].startswith(f"{name}  replay in a store of")
    process.kill()
    assert "no ring and no replay is in use" in _run("top", capsys=capsys)[1]
