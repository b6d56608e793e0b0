"""The benchmark runs, with tiny sizes and without other libraries. What it measures is not judged here."""

import importlib
import itertools
import multiprocessing
import operator
import sys

import pytest
from harness.packages import need

from bench import __main__ as command
from bench import native, peers, replay, replay_peers, scale, table, throughput, weights_program
from bench.replay import Contender
from bench.replay_program import Sizes

TINY = scale.Scale(
    repetitions=1,
    seconds=0.01,
    batch_size=4,
    num_buffers=2,
    latency_rounds=1,
    wakes=20,
    workers=(1,),
    producers=(2,),
    sends=2,
    replay_steps=600,
    replay_frames=64,
    item_frames=4096,  # enough that a process has no room for them
    replay_growth=(300, 600),
    replay_workers=(1,),
    weights=(20_000, 40_000),
    readers=3,
)
SIZES = Sizes(seconds=0.001, cartpole=300, atari=1)


def test_every_group_gives_figures(monkeypatch):
    """Each group measures something in each of its ways, and leaves nothing running."""
    monkeypatch.setattr(peers, "available", False)
    for name in ("sample", "wake", "submit", "learners", "producers"):
        for figure in command.measure([name], TINY):
            assert all(value > 0 or figure.unit == "a sample" for value in figure.ours), figure


class Inside:
    """A program that runs in this process, for starting a process a row takes long."""

    version = "echo-shm"

    def __init__(self, library, row, sizes):
        self.measure = importlib.import_module(library.module).ROWS[row](sizes)

    def close(self):
        """Nothing was started."""


def test_the_replay_group_gives_figures(monkeypatch):
    """Each of our rows measures something, and leaves nothing running. Workers may add nothing in so short a time."""
    monkeypatch.setattr(replay, "installed", lambda library: False)
    monkeypatch.setattr(replay, "Program", Inside)
    figures = command.measure(["replay"], TINY)
    rates = [figure for figure in figures if figure.unit != "bytes" and "workers add" not in figure.path]
    assert all(value > 0 for figure in rates for value in figure.ours)
    assert any("workers add" in figure.path for figure in figures)
    assert {figure.peer for figure in figures} >= {"echo-shm", "300 stored", ""}


def test_the_items_group_gives_figures(monkeypatch):
    """Each of our rows measures something, beside what the machine does and what fewer steps take."""
    monkeypatch.setattr(replay, "installed", lambda library: False)
    monkeypatch.setattr(replay, "Program", Inside)
    figures = command.measure(["items"], TINY)
    expected = [
        ("`NStep(1, stack", "batches/s", "echo-shm"),
        ("`NStep(3)`", "batches/s", "echo-shm"),
        ("`Sequence(80, 40)`, `sample(32)`, 300 steps", "batches/s", "echo-shm"),
        ("`Sequence(80, 40)`, `sample(32)`, 600 steps", "batches/s", "echo-shm"),
        ("`Sequence(80, 40)`, `sample(32)`, 600 steps", "µs", "300 stored"),
        ("`Sequence(80, 40)`, `sample(32)`, 600 steps", "µs", "300 stored"),
        ("`append` and `create_item`, CartPole", "items/s", ""),
        ("`append` and `create_item`, CartPole", "µs", ""),
        (f"Memory of {TINY.item_frames:,} Atari frames", "GB", ""),
        (f"Memory of {TINY.item_frames:,} Atari frames", "GB", ""),
    ]
    assert [(one.unit, one.peer) for one in figures] == [each[1:] for each in expected]
    for figure, (path, *_) in zip(figures, expected, strict=True):
        assert figure.path.startswith(path)
        assert all(value > 0 for value in (*figure.ours, *figure.theirs)), figure
    frames, whole = (figure.ours[0] for figure in figures[-2:])
    size = 7056 * TINY.item_frames / 1e9
    assert size / 4 < frames < 4 * size  # a process may have room for some, or take more for the rest
    assert whole > size / 4


def test_the_weights_group_gives_figures(monkeypatch):
    """Copies against the machine's, a look without news, and the time until one reader and several have a version."""
    monkeypatch.setattr(replay, "installed", lambda library: False)
    monkeypatch.setattr(replay, "Program", Inside)
    figures = command.measure(["weights"], TINY)
    copies = [(what, "MB/s") for what in ("`publish`", "`publish`", "`latest()`", "`poll(into=)`")]
    received = [("`publish`", "ms")] * 3
    expected = [*copies, *copies, ("`poll()` without news", "ns"), *received]
    for figure, (path, unit) in zip(figures, expected, strict=True):
        assert figure.path.startswith(path)
        assert figure.unit == unit
        assert all(value > 0 for value in (*figure.ours, *figure.theirs)), figure
    assert "the last of 3 readers" in figures[-1].path


def test_the_planning_group_gives_figures():
    """Each kernel does something, beside what it is compared with, which finds the same."""
    figures = command.measure(["planning", "hot_cold"], TINY)
    assert {figure.path.split("`")[1] for figure in figures} >= {
        "plan_surprise",
        "PrefixIndex.match",
        "sample(256)",
        "HotColdReplay",
    }
    for figure in figures:
        assert all(value > 0 for value in (*figure.ours, *figure.theirs)), figure


def test_a_reader_that_ends_is_noticed():
    """Nobody waits for ever for it."""
    with (
        weights_program.readers(multiprocessing.get_context("forkserver"), operator.truediv, [(0,)]) as readers,
        pytest.raises(RuntimeError, match="a reader ended"),
    ):
        readers.await_all()


def test_weights_are_as_large_as_they_should_be():
    """In 20 leaves."""
    for nbytes in (100_000, 1_000_000, 10_000_000):
        made = weights_program.parameters(nbytes)
        assert len(made) == 20
        assert weights_program.size_of(made) == pytest.approx(nbytes, rel=0.02)


def test_a_library_that_cannot_be_installed_is_left_out(monkeypatch, tmp_path, capfd):
    """A line names it."""

    def create(directory, **_):
        interpreter = directory / "bin" / "python"
        interpreter.parent.mkdir(parents=True)
        interpreter.symlink_to(sys.executable)

    monkeypatch.setattr(replay_peers, "_CACHE", tmp_path)
    monkeypatch.setattr(replay_peers.venv, "create", create)
    assert not replay_peers.installed(replay_peers.Library("bench.replay_nothing", (f"{tmp_path}/nothing.whl",)))
    assert "no ratios to" in capfd.readouterr().err


def test_a_library_that_fails_is_left_out_and_echo_shm_is_not(capfd):
    """Others' failures cost their own figures. Ours ends the run."""
    fails = replay_peers.Library("bench.replay_nothing")
    contenders = [(Contender(replay_peers.MACHINE, "take cartpole"), SIZES), (Contender(fails, "add"), SIZES)]
    (measured,) = replay.take_turns(contenders, 2)
    assert measured.name.startswith("numpy")
    assert len(measured.values()) == 2
    assert "left out: bench.replay_nothing, row 'add'" in capfd.readouterr().err
    with pytest.raises(replay_peers.ProgramError, match="row 'no such row'"):
        replay.take_turns([(Contender(replay_peers.OWN, "no such row"), SIZES)], 1)


def test_what_a_worker_of_rays_did_is_counted_while_the_learner_counts():
    """Blocks before and after that time count by the part of it that is in it."""
    need("ray")
    from bench import ray_samples

    with ray_samples.span() as counted:
        assert not counted.is_over()
        counted.set(11.0, 14.0)
        assert counted.is_over()
        assert counted.rate([(10.0, 0), (12.0, 200), (13.0, 500), (15.0, 900)]) == pytest.approx((700 - 100) / 3)


@pytest.mark.parametrize(
    ("costs", "first"),
    [
        ({"report": 1e-3}, "the directory"),
        ({"batch": {1: 1e-4, 1000: 1e-1}}, "the learner's"),
        ({"stream": 1e8}, "weights"),
    ],
)
def test_the_paper_names_what_is_used_up_first(costs, first):
    """Reports twice a second of each shard, 100 batches a second, and weights to each node once a minute."""
    need("ray")
    from bench import ray_paper

    cheap = {"report": 1e-9, "look": {1000: 1e-9}, "batch": {1: 1e-9, 1000: 1e-9}, "stream": 1e15}
    text = ray_paper.paper(ray_paper.Costs(report_bytes=1, look_bytes={1000: 1}, **(cheap | costs)))
    limits = [line for line in text.splitlines() if line.startswith("- ")]
    assert limits[0].startswith(f"- {first}")
    assert limits[0].endswith({"the directory": ": 500", "the learner's": ": 100", "weights": ": 60"}[first])


def test_memcpy_rate_is_positive():
    """The C loop of copies has a rate."""
    assert native.memcpy_rate(native.load(native.built()), bytes(100), 8, 0.001) > 0


def test_rate_counts_samples_after_the_ring_was_filled():
    """Batches before the warm-up's end are not counted."""
    batches = iter(itertools.repeat(None))
    assert throughput.rate(batches, TINY) > 0
    ended = iter([None] * (2 * TINY.num_buffers))
    with pytest.raises(StopIteration):
        throughput.rate(ended, TINY)


@pytest.mark.parametrize(
    ("unit", "floor", "verdict"),
    [
        ("samples/s", table.Floor(2.0), "ok"),
        ("samples/s", table.Floor(2.1), "below"),
        ("batches/s", table.Floor(2.1), "below"),
        ("µs", table.Floor(2.0), "ok"),
        ("µs", table.Floor(1.9), "below"),
        ("µs", table.Floor(20.0, of="value"), "ok"),
        ("µs", table.Floor(19.0, of="value"), "below"),
        ("µs", None, ""),
    ],
)
def test_verdicts(unit, floor, verdict):
    """A floor bounds rates from below and times from above, as ratios or as values; medians are judged."""
    figure = table.Figure("p", unit, [10.0, 20.0, 60.0], "peer", [10.0, 10.0, 10.0], floor)
    assert figure.ratios == [1.0, 2.0, 6.0]
    assert figure.verdict == verdict


def test_a_ratio_without_a_peer_is_not_judged():
    """Without the other library a row has values, but no verdict."""
    assert table.Figure("p", "samples/s", [1.0], "id-echo", (), table.Floor(14)).verdict == ""


def test_markdown_has_as_many_cells_in_every_row():
    """Every row of the table has the same number of cells."""
    figures = [table.Figure("a", "µs", [1.0]), table.Figure("b", "samples/s", [1e6, 2e6], "c", [1.0, 2.0])]
    lines = table.markdown(figures).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
