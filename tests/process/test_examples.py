"""The examples learn: with a small budget, up to a low target."""

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.programs import Program, run, run_python

#: A loaded machine learns slowly (seconds).
LONG = 150
pytestmark = pytest.mark.watchdog(LONG + 10)


def _example(name: str, *words: str, status: int = 0) -> str:
    """Runs an example to its end. Returns what it has printed, without the line end."""
    words = (sys.executable, "-m", f"echo_shm.examples.{name}", "--seed", "1", *words)
    return run(*words, status=status, timeout=LONG).stdout.strip()


SOLVED = r"^solved in [\d,]+ steps and [\d.]+ s: mean return (\d+\.\d) over the last 100 episodes"


def _assert_solved(output: str, target: float) -> None:
    last = output.splitlines()[-1]
    found = re.match(SOLVED, last)
    assert found, output
    assert float(found[1]) >= target


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("name", "target"), [("ppo", 60.0), ("dqn", 40.0)])
def test_torch(name: str, target: float) -> None:
    """A policy at random has a mean return of about 22."""
    _assert_solved(_example(name, "--target", str(target)), target)


@pytest.mark.usefixtures("torch")
def test_impala(tmp_path: Path) -> None:
    """It learns though its workers keep their weights for long: what is older than the learner wants is left out.

    It is told what an evaluation tells it, whose measures are those of the file that it writes.
    """
    from echo_shm.planning.evaluation import impala, tasks
    from echo_shm.planning.evaluation.configs import EvaluationConfig

    config, file = EvaluationConfig(steps=400_000, episodes=4, evaluation_frequency=2_000), tmp_path / "said.json"
    words = impala._words(config, tasks.find("cartpole"), 1, file)
    output = _example("impala", *words, "--entropy=0.001", "--target=40", "--lag=40", "--max-age=5")
    _assert_solved(output, 40.0)
    found = re.search(r"; weights [\d.]+ versions old, at most (\d+); (\d+) rollouts left out$", output)
    assert found, output
    assert int(found[1]) <= 5
    assert int(found[2]) > 0
    measured = impala._measures(json.loads(file.read_text()), 0.9)
    assert f"in {measured.steps:,} steps" in output
    assert measured.steps == measured.learner_passes == measured.history[-1]["timesteps"]
    assert measured.episodes == 4
    assert len(measured.history) > 1


def test_jax(tmp_path: Path) -> None:
    """It learns, and draws what it has learnt."""
    drawn = tmp_path / "returns.svg"
    _assert_solved(_example("jax_ppo", "--target", "60", "--plot", str(drawn)), 60.0)
    assert drawn.read_text().lstrip().startswith("<?xml")


def test_atari() -> None:
    """The replay takes several times less memory than Stable-Baselines3's buffer, installed or calculated."""
    output = _example("atari", "--steps", "2000", "--seconds", "0.2")
    rows = re.findall(r"^(echo_shm|Stable-Baselines3) +([\d,]+) transitions +([\d,]+) MB", output, re.MULTILINE)
    assert [who for who, *_ in rows] == ["echo_shm", "Stable-Baselines3"]
    assert rows[0][1] == rows[1][1]
    times = re.search(r"^done: as many transitions in ([\d.]+) times less memory$", output, re.MULTILINE)
    assert times, output
    assert float(times[1]) > 2.0  # of so few the interpreter's own memory is part


@pytest.mark.usefixtures("torch")
def test_not_solved() -> None:
    """When its steps are used up it says so, and the status is 1. Without priorities, too."""
    output = _example("dqn", "--uniform", "--steps", "1", status=1)
    assert output.splitlines()[-1].startswith("not solved in ")


def test_ctrl_c(program: Callable[..., Program]) -> None:
    """It ends with one line and status 130. Its workers are gone, and nothing is left in shared memory."""
    running = program(sys.executable, "-m", "echo_shm.examples.jax_ppo", "--target", "1e9", "--steps", "100000000")
    running.wait_for("mean return .*\n")
    running.send_signal(signal.SIGINT)
    assert running.result() == 130
    assert running.output.splitlines()[-1] == "interrupted"
    assert "Traceback" not in running.output


@pytest.mark.parametrize(("name", "package"), [("ppo", "torch"), ("jax_ppo", "jax"), ("atari", "ale_py")])
def test_a_missing_package(name: str, package: str) -> None:
    """One line says what to install, and the status is 2."""
    script = "import runpy, sys; sys.modules[sys.argv[1]] = None; sys.argv = sys.argv[:1]; "
    script += f"runpy.run_module('echo_shm.examples.{name}', run_name='__main__')"
    done = run_python(script, package, status=2)
    assert done.stdout == ""
    assert re.fullmatch(
        rf".*: this example needs the package {package}: pip install 'echo-shm\[examples\]'\n", done.stderr
    )
