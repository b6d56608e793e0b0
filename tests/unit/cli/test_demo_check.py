"""The demo's check of its workers' sequences finds what a ring must not do, and nothing else."""

from typing import Any

import numpy as np
import pytest

from echo_shm.cli.demo.check import SequenceCheck


class Steps:
    """Sequences of a worker's steps, and what the check makes of them when they come in batches of 5."""

    def __init__(self, *lengths: int, worker: int = 7) -> None:
        #: (worker, episode, step, done), episodes of these lengths
        self.rows = [(worker, e, s, s == n - 1) for e, n in enumerate(lengths) for s in range(n)]

    def check(self, *, capacity: int = 1000, reopened: int = 0, rows: Any = None) -> SequenceCheck:
        """Feeds the rows in their order."""
        rows = self.rows if rows is None else rows
        check = SequenceCheck(capacity)
        for start in range(0, len(rows), 5):
            worker, episode, step, done = zip(*rows[start : start + 5], strict=True)
            check.add(np.array(worker), np.array(episode), np.array(step), np.array(done))
        check.finish(reopened)
        return check


def test_an_unbroken_sequence_passes() -> None:
    """Episodes of any length, one step long and unfinished ones included, have no fault."""
    steps = Steps(3, 1, 1, 20, 7, 4)
    check = steps.check(rows=steps.rows[:-2])
    assert (check.fault_count, check.early, check.episodes, check.workers) == (0, 0, 5, 1)


def test_workers_are_followed_apart() -> None:
    """Sequences of several workers may interleave; the same steps of another process are another sequence."""
    rows = [row for pair in zip(Steps(9, 9).rows, Steps(9, 9, worker=8).rows, strict=True) for row in pair]
    check = Steps().check(rows=rows)
    assert (check.fault_count, check.workers) == (0, 2)


@pytest.mark.parametrize("lost", [0, 1, 8, 9, 10, 13])
@pytest.mark.parametrize("capacity", [3, 1000])
def test_a_lost_sample_is_caught(lost: int, capacity: int) -> None:
    """A step that never comes is one fault, wherever in an episode, found soon or at the end of the stream."""
    steps = Steps(10, 10)
    del steps.rows[lost]
    check = steps.check(capacity=capacity, reopened=5)
    assert check.fault_count == 1
    assert f"episode {lost // 10} step {lost % 10} never came" in check.faults[0]


def test_a_lost_sample_is_caught_while_the_stream_goes_on() -> None:
    """A lost sample is found before more samples wait for it than the ring can hold."""
    check = SequenceCheck(capacity=3)
    for step in range(1, 6):
        assert check.fault_count == (step > 4)
        check.add(np.array([7]), np.array([0]), np.array([step]), np.array([False]))
    assert check.fault_count == 1


def test_a_sample_that_comes_early_twice_is_caught() -> None:
    """A step that comes early twice is a fault."""
    rows = [Steps(5).rows[i] for i in (0, 2, 2, 1, 3, 4)]
    assert Steps().check(rows=rows, reopened=5).fault_count == 1


def test_two_lost_samples_are_two_faults() -> None:
    """After a lost step the check goes on with those that follow."""
    steps = Steps(30)
    del steps.rows[20], steps.rows[4]
    assert steps.check(capacity=3).fault_count == 2


@pytest.mark.parametrize("doubled", [0, 4, 9, 10])
@pytest.mark.parametrize("later", [0, 1, 6])
def test_a_doubled_sample_is_caught(doubled: int, later: int) -> None:
    """A step that comes twice, at once or later, is a fault, whatever slots were re-opened."""
    steps = Steps(10, 10)
    steps.rows.insert(doubled + 1 + later, steps.rows[doubled])
    check = steps.check(reopened=5)
    assert check.fault_count == 1
    assert "came again" in check.faults[0]


@pytest.mark.parametrize("at", [0, 3, 4, 8, 9, 17])
def test_a_swapped_sample_is_caught(at: int) -> None:
    """Two steps in the wrong order are a fault when no slot was re-opened."""
    steps = Steps(10, 10)
    steps.rows[at], steps.rows[at + 1] = steps.rows[at + 1], steps.rows[at]
    check = steps.check()
    assert check.fault_count == 1
    assert "before their turn" in check.faults[0]


def test_a_step_after_an_episodes_end_is_caught() -> None:
    """A step after an episode's end is a fault, and so is an episode that begins before the last one has ended."""
    assert Steps().check(rows=[(7, 0, 0, True), (7, 0, 1, False)]).fault_count == 1
    assert Steps().check(rows=[(7, 0, 0, False), (7, 1, 0, False)]).fault_count == 1


def test_re_opened_slots_explain_samples_that_come_early() -> None:
    """Each re-opened slot excuses one sample that came before its turn, and no more than one."""
    steps = Steps(10, 10)
    steps.rows.insert(2, steps.rows.pop(6))
    steps.rows.insert(11, steps.rows.pop(15))
    assert steps.check(reopened=2).fault_count == 0
    assert steps.check(reopened=2).early == 2
    assert steps.check(reopened=1).fault_count == 1


def test_many_faults_are_counted_and_few_are_kept() -> None:
    """Many faults are counted, and only a few texts are kept."""
    check = Steps().check(rows=Steps(4).rows[:1] * 100)
    assert check.fault_count == 99
    assert len(check.faults) < 10
