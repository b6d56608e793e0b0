"""Prefetches stay in the object code.

A compiler may take a function that only prefetches for one without effect, and drop its calls: GCC 12 does. Nothing
fails then; draws and inserts just wait for memory. So the core is compiled as setup.py does it, and searched.
"""

import os
import platform
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from echo_shm._build import ffibuilder

ROOT = Path(__file__).resolve().parents[2]

#: How each processor's assembly spells a prefetch.
INSTRUCTIONS = {"x86_64": "prefetch", "aarch64": "prfm"}

#: For each file in csrc/replay/ that prefetches, functions whose code must have prefetches, and how many at least: one
#: for each place in the source. What is inlined differs between compilers: "" stands for the whole file.
LEAST = {
    "es_draw": {"": 8},  # a record, two links, three places of a row, and two of small rows
    "es_gather": {"": 6},  # rows twice
    "es_outputs": {"es_outputs_find_far": 8},  # twice three places of a row, and two of small rows
    "es_prefix_tree": {"set_some_plain": 5, "find_many_plain": 6},
    "es_prioritized": {"": 5},  # a group of weights, the sums above it, and its least weight
    "es_rank": {"": 2},
    "es_softmax_tree": {"": 1},
    "es_store": {"es_store_fetch_leaves": 3},  # three places of a leaf
    "es_table_update": {"": 2},  # a record, and whether it is a member
}


#: What a file has that prefetches.
CALLS = r"__builtin_prefetch|\bes_prefetch\(|\bes_(?:store_fetch_(?:step|bytes)|prefix_tree_fetch|rank_fetch)\("


def prefetches(file: str) -> dict[str, int]:
    """How many prefetch instructions each function of a file in csrc/replay/ has; "": all together."""
    options = ffibuilder._assigned_source[3]["extra_compile_args"]
    flags = " ".join(sysconfig.get_config_var(name) or "" for name in ("CFLAGS", "CCSHARED"))
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    command = [*shlex.split(f"{compiler} {flags}"), *options, "-Icsrc", "-S", "-o", "-", f"csrc/replay/{file}.c"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode(errors="replace")
    found, function = {"": 0}, ""
    for line in text.splitlines():
        if label := re.match(r"([A-Za-z_]\w*)[\w.]*:", line):  # es_draw, and es_draw.part.0
            function = label[1]
        elif line.split()[:1] and line.split()[0].startswith(INSTRUCTIONS[platform.machine()]):
            found[function] = found.get(function, 0) + 1
            found[""] += 1
    return found


@pytest.mark.skipif(platform.machine() not in INSTRUCTIONS, reason="how this processor spells a prefetch is not known")
@pytest.mark.parametrize("file", LEAST)
def test_prefetches_are_compiled(file: str) -> None:
    """Each function has those that its source has."""
    found = prefetches(file)
    for function, least in LEAST[file].items():
        assert found.get(function, 0) >= least, f"{file}.c: {function or 'all functions'}: {found}"


def test_every_file_is_looked_at() -> None:
    """The table above has each file that prefetches."""
    files = {path.stem for path in (ROOT / "csrc").glob("*/*.c") if re.search(CALLS, path.read_text())}
    assert files == set(LEAST)
