"""Whole evaluations: what goes on after an interruption, what is refused, and what is written."""

import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from harness.packages import need

need("gymnasium")

import echo_shm  # noqa: E402
from echo_shm.errors import EchoShmError, WorkerError  # noqa: E402
from echo_shm.planning import evaluate  # noqa: E402
from echo_shm.planning.evaluation import child  # noqa: E402
from echo_shm.planning.evaluation import evaluation as module  # noqa: E402
from echo_shm.planning.evaluation.configs import EvaluationConfig  # noqa: E402
from echo_shm.planning.evaluation.evaluation import Evaluation  # noqa: E402

pytestmark = pytest.mark.watchdog(120)


@pytest.fixture
def config(tmp_path: Path) -> EvaluationConfig:
    """Runs that take no time."""
    return EvaluationConfig(str(tmp_path / "out"), "textworld-2x1", "random,impala", seeds=3, episodes=4, max_steps=6)


def run(config: EvaluationConfig) -> tuple[module.Results, list[str]]:
    """Its results, and what it has said."""
    said: list[str] = []
    return asyncio.run(Evaluation(config, said.append).run()), said


def files(config: EvaluationConfig) -> dict[str, bytes]:
    """What is there of runs."""
    return {path.name: path.read_bytes() for path in Path(config.output, "runs").iterdir()}


def test_an_evaluation_that_was_interrupted_goes_on(config, monkeypatch):
    """What was made is not made again. In the end all is as without the interruption."""
    whole = replace(config, output=config.output + "-whole")
    expected, said = run(whole)
    assert [line.partition(":")[0] for line in said] == [
        "left out",
        *(f"[{i + 1}/3] textworld-2x1--random--{i}" for i in range(3)),
    ]
    make = module.make

    async def interrupted(config, directory, one):
        if one.seed == 1:
            (directory.path / "runs" / f".{one.name}.json.1").write_text('{"task": "text')  # as a kill would leave it
            raise KeyboardInterrupt
        return await make(config, directory, one)

    monkeypatch.setattr(module, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    monkeypatch.setattr(module, "make", make)
    before = files(config)
    assert [name for name in before if not name.startswith(".")] == ["textworld-2x1--random--0.json"]
    results, said = run(config)
    assert said[1] == "1 of 3 runs are there already"
    assert len(said) == 4
    assert before.items() <= files(config).items()
    for one in (*results.runs, *expected.runs):
        del one["seconds"]
    assert results.runs == expected.runs
    assert json.loads(Path(config.output, "results.json").read_text())["runs"][0]["seed"] == 0
    assert results.left_out == [
        {
            "task": "textworld-2x1",
            "agent": "impala",
            "why": "the task shows text, and the example's networks read numbers",
        }
    ]


def test_runs_beside_each_other_are_as_those_in_a_row(config):
    """Each is a process. One that fails ends the evaluation, and says why."""
    expected, _ = run(config)
    again = replace(config, output=config.output + "-2", jobs=2, seeds=2)
    results, said = run(again)
    for one in (*results.runs, *expected.runs):
        del one["seconds"]
    assert results.runs == expected.runs[:2]
    assert len(said) == 3


def stand_in(path: Path, script: str) -> str:
    """A program in the place of Python."""
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o700)
    return str(path)


def test_a_run_that_fails_in_its_process_ends_all(config, monkeypatch, tmp_path):
    """What it has said last is in the message."""
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", "echo it hurts >&2; exit 3"))
    with pytest.raises(WorkerError, match=r"textworld-2x1--random--\d ended with status 3: it hurts"):
        run(replace(config, jobs=2))


def test_runs_in_processes_are_interrupted(config, monkeypatch, tmp_path):
    """Each gets SIGINT once, has time for its checkpoint, and is waited for."""
    script = f"trap 'sleep 0.2; echo $4 >> {tmp_path}/ended; exit 130' INT; touch {tmp_path}/$$.began\n"
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", script + "while :; do sleep 0.02; done"))

    start, started = asyncio.create_subprocess_exec, []

    async def counted(*words, **options):
        started.append(await start(*words, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)

    async def interrupt() -> None:
        running = asyncio.ensure_future(Evaluation(replace(config, jobs=2)).run())
        while len(started) < 2 or len(list(tmp_path.glob("*.began"))) < 2:
            assert not running.done()
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(interrupt())
    assert sorted((tmp_path / "ended").read_text().split()) == [f"textworld-2x1--random--{i}" for i in range(2)]


def test_other_settings_are_refused(config):
    """They are named. Whatever changes no result may be another. A damaged file is named, too."""
    run(config)
    with pytest.raises(
        ValueError, match=r"other settings: episodes=5, there 4; seeds=2, there 3: use another directory"
    ):
        Evaluation(replace(config, episodes=5, seeds=2))
    name, kept = next(iter(files(config).items()))
    Path(config.output, "runs", name).write_text("{")
    with pytest.raises(ValueError, match=f"{name} is not JSON: .*: remove it, and that run is made again"):
        run(replace(config, jobs=2))
    file = Path(config.output, "runs", name)
    whole = json.loads(kept)
    file.write_text("{}")
    with pytest.raises(ValueError, match=f"{name} is of another run: remove it"):
        run(config)
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=f"{name} is not JSON: .*: remove it"):
        run(config)
    del whole["seconds"]
    file.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=f"{name} has no seconds: remove it"):
        run(config)


def test_results_of_another_version_are_refused(config):
    """Both are named."""
    run(config)
    file = Path(config.output, "evaluation.json")
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "version": "0.0.9"}))
    with pytest.raises(ValueError, match=rf"version='{echo_shm.__version__}', there '0\.0\.9'"):
        Evaluation(config)


def test_a_directory_is_nobodys_until_a_run_has_ended(config):
    """Who only looks writes nothing. Whoever has begun meanwhile with other settings is seen within the lock."""
    one, other = Evaluation(config), Evaluation(replace(config, episodes=5))
    one.table()
    assert not Path(config.output).exists()
    with other.directory.locked():
        pass
    asyncio.run(one.run())
    with pytest.raises(ValueError, match="other settings: episodes=5, there 4"):
        asyncio.run(other.run())
    assert json.loads(Path(config.output, "evaluation.json").read_text())["episodes"] == 4


def test_two_at_a_time_are_refused(config):
    """Whoever comes second is told."""
    first = Evaluation(config)
    with first.directory.locked(), pytest.raises(ValueError, match=r"another process makes runs in .*: wait for it"):
        run(config)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tasks": "textworld-1x1"}, "use 2 rooms or more"),
        ({"tasks": "chess"}, "task 'chess' is unknown: use one of cartpole, "),
        ({"tasks": "minigrid-doorkey-4x4"}, "MiniGrid has .*minigrid-doorkey-5x5, "),
        ({"agents": "dqn"}, "agent 'dqn' is unknown: use one of random, react"),
        ({"backbones": "gpt:4"}, "backbone 'gpt:4' is unknown: use own, hf:NAME_OR_PATH"),
        ({"backbones": "openai:@http://x"}, "backbone 'openai:@http://x' is unknown"),
        (
            {"tasks": "cartpole", "agents": "react,tot"},
            "no agent fits a task: react on cartpole: the task shows numbers",
        ),
        ({"tasks": "code", "agents": "react"}, "no agent fits a task: react, own on code: the backbone own is trained"),
        ({"tasks": []}, r"tasks=\[\]: use one name or more"),
        ({"tasks": "code, code"}, "'code' is there twice"),
        ({"threshold": 1.5}, "threshold=1.5: use a success rate, above 0 and at most 1"),
        ({"jobs": 0}, "jobs=0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(tmp_path, fields, told):
    """Before anything is written."""
    if "minigrid" in str(fields):
        pytest.importorskip("minigrid")
    with pytest.raises(ValueError, match=told):
        Evaluation(EvaluationConfig(**{"output": str(tmp_path / "x"), **fields}))
    assert not (tmp_path / "x").exists()


def test_the_command(tmp_path, capsys):
    """It runs a suite with other arguments, says how runs go, and prints a table; the table alone, too."""
    file = tmp_path / "settings.toml"
    file.write_text('tasks = ["textworld-2x1"]\nagents = ["random"]\n')
    words = ["--suite", "quick", "--config", str(file), "--output", str(tmp_path / "out"), "--no-plots"]
    words += ["--tasks", "textworld-2x1", "--agents", "random", "--jobs", "1", "--first-seed", "7"]
    assert evaluate.main(words) == 0
    out, err = capsys.readouterr()
    assert err.startswith("[1/1] textworld-2x1--random--7: success ")
    table = out.partition("\n\n20")[0]
    assert table.startswith("**textworld-2x1**\n\n| agent | success@1 | return | seconds | seeds |\n| --- |")
    assert "\n| random | " in table
    assert "\n\nSeeds 7 to 7; the threshold is a success rate of 0.9 in an evaluation of 4 episodes" in out
    assert evaluate.main([*words, "--table"]) == 0
    assert capsys.readouterr().out == out
    assert evaluate.main([*words, "--episodes", "9"]) == 2
    assert "episodes=9, there 4" in capsys.readouterr().err
    assert evaluate.main(["--list"]) == 0
    assert "minigrid-NAME" in capsys.readouterr().out
    assert evaluate.main(["--suite", "big"]) == 2
    assert capsys.readouterr().err == "suite 'big' is unknown: use one of quick, readme, rollouts\n"
    assert evaluate.main(["--list", "--nope"]) == 2
    assert capsys.readouterr().err == "--list takes no other arguments: leave them out\n"
    assert evaluate.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        f"\n  {option} " in shown for option in ("--suite SUITE", "--list", "--table", "--no-plots", "--tasks TASKS")
    )
    assert "`" not in shown
    with pytest.raises(SystemExit):
        evaluate.main([*words, "--suite", "quick", "--suite", "readme"])
    assert "--suite: use it once" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_server_without_a_key_is_refused_at_once(kind, jobs, tmp_path, capsys, monkeypatch):
    """In a line, before the first run. The table needs none."""
    need({"gemini": "google.genai"}.get(kind, kind))
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # newer clients look for credentials there
    words = ["--tasks", "code", "--agents", "random,react", "--backbones", f"{kind}:m", "--seeds", "1", "--no-plots"]
    words += ["--jobs", jobs, "--output", str(tmp_path / "out")]
    assert evaluate.main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("left out")]
    assert line.startswith(f"backbone '{kind}:m': no key for 'm': give api_key, or set {kind.upper()}_API_KEY")
    assert not (tmp_path / "out" / "runs").exists()
    assert evaluate.main([*words, "--table"]) == 0


def test_the_command_says_in_a_line_what_failed(tmp_path, capsys, monkeypatch):
    """The status is 2 before the first run, and 1 after."""
    words = ["--tasks", "textworld-2x1", "--agents", "random", "--seeds", "1", "--no-plots", "--output"]
    (tmp_path / "file").touch()
    assert evaluate.main([*words, str(tmp_path / "file" / "out")]) == 2
    assert "Not a directory" in capsys.readouterr().err
    for error in (OSError("there is no such model\nmore of it"), EchoShmError("there is no such model")):

        async def failing(*given, error=error):
            raise error

        monkeypatch.setattr(module, "make", failing)
        assert evaluate.main([*words, str(tmp_path / "out")]) == 1
        assert capsys.readouterr().err == "there is no such model\n"
        monkeypatch.setattr(child, "make", failing)
        settings = json.dumps(asdict(EvaluationConfig(str(tmp_path / "out"), "textworld-2x1", "random", seeds=1)))
        monkeypatch.setattr(child, "die_with_parent", lambda parent: None)
        assert child.main([settings, "textworld-2x1--random--0", "1"]) == 1
        assert capsys.readouterr().err == "there is no such model\n"

    class NoMatplotlib:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "matplotlib":
                raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(sys, "meta_path", [NoMatplotlib, *sys.meta_path])
    for name in ("matplotlib", "matplotlib.figure", "echo_shm.planning.evaluation.plots"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    words.remove("--no-plots")
    assert evaluate.main([*words, str(tmp_path / "more")]) == 2
    assert capsys.readouterr().err.endswith("pip install 'echo-shm[planning-evaluation]', or use --no-plots\n")
    assert not (tmp_path / "more").exists()
