"""``python -m bench.report``: writes the tables of ``bench/results.json`` into README.md and bench/README.md.

Each file has one block between two marks. What stands there comes from the
results alone, and a test compares it with them.
"""

import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.table import Figure, markdown

_HERE = Path(__file__).resolve().parent
RESULTS = _HERE / "results.json"
PLOT = _HERE / "speed.svg"

BEGIN = "<!-- make bench writes what follows -->"
END = "<!-- make bench wrote what precedes -->"

_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Headline:
    """One of the four rows of README.md, and of the plot.

    Attributes:
        path: The figure's path in the results.
        call: What the worker calls.
        what: What is sent.
        limit: A second peer to show, the machine's own speed.

    """

    path: str
    call: str
    what: str
    limit: str = ""


HEADLINES = (
    Headline("`send`, CartPole", "send", "20 bytes per sample, 1 worker"),
    Headline("`send_many` of 64, CartPole", "send_many", "20 bytes per sample, 64 per call, 1 worker"),
    Headline("`send`, Atari", "send", "28 KB per sample, 1 worker", "memcpy"),
    Headline("`TcpClient.send`, CartPole, 8 clients", "TcpClient.send", "20 bytes per sample, 8 clients over TCP"),
)


@dataclass(frozen=True)
class Row:
    """A headline with its figures: samples/s of every repetition. ``limit`` is empty where the headline names none."""

    headline: Headline
    ours: list[float]
    id_echo: list[float]
    limit: list[float]

    @property
    def ratio(self) -> float:
        """The median of the repetitions' ratios to id-echo."""
        return _ratio(self.ours, self.id_echo)


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def load(path: Path = RESULTS) -> Any:
    """The results of a run."""
    return json.loads(path.read_text(encoding="utf-8"))


def digest(results: Any) -> str:
    """What tells the run that is drawn from others; the plot carries it. Figures of other machines are not in it."""
    drawn = {key: value for key, value in results.items() if key != "elsewhere"}
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]


def rows(results: Any) -> list[Row]:
    """The headlines' figures."""
    found = {(figure["path"], figure["peer"]): figure for figure in results["figures"]}
    made = []
    for headline in HEADLINES:
        figure = found[headline.path, "id-echo"]
        limit = found[headline.path, headline.limit]["theirs"] if headline.limit else []
        made.append(Row(headline, figure["ours"], figure["theirs"], limit))
    return made


def where(results: Any) -> str:
    """The date and the machine, in one line."""
    machine = results["machine"]
    kind = "virtual machine, " if machine["virtual"] == "yes" else ""
    return (
        f"{results['date']}, {kind}{machine['cores']} cores of {machine['CPU']}, {machine['kernel']}, "
        f"Python {machine['Python']}, numpy {machine['numpy']}, id-echo {machine['id-echo']}"
    )


def rounded(value: float) -> str:
    """Three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def readme(results: Any) -> str:
    """The block of README.md: the plot, the four rows, and where they were measured."""
    made = rows(results)
    lines = [
        f"![The four rows below, drawn on a logarithmic scale]({PLOT.parent.name}/{PLOT.name})",
        "",
        "| | echo_shm, samples/s | id-echo, samples/s | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for row in made:
        ours, theirs = (rounded(statistics.median(values)) for values in (row.ours, row.id_echo))
        times = f"{float(f'{row.ratio:.2g}'):g}{_TIMES}"
        lines.append(f"| `{row.headline.call}`: {row.headline.what} | {ours} | {theirs} | {times} |")
    limits = [
        f"`{row.headline.call}` of {row.headline.what.partition(' a')[0]} reaches "
        f"{_ratio(row.ours, row.limit):.0%} of the speed of a plain `{row.headline.limit}` loop."
        for row in made
        if row.limit
    ]
    repetitions = results["scale"]["repetitions"]
    return "\n".join([*lines, "", *limits, f"Medians of {repetitions} repetitions. Measured {where(results)}."])


def full(results: Any) -> str:
    """The block of bench/README.md: every figure. Those of another machine have a table of their own."""
    tables = []
    for run in (results, *results.get("elsewhere", ())):
        table = markdown([Figure.from_dict(figure) for figure in run["figures"]])
        tables.append(f"`{run['command']}`: {where(run)}.\n\n{table}")
    return "\n\n".join(tables)


#: The files, and what makes the block in each.
BLOCKS = {_HERE.parent / "README.md": readme, _HERE / "README.md": full}


def block(text: str) -> str:
    """What stands between the marks."""
    return text.split(BEGIN)[1].split(END)[0].strip("\n")


def replaced(text: str, new: str) -> str:
    """The text with another block."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> None:
    """The command."""
    results = load()
    for path, make in BLOCKS.items():
        path.write_text(replaced(path.read_text(encoding="utf-8"), make(results)), encoding="utf-8")
        print(f"{path.relative_to(_HERE.parent)}:\n\n{make(results)}\n")


if __name__ == "__main__":
    main()
