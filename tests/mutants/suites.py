"""The suites that are run against each mutant: how to build and run each, and how to read its output.

All paths are here. {build} is the suite's build folder, {csrc} the mutated core.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

#: Every suite that accepts a seed gets the same random numbers each time.
SEED = 1

Reader = Callable[[str], list[str]]


def _failed_tests(output: str) -> list[str]:
    return [f"{file[:-2]}:{name}" for file, name in re.findall(r"^FAIL (\S+\.c) (\S+)$", output, re.M)]


def _violated_scenes(output: str) -> list[str]:
    found = re.findall(r"^(.{1,38}?) +\d+ executions, +\d+ steps at most, (?!complete|stopped at)", output, re.M)
    return [name.strip() for name in found]


def _failed_pytest(output: str) -> list[str]:
    """Reads the output of pytest -v. A test without a verdict on its line was cut short and counts as failed."""
    said = re.findall(r"^tests/(?:unit/)?(\S+\.py::.+?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b.*)?$", output, re.M)
    return [name.strip() for name, verdict in said if verdict in ("FAILED", "ERROR", "")]


def _plain(line: str) -> str:
    return line


def _c_test(line: str) -> str:
    return line.replace(".c ", ":")


def _collected(line: str) -> str:
    return line.removeprefix("tests/").removeprefix("unit/") if "::" in line else ""


def _storm_faults(output: str) -> list[str]:
    found = re.search(r"^  lost \d.*$", output, re.M)
    return [fault for fault, n in re.findall(r"([a-z][a-z ]*[a-z]) (\d+)", found[0]) if n != "0"] if found else []


def _fuzz_target(output: str) -> list[str]:
    return [name for name in ("attach", "words", "regress") if re.search(rf"\b(quick-)?{name}\] Error", output)]


def _nothing(output: str) -> list[str]:
    return []


@dataclass(frozen=True)
class Suite:
    """One column of the table."""

    name: str
    folder: str
    build: tuple[str, ...]  # make's arguments
    run: tuple[tuple[str, ...], ...]  # commands to run in sequence; all run, even after a failure
    limit: float  # seconds per command; longer is a hang, which counts as a kill
    single_limit: float  # seconds for one test run alone
    killers: Reader = _nothing  # returns the tests that failed, from the output
    tests: tuple[str, ...] = ()  # the command that lists the tests, if any
    listed: Callable[[str], str] = _plain  # turns a line of that list into a name as killers gives it, or ""
    single: tuple[str, ...] = ()  # runs one test alone, after a crash or a hang that hides other failures
    optional: bool = False  # run only if it is named
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def is_python(self) -> bool:
        """Whether it is run in a checkout of its own, with the extensions built there."""
        return not self.folder


def _explore(*budget: str) -> tuple[str, ...]:
    return ("{build}/explore", "--quiet", *budget)


def _c_program(
    name: str, program: str, variant: str, limit: float, single_limit: float, optional: bool = False
) -> Suite:
    path = f"{{build}}/{variant}/{program}"
    return Suite(
        name,
        "tests/c",
        (f"build-{variant}",),
        ((path,),),
        limit,
        single_limit,
        _failed_tests,
        (path, "-l"),
        _c_test,
        (path, "{test}"),
        optional,
        (("ES_TEST_SEED", str(SEED)),),
    )


_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
#: The quick tests that use the ring.
_UNIT_FILES = """
    test_client.py test_client_reserve.py test_server.py test_server_dataset_iter.py test_server_learners.py ring
"""
_UNIT = tuple(f"tests/unit/{name}" for name in _UNIT_FILES.split())
#: Those of stores in files, and of checkpoints.
_KEPT_FILES = """
    unit/replay/test_store.py unit/replay/test_files.py unit/replay/test_snapshots.py unit/replay/test_checkpoint.py
    process/test_killed_checkpoints.py
"""
_KEPT = tuple(f"tests/{name}" for name in _KEPT_FILES.split())


def _python(name: str, tests: tuple[str, ...]) -> Suite:
    return Suite(
        name,
        "",
        (),
        (("{python}", *_PYTEST, "-v", "--tb=no", *tests),),
        90,
        90,
        _failed_pytest,
        ("{python}", *_PYTEST, "--collect-only", "-q", *tests),
        _collected,
        optional=True,
    )


SUITES = (
    _c_program("c", "core-tests", "plain", 20, 8),
    _c_program("steps", "step-tests", "plain", 10, 4),
    Suite(
        "fuzz",
        "tests/fuzz",
        ("build-quick",),
        (("make", "-C", "{folder}", "BUILD={build}", "CSRC={csrc}", "quick", "SECONDS=4", f"SEED={SEED}"),),
        60,
        60,
        _fuzz_target,
    ),
    Suite(
        "storm",
        "tests/stress",
        ("all",),
        (("{build}/storm", "--quiet", "--seconds", "4", "--watchdog", "8", "--seed", str(SEED)),),
        60,
        60,
        _storm_faults,
    ),
    # A tenth of the executions of "make -C tests/explore quick".
    Suite(
        "explore",
        "tests/explore",
        ("build",),
        (
            _explore("--memory", "sc", "--preemptions", "2", "--kills", "0", "--executions", "2000"),
            _explore("--memory", "sc", "--preemptions", "1", "--kills", "1", "--executions", "2000"),
            _explore("--memory", "tso", "--preemptions", "1", "--stale", "2", "--kills", "0", "--executions", "2000"),
            _explore("--memory", "c11", "--preemptions", "1", "--stale", "2", "--kills", "0", "--executions", "2000"),
            _explore(*f"--memory tso --preemptions 30 --stale 6 --kills 1 --executions 500 --seed {SEED}".split()),
            _explore(*f"--memory c11 --preemptions 30 --stale 6 --kills 1 --executions 1000 --seed {SEED}".split()),
        ),
        120,
        120,
        _violated_scenes,
        ("{build}/explore", "--list"),
    ),
    # Only where a death leaves something new.
    Suite(
        "trace",
        "tests/trace",
        ("build",),
        (("{build}/trace-tests",),),
        120,
        60,
        _failed_tests,
        ("{build}/trace-tests", "-l"),
        _c_test,
        environment=(("ES_TEST_SEED", str(SEED)), ("ES_TRACE_QUICK", "1")),
    ),
    Suite(
        "quick",
        "tests/explore",
        ("build",),
        (("make", "-C", "{folder}", "BUILD={build}", "CSRC={csrc}", f"SEED={SEED}", "quick"),),
        600,
        600,
        _violated_scenes,
        ("{build}/explore", "--list"),
        optional=True,
    ),
    _c_program("asan", "core-tests", "asan", 120, 40, optional=True),
    _c_program("tsan", "core-tests", "tsan", 120, 40, optional=True),
    _python("python", _UNIT),
    _python("files", _KEPT),
)
BY_NAME = {suite.name: suite for suite in SUITES}
