"""An evaluation's plots: learning curves, steps to the threshold, success."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from echo_shm.missing import needs
from echo_shm.planning.evaluation.statistics import bootstrap
from echo_shm.planning.evaluation.summary import label

with needs("planning.evaluation.plots", "matplotlib", "matplotlib", extra="planning-evaluation"):
    from matplotlib.figure import Figure


def draw(
    runs: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]], threshold: float, folder: Path
) -> list[Path]:
    """Draws what there is of each task into PNG files.

    Args:
        runs: As of :class:`~echo_shm.planning.evaluation.evaluation.Results`; likewise the summary.
        summary: The rows to draw.
        threshold: The success rate of the threshold.
        folder: Where the files go.

    Returns:
        The files: ``TASK-curves.png``, ``TASK-steps.png`` of tasks that somebody learns, and ``TASK-success.png``.

    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for task in dict.fromkeys(run["task"] for run in runs):
        learned = [run for run in runs if run["task"] == task and run["history"]]
        rows = [row for row in summary if row["task"] == task]
        if learned:
            files.append(_save(_curves(task, learned, threshold), folder / f"{task}-curves.png"))
            steps = [row for row in rows if row["steps_to_threshold"] is not None]
            title = f"{task}: steps to a success rate of {threshold:g} (> : a lower bound)"
            files.append(_save(_bars(title, steps, "steps_to_threshold"), folder / f"{task}-steps.png"))
        files.append(_save(_bars(f"{task}: success@1", rows, "success_rate"), folder / f"{task}-success.png"))
    return files


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path


def _curves(task: str, runs: Sequence[dict[str, Any]], threshold: float) -> Figure:
    """Mean success rates with intervals. A run that has stopped at the threshold keeps its last one."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for agent in dict.fromkeys(label(run) for run in runs):
        histories = [run["history"] for run in runs if label(run) == agent]
        steps = sorted({one["timesteps"] for history in histories for one in history})
        curves = [_at(history, steps) for history in histories]
        found = [bootstrap([curve[i] for curve in curves], resamples=2_000) for i in range(len(steps))]
        (line,) = axes.plot(steps, [one.estimate for one in found], label=agent)
        low, high = [one.low for one in found], [one.high for one in found]
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.axhline(threshold, color="gray", linestyle=":")
    axes.set(xlabel="steps of environments", ylabel="success rate", title=task, ylim=(-0.02, 1.02))
    axes.legend()
    return figure


def _at(history: Sequence[dict[str, float]], steps: Sequence[float]) -> list[float]:
    """The success rate of the last evaluation before each of these steps; 0 before the first."""
    known = [one["timesteps"] for one in history]
    places = np.searchsorted(known, steps, side="right")
    return [history[place - 1]["success_rate"] if place else 0.0 for place in places]


def _bars(title: str, rows: Sequence[dict[str, Any]], measure: str) -> Figure:
    """A point with its interval for each agent."""
    figure = Figure(figsize=(7, 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        estimate, low, high = row[measure]
        axes.plot([low, high], [place, place], color="C0", linewidth=2)
        bound = measure == "steps_to_threshold" and row["censored"]
        axes.plot([estimate], [place], ">" if bound else "o", color="C0")
    axes.set(yticks=range(len(rows)), yticklabels=[row["agent"] for row in rows], title=title)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    return figure
