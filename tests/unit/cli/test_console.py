"""How the command line formats figures."""

import pytest

from echo_shm.cli import console


@pytest.mark.parametrize(
    ("octets", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (99_400, "99.4 KB"), (207e6, "207 MB"), (1.5e15, "1500 TB")],
)
def test_sizes(octets: float, text: str) -> None:
    """Sizes have three figures and a unit."""
    assert console.size(octets) == text


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (7200, "2 h"), (3e5, "3 d")])
def test_durations(seconds: float, text: str) -> None:
    """Durations are in their largest whole unit; a clock set back makes none negative."""
    assert console.duration(seconds) == text


@pytest.mark.parametrize(("part", "full"), [(-1, 0), (0, 0), (5, 17), (10, 34), (11, 34)])
def test_bars(part: float, full: int) -> None:
    """A bar is as full as its figure, never fuller than full, and always as wide."""
    bar = console.bar(part, 10)
    assert (bar.count("█"), bar.count("░")) == (full, 34 - full)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (99_999, "99,999"), (99_999.6, "100 k"), (1_234_567, "1.2 M"), (-2e5, "-200 k"), (float("inf"), "inf")],
)
def test_amounts(number: float, text: str) -> None:
    """Amounts up to five figures are exact, and larger ones have three figures and a letter."""
    assert console.amount(number) == text
