"""``python -m bench.plot``: draws ``bench/speed.svg`` from ``bench/results.json``.

Each row has a dot for either library, at the median, and a line from the least
to the most of the repetitions. The picture brings its own background, so that
it can be read on a light page and on a dark one.
"""

import statistics
import textwrap

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from bench import report

_OURS, _THEIRS, _INK, _MUTED, _PAPER = "#0b6bcb", "#c4531a", "#1f2328", "#59636e", "#fbfcfd"


def _short(value: float) -> str:
    """2,500 as "2.5 k"; three significant digits at most."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{float(f'{value / size:.3g}'):g}{letter}"
    return f"{value:g}"


def _draw_row(axes: Axes, y: float, row: report.Row) -> None:
    ours, theirs = statistics.median(row.ours), statistics.median(row.id_echo)
    axes.plot([theirs, ours], [y, y], color="#c9d1d9", linewidth=5, solid_capstyle="butt", zorder=1)
    for values, colour in ((row.ours, _OURS), (row.id_echo, _THEIRS)):
        axes.plot([min(values), max(values)], [y, y], color=colour, linewidth=2, zorder=2)
        axes.plot([statistics.median(values)], [y], "o", color=colour, markersize=9, zorder=3)
    if row.limit:
        limit = statistics.median(row.limit)
        axes.plot([limit, limit], [y - 0.22, y + 0.06], color=_INK, linewidth=2, zorder=4)
        axes.annotate(
            row.headline.limit, (limit, y - 0.22), (0, -9), textcoords="offset points", ha="center", color=_INK
        )
    for value, colour in ((ours, _OURS), (theirs, _THEIRS)):
        axes.annotate(
            _short(value), (value, y), (0, 9), textcoords="offset points", ha="center", color=colour, fontweight="bold"
        )
    middle = (ours * theirs) ** 0.5
    times = f"{float(f'{row.ratio:.2g}'):g}\N{MULTIPLICATION SIGN}"
    axes.annotate(times, (middle, y), (0, 5), textcoords="offset points", ha="center", color=_MUTED)


def draw(results: object) -> Figure:
    """The picture."""
    rows = report.rows(results)
    figure = Figure(figsize=(9, 4.2), facecolor=_PAPER)
    axes = figure.add_axes((0.295, 0.215, 0.68, 0.63), facecolor=_PAPER)
    for y, row in enumerate(rows):
        _draw_row(axes, -y, row)
    axes.set_yticks([-y for y in range(len(rows))], [f"{row.headline.call}\n{row.headline.what}" for row in rows])
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=0, colors=_INK)
    axes.grid(axis="x", color="#e2e6ea", linewidth=1)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("samples per second that reach the learner, logarithmic scale", color=_INK)
    handles = [Line2D([], [], color=colour, marker="o", linewidth=0, markersize=9) for colour in (_OURS, _THEIRS)]
    legend = figure.legend(
        handles, ["echo_shm", "id-echo"], loc="upper left", ncols=2, frameon=False, fontsize=12, labelcolor="linecolor"
    )
    for text in legend.get_texts():
        text.set_fontweight("bold")
    place = "\n".join(textwrap.wrap(report.where(results), 140, break_on_hyphens=False))
    figure.text(0.012, 0.02, place, color=_MUTED, fontsize=8, linespacing=1.4)
    return figure


def main() -> None:
    """The command."""
    # A salt of its own and no date: the same results make the same file.
    results = report.load()
    about = {"Date": None, "Creator": None, "Identifier": f"results.json {report.digest(results)}"}
    with mpl.rc_context({"svg.hashsalt": "echo_shm", "font.size": 9}):
        draw(results).savefig(report.PLOT, metadata=about)
    print(f"drawn: {report.PLOT.relative_to(report.PLOT.parent.parent)}")


if __name__ == "__main__":
    main()
