"""Runs every suite against every mutant of the C core, and prints which suite kills which mutant.

    python tests/mutants/run.py                        runs missing cells, then prints the table
    python tests/mutants/run.py --print [--tests]      prints the table only, by suite or by single test
    python tests/mutants/run.py --suite c --again abort-no-wake
    python tests/mutants/run.py --list

Results are kept in results.json beside this file. A cell is run again if the mutated code, comments aside, or the
suite's commands in suites.py have changed. After a new test, repeat its suite's cells with --again. A suite runs
against mutants only if it passes on the unchanged core. One suite runs at a time, at a low priority (nice). The exit
status is 1 if a suite fails on the unchanged core, or if a mutant survived every suite that was run against it.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import table
from mutant import Mutant, apply
from mutants import MUTANTS
from suites import BY_NAME, SUITES, Suite

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORE = ROOT / "csrc"
WORK = ROOT / "build" / "mutants"
RESULTS = HERE / "results.json"
MOST_HANGS = 2  # after this many hangs of single tests, the rest of the suite is skipped

Cell = dict[str, Any]


class Results:
    """The results so far, by mutant and suite. Saved after each cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, dict[str, Cell]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, mutant: str, suite: str, digest: str) -> Cell | None:
        """The cell, if its digest matches and it was built."""
        cell = self.cells.get(mutant, {}).get(suite)
        return cell if cell is not None and cell["of"] == digest and cell["verdict"] != "did not build" else None

    def put(self, mutant: str, suite: str, cell: Cell) -> None:
        """Stores a cell and saves the file."""
        self.cells.setdefault(mutant, {})[suite] = {key: value for key, value in cell.items() if key != "tail"}
        rows = (
            f" {json.dumps(name)}: {{\n"
            + ",\n".join(f"  {json.dumps(s)}: {json.dumps(c)}" for s, c in sorted(row.items()))
            + "\n }"
            for name, row in sorted(self.cells.items())
        )
        fresh = self.path.with_suffix(".tmp")  # an interrupted run leaves the old file whole
        fresh.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        fresh.replace(self.path)


def texts(mutant: Mutant | None) -> dict[str, str]:
    """The text of each file of the core, with the mutant's bug if there is one."""
    files = {str(p.relative_to(CORE)): p.read_text() for p in CORE.rglob("*.[ch]")}
    if mutant is not None:
        files[mutant.file] = apply(mutant, files[mutant.file])
    return files


def write(mutant: Mutant | None, to: Path) -> None:
    """Puts the core with this mutant into a folder. Writes only the files that change, because of make."""
    files = texts(mutant)
    for gone in {str(p.relative_to(to)) for p in to.rglob("*.[ch]")} - set(files):
        (to / gone).unlink()
    for name, text in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def digest(mutant: Mutant | None, suite: Suite) -> str:
    """A hash of the suite's commands and of the mutated file, without comments; of the whole core without a mutant."""
    files = {name: "".join(re.sub(r"/\*.*?\*/", "", text, flags=re.S).split()) for name, text in texts(mutant).items()}
    of = json.dumps([files[mutant.file] if mutant else files, suite.run, suite.build], sort_keys=True)
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def call(command: list[str], limit: float, environment: dict[str, str], cwd: Path) -> tuple[int | None, str]:
    """Runs a command. Returns its exit status, or None after a timeout, and its output. Kills all its processes."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=os.environ | environment,
        )
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        return status, out.read().decode(errors="replace")


class Runner:
    """Builds and runs one suite against one mutant after another."""

    def __init__(self, suite: Suite, python_tree: Path) -> None:
        self.suite = suite
        self.csrc = python_tree / "csrc" if suite.is_python else WORK / "csrc"
        self.tree = python_tree
        self.folder = ROOT / suite.folder
        self.build_folder = WORK / (suite.folder.replace("/", "-") or "python")

    def _filled(self, command: tuple[str, ...], test: str = "") -> list[str]:
        names = {
            "build": self.build_folder,
            "csrc": self.csrc,
            "folder": self.folder,
            "python": self.tree / ".venv/bin/python",
            "test": test,
        }
        return [word.format(**names) for word in command]

    def _call(self, command: tuple[str, ...], limit: float, test: str = "") -> tuple[int | None, str]:
        cwd = self.tree if self.suite.is_python else self.folder
        return call(self._filled(command, test), limit, dict(self.suite.environment), cwd)

    def build(self) -> tuple[bool, str]:
        """Builds the suite. Returns whether that succeeded, and the output."""
        if self.suite.is_python:
            status, output = self._call(("{python}", "setup.py", "-q", "build_ext", "--inplace"), 300)
        else:
            make = ("make", "-C", "{folder}", "BUILD={build}", "CSRC={csrc}", *self.suite.build)
            status, output = self._call(make, 300)
        return status == 0, output

    def tests(self) -> list[str]:
        """The names of the suite's tests, in the form that `killers` gives."""
        if not self.suite.tests:
            return []
        output = self._call(self.suite.tests, 60)[1]
        return [name for line in output.splitlines() if (name := self.suite.listed(line))]

    def run(self) -> Cell:
        """Runs the suite, which must be built."""
        killers: list[str] = []
        how = ""
        tail = ""
        for command in self.suite.run:
            status, output = self._call(command, self.suite.limit)
            if status == 0:
                continue
            killers += self.suite.killers(output)
            how = how or ("hang" if status is None else "crash" if status < 0 or status > 128 else "fail")
            tail = tail or output[-1500:]
        if how in ("hang", "crash") and self.suite.single:
            killers += self._one_by_one()
        by = list(dict.fromkeys(killers))
        return {"verdict": "killed" if how else "survived", "how": how, "by": by, "tail": tail}

    def _one_by_one(self) -> list[str]:
        """Runs each test alone and returns those that fail. For use after a crash or a hang, which hides failures."""
        killers: list[str] = []
        hangs = 0
        for test in self.tests():
            status, output = self._call(self.suite.single, self.suite.single_limit, test.partition(":")[2])
            failed = self.suite.killers(output)
            hangs += status is None
            if status != 0:
                killers += failed or [test]
            if hangs == MOST_HANGS:
                break
        return killers


def cell_of(runner: Runner, mutant: Mutant | None) -> Cell:
    """Builds and runs the suite against the mutant, or against the unchanged core."""
    began = time.monotonic()
    write(mutant, runner.csrc)
    built, output = runner.build()
    cell: Cell = runner.run() if built else {"verdict": "did not build", "how": "", "by": [], "tail": output[-1500:]}
    if mutant is None:
        cell["tests"] = runner.tests()
    cell["seconds"] = round(time.monotonic() - began, 1)
    cell["of"] = digest(mutant, runner.suite)
    return cell


def sound(runner: Runner, results: Results) -> bool:
    """Whether the suite passes on the unchanged core. Runs it if that is not known."""
    suite = runner.suite
    cell = results.get(table.SOUND, suite.name, digest(None, suite))
    if cell is None or cell["verdict"] != "survived":
        cell = cell_of(runner, None)
        results.put(table.SOUND, suite.name, cell)
        print(f"{suite.name}: on the unchanged core: {cell['verdict']}, {cell['seconds']} s", flush=True)
    if cell["verdict"] != "survived":
        print(cell["tail"])
    return bool(cell["verdict"] == "survived")


def run(suites: list[Suite], mutants: list[Mutant], results: Results, again: bool, python_tree: Path) -> bool:
    """Fills the table, one suite after the other. Returns whether all suites pass on the unchanged core."""
    all_sound = True
    for suite in suites:
        runner = Runner(suite, python_tree)
        missing = [m for m in mutants if again or results.get(m.name, suite.name, digest(m, suite)) is None]
        if not missing:
            continue
        if not sound(runner, results):
            all_sound = False
            continue
        for mutant in missing:
            cell = cell_of(runner, mutant)
            results.put(mutant.name, suite.name, cell)
            by = ", ".join(cell["by"][:4]) + (" ..." if len(cell["by"]) > 4 else "")
            print(
                f"{suite.name:8} {mutant.name:20} {cell['verdict']:8} {cell['how']:5} {cell['seconds']:6} s  {by}",
                flush=True,
            )
    return all_sound


def fresh_cells(results: Results, mutant: Mutant) -> dict[str, Cell]:
    """The cells that are of today's core."""
    found = {suite.name: results.get(mutant.name, suite.name, digest(mutant, suite)) for suite in SUITES}
    return {name: cell for name, cell in found.items() if cell is not None}


def chosen(names: list[str], all_mutants: tuple[Mutant, ...]) -> list[Mutant]:
    """The mutants with these names, or all if no name is given."""
    unknown = set(names) - {m.name for m in all_mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [m for m in all_mutants if not names or m.name in names]


def main() -> None:
    """Runs the command line that the module's docstring describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutant", nargs="*", help="name of a mutant (default: all)")
    parser.add_argument("--suite", action="append", choices=list(BY_NAME), help="suite to run; may be repeated")
    parser.add_argument("--again", action="store_true", help="repeat cells that are already known")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the table and run nothing")
    parser.add_argument("--tests", action="store_true", help="print the table by single test")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--python-tree", type=Path, default=WORK / "python", help="a checkout with its own .venv")
    options = parser.parse_args()
    if options.list:
        for m in MUTANTS:
            print(f"{m.name:20} {m.room:15} {m.function:24} {m.where:22} {m.bug}")
        return
    mutants = chosen(options.mutant, MUTANTS)
    suites = [BY_NAME[name] for name in options.suite] if options.suite else [s for s in SUITES if not s.optional]
    results = Results(RESULTS)
    all_sound = True
    if not options.only_print:
        if shutil.which("make") is None:
            sys.exit("make is needed")
        os.nice(10)
        all_sound = run(suites, mutants, results, options.again, options.python_tree)
    known = {m.name: fresh_cells(results, m) for m in mutants}
    if options.tests:
        table.print_tests(mutants, known, results.cells.get(table.SOUND, {}))
    else:
        table.print_suites(mutants, known)
    sys.exit(0 if options.only_print or (all_sound and not table.survivors(mutants, known)) else 1)


if __name__ == "__main__":
    main()
