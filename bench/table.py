"""Figures, and how they are printed."""

import contextlib
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_TIMES = "\N{MULTIPLICATION SIGN}"
_DASH = "\N{EN DASH}"


#: Of all other units, less is better.
_MORE_IS_BETTER = ("samples/s", "steps/s", "batches/s", "items/s", "MB/s")


@dataclass(frozen=True)
class Floor:
    """What a figure has to reach: ``of="ratio"`` at least (at most, for costs) ``bound``, or ``of="value"`` itself."""

    bound: float
    of: str = "ratio"


@dataclass(frozen=True)
class Figure:
    """One row: what was measured in each repetition, and what it is compared with.

    Attributes:
        path: What was measured.
        unit: ``"samples/s"``, ``"steps/s"``, ``"batches/s"``, ``"items/s"``, ``"MB/s"`` (more is better) or one of
            costs (less is better): ``"s"``, ``"ms"``, ``"µs"``, ``"ns"``, ``"MB"``, ``"GB"``, ``"bytes"``,
            ``"a sample"``.
        ours: One value a repetition.
        peer: What the ratio is taken to; empty for none.
        theirs: The peer's values, of the same repetitions.
        floor: None where there is none.

    """

    path: str
    unit: str
    ours: Sequence[float]
    peer: str = ""
    theirs: Sequence[float] = field(default=())
    floor: Floor | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours to theirs, repetition by repetition."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)] if self.theirs else []

    @property
    def verdict(self) -> str:
        """``"ok"``, ``"below"`` (the floor is missed), or nothing when there is nothing to judge."""
        judged = self.ratios if self.floor is not None and self.floor.of == "ratio" else self.ours
        if self.floor is None or not judged:
            return ""
        middle = statistics.median(judged)
        reached = middle >= self.floor.bound if self.unit in _MORE_IS_BETTER else middle <= self.floor.bound
        return "ok" if reached else "below"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.path,
            "unit": self.unit,
            "ours": list(self.ours),
            "peer": self.peer,
            "theirs": list(self.theirs),
            "ratio": statistics.median(self.ratios) if self.ratios else None,
            "floor": None if self.floor is None else {"bound": self.floor.bound, "of": self.floor.of},
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Figure":
        """A figure out of JSON."""
        floor = None if data["floor"] is None else Floor(**data["floor"])
        return cls(data["path"], data["unit"], data["ours"], data["peer"], data["theirs"], floor)

    def cells(self) -> list[str]:
        """The row's cells."""
        floor = ""
        if self.floor is not None:
            sign, times = (
                ("≥" if self.unit in _MORE_IS_BETTER else "≤"),
                (_TIMES if self.floor.of == "ratio" else f" {self.unit}"),
            )
            floor = f"{sign} {self.floor.bound:g}{times}"
        compared = f"{self.peer}: {_spread(self.theirs, self.unit)}" if self.theirs else ""
        ratio = _spread(self.ratios, _TIMES) if self.ratios else ""
        return [self.path, _spread(self.ours, self.unit), compared, ratio, floor, self.verdict]


def _spread(values: Sequence[float], unit: str) -> str:
    """Median (least to most)."""
    middle, least, most = (_number(f(values), unit) for f in (statistics.median, min, max))
    space = "" if unit == _TIMES else " "
    return f"{middle}{space}{unit}" + (f" ({least}{_DASH}{most})" if len(values) > 1 else "")


def _number(value: float, unit: str) -> str:
    if unit in _MORE_IS_BETTER:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


HEADINGS = ["path", "echo_shm", "compared with", "ratio", "floor", ""]


def markdown(figures: Sequence[Figure]) -> str:
    """The table. Every cell is a median over the repetitions, with the least and the most in brackets."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(figure.cells() for figure in figures)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def machine() -> dict[str, str]:
    """Where the figures were taken."""
    return {
        "CPU": _cpu("model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "virtual": "yes" if "hypervisor" in _cpu("flags").split() else "no",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "echo-shm", "id-echo")},
    }


def _cpu(key: str) -> str:
    """What /proc/cpuinfo says of the first processor; empty where there is no such file or line."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(key))
    return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
