"""``echo-shm record``: what a trace has of a ring's processes."""

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.boards import rollouts_board
from harness.programs import ECHO_SHM, Program
from harness.waiting import until

from echo_shm import Replay, Server, ShmClient
from echo_shm.cli import main as cli
from echo_shm.cli.record import Recording
from echo_shm.cli.trace_events import Trace
from echo_shm.replay import ReplayClient

SHM = Path("/dev/shm")
EXAMPLE = np.zeros(2, np.float32)
HERE = os.getpid()


def _slices(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


def _names(events: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {e["pid" if what == "process_name" else "tid"]: e["args"]["name"] for e in events if e["name"] == what}


def test_what_is_seen_between_two_looks(name: str, background: Callable[..., Any]) -> None:
    """Leases, claims and waits have slices with their process, from the look that saw them to the one that did not."""
    with Server(EXAMPLE, 2, num_buffers=2, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        for _ in range(3):
            client.send(EXAMPLE)
        with server.lease(timeout=10), client.reserve() as slot:
            slot[...] = EXAMPLE
            recording.look()
            time.sleep(0.01)
        recording.look()
        with server.lease(timeout=10):
            for _ in range(2):
                client.send(EXAMPLE)
            blocked = background(client.send, EXAMPLE)
            until(lambda: (recording.look(), recording._recorders[0]._waits)[1])
        blocked.result()
        recording.look()
        said = recording.finish(1e-4)
        events = recording.trace.events
    (first,) = _slices(events, "batch 0")
    (claim,) = _slices(events, "claims")
    (wait,) = _slices(events, "waits for space")
    assert _slices(events, "batch 1")
    assert {event["pid"] for event in (first, claim, wait)} == {HERE}
    assert min(first["dur"], claim["dur"]) >= 10_000, "microseconds"
    assert first["ts"] < claim["ts"] + claim["dur"] < wait["ts"]
    assert claim["args"] == {"slots": 1}
    assert _names(events, "process_name")[HERE] == f"creator, producer {HERE}"
    lines = _names(events, "thread_name")
    assert [lines[e["tid"]] for e in (first, claim, wait)] == [
        f"{what} ({name})" for what in ("batches 1", "claims", "waits")
    ]
    (ring,) = said["rings"]
    assert (ring["batches_taken"], ring["batches_seen"], ring["batches_missed"]) == (2, 2, 0)
    assert ring["samples"] == 7


def test_a_short_lease_has_an_instant(name: str) -> None:
    """Of a batch that was taken and released between two looks, the time is known at which it was taken."""
    with Server(EXAMPLE, 1, num_buffers=3, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        recording.look()
        for _ in range(2):
            client.send(EXAMPLE)
            began = time.monotonic_ns()
            with server.lease(timeout=10):
                pass
        recording.look()
        said = recording.finish(1e-4)
        events = recording.trace.events
    found = [event for event in events if event["ph"] == "i"]
    assert [(event["name"], event["pid"]) for event in found] == [("batch 0", HERE), ("batch 1", HERE)]
    assert found[0]["ts"] < (began - recording.trace.start_ns) / 1000 <= found[1]["ts"]
    (ring,) = said["rings"]
    assert (ring["batches_seen"], ring["batches_seen_after"], ring["batches_missed"]) == (0, 2, 0)


def test_what_is_missed_is_counted(name: str) -> None:
    """Of several laps between two looks only the last is known, and the metadata say so."""
    with Server(EXAMPLE, 1, num_buffers=1, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        recording.look()
        for _ in range(3):
            client.send(EXAMPLE)
            assert server.sample(timeout=10) is not None
        time.sleep(0.02)
        recording.look()
        said = recording.finish(1e-4)
    assert (said["rings"][0]["batches_taken"], said["rings"][0]["batches_missed"]) == (3, 2)
    assert (said["looks"], said["interval_us"]["longest"] >= 20_000) == (2, True)
    assert len(_slices(recording.trace.events, "nothing was seen")) == 1


def test_two_batches_at_once_have_a_line_each(name: str) -> None:
    """Slices of one line never overlap: the second batch is on another line, and the third on the first again."""
    with Server(EXAMPLE, 1, num_buffers=4, name=name) as server, ShmClient(name) as client:
        for _ in range(3):
            client.send(EXAMPLE)
        recording = Recording(name)
        first = contextlib.ExitStack()
        first.enter_context(server.lease(timeout=10))
        recording.look()
        with server.lease(timeout=10):
            recording.look()
            first.close()
            recording.look()
            with server.lease(timeout=10):
                recording.look()
            recording.look()
        recording.finish(1e-4)
        events = recording.trace.events
    lines = _names(events, "thread_name")
    found = [lines[_slices(events, f"batch {number}")[0]["tid"]] for number in range(3)]
    assert found == [f"batches {line} ({name})" for line in (1, 2, 1)]


def _overlaps(events: list[dict[str, Any]]) -> int:
    """How many slices begin before the one before them on their line ends."""
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            lines.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    pairs = [pair for line in lines.values() for pair in itertools.pairwise(sorted(line))]
    return sum(later[0] < earlier[1] - 1e-3 for earlier, later in pairs)


def test_the_next_batch_begins_after_the_last_one(name: str) -> None:
    """A learner releases one and takes the next between two looks: they lie beside each other on one line."""
    with Server(EXAMPLE, 1, num_buffers=3, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        for _ in range(3):
            client.send(EXAMPLE)
            with server.lease(timeout=10):
                recording.look()
            time.sleep(0.002)
        recording.look()
        recording.finish(1e-4)
    events = recording.trace.events
    found = [_slices(events, f"batch {number}")[0] for number in range(3)]
    assert len({event["tid"] for event in found}) == 1
    assert _overlaps(events) == 0
    assert found[0]["ts"] + found[0]["dur"] == pytest.approx(found[1]["ts"], abs=0.01)


def test_a_learner_that_waits(name: str, background: Callable[..., Any]) -> None:
    """Its wait ends when a batch is full."""
    with Server(EXAMPLE, 1, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        waiting = background(lambda: server.sample(timeout=30))
        until(lambda: (recording.look(), recording._recorders[0]._sleeping)[1])
        client.send(EXAMPLE)
        assert waiting.result() is not None
        recording.look()
        (wait,) = _slices(recording.trace.events, "waits for a batch")
    assert wait["pid"] == HERE


def test_the_file_is_a_trace(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has counters, names and metadata; recording changes nothing in the segment."""
    path = tmp_path / "trace.json"
    with Server(EXAMPLE, 2, detailed_metrics=True, name=name), ShmClient(name) as client:
        for _ in range(3):
            client.send(EXAMPLE)
        before = (SHM / f"echo_shm.{name}").read_bytes()
        assert cli.main(["record", name, "--trace", str(path), "--seconds", "0.2"]) == 0
        assert (SHM / f"echo_shm.{name}").read_bytes() == before
    assert capsys.readouterr().out.startswith(f"{path}: ")
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    assert all({"ph", "pid", "tid", "name"} <= set(event) for event in events)
    assert all(event["ts"] >= 0 for event in events if event["ph"] != "M")
    ring = next(pid for pid, said in _names(events, "process_name").items() if said == f"ring {name}")
    counters = {(e["pid"], e["name"]): e["args"]["value"] for e in events if e["ph"] == "C"}
    assert counters[ring, "slots in use"] == 3
    assert counters[ring, "samples/s"] == 0
    assert counters[HERE, f"committed ({name})"] == 3
    said = trace["metadata"]
    assert said["looks"] > 1
    assert said["looks_per_second"] == pytest.approx(said["looks"] / said["seconds"], abs=1)
    assert "misses" in said["note"]
    assert said["rings"][0]["copy_ns"]["count"] == 3
    assert all(isinstance(value, str) for value in trace["otherData"].values())


def test_every_event_is_as_the_format_says(name: str, background: Callable[..., Any]) -> None:
    """Chrome's trace event format: fields, types, names of processes and threads; and slices that do not overlap."""
    with Server(EXAMPLE, 1, num_buffers=2, name=name) as server, ShmClient(name) as client:
        recording = Recording(name)
        for _ in range(3):
            client.send(EXAMPLE)
            with client.reserve() as slot:
                recording.look()
                slot[...] = EXAMPLE
            blocked = background(client.send, EXAMPLE)
            until(lambda: (recording.look(), recording._recorders[0]._waits)[1])
            for _ in range(3):
                with server.lease(timeout=10):
                    recording.look()
            blocked.result()
            recording.look()
        recording.finish(1e-4)
        events = recording.trace.events
    assert {event["ph"] for event in events} >= {"M", "X", "C"}
    processes, threads = (
        {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == kind}
        for kind in ("process_name", "thread_name")
    )
    more = {"M": {"args"}, "X": {"ts", "dur", "args"}, "C": {"ts", "args"}, "i": {"ts", "s"}}
    for event in events:
        assert set(event) == {"ph", "pid", "tid", "name"} | more[event["ph"]]
        assert (type(event["pid"]), type(event["tid"]), type(event["name"])) == (int, int, str)
        assert (event["pid"], 0) in processes
        assert event["ph"] not in "Xi" or (event["pid"], event["tid"]) in threads
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert event["ph"] != "C" or all(type(value) in (int, float) for value in event["args"].values())
    assert _overlaps(events) == 0


def test_a_replay_has_all_its_rings(name: str) -> None:
    """Writers and the replay itself are told apart."""
    with Replay(EXAMPLE, 10, store="shm", name=name) as replay, ReplayClient(name) as client, client.writer() as writer:
        recording = Recording(name)
        writer.add(EXAMPLE)
        recording.look()
        assert replay.num_steps == 1
        said = recording.finish(1e-4)
        names = set(_names(recording.trace.events, "process_name").values())
    assert [ring["ring"] for ring in said["rings"]] == [f"{name}.inbox", f"{name}.updates"]
    assert f"client, replay, writer {HERE}" in names


def test_a_ring_that_is_closed_ends_the_recording(name: str, tmp_path: Path, program: Callable[..., Program]) -> None:
    """The file is whole, and the metadata say why it is short; after Ctrl-C, too."""
    path = tmp_path / "trace.json"
    for how, status, ended in (("close", 0, "it was closed"), ("interrupt", 130, "it was interrupted")):
        with Server(EXAMPLE, 2, name=name):
            started = program(*ECHO_SHM, "record", name, "--trace", str(path), "--seconds", "50")
            until(path.exists)
            time.sleep(0.3)
            if how == "interrupt":
                started.send_signal(signal.SIGINT)
                assert started.result() == status
        assert started.result() == status
        assert json.loads(path.read_text())["metadata"]["ended"] == ended
        path.unlink()


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["no-such-ring", "--trace", "/tmp/x.json"], 1, "no segment is named"),
        (["not/a/name", "--trace", "/tmp/x.json"], 2, "not/a/name"),
    ],
)
def test_what_is_not_there(words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is an error in one line, an impossible one a usage error."""
    assert cli.main(["record", *words]) == status
    assert text in capsys.readouterr().err


def test_rollouts_have_nothing_to_record(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says what shows them."""
    with rollouts_board(f"{name}.rollouts"):
        assert cli.main(["record", f"{name}.rollouts", "--trace", str(tmp_path / "file")]) == 1
    assert "have no ring to record: `echo-shm top`, dash and metrics show them" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before the recording."""
    with Server(EXAMPLE, 2, name=name):
        assert cli.main(["record", name, "--trace", str(tmp_path / "no" / "file")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_two_processes_of_one_pid() -> None:
    """In two PID namespaces two processes may have the same PID: in the trace they have not."""
    trace = Trace(0)
    assert trace.process("one", "worker 7", 7) == 7
    assert trace.process("other", "worker 7", 7) > 1 << 22
    assert trace.process("one", "worker 7", 7) == 7
