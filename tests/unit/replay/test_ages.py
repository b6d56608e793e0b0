"""Tables of two parts whose items grow old: temperatures, resets, other layouts, and items that had to wait."""

import numpy as np
import pytest
from harness.waiting import until

from echo_shm.replay import Fifo, HotCold, MinHeap, Queue, Replay, ReplayClient, Softmax, Table, Uniform

EXAMPLE = {"n": np.zeros((), np.int64)}


def _rows(n):
    return {"n": np.arange(n)}


def test_a_part_that_was_empty_has_a_temperature_that_fits():
    """Scores are large: with the temperature that the table began with, the cold part would be one item."""
    n, rng = 1000, np.random.default_rng(0)
    sampler = HotCold(n, 0.5, 1, target_effective=0.5)
    with Replay(EXAMPLE, n + 10, [Table("t", sampler, MinHeap(), n)]) as replay:
        replay.extend(_rows(n), 1e4 * rng.exponential(size=n))
        for _ in range(3):
            replay.learned()
        cold = replay.info().hot_cold.cold
        assert cold.size == n
        assert 0.3 * n < cold.effective_sample_size < 0.7 * n


@pytest.mark.parametrize("sampler", [Softmax(target_effective=0.3), HotCold(10_000, target_effective=0.3)])
def test_a_reset_table_chooses_its_temperature_anew(sampler):
    """What fitted the items that went need not fit those that come, of which there are fewer."""
    rng = np.random.default_rng(0)
    with Replay(EXAMPLE, 10_010, [Table("t", sampler)]) as replay:
        replay.extend(_rows(10_000), rng.random(10_000))
        replay.reset()
        replay.extend(_rows(500), 1e6 * rng.random(500))
        assert 50 < replay.info().effective_sample_size < 400


def test_another_target_counts_after_a_restore(tmp_path):
    """The temperature that was chosen for the old one does not stay."""
    rng = np.random.default_rng(0)
    with Replay(EXAMPLE, 1010, [Table("t", Softmax(target_effective=0.1))]) as replay:
        replay.extend(_rows(1000), rng.random(1000))
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path, tables=[Table("t", Softmax(target_effective=0.9))]) as replay:
        assert replay.info().effective_sample_size == pytest.approx(900, rel=0.1)


def test_restored_items_are_as_young_as_the_next_one(tmp_path):
    """In a table that did not age before: all become cold together."""
    with Replay(EXAMPLE, 20, [Table("t", Uniform())]) as replay:
        replay.extend(_rows(5))
        replay.checkpoint(tmp_path)
    with Replay.restore(tmp_path, tables=[Table("t", HotCold(20, 0.5, 2))]) as replay:
        replay.add({"n": 5})
        replay.learned()
        replay.learned()
        assert replay.info().hot_cold.hot.size == 6
        replay.learned()
        assert replay.info().hot_cold.hot.size == 0


def test_an_item_that_waited_is_young_when_it_comes():
    """It was parked while the limiter let nothing in, and is there for as long as others then."""
    table = Table("t", HotCold(20, 1.0, 2, 3), Fifo(), rate_limiter=Queue(4))
    with Replay(EXAMPLE, 50, [table, Table("u")]) as replay, ReplayClient(replay.handle) as client:
        replay.extend(_rows(4))
        with client.writer() as writer:
            for n in range(4):
                writer.add({"n": n})
            until(lambda: replay.num_steps == 8)
        assert replay.info("t").parked == 4
        for _ in range(3):
            replay.learned("t")
        replay.sample(4, "t")
        until(lambda: replay.info("t").parked == 0)
        for _ in range(3):
            replay.learned("t")
        assert replay.info("t").size == 4
        replay.learned("t")
        assert replay.info("t").size == 0
