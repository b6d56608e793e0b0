"""The benchmark runs, with tiny sizes and without other libraries. What it measures is not judged here."""

import itertools

import pytest

from bench import __main__ as command
from bench import native, peers, scale, table, throughput

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
)


def test_every_group_gives_figures(monkeypatch):
    """Each group measures something in each of its ways, and leaves nothing running."""
    monkeypatch.setattr(peers, "available", False)
    for name in ("sample", "wake", "submit", "learners", "producers"):
        for figure in command.measure([name], TINY):
            assert all(value > 0 or figure.unit == "a sample" for value in figure.ours), figure


def test_memcpy_rate_is_positive():
    """The C loop of copies has a rate."""
    with native.built() as library:
        assert native.memcpy_rate(native.load(library), bytes(100), 8, 0.001) > 0


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
