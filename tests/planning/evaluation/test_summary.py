"""What is said of many runs, and drawn of them."""

from pathlib import Path

import numpy as np
import pytest
from harness.packages import need

from echo_shm.planning.evaluation.measures import Measures, reached_at
from echo_shm.planning.evaluation.report import table
from echo_shm.planning.evaluation.runs import Run
from echo_shm.planning.evaluation.summary import compare, summarize


def learned(agent, seed, steps, reached=True, **more):
    """A run of an agent that learns."""
    history = [{"timesteps": 10.0, "success_rate": 0.1}, {"timesteps": float(steps), "success_rate": 0.9 * reached}]
    measures = Measures(0.5, 1.0, 4, steps, 2.0, steps, reached, 4 * steps, 8.0, 1.0, history=history)
    return {**Run("t", agent, None, seed).as_dict(), **measures.as_dict(), **more}


RUNS = [
    run
    for seed in range(5)
    for run in (
        learned("ppo", seed, 1000, reached=seed != 4),
        learned("plan", seed, 600, passes_per_success=None if seed == 0 else 6.0),
        {**Run("t", "random", None, seed).as_dict(), **Measures(0.2 * seed, 0.0, 4, 9, 0.1).as_dict()},
    )
]


def test_agents_are_summarized_and_compared():
    """Medians count a run that did not get there with all its steps. What a run lacks is not made up."""
    rows = {row["agent"]: row for row in summarize(RUNS)}
    assert list(rows) == ["ppo", "plan", "random"]
    assert rows["ppo"]["steps_to_threshold"] == [1000.0, 1000.0, 1000.0]
    assert (rows["ppo"]["censored"], rows["plan"]["censored"], rows["random"]["censored"]) == (1, 0, None)
    assert rows["random"]["success_rate"][0] == pytest.approx(0.4)
    assert rows["random"]["steps_to_threshold"] is None
    assert rows["plan"]["passes_per_success"] is None  # one of them has no success
    found = {row["measure"]: row for row in compare(RUNS)}
    assert set(found) == {"success_rate", "steps_to_threshold", "learner_passes"}  # the worst is not left out
    steps = found["steps_to_threshold"]
    assert (steps["agent"], steps["against"], steps["what"]) == ("plan", "ppo", "a plan, from rollouts")
    assert steps["less"] == pytest.approx([0.4, 0.4, 0.4])
    assert steps["difference"] == [-400.0, -400.0, -400.0]
    assert (steps["pairs"], steps["censored"], steps["p"], steps["p_holm"]) == (5, [0, 1], 2 / 32, 2 / 32)
    assert found["success_rate"]["less"] is None
    assert found["success_rate"]["p"] == 1.0
    whole = {row["measure"]: row for row in compare([run for run in RUNS if run["seed"]])}
    assert whole["passes_per_success"]["pairs"] == 4


def test_comparisons_are_corrected_together():
    """Four pairs of one measure: the smallest p-value counts four times."""
    runs = [
        *RUNS,
        *(learned("impala", seed, 2000) for seed in range(5)),
        *(learned("ppo_uniform", s, 999) for s in range(5)),
    ]
    rows = [row for row in compare(runs) if row["measure"] == "steps_to_threshold"]
    assert [(row["agent"], row["against"]) for row in rows] == [
        ("plan", "ppo"),
        ("plan", "ppo_uniform"),
        ("ppo_uniform", "ppo"),
        ("impala", "ppo"),
    ]
    assert [row["p_holm"] for row in rows] == [8 / 32] * 4


def test_models_are_compared_with_themselves_alone():
    """ReAct and the tree of thoughts of two backbones are two pairs."""
    runs = [
        {**Run("t", agent, backbone, 0).as_dict(), **Measures(0.5, 0.0, 4, 9, 0.1).as_dict()}
        for agent in ("react", "tot")
        for backbone in ("own", "hf:x")
    ]
    rows = compare(runs)
    assert [(row["agent"], row["against"]) for row in rows] == [
        ("tot, own", "react, own"),
        ("tot, hf:x", "react, hf:x"),
    ]


def test_of_rates_it_is_said_how_many_times_as_high_they_are():
    """The sums of all pairs are compared, and the table has a column of it."""
    runs = [
        {**Run("t", agent, "own", seed).as_dict(), **Measures(0.5, 0.0, 4, 9, 0.1, etps=etps).as_dict()}
        for seed in range(5)
        for agent, etps in (("react", 300.0), ("react_anew", 100.0))
    ]
    rows = {row["measure"]: row for row in compare(runs)}
    assert (rows["etps"]["times"], rows["etps"]["less"]) == ([3.0, 3.0, 3.0], None)
    assert (rows["success_rate"]["times"], rows["success_rate"]["less"]) == (None, None)
    lines = table(summarize(runs), compare(runs), "").splitlines()
    assert lines[7] == "| what | agents | success@1: difference | ETPS: times |"
    assert lines[9].endswith("| 3.00 (3.00 to 3.00), p = 0.062 |")


def test_the_table_shows_what_there_is():
    """Bounds are marked; a column that no agent has is left out."""
    lines = table(summarize(RUNS), compare(RUNS), "Made here.").splitlines()
    heads = "agent, success@1, return, steps to the threshold, learner's passes, passes a success, seconds, seeds"
    assert lines[2] == f"| {heads.replace(', ', ' | ')} |"
    assert lines[4] == "| ppo | 0.50 | 1.00 | > 1,000 | > 4,000 | 8 | 2 | 5 |"
    assert lines[5] == "| plan | 0.50 | 1.00 | 600 | 2,400 | - | 2 | 5 |"
    assert lines[10].startswith(
        "| a plan, from rollouts | plan against ppo | +0.00 (+0.00 to +0.00), p = 1.000 | 40% (40% to 40%)"
    )
    assert "p = 0.062; bounds: 0 of plan, 1 of ppo |" in lines[10]
    assert lines[-1] == "Made here."


def test_when_the_threshold_is_reached():
    """The first evaluation counts; without one, all steps, which is a bound."""
    history = [{"timesteps": float(t), "success_rate": rate} for t, rate in ((5, 0.2), (9, 0.9), (12, 1.0))]
    assert reached_at(history, 0.9, 12) == {"steps_to_threshold": 9, "reached": True}
    assert reached_at(history, 0.9, 8) == {"steps_to_threshold": 8, "reached": True}  # it was looked at late
    assert reached_at(history[:1], 0.9, 7) == {"steps_to_threshold": 7, "reached": False}


def test_files_of_runs_have_names_of_their_own():
    """Whatever is in a specification."""
    backbones = ["own", "hf:a/b", "hf:a:b", "openai:m@http://127.0.0.1:1/v1"]
    names = {Run("t", "react", one, 0).name for one in backbones}
    assert len(names) == 4
    assert "t--react-own--0" in names
    assert not any("/" in name or ":" in name for name in names)


def test_plots_are_drawn(tmp_path: Path):
    """Curves, steps and success: each has colours beside its background."""
    need("matplotlib")
    from matplotlib import image

    from echo_shm.planning.evaluation.plots import draw

    files = draw(RUNS, summarize(RUNS), 0.9, tmp_path / "plots")
    assert [file.name for file in files] == ["t-curves.png", "t-steps.png", "t-success.png"]
    for file in files:
        assert len(np.unique(image.imread(file).reshape(-1, 4), axis=0)) > 2
