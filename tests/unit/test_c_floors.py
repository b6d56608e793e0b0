"""The C core: includes and calls go down, a prefix names its file, and nothing in it is for tests alone."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

#: From the bottom. Files on one floor do not know each other.
FLOORS = [
    {"base/es_types"},
    {"base/es_base"},
    {"base/es_clock", "base/es_copy", "base/es_counter", "base/es_memory", "base/es_prefetch"},
    {"base/es_histogram", "base/es_wait"},
    {"replay/es_exp", "replay/es_lanes", "replay/es_pow_lanes", "replay/es_prefix_walk"},
    {"replay/es_temperature"},
    {"replay/es_pow", "replay/es_prefix_tree", "replay/es_rank", "replay/es_softmax_tree", "planning/es_plan_lanes"},
    {"planning/es_costs", "planning/es_plan", "planning/es_prefix_index"},
    {"ring/es_word"},
    {"ring/es_invariant", "ring/es_layout"},
    {"ring/es_leaves", "ring/es_locks"},
    {"ring/es_owner", "ring/es_ring"},
    {"ring/es_version"},
    {"ring/es_stats", "ring/es_wake"},
    {"ring/es_journal", "ring/es_producer", "ring/es_slots"},
    {"ring/es_lease"},
    {"ring/es_consumer", "ring/es_partial", "ring/es_reap", "ring/es_repair"},
    {"ring/es_drain"},
    {"ring/es_blocking"},
    {"api/es_call"},
    {"api/es_age", "api/es_api", "api/es_bridge", "api/es_group", "api/es_monitor", "api/es_segment", "api/es_sweep",
     "api/es_weights"},
    {"replay/es_replay_types"},
    {"replay/es_order", "replay/es_random", "replay/es_rate_limiter"},
    {"replay/es_known", "replay/es_record", "replay/es_redo", "replay/es_sort"},
    {"replay/es_store_layout", "replay/es_streams"},
    {"replay/es_chunk", "replay/es_store", "replay/es_custom", "replay/es_fifo", "replay/es_heap",
     "replay/es_hot_cold",
     "replay/es_prioritized", "replay/es_softmax", "replay/es_uniform"},
    {"replay/es_gather", "replay/es_hold", "replay/es_notes", "replay/es_peek", "replay/es_selector"},
    {"replay/es_steps"},
    {"replay/es_window"},
    {"replay/es_implicit", "replay/es_outputs"},
    {"replay/es_table"},
    {"replay/es_table_limits", "replay/es_table_reset", "replay/es_table_tune"},
    {"replay/es_table_age"},
    {"replay/es_table_update"},
    {"replay/es_draw", "replay/es_table_recover"},
    {"replay/es_drawn", "replay/es_outbox", "replay/es_source", "replay/es_tables"},
    {"replay/es_room", "replay/es_save", "replay/es_snapshot"},
    {"replay/es_insert"},
    {"replay/es_inbox", "replay/es_own", "replay/es_recover"},
    {"replay/es_restore", "replay/es_rings"},
    {"replay/es_replay_parts"},
    {"replay/es_replay"},
    {"replay/es_checkpoint"},
]  # fmt: skip

#: Files that share another file's header.
SHARED_HEADER = {
    "api/es_age": "api/es_api",
    "api/es_bridge": "api/es_api",
    "api/es_segment": "api/es_api",
    "api/es_sweep": "api/es_api",
    "api/es_monitor": "api/es_api",
    "api/es_weights": "api/es_api",
    "replay/es_table_age": "replay/es_table",
    "replay/es_table_limits": "replay/es_table",
    "replay/es_table_recover": "replay/es_table",
    "replay/es_table_reset": "replay/es_table",
    "replay/es_table_tune": "replay/es_table",
    "replay/es_table_update": "replay/es_table",
} | {
    f"replay/es_{kind}": "replay/es_selector"
    for kind in ("custom", "fifo", "heap", "hot_cold", "prioritized", "softmax", "uniform")
}

SOURCES = sorted(str(path.relative_to(CSRC).with_suffix("")) for path in CSRC.glob("*/es_*.c"))
HEADERS = sorted(str(path.relative_to(CSRC).with_suffix("")) for path in CSRC.glob("*/es_*.h"))


def without_comments(source):
    """C source without its comments."""
    return re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)


def floor_of(stem):
    """The floor of a file, named as in FLOORS."""
    return next(number for number, files in enumerate(FLOORS) if stem in files)


def upward(stem, others):
    """Which of the other files are not on a floor below the file's own. Its own header is no other file."""
    own = {stem, SHARED_HEADER.get(stem)}
    return sorted(other for other in others - own if floor_of(other) >= floor_of(stem))


def included(source):
    """The core's headers that a source includes."""
    return {name.removesuffix(".h") for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', source, re.MULTILINE)}


@pytest.mark.parametrize("file", [f"{stem}.c" for stem in SOURCES] + [f"{stem}.h" for stem in HEADERS])
def test_includes_go_down(file):
    """A C file includes its own header and headers of floors below, by their paths under csrc/."""
    stem = file[:-2]
    assert sum(stem in files for files in FLOORS) == 1, f"give {stem} a floor"
    assert upward(stem, included((CSRC / file).read_text())) == []


def test_every_floor_has_files():
    """The table names no file that is gone."""
    assert set().union(*FLOORS) == {*SOURCES, *HEADERS}


def test_upward_includes_are_seen():
    """The reader of includes sees upward and sideways ones."""
    assert upward("ring/es_layout", included('#include <stdio.h>\n# include "ring/es_ring.h"\n')) == ["ring/es_ring"]
    assert upward("ring/es_lease", included('#include "ring/es_lease.h"\n#include "ring/es_reap.h"')) == [
        "ring/es_reap"
    ]
    assert upward("ring/es_reap", included('#include "ring/es_partial.h"')) == ["ring/es_partial"]
    assert upward("api/es_sweep", included('#include "api/es_api.h"')) == []


@pytest.fixture(scope="module")
def symbols(tmp_path_factory):
    """What each source defines and what it needs from others: the linker's own view of the calls."""
    folder = tmp_path_factory.mktemp("objects")
    command = ["cc", "-std=c11", "-O0", "-I", str(CSRC), "-c", *(str(CSRC / f"{stem}.c") for stem in SOURCES)]
    subprocess.run(command, check=True, cwd=folder)
    found = {}
    for stem in SOURCES:
        lines = subprocess.run(
            ["nm", str(folder / f"{Path(stem).name}.o")], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        rows = [line.split()[-2:] for line in lines]
        defined = {name for kind, name in rows if kind == "T"}
        found[stem] = (defined, {name for kind, name in rows if kind == "U" and name.startswith("es_")})
    return found


def test_calls_go_down(symbols):
    """A function calls functions of its own file and of floors below."""
    where = {name: stem for stem, (defined, _) in symbols.items() for name in defined}
    for stem, (_, needed) in symbols.items():
        called = {where[name] for name in needed}
        assert [other for other in called - {stem} if floor_of(other) >= floor_of(stem)] == [], stem


def test_a_prefix_names_its_file(symbols):
    """Every function that other files can call, inline ones included, begins with its file's name."""
    for stem, (defined, _) in symbols.items():
        prefix = Path(stem).name
        assert [name for name in defined if name != prefix and not name.startswith(f"{prefix}_")] == [], stem
    for stem in HEADERS:
        prefix = Path(stem).name
        inline = re.findall(r"^static inline .*?(\w+)\(", (CSRC / f"{stem}.h").read_text(), re.MULTILINE)
        assert [name for name in inline if name != prefix and not name.startswith(f"{prefix}_")] == [], stem


def test_every_function_is_declared_once(symbols):
    """A function that other files can call is declared in one header."""
    headers = {stem: without_comments((CSRC / f"{stem}.h").read_text()) for stem in HEADERS}
    for stem, (defined, _) in symbols.items():
        for name in defined:
            declared = [
                header for header, text in headers.items() if re.search(rf"^\w.*\b{name}\(", text, re.MULTILINE)
            ]
            assert declared == [SHARED_HEADER.get(stem, stem)], name


#: What only the loop of a replay will call.
AWAITS_ITS_CALLER = {"es_api_wait_any", "es_api_change_word"}


def test_nothing_is_for_tests_alone(symbols):
    """Another file of the core, or Python, calls each function that it can call."""
    python = "".join(path.read_text() for path in (ROOT / "echo_shm").rglob("*.py"))
    needed = set().union(*(names for _, names in symbols.values()))
    for stem, (defined, _) in symbols.items():
        unused = [name for name in defined - needed - AWAITS_ITS_CALLER if not re.search(rf"\b{name}\b", python)]
        assert unused == [], f"{stem}: nobody but tests calls these"


#: The ends of a label: what publishes, and what sees it. Either order of a read-modify-write is both.
RELEASING, ACQUIRING = re.compile(r"\b(release|acq_rel|seq_cst)\b"), re.compile(r"\b(acquire|acq_rel|seq_cst)\b")


def sync_labels():
    """Each SYNC label of the core, and the text of every comment that has it."""
    found = {}
    for path in [*CSRC.glob("*/es_*.c"), *CSRC.glob("*/es_*.h")]:
        for comment in re.findall(r"/\*.*?\*/", path.read_text(), re.DOTALL):
            text = re.sub(r"\s*\n\s*\*?\s*", " ", comment)
            for names, order in re.findall(r"SYNC ((?:[a-z-]+, )*[a-z-]+): ([^.;]*)", text):
                for name in names.split(", "):
                    found.setdefault(name, []).append(order)
    return found


def test_every_sync_label_has_both_ends():
    """A label stands where something is published and where it is seen."""
    for name, orders in sync_labels().items():
        assert any(RELEASING.search(order) for order in orders), f"SYNC {name}: nothing releases"
        assert any(ACQUIRING.search(order) for order in orders), f"SYNC {name}: nothing acquires"


def test_the_legend_names_every_label():
    """The legend in csrc/README.md has each label of the core, and no other."""
    legend = set(re.findall(r"^\| `([a-z-]+)` \|", (CSRC / "README.md").read_text(), re.MULTILINE))
    fences = {name for path in CSRC.glob("*/es_*.c") for name in re.findall(r"FENCE ([a-z-]+):", path.read_text())}
    assert legend == set(sync_labels()) | fences


def test_python_reads_public_headers():
    """The Python build reads the headers that say what Python calls, and the plain types under them, and no atomics."""
    headers = {
        "base/es_types.h",
        "api/es_api.h",
        "replay/es_replay_types.h",
        "replay/es_replay.h",
        "replay/es_checkpoint.h",
        "planning/es_plan.h",
        "planning/es_costs.h",
        "planning/es_prefix_index.h",
    }
    build = (ROOT / "echo_shm" / "_build.py").read_text()
    assert set(re.findall(r"\w+/es_\w+\.h", build)) == headers
    for header in headers:
        assert "_Atomic" not in without_comments((CSRC / header).read_text())
