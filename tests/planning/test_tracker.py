"""What rollouts cost, and what came of it."""

import pytest

from echo_shm.planning.rollouts.tracker import EfficiencyTracker


def test_figures_by_hand():
    """Two steps, one of which reuses three of its four tokens; an update of the learner; one success in ten seconds."""
    now = [5.0]
    tracker = EfficiencyTracker(2.0, lambda: now[0])
    assert tracker.record_rollout_step(1.0, 4, new_tokens=6) == 20.0
    assert tracker.record_rollout_step(2.0, 4, 3, new_tokens=4) == 8.0
    tracker.record_learner_update(-2.0)
    tracker.record_episode(False)
    tracker.record_episode(True)
    now[0] = 15.0
    figures = tracker.snapshot()
    assert (figures.bandwidth_spent, figures.bandwidth_total, figures.bandwidth_saved) == (28.0, 40.0, 12.0)
    assert figures.eta == 3.0 / (28.0 + 2.0)
    assert figures.reuse_rate == 3 / 8
    assert figures.etps == 1.0
    assert figures.cost_per_success == 30.0
    assert (figures.steps, figures.episodes, figures.successes, figures.learner_updates) == (2, 2, 1, 1)


def test_before_anything_happened():
    """Nothing is divided by zero, and a reset leads back there."""
    tracker = EfficiencyTracker(clock=lambda: 1.0)
    tracker.record_rollout_step(1.0, 4)
    tracker.record_episode(True)
    tracker.reset()
    figures = tracker.snapshot()
    assert (figures.eta, figures.reuse_rate, figures.etps, figures.cost_per_success) == (0.0, 0.0, 0.0, None)


@pytest.mark.parametrize("bad", [(float("nan"), 1, 0), (1.0, -1, 0), (1.0, 2, 3), (1.0, 1.5, 0)])
def test_bad_figures_are_named(bad):
    """The error has what was got, and what to use."""
    with pytest.raises(ValueError, match=r"=.*: use "):
        EfficiencyTracker().record_rollout_step(*bad)
