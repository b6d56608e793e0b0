"""The demo from start to end, on a terminal and without one, undisturbed and disturbed."""

import itertools
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from harness.programs import ECHO_SHM, PATIENCE, Program
from harness.waiting import until

from echo_shm import Server, ShmClient
from echo_shm.cli import console
from echo_shm.cli.demo import demo
from echo_shm.ring.metrics import Owner

SHM = Path("/dev/shm")


@pytest.fixture
def command(program: Callable[..., Program]) -> Callable[..., Program]:
    """Starts ``echo-shm`` with these words."""
    return lambda *words, **options: program(*ECHO_SHM, *words, **options)


def _ring(running: Program) -> str:
    """The name of a demo's segment, from what it shows first."""
    return running.wait_for(r"(?:ring|echo-shm top) (\d+-[0-9a-f]{8})").group(1)


def _first_sender(name: str, owners: Callable[[str], list[Owner]]) -> Owner:
    """A producer that has sent something."""
    found = until(lambda: [o for o in owners(name) if o.role == "producer" and o.samples > 0])
    assert isinstance(found[0], Owner)
    return found[0]


def _assert_gone(name: str) -> None:
    assert not list(SHM.glob(f"echo_shm*{name}*"))


# --- to the end ---------------------------------------------------------------


def test_demo_plain(command: Callable[..., Program]) -> None:
    """Without a terminal: a line for each second, a summary, status 0, no control characters, and nothing is left."""
    running = command("demo", "--seconds", "2")
    name = _ring(running)
    assert running.result() == 0, running.output
    lines = running.output.splitlines()
    assert lines[0].startswith("CartPole-v1, 2 workers; ring ")
    assert re.search(
        r"^ +\d\.\d s  [\d,]+ samples/s  [\d,.]+ batches/s  [\d.]+ MB/s  ring \d+ %  blocked \d", running.output, re.M
    )
    assert [line.split()[0] for line in lines[-7:]] == [
        "played", "received", "learner", "learned", "sequences", "re-opened", "left",
    ]  # fmt: skip
    assert re.search(r"  return [\d.]+  version [1-9]\d*  age [\d.]+$", running.output, re.M)
    assert "unbroken, from 2 worker processes" in running.output
    assert "left over  nothing" in running.output
    assert "\x1b" not in running.output
    _assert_gone(name)


def test_demo_on_a_terminal(command: Callable[..., Program]) -> None:
    """On a terminal: a display within 80 columns that is drawn again and again, then the summary."""
    running = command("demo", "--seconds", "1", "--workers", "1", "--batch-size", "32", terminal=True)
    name = _ring(running)
    assert running.result() == 0, running.output
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", running.output)
    assert shown.count("samples/s") > 3
    assert "of 128 slots" in shown
    assert "batches of 32 x 4" in shown
    assert "unbroken, from 1 worker process" in shown
    assert max(len(line) for line in re.split(r"[\r\n]+", shown) if "│" in line) <= 80
    assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1  # the cursor is back
    _assert_gone(name)


@pytest.mark.parametrize("env", ["FrozenLake-v1", "Pendulum-v1"])
def test_demo_with_other_spaces(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Discrete observations and continuous actions go through the ring, too."""
    assert demo.run(env, workers=1, batch_size=64, seconds=0.2) == 0
    shown = capsys.readouterr().out
    assert "unbroken, from 1 worker process" in shown
    assert "nothing: the actions were random" in shown


def test_demo_with_atari(command: Callable[..., Program]) -> None:
    """The demo finds Atari games by their name alone, and does not print their banner."""
    running = command("demo", "--env", "ALE/Pong-v5", "--seconds", "1", "--workers", "1", "--batch-size", "8")
    assert running.result() == 0, running.output
    assert "unbroken, from 1 worker process" in running.output
    assert "Stella" not in running.output


# --- disturbed ----------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_demo_ends_on_a_signal(number: int, status: int, command: Callable[..., Program]) -> None:
    """A signal ends the demo and its workers without a traceback, and nothing is left."""
    running = command("demo", "--seconds", "50", "--workers", "1")
    name = _ring(running)
    running.wait_for(r"[1-9][\d,]* samples/s")
    workers = psutil.Process(running.pid).children()
    os.kill(running.pid, number)
    assert running.result() == status, running.output
    assert "Traceback" not in running.output
    _assert_gone(name)
    assert not psutil.wait_procs(workers, timeout=10)[1]


def _hears_ctrl_c(process: psutil.Process) -> bool:
    """Whether a process neither blocks nor ignores SIGINT."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Ign):\s*(\w+)", status, re.M)]
    return not any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


def test_demo_ends_on_ctrl_c(command: Callable[..., Program]) -> None:
    """Ctrl-C reaches the learner and not its workers: status 130, the cursor is shown again, no traceback."""
    running = command("demo", "--seconds", "50", terminal=True)
    name = _ring(running)
    running.wait_for(r"of 1,024 slots")
    children = psutil.Process(running.pid).children
    assert len(children()) > 2
    until(lambda: not any(map(_hears_ctrl_c, children())), seconds=10)
    running.type(b"\x03")
    assert running.result() == 130, running.output
    assert "interrupted" in running.output
    assert "Traceback" not in running.output
    assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1
    _assert_gone(name)


def test_demo_ends_on_ctrl_c_while_it_starts(command: Callable[..., Program]) -> None:
    """The same for Ctrl-C at the first frame, while the display and the workers start."""
    running = command("demo", "--seconds", "50", terminal=True)
    name = _ring(running)
    running.type(b"\x03")
    assert running.result() == 130, running.output
    assert "Traceback" not in running.output
    assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1
    _assert_gone(name)


def test_demo_survives_a_killed_worker(command: Callable[..., Program], owners: Callable[[str], list[Owner]]) -> None:
    """A worker that is killed is started again, with a sequence of its own; the demo ends well."""
    running = command("demo", "--seconds", "4")
    name = _ring(running)
    victim = _first_sender(name, owners)
    os.kill(victim.pid, signal.SIGKILL)
    assert running.result() == 0, running.output
    assert "unbroken, from 3 worker processes" in running.output
    assert "1 dead producer, 1 restart" in running.output
    _assert_gone(name)


# --- the replay's demo --------------------------------------------------------


def test_replay_demo_plain(command: Callable[..., Program]) -> None:
    """Without a terminal: a line for each second, a summary, status 0, no control characters, and nothing is left."""
    running = command("demo", "--replay", "--seconds", "2")
    name = running.wait_for(r"replay (\d+-[0-9a-f]{8}), ").group(1)
    running.wait_for(r"[1-9][\d,]* items  [1-9][\d,]* inserted/s  [1-9][\d,]* sampled/s  diff [\d,]+ in 0..16,000: \w+")
    assert running.result() == 0, running.output
    assert running.output.startswith("CartPole-v1, 2 workers; replay ")
    assert [line.split()[0] for line in running.output.splitlines()[-5:]] == [
        "played", "inserted", "sampled", "limiter", "left",
    ]  # fmt: skip
    ratio = re.search(r"^limiter +([\d.]+) samples an item of 8;", running.output, re.M)
    assert ratio is not None
    assert 0 < float(ratio.group(1)) <= 8
    assert "left over  nothing" in running.output
    assert "\x1b" not in running.output
    _assert_gone(name)


def test_replay_demo_ends_on_ctrl_c(command: Callable[..., Program]) -> None:
    """On a terminal: a display of at most 78 columns (^C takes two more) and 24 lines; Ctrl-C ends it, all of it."""
    running = command("demo", "--replay", "--seconds", "50", "--workers", "1", terminal=True)
    name = running.wait_for(r"echo-shm top (\d+-[0-9a-f]{8})").group(1)
    running.wait_for(r"[▂▃▄▅▆▇]")  # the histogram
    workers = psutil.Process(running.pid).children()
    running.type(b"\x03")
    assert running.result() == 130, running.output
    assert "Traceback" not in running.output
    assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", running.output)
    assert max(len(line) for line in re.split(r"[\r\n]+", shown) if "│" in line) <= 78
    assert len(re.split(r"\r?\n", shown[shown.rindex("╭") : shown.rindex("╯")])) <= 23
    _assert_gone(name)
    assert not psutil.wait_procs(workers, timeout=10)[1]


# --- broken sequences ---------------------------------------------------------


def play_badly(client: ShmClient, env_id: str, seed: int, deadline: float, learns: bool) -> None:
    """A worker that leaves out a step."""
    transition = demo.blank_transition(demo.make_env(env_id))
    bound = client.bind(transition)
    for step in [0, 1, 2, 4, 5]:
        transition["step"][...] = step
        bound.send()


def play_nothing(client: ShmClient, env_id: str, seed: int, deadline: float, learns: bool) -> None:
    """A worker that sends nothing."""


@pytest.mark.parametrize(
    ("worker", "text"), [(play_badly, "episode 0 step 3 never came"), (play_nothing, "no sample came")]
)
def test_demo_reports_a_broken_sequence(
    worker: Any, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary reports a missing step, and a run without samples; the status is 1."""
    monkeypatch.setattr(demo, "play", worker)
    assert demo.run("CartPole-v1", workers=1, batch_size=4, seconds=0.1) == 1
    assert text in capsys.readouterr().out


def test_transitions_chain(background: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sends what its environment did: within an episode a step's next_obs is the obs of the next step."""
    monkeypatch.setattr(demo, "_SHORTEST_PLAY", 1.0)
    example = demo.blank_transition(gymnasium.make("CartPole-v1"))
    rows: list[dict[str, Any]] = []
    with Server(example, 1, num_buffers=64) as server:

        def worker() -> None:
            with ShmClient(server.handle) as client:
                demo.play(client, "CartPole-v1", 3, 0.0)
            server.close()

        playing = background(worker)
        for batch, _ in server.dataset_iter():
            rows.append({name: leaf[0].copy() for name, leaf in batch.items()})
        playing.result()
    env = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(rows[0]["obs"], env.reset(seed=3)[0])
    for row, following in itertools.pairwise(rows):
        assert row["worker"] == os.getpid()
        if row["terminated"] or row["truncated"]:
            assert (following["episode"], following["step"]) == (row["episode"] + 1, 0)
            assert abs(following["obs"]).max() <= 0.05  # freshly reset
        else:
            assert (following["episode"], following["step"]) == (row["episode"], row["step"] + 1)
            np.testing.assert_array_equal(row["next_obs"], following["obs"])
        assert row["reward"] == 1.0
    assert rows[-1]["episode"] > 0


def test_spaces_become_arrays() -> None:
    """Box, Discrete, MultiDiscrete and MultiBinary give dtype and shape; others are refused by name."""
    spaces = gymnasium.spaces
    for space, shape, dtype in (
        (spaces.Box(0, 255, (5, 4, 3), np.uint8), (5, 4, 3), np.uint8),
        (spaces.Box(-1, 1, (2,), np.float64), (2,), np.float64),
        (spaces.Discrete(4), (), np.int64),
        (spaces.MultiDiscrete([3, 4]), (2,), np.int64),
        (spaces.MultiBinary([2, 2]), (2, 2), np.int8),
    ):
        made = demo.blank_transition(SimpleNamespace(observation_space=space, action_space=space))
        for leaf in ("obs", "action", "next_obs"):
            assert (made[leaf].shape, made[leaf].dtype) == (shape, dtype)
    with pytest.raises(console.UsageError, match="Text"):
        demo.blank_transition(SimpleNamespace(observation_space=spaces.Discrete(2), action_space=spaces.Text(5)))


# --- top, beside a demo -------------------------------------------------------


@pytest.mark.parametrize("terminal", [True, False])
def test_top_until_the_segment_closes(terminal: bool, command: Callable[..., Program]) -> None:
    """A live view shows the producers, and ends with status 0 when the segment is closed."""
    with Server({"x": np.zeros(3)}, 4) as server, ShmClient(server.handle) as client:
        watching = command("top", server.name, "--interval", "0.05", terminal=terminal)
        client.send({"x": np.zeros(3)})
        watching.wait_for(rf"{os.getpid()} +[\d,]+ +1 ")
    assert watching.result() == 0, watching.output
    assert "was closed" in watching.output


def test_top_until_ctrl_c(command: Callable[..., Program]) -> None:
    """Ctrl-C ends the live view with status 0 and a cursor."""
    with Server({"x": np.zeros(3)}, 4) as server:
        watching = command("top", server.name, terminal=True)
        watching.wait_for("learner")
        started = time.monotonic()
        watching.type(b"\x03")
        assert watching.result() == 0, watching.output
        assert time.monotonic() - started < PATIENCE
    assert "Traceback" not in watching.output
    assert watching.output.count("\x1b[?25l") == watching.output.count("\x1b[?25h") == 1
