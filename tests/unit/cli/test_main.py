"""``echo-shm ls``, ``top`` and ``gc``: what they say of segments. Looking changes nothing."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.actors import Actor
from harness.programs import run_python

from echo_shm import SegmentError, Server, ShmClient
from echo_shm.cli import ls, top
from echo_shm.cli import main as cli
from echo_shm.ring import lockfile

SHM = Path("/dev/shm")
EXAMPLE = {"obs": np.zeros(4, np.float32), "step": np.zeros((), np.int64)}


def _create(conn: Any, name: str) -> None:
    """Creates a segment with a producer that has sent 3 samples; says so, and waits."""
    server = Server(EXAMPLE, 8, num_buffers=4, name=name)
    client = ShmClient(server.handle)
    for step in range(3):
        client.send({"obs": np.zeros(4, np.float32), "step": step})
    conn.send("ready")
    conn.recv()


@pytest.fixture
def creator(act: Callable[..., Actor]) -> Callable[[str], Actor]:
    """Starts processes that create a segment and stay."""

    def start(name: str) -> Actor:
        process = act(_create, name)
        assert process.hear() == "ready"
        return process

    return start


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Restricts the commands to some names: other programs of this machine may have segments, too."""
    everything = lockfile.names

    def restrict(*names: str) -> None:
        monkeypatch.setattr(
            lockfile, "names", lambda files=lockfile.SEGMENT: [name for name in everything(files) if name in names]
        )

    return restrict


def _listed(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["ls", "--json"]) == 0
    (found,) = [one for one in json.loads(capsys.readouterr().out) if one["name"] == name]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls", [*ls.STYLES]),
        (
            "top",
            [*top._STYLES, "here", "gone", "bridge", "worker", "producer", "creator", "learner", "lines", "learners"],
        ),
        ("gc", ["removed", "garbage", "in use", "kept"]),
    ],
)
def test_help_explains_what_is_printed(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command has each state that the command prints, within 120 columns."""
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    help_text = capsys.readouterr().out
    assert all(re.search(rf"(^  |  ){word}\b", help_text, re.MULTILINE) for word in words)
    assert max(map(len, help_text.splitlines())) <= 120


# --- ls -----------------------------------------------------------------------


def test_ls_says_that_there_is_nothing(only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """Without segments the table is one line, and the list for scripts is empty."""
    only()
    assert cli.main(["ls"]) == 0
    assert capsys.readouterr().out == "no segments\n"
    assert cli.main(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_ls_shows_a_segment_in_use(name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of a live segment is there, in the table and for scripts."""
    with Server(EXAMPLE, 8, num_buffers=4, name=name) as server, ShmClient(server.handle) as client:
        for step in range(3):
            client.send({"obs": np.zeros(4, np.float32), "step": step})
        only(name)
        found = _listed(name, capsys)
        assert found.pop("age_seconds") >= 0
        assert 0 <= found.pop("huge_bytes") <= found["bytes"]
        assert found == {
            "name": name, "state": "in use", "creator_pid": os.getpid(), "creator_alive": True,
            "bytes": (SHM / f"echo_shm.{name}").stat().st_size, "batch_size": 8, "num_buffers": 4,
            "producers": 1, "learners": 1, "occupancy": 3, "capacity": 32, "fault": None,
            "kind": "segment", "replay": None,
        }  # fmt: skip
        assert cli.main(["ls"]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.split() == ["name", "creator", "size", "huge", "ring", "prod", "learn", "full", "age", "state"]
        assert row.startswith(name)
        assert "8x4" in row
        assert "9 %" in row
        assert row.rstrip().endswith("in use")


def test_ls_shows_weights(name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """They have a table of their own, with the latest version and who reads it. top leaves them out."""
    params = {"w": np.zeros(100)}
    with Server(EXAMPLE, 8, num_buffers=4, name=name) as server, ShmClient(server.handle) as client:
        publisher = server.publisher(params, max_leases=3)
        with client.subscriber() as subscriber:
            publisher.publish(params)
            publisher.publish(params)
            only(name, publisher.name)
            with subscriber.lease():
                found = _listed(publisher.name, capsys)
                assert cli.main(["ls"]) == 0
            shown = capsys.readouterr().out.splitlines()
            assert (found["kind"], found["version"], found["leases"], found["max_leases"]) == ("weights", 2, 1, 3)
            assert shown[0].split()[0] == "name"
            assert shown[1].startswith(name)
            assert shown[3].split() == ["weights", "publisher", "size", "version", "read", "leases", "age", "state"]
            assert shown[4].startswith(f"{publisher.name} ")
            assert re.search(rf" {os.getpid()} +\d+ KB +2 +1 +1 of 3 .* in use", shown[4])
            assert ls.in_use() == ([name], [], [])
            with pytest.raises(SegmentError, match="holds weights: `echo-shm ls` shows them"):
                top.Watch(publisher.name)


def test_ls_tells_garbage_from_an_orphan(
    name: str,
    only: Callable[..., None],
    creator: Callable[[str], Actor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A killed creator's segment is an orphan while somebody is attached, and garbage after."""
    only(name)
    process = creator(name)
    assert _listed(name, capsys)["state"] == "in use"
    learner = Server.attach(name)
    process.kill()
    found = _listed(name, capsys)
    assert (found["state"], found["creator_alive"], found["creator_pid"]) == ("orphaned", False, process.pid)
    assert (found["producers"], found["learners"]) == (0, 1)
    learner.close()
    del learner
    assert _listed(name, capsys)["state"] == "garbage"


def test_the_tools_for_scripts_need_no_extra(
    name: str, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``ls --json`` and ``gc`` work without rich."""
    for module in ("rich", "rich.console", "rich.table"):
        monkeypatch.setitem(sys.modules, module, None)
    with Server(EXAMPLE, 8, name=name):
        only(name)
        assert _listed(name, capsys)["state"] == "in use"
        assert cli.main(["gc"]) == 0


@pytest.mark.parametrize("files", [["echo_shm."], ["echo_shm_locks."], ["echo_shm.", "echo_shm_locks."]], ids="+".join)
@pytest.mark.parametrize("content", [b"", b"x" * 5000], ids=["empty", "foreign"])
def test_ls_survives_what_is_no_segment(
    files: list[str], content: bytes, name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Half-made and foreign files are listed with their fault."""
    for prefix in files:
        (SHM / (prefix + name)).write_bytes(content if prefix == "echo_shm." else b"")
    only(name)
    found = _listed(name, capsys)
    assert found["state"] == ("garbage" if "echo_shm_locks." in files else "unreadable")
    assert name in found["fault"]
    assert cli.main(["ls"]) == 0
    assert f"\n{name}: " in capsys.readouterr().out


# --- gc -----------------------------------------------------------------------


def test_gc_removes_a_killed_creators_segment(
    name: str,
    only: Callable[..., None],
    creator: Callable[[str], Actor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A live segment is kept; once its creator is killed a dry run names it, and gc removes both its files."""
    only(name)
    process = creator(name)
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out.startswith(f"in use   {name}")
    assert (SHM / f"echo_shm.{name}").exists()
    process.kill()
    assert cli.main(["gc", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"garbage  {name} (")
    assert (SHM / f"echo_shm.{name}").exists()
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out.startswith(f"removed  {name} (")
    assert not list(SHM.glob(f"echo_shm*{name}"))
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out == "no segments\n"


def test_gc_keeps_our_own(name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """A segment of the process that runs gc is in use, and stays usable."""
    with Server(EXAMPLE, 1, name=name) as server:
        only(name)
        assert cli.main(["gc"]) == 0
        assert capsys.readouterr().out.startswith(f"in use   {name}")
        server.submit(EXAMPLE)
        assert server.sample(timeout=10) is not None


@pytest.mark.parametrize("files", [["echo_shm_locks."], ["echo_shm.", "echo_shm_locks."]], ids="+".join)
def test_gc_removes_the_half_made(
    files: list[str], name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of a creator that was killed while it made its segment are garbage."""
    for prefix in files:
        (SHM / (prefix + name)).touch()
    only(name)
    assert cli.main(["gc"]) == 0
    assert capsys.readouterr().out == f"removed  {name}\n"
    assert not list(SHM.glob(f"echo_shm*{name}"))


def test_gc_keeps_what_nobody_can_vouch_for(
    name: str, only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A segment without its lock file is kept, with the reason: which processes use it is unknown."""
    (SHM / f"echo_shm.{name}").touch()
    only(name)
    assert cli.main(["gc"]) == 0
    assert "kept" in (out := capsys.readouterr().out)
    assert "no lock file" in out
    assert (SHM / f"echo_shm.{name}").exists()


# --- top ----------------------------------------------------------------------


def test_looking_changes_nothing(name: str, only: Callable[..., None], creator: Callable[[str], Actor]) -> None:
    """Neither ls nor top writes to a segment, and neither holds a lock that would make its garbage look used."""
    only(name)
    process = creator(name)
    os.kill(process.pid, signal.SIGSTOP)
    before = (SHM / f"echo_shm.{name}").read_bytes()
    watch = top.Watch(name)
    assert cli.main(["ls"]) == 0
    assert watch.look()
    assert (SHM / f"echo_shm.{name}").read_bytes() == before
    process.kill()
    assert watch.look()
    assert lockfile.collect(name)
    assert not watch.look()


def test_looking_keeps_the_locks_of_this_process(name: str) -> None:
    """A process that looks at its own segment keeps its locks: gc in another process finds it in use."""
    with Server(EXAMPLE, 8, name=name):
        top.Watch(name).look()
        ls.describe(name)
        script = "import sys; from echo_shm.ring import lockfile; print(lockfile.collect(sys.argv[1]))"
        assert run_python(script, name).stdout == "False\n"
