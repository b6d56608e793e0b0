"""Includes of the C core go down. The floors are in the order of the list; what is above knows what is below."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: A concept's files may be several; those of one floor of ``INCLUDES`` are in the order of what may include what.
CONCEPTS = {
    "es_take": "es_ring",
    "es_reap": "es_ring",
    "es_mend": "es_ring",
    "es_end": "es_ring",
    "es_watch": "es_api",
    "es_bridge": "es_api",
}
INCLUDES = [
    ["es_types", "es_base", "es_wait"],
    ["es_words", "es_layout", "es_owner", "es_stats"],
    ["es_ring", "es_copy"],
    ["es_api"],
]


def c_rank(file):
    """A C file's floor, and its place there."""
    stem = Path(file).stem
    concept = CONCEPTS.get(stem, stem)
    return next((f, row.index(concept)) for f, row in enumerate(INCLUDES) if concept in row)


def c_upward(file, source):
    """What a C file includes that is neither below it nor of its own concept."""
    included = re.findall(r'^\s*#\s*include\s*"([^"]+)"', source, re.MULTILINE)
    return [other for other in included if not (c_rank(other) <= c_rank(file))]


C_FILES = sorted(path.name for path in (ROOT / "csrc").glob("*.[ch]"))


@pytest.mark.parametrize("file", C_FILES)
def test_includes_go_down(file):
    """A C file includes its own concept's header and those below, never one above."""
    assert c_upward(file, (ROOT / "csrc" / file).read_text()) == []


def test_upward_includes_are_seen():
    """The reader of includes sees an upward one."""
    assert c_upward("es_layout.c", '#include <stdio.h>\n# include "es_ring.h"\n') == ["es_ring.h"]
    assert c_upward("es_wait.h", '#include "es_layout.h"') == ["es_layout.h"]
    assert c_upward("es_ring.h", '#include "es_api.h"') == ["es_api.h"]


def test_python_reads_one_header():
    """The Python build reads es_api.h and the plain types under it, and no atomics."""
    build = (ROOT / "echo_shm" / "_build.py").read_text()
    assert set(re.findall(r"es_\w+\.h", build)) == {"es_types.h", "es_api.h"}
    for header in ("es_types.h", "es_api.h"):
        assert "_Atomic" not in re.sub(r"/\*.*?\*/", "", (ROOT / "csrc" / header).read_text(), flags=re.DOTALL)
