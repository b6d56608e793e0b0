"""An evaluation's table, in Markdown."""

import contextlib
import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from echo_shm.planning.evaluation.configs import EvaluationConfig
from echo_shm.planning.evaluation.runs import LeftOut
from echo_shm.planning.evaluation.summary import RATES, label

_PACKAGES = ("echo-shm", "numpy", "torch", "gymnasium", "minigrid")

#: Of each measure: its column, and how a number is written.
_COLUMNS = {
    "success_rate": ("success@1", "{:.2f}"),
    "avg_reward": ("return", "{:.2f}"),
    "steps_to_threshold": ("steps to the threshold", "{:,.0f}"),
    "learner_passes": ("learner's passes", "{:,.0f}"),
    "passes_per_success": ("passes a success", "{:,.0f}"),
    "etps": ("ETPS", "{:,.0f}"),
    "eta": ("η", "{:.2e}"),
    "kv_reuse": ("KV reuse", "{:.1%}"),
    "bandwidth_per_success": ("KV entries a success", "{:,.0f}"),
    "seconds": ("seconds", "{:,.0f}"),
}

#: What is a lower bound of a run that did not reach the threshold.
_BOUNDED = ("steps_to_threshold", "learner_passes")


def machine() -> dict[str, str]:
    """Where this process runs, and the versions of packages."""
    cpu = platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"CPU": cpu, "cores": str(cores), "Python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def where_and_when() -> str:
    """This machine, the versions of packages, and today's date, in one line."""
    return f"{', '.join(f'{name} {value}' for name, value in machine().items())}; {datetime.date.today().isoformat()}"


def about(config: EvaluationConfig, runs: Sequence[dict[str, Any]], left_out: Sequence[LeftOut]) -> str:
    """What the table is of, and where and when its runs were made."""
    every = config.evaluation_frequency
    rhythm = "" if every is None else f", every {every:,} steps"
    last = config.first_seed + config.seeds - 1
    said = [
        *(f"{made}." for made in dict.fromkeys(run["made"] for run in runs)),
        f"Seeds {config.first_seed} to {last}; the threshold is a success rate of {config.threshold:g} in an "
        f"evaluation of {config.episodes} episodes{rhythm}, within {config.steps:,} steps. Agents that learn play a "
        "multiple of 16 if there are more.",
        "Means of success, return, η and reuse, medians of the others, each with a bootstrap interval of 95 % over "
        "seeds. `>` marks medians of which one run or more did not reach the threshold: such a run counts with all its "
        "steps, a lower bound.",
    ]
    by_why: dict[str, list[str]] = {}
    for one in left_out:
        by_why.setdefault(one.why, []).append(f"{one.agent} on {one.task}")
    said += [
        f"The model did not answer in {run['failed']} of {run['episodes']} episodes of {label(run)} on {run['task']} "
        f"with seed {run['seed']}; they count as ones without success."
        for run in runs
        if run["failed"]
    ]
    said += [f"Left out: {', '.join(pairs)}: {why}." for why, pairs in by_why.items()]
    return "\n\n".join(said)


def table(summary: Sequence[dict[str, Any]], comparisons: Sequence[dict[str, Any]], said: str) -> str:
    """The measures of all agents, and what makes a difference, task by task; and what is said of it."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in summary):
        rows = [row for row in summary if row["task"] == task]
        shown = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
        heads = ["agent", *(_COLUMNS[name][0] for name in shown), "seeds"]
        body = [[row["agent"], *(_cell(row, name) for name in shown), str(row["seeds"])] for row in rows]
        parts += [f"**{task}**", _markdown(heads, body)]
        compared = [row for row in comparisons if row["task"] == task]
        if compared:
            parts.append(_markdown(*_differences(compared)))
    return "\n\n".join([*parts, said]) + "\n"


def _cell(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    form = _COLUMNS[name][1]
    estimate, low, high = (form.format(one) for one in row[name])
    bound = "> " if row["censored"] and name in _BOUNDED else ""
    return f"{bound}{estimate}" + (f" ({low} to {high})" if low != high else "")


def _differences(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """What makes which difference: a row for each two agents."""
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    heads = ["what", "agents"]
    for name in measures:
        said = "difference" if name == "success_rate" else "times" if name in RATES else "less by"
        heads.append(f"{_COLUMNS[name][0]}: {said}")
    body = []
    for agents in dict.fromkeys((row["agent"], row["against"]) for row in rows):
        mine = {row["measure"]: row for row in rows if (row["agent"], row["against"]) == agents}
        cells = [next(iter(mine.values()))["what"], f"{agents[0]} against {agents[1]}"]
        body.append(cells + [_difference(mine[name]) if name in mine else "-" for name in measures])
    return heads, body


def _difference(row: dict[str, Any]) -> str:
    form, given = "{:+.2f}", row["difference"]
    if row["less"] is not None:
        form, given = "{:.0%}", row["less"]
    elif row["times"] is not None:
        form, given = "{:.2f}", row["times"]
    estimate, low, high = (form.format(one) for one in given)
    bounds = ""
    if any(row["censored"]) and row["measure"] in _BOUNDED:
        bounds = f"; bounds: {row['censored'][0]} of {row['agent']}, {row['censored'][1]} of {row['against']}"
    return f"{estimate} ({low} to {high}), p = {row['p_holm']:.3f}{bounds}"


def _markdown(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
