"""Prints the results: mutants by suite, or by single test."""

from collections import Counter
from typing import Any

from mutant import Mutant
from suites import SUITES

#: The row of the unchanged core.
SOUND = "-"

Cells = dict[str, dict[str, Any]]  # of one mutant, by suite
MARKS = {"": ".", "fail": "X", "crash": "C", "hang": "H"}


def _columns(known: dict[str, Cells]) -> list[str]:
    return [s.name for s in SUITES if any(s.name in cells for cells in known.values())]


def _mark(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return " "
    return "B" if cell["verdict"] == "did not build" else MARKS[cell["how"]]


def _killers(cells: Cells) -> list[str]:
    return [name for name, cell in cells.items() if cell["verdict"] == "killed"]


def survivors(mutants: list[Mutant], known: dict[str, Cells]) -> list[Mutant]:
    """The mutants that were tested by at least one suite and killed by none."""
    return [m for m in mutants if known[m.name] and not _killers(known[m.name])]


def print_suites(mutants: list[Mutant], known: dict[str, Cells]) -> None:
    """Prints the table, its totals and the survivors."""
    columns = _columns(known)
    print("X failed, C crashed, H hung; . survived; B did not build; blank: not run\n")
    print(f"{'mutant':20} {'where':22} " + " ".join(f"{c[:7]:>7}" for c in columns) + "  bug")
    for m in mutants:
        cells = known[m.name]
        marks = " ".join(f"{_mark(cells.get(c)):>7}" for c in columns)
        print(f"{m.name:20} {m.where:22} {marks}  {m.bug}")
    killers = {m.name: _killers(known[m.name]) for m in mutants}
    run = Counter(c for m in mutants for c in known[m.name])
    kills = Counter(c for names in killers.values() for c in names)
    alone = Counter(names[0] for names in killers.values() if len(names) == 1)
    for title, counts in (("mutants run", run), ("killed", kills), ("killed by this suite alone", alone)):
        print(f"{title:43} " + " ".join(f"{counts[c]:>7}" for c in columns))
    left = survivors(mutants, known)
    print(f"\n{len(mutants)} mutants; {len(left)} survived every suite that was run against them:")
    for m in left:
        print(f"  {m.name:20} {m.room}, {m.function}: {m.bug}")


def _by_test(mutants: list[Mutant], known: dict[str, Cells], sound: Cells) -> dict[str, set[str]]:
    """Every test and the mutants that it kills. A suite that cannot name the failing test counts as one test."""
    kills: dict[str, set[str]] = {f"{suite} {t}": set() for suite, cell in sound.items() for t in cell["tests"]}
    for m in mutants:
        for suite, cell in known[m.name].items():
            if cell["verdict"] == "killed":
                for test in cell["by"] or ["(all)"]:
                    kills.setdefault(f"{suite} {test}", set()).add(m.name)
    return kills


def print_tests(mutants: list[Mutant], known: dict[str, Cells], sound: Cells) -> None:
    """For each test: how many mutants it kills, how many it alone kills, and a test that kills at least the same."""
    kills = _by_test(mutants, known, sound)
    killed_by = Counter(name for names in kills.values() for name in names)
    print(f"{'test':72} kills alone  mutants that it alone kills; else a test that kills at least the same")
    for test, names in sorted(kills.items(), key=lambda item: (item[0].split()[0], len(item[1]), item[0])):
        alone = sorted(n for n in names if killed_by[n] == 1)
        wider = [t for t, others in kills.items() if t != test and names and names <= others]
        same_suite = [t for t in wider if t.split()[0] == test.split()[0]]
        by = ", ".join(alone) if alone else (same_suite or wider or ["" if names else "(kills nothing)"])[0]
        print(f"{test:72} {len(names):5} {len(alone):5}  {by}")
