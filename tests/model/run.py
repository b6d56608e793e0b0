"""Runs the Spin models of the ring and of weights: configurations that must hold, and mutants that they must catch.

    python tests/model/run.py                 everything
    python tests/model/run.py --quick         the small configurations, and all mutants
    python tests/model/run.py both-22 no_alarm
    python tests/model/run.py --list

Needs spin and a C compiler. Work files are in build/model. The exit status is 1 when a case fails.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cases import CONFIGURATIONS, MUTANTS, Case

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[1] / "build" / "model"
MEMORY_MIB = 5500  # for one search
DEPTH = 1_000_000
TRAIL_LINES = 60
CFLAGS = {
    "all": ["-DSAFETY", "-DCOLLAPSE"],
    "bits": ["-DSAFETY", "-DBITSTATE"],
    "cycles": ["-DNP", "-DCOLLAPSE"],
}
MINUTES = 4  # a bitstate search is cut after this time; it is a sample in any case
PAN_ARGS = {"all": ["-w26"], "bits": ["-w33", "-k3", f"-Q{MINUTES}"], "cycles": ["-l", "-w24"]}


@dataclass
class Outcome:
    """The result of a case. trouble is empty when the result is the expected one."""

    case: Case
    trouble: str
    states: int = 0
    seconds: float = 0.0
    depth: int = 0
    error: str = ""  # the first error of the search
    coverage: str = ""  # of a bitstate search only
    unreached: frozenset[str] = frozenset()

    def line(self) -> str:
        """The case in one line."""
        found = f"caught by {self.error}" if self.case.mutant and self.error else "holds"
        verdict = f"FAILED: {self.trouble}" if self.trouble else found + self.coverage
        return f"{self.case.name:24} {self.states:>12,} states {self.seconds:7.1f} s  depth {self.depth:>6}  {verdict}"


def _error(output: str) -> str:
    """The error that pan reports, in words. A broken statement is named by its number."""
    statement = re.search(r"assertion violated \(failed!=(\d+)\)", output)
    if statement:
        return f"statement {statement[1]}"
    if "non-progress cycle" in output.replace("non-progress cycles", ""):
        return "statement 7"  # an endless run
    other = re.search(r"^pan:\d+: (.*?)(?: \(at depth|$)", output, re.MULTILINE)
    return other[1] if other else ""


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    return int(float(found[1])) if found else 0


def _unreached(output: str) -> frozenset[str]:
    """Promela statements that never ran: process, line, and text with its numbers left out."""
    process, found = "", set()
    for line in output.splitlines():
        heading = re.match(r"unreached in (?:proctype|init|claim) ?(\w*)", line)
        if heading:
            process = heading[1] or "init"
        state = re.match(r'\s+\S+:(\d+), state \d+, "(.*)"', line)
        if state and "kills[" not in state[2] and state[2] not in ("(1)", "else", "-end-", "(0)"):
            found.add(f"{process}:{state[1]}: " + re.sub(r"\d+", "#", state[2]))
    return frozenset(found)


def _judge(case: Case, output: str, status: int) -> Outcome:
    error = _error(output)
    outcome = Outcome(
        case,
        "",
        _number(r"([\d.e+]+) states, stored", output),
        depth=_number(r"depth reached (\d+)", output),
        error=error,
        unreached=_unreached(output),
    )
    errors = re.search(r"errors: (\d+)", output)
    if case.mode == "bits":
        factor = re.search(r"hash factor: ([\d.]+)", output)
        outcome.coverage = f", hash factor {factor[1]}" if factor else ""
        if "Search not completed" in output:
            outcome.coverage += f", cut after {MINUTES} min"
    if errors is None or status != 0:
        outcome.trouble = f"the search broke off (status {status})"
    elif case.mode == "cycles" and not re.search(r"non-progress cycles\s+\+", output):
        outcome.trouble = "the search did not look for endless runs"
    elif "max search depth too small" in output:
        outcome.trouble = "the search was cut at its maximum depth"
    elif case.mutant and not error:
        outcome.trouble = "this mutant survives"
    elif case.mutant and error not in {f"statement {n}" for n in case.breaks}:
        outcome.trouble = f"caught by {error}, expected one of {sorted(case.breaks)}"
    elif not case.mutant and (error or errors[1] != "0"):
        outcome.trouble = error or "an error"
    elif not case.mutant and case.mode != "bits" and ("out of memory" in output or "Search not completed" in output):
        outcome.trouble = "the search is not complete"
    return outcome


def _flags(case: Case) -> list[str]:
    return [f"-D{name}={value}" for name, value in case.flags.items()]


def _trail(case: Case, folder: Path) -> str:
    """The end of the run that led to the error, one statement a line, and then the state of the words."""
    command = ["spin", "-t", "-p", "-g", "-k", f"{case.source}.trail", *_flags(case), str(HERE / case.source)]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    noise = re.compile(r"\[(\(1\)|else|IF|DO|break|sub-sequence|D_STEP\d*|goto .*|\.\(goto\)|[xyz] = .*|\(+kills.*)\]")
    run, _, end = shown.partition("spin: trail ends")
    steps = [s for s in run.splitlines() if re.search(r"proc +\d", s) and "checks.pml" not in s and not noise.search(s)]
    last = [re.sub(r"^\s*\d+:\s*|\S*/tests/model/|\(state \d+\)\s*", "", step) for step in steps[-TRAIL_LINES:]]
    words = "; ".join(re.findall(r"^\s+([\w\[\]]+ = \d+)", end, re.MULTILINE))
    return "\n".join(["    " + line.replace("(_pid-1)", "id") for line in [*last, words]])


def run(case: Case, keep: bool = False) -> Outcome:
    """Generates, compiles and runs one search."""
    folder = WORK / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    made = subprocess.run(
        ["spin", "-a", *_flags(case), str(HERE / case.source)], cwd=folder, capture_output=True, text=True
    )
    if made.returncode != 0 or not (folder / "pan.c").exists():
        return Outcome(case, "spin: " + made.stdout[-2000:] + made.stderr[-2000:])
    # A short search takes less time than optimising it.
    optimise = "-O0" if case.quick else "-O2"
    command = [os.environ.get("CC", "gcc"), optimise, "-w", f"-DMEMLIM={MEMORY_MIB}", *CFLAGS[case.mode]]
    made = subprocess.run([*command, "-o", "pan", "pan.c"], cwd=folder, capture_output=True, text=True)
    if made.returncode != 0:
        return Outcome(case, "compiler: " + made.stderr[-2000:])
    table = [*PAN_ARGS[case.mode], "-w22"] if case.mutant else PAN_ARGS[case.mode]
    done = subprocess.run(["./pan", f"-m{DEPTH}", *table], cwd=folder, capture_output=True, text=True)
    (folder / "pan.out").write_text(done.stdout + done.stderr)
    outcome = _judge(case, done.stdout, done.returncode)
    outcome.seconds = time.monotonic() - started
    if outcome.error and (keep or outcome.trouble):
        outcome.trouble += "\n" + _trail(case, folder) if outcome.trouble else ""
        (folder / "trail.txt").write_text(_trail(case, folder) + "\n")
    for leftover in folder.glob("pan*"):
        if leftover.name != "pan.out":
            leftover.unlink()
    return outcome


def run_all(cases: Iterable[Case], jobs: int, keep: bool) -> list[Outcome]:
    """Runs the cases and prints each as it ends."""
    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda case: run(case, keep), cases):
            print(outcome.line(), flush=True)
            outcomes.append(outcome)
    return outcomes


def report(outcomes: list[Outcome], everything: bool) -> int:
    """Prints the summary. Returns the exit status."""
    failed = [o.case.name for o in outcomes if o.trouble]
    held = sum(not o.case.mutant and not o.trouble for o in outcomes)
    caught = sum(o.case.mutant and not o.trouble for o in outcomes)
    states = sum(o.states for o in outcomes if not o.case.mutant)
    print(f"{held} configurations hold ({states:,} states), {caught} mutants caught, {len(failed)} failed")
    searched = [o for o in outcomes if o.case.mode == "all" and not o.case.mutant and not o.trouble]
    models = {o.case.source for o in searched} if everything else set()
    never = sorted(
        place
        for model in models
        for place in frozenset.intersection(*(o.unreached for o in searched if o.case.source == model))
    )
    if never:
        # The line is that of the innermost file. A few always appear: code that a macro expands where it cannot run.
        print("not reached in any configuration:", *never, sep="\n    ")
    return 1 if failed else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("case", nargs="*", help="run only these cases")
    parser.add_argument("--quick", action="store_true", help="the small configurations, and all mutants")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="searches at a time, up to 6 GiB each"
    )
    parser.add_argument(
        "--trails", action="store_true", help="write how each mutant fails to build/model/NAME/trail.txt"
    )
    options = parser.parse_args()
    cases = {case.name: case for case in [*CONFIGURATIONS, *MUTANTS]}
    unknown = [name for name in options.case if name not in cases]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    if options.list:
        for case in cases.values():
            kind = "mutant" if case.mutant else case.mode
            words = " ".join(f"{name}={value}" for name, value in case.flags.items() if not name.startswith("M_"))
            print(f"{case.name:24} {kind:7} {words:36} {case.about}")
        return 0
    if shutil.which("spin") is None:
        parser.error("spin is not installed (Debian: apt-get install spin)")
    chosen = [cases[name] for name in options.case] or [c for c in cases.values() if c.quick or not options.quick]
    return report(run_all(chosen, options.jobs, options.trails), not options.case and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
