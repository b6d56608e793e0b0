"""``echo-shm ls`` and ``gc``: what they say of replays, and what they remove of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from echo_shm import Replay, SegmentError
from echo_shm.replay import HotCold, ReplayClient, Table
from echo_shm.ring import lockfile

from .kept import SHM, STEP, TABLES, files_of, run_cli


def test_ls_shows_a_replay_with_its_parts(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay has lines for its tables and its rings, which are not listed as segments of their own; then limiters."""
    process, _ = keeper(name)
    status, out = run_cli("ls", capsys=capsys)
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


def test_ls_for_scripts_has_both_parts_of_a_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hot and cold, each with its figures."""
    with Replay(STEP, 10, [Table("t", HotCold(hot_size=5, age=3))], store="shm", name=name) as replay:
        replay.add(STEP)
        replay._rings._feed.publish()
        (said,) = [one for one in json.loads(run_cli("ls", "--json", capsys=capsys)[1]) if one["name"] == name]
    assert (said["tables"]["t"]["hot_cold"]["hot"]["size"], said["tables"]["t"]["hot_cold"]["cold"]["size"]) == (1, 0)


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
            shown = run_cli("ls", capsys=capsys)[1].splitlines()
            (said,) = [one for one in json.loads(run_cli("ls", "--json", capsys=capsys)[1]) if one["kind"] == "replay"]
    assert ["main", "2", "1", "2", "6", "0..6", "sample"] in [line.split() for line in shown]
    assert shown[-1].startswith(f"{name}: it takes no steps: the limiter of table 'main'")
    assert said["waits"].startswith("the limiter of table 'main'")
    main = said["tables"]["main"]
    assert (main["parked"], main["limiter"]["can_insert"], main["limiter"]["diff"]) == (2, False, 6.0)


def test_ls_for_scripts(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The list for scripts has the replay with all figures of its tables, and the rings with the replay's name."""
    process, _ = keeper(name)
    inbox, updates, replay = json.loads(run_cli("ls", "--json", capsys=capsys)[1])
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
    files = files_of(name)
    assert len(files) == 7
    out = run_cli("ls", capsys=capsys)[1]
    assert f"{process.pid} dead" in out
    assert "orphaned" in out
    assert f"Replay.attach({name!r})" in out
    assert f"`echo-shm gc {name}`" in out
    for words in (["gc"], ["gc", "--dry-run"]):
        status, out = run_cli(*words, capsys=capsys)
        assert (status, out[: 9 + len(name)], files_of(name)) == (0, f"kept     {name}", files)
    assert run_cli("gc", f"{name}.inbox", capsys=capsys)[0] == 1
    assert run_cli("gc", name, "--dry-run", capsys=capsys)[1].startswith(f"garbage  {name}")
    assert files_of(name) == files
    status, out = run_cli("gc", name, capsys=capsys)
    assert (status, out[: 9 + len(name)], files_of(name)) == (0, f"removed  {name}", [])
    assert run_cli("gc", name, capsys=capsys) == (
        1, f"echo-shm: no segment and no replay is named {name!r}: `echo-shm ls` lists those that exist\n"
    )  # fmt: skip


def test_gc_refuses_a_living_replay(name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By name or without, with a store or without: what a process has stays, and the message names the process."""
    for store in (name, None):
        process, handle = keeper(store)
        files = files_of(handle.name)
        assert f"in use   {handle.name}" in run_cli("gc", capsys=capsys)[1]
        status, out = run_cli("gc", handle.name, capsys=capsys)
        assert (status, files_of(handle.name)) == (1, files)
        assert out.startswith(f"echo-shm: replay {handle.name!r} is in use")
        assert store is None or f"process {process.pid} has it" in out
        process.kill()


def test_gc_refuses_this_process_s_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay of the process that runs gc is in use, and keeps its locks."""
    with Replay(STEP, 10, store="shm", name=name) as replay:
        assert run_cli("gc", name, capsys=capsys)[0] == 1
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
        files = files_of(handle.name)
        assert run_cli("gc", capsys=capsys)[1].startswith(f"in use   {handle.name}")
        assert files_of(handle.name) == files
        del client
    assert "garbage" in run_cli("ls", capsys=capsys)[1]
    assert run_cli("gc", capsys=capsys)[1].startswith(f"removed  {handle.name}")
    assert files_of(handle.name) == []


def test_gc_removes_no_store_whose_clients_wait(
    name: str, keeper: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients wait for the next replay. While one is attached nothing is removed, and the next replay finds it all."""
    process, handle = keeper(name)
    with ReplayClient(handle) as client:  # of the second ring; the first one stays, too
        process.kill()
        files = files_of(name)
        status, out = run_cli("gc", name, capsys=capsys)
        assert (status, files_of(name)) == (1, files)
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
    assert run_cli("gc", capsys=capsys)[1].startswith(f"removed  {name}")
    assert files_of(name) == []


# --- top ----------------------------------------------------------------------
