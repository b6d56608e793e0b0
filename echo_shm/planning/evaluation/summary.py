"""What the runs of an evaluation say together."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from echo_shm.planning.evaluation.statistics import bootstrap, holm, paired_test

#: What is summarized: by its mean, or by its median where runs that did not reach the threshold are lower bounds.
MEASURES: dict[str, Callable[..., Any]] = {
    "success_rate": np.mean,
    "avg_reward": np.mean,
    "steps_to_threshold": np.median,
    "learner_passes": np.median,
    "passes_per_success": np.median,
    "learner_cost": np.median,
    "etps": np.median,
    "eta": np.mean,
    "kv_reuse": np.mean,
    "bandwidth_per_success": np.median,
    "seconds": np.median,
}

#: What is compared between agents, seed by seed.
COMPARED = ("success_rate", "steps_to_threshold", "learner_passes", "passes_per_success", "etps")

#: Of those, which are rates: of them it is said how many times as high one is.
RATES = ("etps",)

#: Which agents are compared with which, and what the difference between them is.
PAIRS = {
    ("echo_rl", "ppo_uniform"): "a plan, and drawing by surprise",
    ("echo_rl", "ppo"): "a plan, and a replay that is drawn by surprise",
    ("plan", "ppo"): "a plan, from rollouts",
    ("plan", "ppo_uniform"): "a plan, and no replay",
    ("plan_uniform", "ppo_uniform"): "a plan, from a replay",
    ("echo_rl", "plan_uniform"): "drawing by surprise",
    ("ppo_uniform", "ppo"): "a replay, without a plan",
    ("plan_uniform", "plan"): "a replay, with a plan",
    ("impala", "ppo"): "IMPALA for PPO",
    ("react", "react_anew"): "shared caches, and dispatch by priority",
    ("tot", "react"): "a tree of thoughts for ReAct",
    ("react", "random"): "ReAct for chance",
    ("tot", "random"): "a tree of thoughts for chance",
}


def label(run: dict[str, Any]) -> str:
    """An agent with its backbone."""
    return run["agent"] if run["backbone"] is None else f"{run['agent']}, {run['backbone']}"


def _groups(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The runs of each task and agent, in the order in which they come."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        found.setdefault(run["task"], {}).setdefault(label(run), []).append(run)
    return found


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One mapping for each task and agent.

    ``task``, ``agent``, ``seeds`` (how many), ``censored`` (how many did not reach the threshold; None without one),
    and for each of :data:`MEASURES` ``[estimate, low, high]`` with a bootstrap interval of 95 % over seeds. A measure
    that one of the runs does not have is None.
    """
    rows = []
    for task, by_agent in _groups(runs).items():
        for agent, group in by_agent.items():
            row: dict[str, Any] = {"task": task, "agent": agent, "seeds": len(group)}
            reached = [run["reached"] for run in group]
            row["censored"] = None if None in reached else reached.count(False)
            for name, statistic in MEASURES.items():
                values = [run[name] for run in group]
                if None in values:
                    row[name] = None
                else:
                    found = bootstrap(values, statistic)
                    row[name] = [found.estimate, found.low, found.high]
            rows.append(row)
    return rows


def compare(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One mapping for each task, measure of :data:`COMPARED`, and two agents of :data:`PAIRS` that have it.

    ``task``, ``measure``, ``agent``, ``against``, ``what`` the difference between them is; ``pairs``: how many seeds
    both have. If one run of them has no such measure, as a run without a success has no cost of one, there is no
    comparison: the others would be the better half. ``censored``: how many runs of the one and of the other did not
    reach the threshold, so that their numbers of steps and passes are lower bounds; ``difference``: the mean
    ``[estimate, low, high]`` with a bootstrap interval over pairs; ``less``: likewise, by which part the sum of the
    agent is less than the other's, or None for success rates and for :data:`RATES`; ``times``: of these how many times
    the other's sum the agent's is, or None; ``p`` of the paired permutation test, which with n pairs
    is at least 2 / 2**n; and ``p_holm``, corrected for all comparisons of this measure of the task.
    """
    found = []
    for task, by_agent in _groups(runs).items():
        for measure in COMPARED:
            rows = []
            for (mine, theirs), what in PAIRS.items():
                for agent, against in itertools.product(by_agent, by_agent):
                    a, b = by_agent[agent], by_agent[against]
                    one_model = None in (a[0]["backbone"], b[0]["backbone"]) or a[0]["backbone"] == b[0]["backbone"]
                    if (a[0]["agent"], b[0]["agent"]) == (mine, theirs) and one_model:
                        pairs = _paired(measure, a, b)
                        names = {"task": task, "measure": measure, "agent": agent, "against": against, "what": what}
                        rows += [{**names, **_compared(measure, pairs)}] if pairs else []
            for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
                row["p_holm"] = corrected
            found += rows
    return found


_Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def _paired(measure: str, mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> _Pairs:
    """The runs of each seed that both have; none if one of them does not have this measure."""
    others = {run["seed"]: run for run in theirs}
    pairs = [(run, others[run["seed"]]) for run in mine if run["seed"] in others]
    return [] if any(run[measure] is None for pair in pairs for run in pair) else pairs


def _compared(measure: str, pairs: _Pairs) -> dict[str, Any]:
    values = np.array([[a[measure], b[measure]] for a, b in pairs], np.float64)
    difference = bootstrap((values[:, 0] - values[:, 1]).tolist())
    row: dict[str, Any] = {
        "pairs": len(pairs),
        "censored": [sum(run["reached"] is False for run in side) for side in zip(*pairs, strict=True)],
        "difference": [difference.estimate, difference.low, difference.high],
        "less": None,
        "times": None,
        "p": paired_test(values[:, 0].tolist(), values[:, 1].tolist()),
    }
    if measure != "success_rate" and values[:, 1].sum() > 0:
        name, statistic = ("times", _times) if measure in RATES else ("less", _less)
        found = bootstrap(values, statistic)
        row[name] = [found.estimate, found.low, found.high]
    return row


def _times(pairs: Any, axis: int) -> Any:
    sums = pairs.sum(axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def _less(pairs: Any, axis: int) -> Any:
    return 1 - _times(pairs, axis)
