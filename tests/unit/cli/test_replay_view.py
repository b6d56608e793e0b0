"""What the replay's demo draws: histograms with characters, of the table and not of the draws."""

import numpy as np
import pytest

from echo_shm import Replay, Table
from echo_shm.cli.demo import replay_view
from echo_shm.cli.demo.replay_view import Draws, histogram
from echo_shm.replay import Prioritized


def test_histograms_are_as_high_as_their_largest_column() -> None:
    """Columns go from 0 to the largest value; each is as high as its share, and what is there at all is seen."""
    values = np.array([0.0, 0.9, 1.1, 4.0])
    drawn, largest = histogram(values, np.array([6.0, 10.0, 8.0, 0.01]), columns=4, lines=2)
    assert drawn == ["█   ", "██ ▁"]
    assert largest == 4.0
    drawn, _ = histogram(values, np.array([5.0, 4.0, 4.5, 0.01]), columns=4, lines=2)
    assert drawn == ["█   ", "██ ▁"]
    drawn, _ = histogram(values, np.array([5.0, 3.0, 6.0, 0.01]), columns=4, lines=2)
    assert drawn == ["█▄  ", "██ ▁"]


def test_histograms_of_nothing_are_empty() -> None:
    """Before the first batch there is nothing to draw, and only zeros fill the first column."""
    assert histogram(np.zeros(0), np.zeros(0), 3, 2) == (["   ", "   "], 0.0)
    assert histogram(np.zeros(5), np.ones(5), 3, 1) == (["█  "], 0.0)


def test_draws_stand_for_the_items_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of a high priority are drawn more often, and yet the figures say how many of them the table has."""
    monkeypatch.setattr(replay_view, "_APART", 0.0)
    draws = Draws()
    with Replay({"x": np.zeros(())}, 400, [Table("p", Prioritized(1.0, 0.4))], seed=1) as replay:
        replay.extend({"x": np.zeros(400)}, priorities=np.repeat([1.0, 9.0], [300, 100]))
        for _ in range(64):
            draws.add(replay.sample(256))
    priorities, weights, _ = draws.recent()
    assert draws.samples == 64 * 256
    assert np.mean(priorities == 9.0) == pytest.approx(0.75, abs=0.02)
    assert weights[priorities == 9.0].sum() / weights.sum() == pytest.approx(0.25, abs=0.02)
