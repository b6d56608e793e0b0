"""The command line's arguments: which are refused, and with which words."""

import sys
from pathlib import Path

import numpy as np
import pytest
from harness.programs import run_python

from echo_shm import Server
from echo_shm.cli import main as cli


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["demo", "--workers", "0"],
        ["demo", "--workers", "two"],
        ["demo", "--batch-size", "-1"],
        ["demo", "--seconds", "0"],
        ["demo", "--seconds", "inf"],
        ["demo", "--seconds", "nan"],
        ["top", "x", "--interval", "0"],
        ["metrics", "x", "--port", "65536"],
        ["dash", "x", "--port", "-1"],
        ["record", "x"],
        ["record", "x", "--trace", "t", "--seconds", "0"],
    ],
    ids=" ".join,
)
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments out of range and missing ones end with status 2 and a message, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("rich", ["demo"], "demo"),
        ("gymnasium", ["demo"], "demo"),
        ("gymnasium", ["demo", "--env", "ALE/Pong-v5"], "atari"),
        ("ale_py", ["demo", "--env", "ALE/Pong-v5"], "atari"),
        ("rich.console", ["top", "x"], "cli"),
        ("prometheus_client", ["metrics", "x"], "metrics"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    missing: str, words: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an optional package a command says in one line what to install, with status 2."""
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert f"pip install 'echo-shm[{extra}]'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["ls"], ["top", "x"]])
def test_without_rich(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without rich the hint is the same, whichever part of rich a command imports first."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    with Server(np.zeros(1), 1):
        assert cli.main(words) == 2
    assert "the package rich: pip install 'echo-shm[cli]'" in capsys.readouterr().err


@pytest.mark.parametrize("env", ["NoSuchEnvironment-v1", "Blackjack-v1"])
def test_an_environment_that_will_not_do_is_one_line(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown environment, and one whose observation is a tuple, end with status 2 and one line that names it."""
    assert cli.main(["demo", "--env", env]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "NoSuchEnvironment" in error or "Tuple" in error


def test_a_batch_size_beyond_all_rings_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An impossible batch size is a usage error, not a traceback."""
    assert cli.main(["demo", "--batch-size", str(2**40)]) == 2
    assert "batch_size" in capsys.readouterr().err
    assert cli.main(["demo", "--replay", "--batch-size", str(2**40)]) == 2
    assert "the demo's replay holds 50,000 steps" in capsys.readouterr().err


def test_both_ways_to_start_it() -> None:
    """``python -m echo_shm`` and the installed ``echo-shm`` are the same command line."""
    script = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    installed = Path(sys.executable).with_name("echo-shm")
    outputs = [
        run_python(script, *words, "--help").stdout for words in ([sys.executable, "-m", "echo_shm"], [str(installed)])
    ]
    assert outputs[0] == outputs[1]
    assert "demo" in outputs[0]
