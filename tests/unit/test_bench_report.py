"""The committed figures: the tables in README.md and bench/README.md are those of bench/results.json."""

import json
import re
import statistics

import pytest

from bench import report
from bench.table import Figure


@pytest.mark.parametrize("path", report.BLOCKS, ids=["README.md", "bench/README.md"])
def test_the_files_show_the_results(path):
    """What stands between the marks is what the results make, word by word."""
    assert report.block(path.read_text(encoding="utf-8")) == report.BLOCKS[path](report.load())


def test_the_plot_is_of_the_same_run():
    """The plot names the results that it was drawn from."""
    assert report.digest(report.load()) in report.PLOT.read_text(encoding="utf-8")


def test_the_results_are_of_a_whole_run():
    """Not of ``--quick`` or ``--only``: five repetitions of every figure that README shows, on a named machine."""
    results = report.load()
    assert results["scale"]["repetitions"] == 5
    assert all(len(values) == 5 for row in report.rows(results) for values in (row.ours, row.id_echo))
    assert all(results["machine"].values())


def test_a_row_has_the_medians():
    """README's first row: medians in three digits, the median of the ratios in two."""
    results = report.load()
    first = report.rows(results)[0]
    line = next(line for line in report.readme(results).splitlines() if line.startswith("| `send`"))
    ours, theirs, ratio = (float(n.replace(",", "")) for n in re.findall(r"\| ([\d,.]+)", line))
    assert ours == pytest.approx(statistics.median(first.ours), rel=0.005)
    assert theirs == pytest.approx(statistics.median(first.id_echo), rel=0.005)
    ratios = [a / b for a, b in zip(first.ours, first.id_echo, strict=True)]
    assert ratio == pytest.approx(statistics.median(ratios), rel=0.05)


def test_figures_survive_json():
    """A figure that is written and read back prints the same row."""
    for data in report.load()["figures"]:
        figure = Figure.from_dict(data)
        assert Figure.from_dict(json.loads(json.dumps(figure.as_dict()))).cells() == figure.cells()


def test_figures_of_another_machine_have_a_table_of_their_own():
    """Each table says where it was measured, and has its own rows alone."""
    results = report.load()
    other = {**results, "machine": {**results["machine"], "CPU": "another"}, "figures": results["figures"][:1]}
    other.pop("elsewhere", None)
    text = report.full({**results, "elsewhere": [other]})
    _, table = text[text.index("cores of another") :].split("\n\n", 1)
    assert len(table.splitlines()) == 3
    assert text.startswith(report.full({**results, "elsewhere": []}))


def test_only_the_block_is_replaced():
    """What stands before and after the marks stays."""
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.replaced(text, "new") == text.replace("old", "new")
    assert report.block(report.replaced(text, "new")) == "new"
