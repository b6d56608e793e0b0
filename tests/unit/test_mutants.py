"""The list of mutants fits the core: each bug can still be put into it, and all of it is covered."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "mutants"))

from mutant import apply
from mutants import MUTANTS
from suites import SUITES

CORE = Path(__file__).parents[2] / "csrc"

#: Labels whose ends no mutant touches, and why.
EXCUSED = {"attached": "orders threads of one process around an attachment that they share by other locks first"}


def test_names_are_unique():
    """A name is a row of the table."""
    assert [name for name, n in Counter(m.name for m in MUTANTS).items() if n > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_it_fits(mutant):
    """Each old text stands once in its function, and the new text changes it."""
    text = (CORE / mutant.file).read_text()
    assert apply(mutant, text) != text


def test_every_label_has_a_mutant():
    """Each SYNC and FENCE label of the core is broken by one mutant at least."""
    labels: set[str] = set()
    for path in CORE.rglob("es_*.[ch]"):
        for kind, names in re.findall(r"\b(SYNC|FENCE) ([a-z-]+(?:, [a-z-]+)*)[:.;]", path.read_text()):
            labels |= {f"{kind} {name}" for name in names.split(", ")}
    broken = {m.where for m in MUTANTS}
    assert labels - broken - {f"SYNC {name}" for name in EXCUSED} == set()


def test_suites_name_files_that_exist():
    """A suite with a wrong path would only fail hours into a run."""
    for suite in SUITES:
        for word in (word for command in suite.run for word in command if word.startswith("tests/")):
            assert (CORE.parent / word).exists(), f"{suite.name}: no {word}"
