"""Figures over time as bars."""

import math
import re

from echo_shm.cli import console
from echo_shm.cli.sparklines import SPAN, History, Lines


def _history(*values: float, top: float | None = None) -> History:
    made = History(top)
    for time, value in enumerate(values):
        made.add(float(time), value)
    return made


def test_each_value_has_a_bar_as_long_as_there_is_room() -> None:
    """The lowest bar is nothing, the full one is the greatest value, and anything above nothing is seen."""
    assert _history(0, 1, 50, 100).line(10) == "▁▂▅█"
    assert _history(0, 0).line(10) == "▁▁"
    assert _history().line(10) == ""


def test_a_bar_is_the_mean_of_its_values_once_there_are_too_many() -> None:
    """The values are shared out evenly, in their order."""
    assert _history(0, 100, 50, 50, 100, 100).line(3) == "▅▅█"
    assert len(_history(*range(100)).line(34)) == 34


def test_the_full_bar_can_be_given() -> None:
    """It does not depend on what is shown then; what is above it, or below 0, is cut off."""
    assert _history(50, 200, -1, top=100).line(10) == "▅█▁"


def test_a_space_where_nothing_is_known() -> None:
    """Not a number counts as no value: in a bar with others, and in the greatest value."""
    assert _history(math.nan, 2, 2).line(3) == " ██"
    assert _history(math.nan, 2, 2, 2).line(2) == "██"
    assert _history(math.nan, 2).highest == 2
    assert _history(math.nan).highest == 0


def test_what_is_too_old_is_forgotten() -> None:
    """A value leaves the line, and its greatest value, after five minutes."""
    history = _history(9, 1)
    history.add(SPAN + 1, 1)
    assert (history.line(9), history.highest, history.span) == ("██", 1, SPAN)


def test_a_line_says_how_much_and_since_when() -> None:
    """Beside the bars are the greatest value and the time from the first to the last."""
    lines = Lines()
    assert not len(lines)
    for time, value in ((0.0, 1.25), (120.0, 12_345.0)):
        lines.add("samples/s", time, value)
        lines.add("age", time, value / 10_000)
    terminal = console.open_console()
    with terminal.capture() as captured:
        terminal.print(lines.table())
    first, second = captured.get().splitlines()
    assert re.fullmatch(r"samples/s  ▂█  at most 12,345 in 2 min *", first)
    assert re.fullmatch(r"age +▂█  at most 1.2 in 2 min *", second)
