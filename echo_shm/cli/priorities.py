"""Histograms of the priorities of a replay's tables, and of what was drawn from them."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_shm.cli.replay_figures import Reading
from echo_shm.errors import EchoShmError
from echo_shm.replay.peeking import Peek, Records
from echo_shm.ring.metrics import RingView

#: At most so many records of a table are looked at.
_MOST = 4096

#: Tables with a histogram.
_MOST_TABLES = 16

#: A look lasts for so long (seconds).
_LASTS = 1.0

#: Bars of a histogram. They are equally wide on a logarithmic scale.
_BARS = 40

#: What is below the greatest priority by such a factor counts as the least one.
_SPAN = 1e-9

#: Where a batch that a replay has drawn has its priorities, among the leaves. See ``replay.batch.COLUMNS``.
_PRIORITY = -5

_Values = npt.NDArray[np.float64]


class Priorities:
    """Looks at one replay's priorities, at most once a second."""

    def __init__(self) -> None:
        self._looked = -_LASTS
        self._found: dict[str, Any] = {}

    def look(self, reading: Reading) -> dict[str, Any]:
        """What JSON can hold: why tables cannot be looked at, or None; and a histogram of each table that goes by them.

        Those of the tables' items are a sample, and a few of them may be wrong: items come and go meanwhile.
        """
        if time.monotonic() - self._looked >= _LASTS:
            self._found = _look(reading)
            self._looked = time.monotonic()
        return self._found


def _look(reading: Reading) -> dict[str, Any]:
    seen, peeks, why = reading.seen, dict[str, Peek](), None
    if seen.goes_on:
        try:
            records = Records(seen.name, seen.directory)
            names = [table for table, matters in records.by_priority.items() if matters][:_MOST_TABLES]
            peeks = {table: records.priorities(table, _MOST) for table in names}
        except EchoShmError as error:
            why = str(error)
    else:
        why = "Its steps are in the memory of its own process, where no other one can look."
    drawn = _drawn(reading)
    names = list(peeks) if why is None else list(drawn)
    nothing = np.zeros(0)
    return {"why": why, "tables": {name: _histogram(peeks.get(name), drawn.get(name, nothing)) for name in names}}


def _drawn(reading: Reading) -> dict[str, _Values]:
    """By table the priorities of what was drawn last for learners in other processes."""
    names, found = list(reading.seen.tables), dict[str, list[_Values]]()
    for ring in reading.seen.rings:
        one = reading.batches.get(ring.name[len(reading.seen.name) :])
        if one is not None and ring.segment is not None and one.table < len(names):
            view = RingView(ring.segment)
            column = view.column(_PRIORITY)[: view.snapshot().samples_inserted]
            if column.dtype == np.float64:
                column = column[:_MOST].copy()
                found.setdefault(names[one.table], []).append(column[np.isfinite(column) & (column >= 0)])
    return {name: np.concatenate(columns) for name, columns in found.items()}


def _histogram(peek: Peek | None, drawn: _Values) -> dict[str, Any]:
    """How many priorities are in each bar, of items and of draws. Zeros, which have no logarithm, are apart."""
    items = np.zeros(0) if peek is None else peek.priorities
    edges = _edges(np.concatenate([items, drawn]))
    return {
        "edges": edges.tolist(),
        "looked": 0 if peek is None else peek.looked,
        "items": _counts(items, edges),
        "drawn": _counts(drawn, edges),
    }


def _edges(values: _Values) -> _Values:
    values = values[values > 0]
    if not len(values):
        return np.zeros(0)
    most = float(values.max())
    least = max(float(values.min()), most * _SPAN)
    if least * 1.01 > most:  # one priority, in the middle
        least, most = least / 2, min(most, np.finfo(np.float64).max / 2) * 2
    return np.geomspace(max(least, np.finfo(np.float64).tiny), most, _BARS + 1)


def _counts(values: _Values, edges: _Values) -> dict[str, Any]:
    positive = values[values > 0]
    bars = np.histogram(np.clip(positive, edges[0], edges[-1]), edges)[0].tolist() if len(edges) else []
    median = float(np.median(values)) if len(values) else None
    return {"of": len(values), "zeros": int(np.count_nonzero(values == 0)), "bars": bars, "median": median}
