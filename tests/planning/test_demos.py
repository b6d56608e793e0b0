"""The demos of planning, with their smallest sizes."""

import re
import sys

import pytest
from harness.packages import need

need("torch", "gymnasium", "matplotlib")

from matplotlib import image  # noqa: E402

from echo_shm.planning.examples import (  # noqa: E402
    async_execution_demo,
    bandwidth_efficient_demo,
    latent_planning_demo,
    prioritized_replay_demo,
    train_echo_rl,
)

# A worker that imports PyTorch takes seconds.
pytestmark = pytest.mark.watchdog(180)


def ran(demo, tmp_path, capsys, *words):
    """What a demo prints; asserts that it ends well, and has drawn a picture of more than one colour."""
    path = tmp_path / "drawn.png"
    assert demo.main(["--quick", "--plot", str(path), *words]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    pixels = image.imread(path).reshape(-1, 4)
    assert len({tuple(one) for one in pixels[::7].tolist()}) > 3
    *lines, drawn = capsys.readouterr().out.splitlines()
    assert drawn == f"drawn: {path}"
    return lines


def test_plans(tmp_path, capsys):
    """Components, and divergences before and after training."""
    _, *episodes, _ = ran(latent_planning_demo, tmp_path, capsys)
    for line in episodes:
        found = re.search(r"have (\d+)% of the variance .* KL ([\d.]+) in the median, ([\d.]+) at most", line)
        assert found
        assert 20 < int(found[1]) <= 100
        assert 0 < float(found[2]) <= float(found[3])
    assert len(episodes) == 2


def test_rollouts(tmp_path, capsys):
    """Nothing is reused in the first way, and much in the second."""
    _, none, shared, _ = ran(async_execution_demo, tmp_path, capsys)
    assert "reuse 0.0%, 0.0% of the attention saved" in none
    reuse, saved = map(float, re.search(r"reuse ([\d.]+)%, ([\d.]+)%", shared).groups())
    assert 30 < reuse < 100
    assert 0 < saved < reuse


def test_replay(tmp_path, capsys):
    """Rare steps are drawn far more often than they are, and weights undo that."""
    *_, shares, corrected = ran(prioritized_replay_demo, tmp_path, capsys)
    stored, uniform, surprise = map(float, re.findall(r"([\d.]+)% of", shares))
    assert abs(uniform - stored) < 1.5
    assert surprise > 5 * stored
    assert abs(float(re.search(r"([\d.]+)% again", corrected)[1]) - stored) < 1.5


def test_bandwidth(tmp_path, capsys):
    """All ways that share caches spend the same; without them more, and it is what was saved."""
    _, *ways = ran(bandwidth_efficient_demo, tmp_path, capsys)
    found = [re.search(r"spent +([\d,]+), saved +([\d,]+) ", way).groups() for way in ways]
    spent, saved = zip(*([int(number.replace(",", "")) for number in pair] for pair in found), strict=True)
    assert saved[0] == 0 < saved[1]
    assert len({*saved[1:]}) == len({*spent[1:]}) == 1
    assert spent[0] == spent[1] + saved[1]


def test_training(tmp_path, capsys, monkeypatch):
    """It trains, evaluates and watches. What cannot be trained is refused in one line."""
    evaluation, end, machine = ran(train_echo_rl, tmp_path, capsys)
    assert re.fullmatch(r" +\d+ steps: success rate [01]\.\d\d, average reward \d+\.\d\d", evaluation)
    assert re.match(r"cartpole: success rate [01]\.000, average reward \d+\.\d+ after 2\d\d steps, \d+ updates", end)
    assert re.match(r"processors \d+ % busy, learner's memory \d+ MB", machine)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    refused = (
        (["--backbone", "gpt-4o"], "only 'own' learns here"),
        (["--task", "alfworld"], "-download"),
        (["--device", "bogus", "--quick"], "device='bogus' is none of PyTorch's"),
    )
    for words, told in refused:
        assert train_echo_rl.main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_matplotlib_is_asked_for_before_anything_is_done(monkeypatch, capsys):
    """One line says what to install."""
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bandwidth_efficient_demo.main(["--plot"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith("'matplotlib' is not there: pip install 'echo-shm[planning-examples]'\n")
